/**
 * One stream of frames: credit, receipts, attachments.
 *
 * A frame is sent only with credit; without it the frame is dropped at capture and never queued.
 * Every frame that was sent is settled exactly once: sent = results + dropped + errors + cancelled
 * + in flight, also across a reconnect, which settles what was under way as `disconnected`.
 *
 * Events (CustomEvent, read `detail`): `opened`, `credit`, `hint`, `result`, `drop`, `error`,
 * `closed`. A `hint` {maxFps, maxWidth, quality} is for whoever captures and encodes the pictures.
 */

import { NO_HINT, readHint } from "./hints.js";
import { MAX_SEQ, MessageType, ProtocolError, splitBinary } from "./protocol.js";
import { ServedStream } from "./stream.js";

const MAX_ATTACHMENTS = 4;
// Bytes that the browser may hold unsent before frames are dropped at capture: they would only age.
const MAX_BUFFERED_BYTES = 256 * 1024;

export class FrameStream extends ServedStream {
  #link;
  #nextSeq = 0;
  #sentHere = { frames: 0, bytes: 0 }; // since `open`, as credit counts
  #credit = { maxFrames: 0, maxBytes: 0 };
  #inFlight = new Map(); // seq -> capture time in ms
  #totals = { sent: 0, results: 0, errors: 0, cancelled: 0 };
  #drops = {};
  #skipped = {};
  #attachments = [];

  /** `link` is the socket's side, see ServedStream. */
  constructor(link, { model, policy, deadlineMs, annotate, maxFps, pace }) {
    const options = { policy, deadline_ms: deadlineMs, annotate, max_fps: maxFps, pace };
    super(link, { kind: "frames", model, options });
    this.#link = link;
  }

  get inFlight() {
    return this.#inFlight.size;
  }

  /** Whether a frame of typical size would leave now. */
  get canSend() {
    return this.refusal() === null;
  }

  /** Why a frame of `size` bytes may not leave now, or null. */
  refusal(size = 0) {
    const refusal = this._refusal();
    if (refusal !== null) return refusal;
    if (size > this.#link.limits.max_frame_bytes) return "too_large";
    if (this.#link.bufferedBytes > MAX_BUFFERED_BYTES) return "network";
    // One frame is always allowed when none is in flight.
    if (this.#inFlight.size === 0) return null;
    const { frames, bytes } = this.#sentHere;
    const fits = frames < this.#credit.maxFrames && bytes + size <= this.#credit.maxBytes;
    return fits ? null : "no_credit";
  }

  /** Counts since the stream was created; `receiptsAddUp` is the promise of this class. */
  statistics() {
    const dropped = Object.values(this.#drops).reduce((sum, count) => sum + count, 0);
    const { sent, results, errors, cancelled } = this.#totals;
    return {
      ...this.#totals,
      dropped,
      drops: { ...this.#drops },
      droppedAtCapture: { ...this.#skipped },
      inFlight: this.inFlight,
      receiptsAddUp: sent === results + dropped + errors + cancelled + this.inFlight,
    };
  }

  /**
   * Sends one encoded picture (Uint8Array or ArrayBuffer), captured at `tCapture` ms on the
   * client's clock. Returns its seq, or null when it was dropped at capture.
   */
  sendFrame(picture, tCapture) {
    const payload = picture instanceof Uint8Array ? picture : new Uint8Array(picture);
    const refusal = this.refusal(payload.length);
    if (refusal !== null) {
      this.skip(refusal);
      return null;
    }
    const seq = this.#takeSeq();
    const header = {
      type: MessageType.FRAME, stream: this.id, seq, tUs: Math.round(tCapture * 1000),
    };
    for (const piece of splitBinary(header, null, payload)) this.#link.send(piece);
    this.#sentHere.frames += 1;
    this.#sentHere.bytes += payload.length;
    this.#totals.sent += 1;
    this.#inFlight.set(seq, tCapture);
    return seq;
  }

  /** Counts a frame that was given up before it was sent. */
  skip(reason) {
    this.#skipped[reason] = (this.#skipped[reason] ?? 0) + 1;
  }

  // --- called by the client that owns the stream ------------------------------------------------

  /** A whole binary message of this stream. */
  attach(message) {
    if (message.type === MessageType.FRAME) throw new ProtocolError("a frame from the server");
    this.#attachments = this.#attachments.filter((earlier) => earlier.seq === message.seq);
    if (this.#attachments.length >= MAX_ATTACHMENTS) throw new ProtocolError("too many attachments");
    this.#attachments.push(message);
  }

  // --- inside -----------------------------------------------------------------------------------

  _restart() {
    this.#sentHere = { frames: 0, bytes: 0 };
    this.#credit = { maxFrames: 0, maxBytes: 0 };
    this.#attachments = [];
    this._emit("hint", NO_HINT); // nobody has asked for anything yet
  }

  _settleAll() {
    const seqs = [...this.#inFlight.keys()];
    this.#inFlight.clear();
    this.#countDrops("disconnected", seqs);
  }

  _receive(message) {
    switch (message.type) {
      case "opened":
        this.#grant(message.credit);
        break;
      case "credit":
        this.#grant(message);
        break;
      case "hint":
        this._emit("hint", readHint(message));
        break;
      case "result":
        this.#onResult(message);
        break;
      case "drop":
        this.#onDrop(message);
        break;
      case "error":
        this.#onError(message);
        break;
      default: // unknown types are ignored, as the protocol asks
    }
  }

  #takeSeq() {
    if (this.#nextSeq > MAX_SEQ) throw new RangeError("the stream has used every seq");
    return this.#nextSeq++;
  }

  #grant({ max_frames: maxFrames, max_bytes: maxBytes }) {
    // Limits only grow: an old grant that arrives late changes nothing.
    this.#credit.maxFrames = Math.max(this.#credit.maxFrames, maxFrames);
    this.#credit.maxBytes = Math.max(this.#credit.maxBytes, maxBytes);
    this._emit("credit", { ...this.#credit, canSend: this.canSend });
  }

  #onResult(message) {
    const { seq, data, model, version, timing } = message;
    const annotated = this.#attachments.find(
      (part) => part.seq === seq && part.type === MessageType.ANNOTATED_FRAME,
    );
    this.#attachments = [];
    const tCapture = this.#settle(seq);
    if (tCapture === null) return;
    this.#totals.results += 1;
    this._emit("result", {
      seq,
      tCapture,
      latencyMs: this.#link.now() - tCapture,
      data,
      model,
      version,
      timing,
      annotated: annotated?.payload ?? null,
    });
  }

  #onDrop({ reason, from, to }) {
    const seqs = [...this.#inFlight.keys()].filter((seq) => seq >= from && seq <= to);
    for (const seq of seqs) this.#settle(seq);
    this.#countDrops(reason, seqs);
  }

  #onError({ seq, problem, retryable }) {
    if (seq !== undefined && this.#settle(seq) !== null) this.#totals.errors += 1;
    this._emit("error", { problem, retryable, seq: seq ?? null });
  }

  /** The capture time of a frame that was in flight and now is not, or null. */
  #settle(seq) {
    const tCapture = this.#inFlight.get(seq);
    if (tCapture === undefined) return null;
    this.#inFlight.delete(seq);
    this._acknowledge(seq);
    return tCapture;
  }

  #countDrops(reason, seqs) {
    if (seqs.length === 0) return;
    if (reason === "cancelled") this.#totals.cancelled += seqs.length;
    else this.#drops[reason] = (this.#drops[reason] ?? 0) + seqs.length;
    this._emit("drop", { reason, seqs });
  }
}
