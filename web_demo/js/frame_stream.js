/**
 * One stream of frames: credit, receipts, acknowledgements.
 *
 * A frame is sent only with credit; without it the frame is dropped at capture and never queued.
 * Every frame that was sent is settled exactly once: sent = results + dropped + errors + cancelled
 * + in flight, also across a reconnect, which settles what was under way as `disconnected`.
 *
 * Events (CustomEvent, read `detail`): `opened`, `credit`, `result`, `drop`, `error`, `hint`,
 * `closed`.
 */

import { MAX_SEQ, MessageType, ProtocolError, splitBinary } from "./protocol.js";

const ACK_MESSAGES = 8;
const MAX_ATTACHMENTS = 4;
// Bytes that the browser may hold unsent before frames are dropped at capture: they would only age.
const MAX_BUFFERED_BYTES = 256 * 1024;
const REOPEN_MS = 1_000; // when the server gives no time

export class FrameStream extends EventTarget {
  #link;
  #settings;
  #id = null;
  #state = "waiting"; // waiting (for connection or server) | opening | open | ending | closed
  #openAt = 0; // not before this, while waiting
  #nextSeq = 0;
  #sentHere = { frames: 0, bytes: 0 }; // since `open`, as credit counts
  #credit = { maxFrames: 0, maxBytes: 0 };
  #inFlight = new Map(); // seq -> capture time in ms
  #totals = { sent: 0, results: 0, errors: 0, cancelled: 0 };
  #drops = {};
  #skipped = {};
  #unacked = 0;
  #ackSeq = null;
  #renderedSeq = null;
  #attachments = [];

  /** `link` is the socket's side: {isOpen, isDraining, bufferedBytes, limits, now, send}. */
  constructor(link, { model, policy, deadlineMs, annotate, maxFps }) {
    super();
    this.#link = link;
    this.#settings = { model, policy, deadlineMs, annotate, maxFps };
  }

  get id() {
    return this.#id;
  }

  get state() {
    return this.#state;
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
    if (this.#state !== "open" || !this.#link.isOpen) return "not_connected";
    if (this.#link.isDraining) return "draining";
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
      type: MessageType.FRAME, stream: this.#id, seq, tUs: Math.round(tCapture * 1000),
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

  /** Tells the server, with the next ack, what the user really saw. */
  rendered(seq) {
    if (this.#renderedSeq === null || seq > this.#renderedSeq) this.#renderedSeq = seq;
  }

  /** No more input: what is accepted is finished, then `closed`. */
  end() {
    if (this.#state !== "open") return;
    this.#state = "ending";
    this.#link.send({ type: "end", stream: this.#id });
  }

  /** Stops now; the server answers with `closed`. */
  close() {
    if (this.#state === "closed") return;
    if (this.#link.isOpen && this.#id !== null) {
      this.#link.send({ type: "close", stream: this.#id });
      this.#state = "ending";
    } else {
      this.fail({ reason: "closed before it was open" });
    }
  }

  // --- called by the client that owns the stream ------------------------------------------------

  /** Whether the server should be asked (again) to open the stream. */
  wantsOpening(now) {
    return this.#state === "waiting" && now >= this.#openAt;
  }

  /** Opens the stream under `id`, as if nothing had been sent yet. */
  begin(id) {
    this.#id = id;
    this.#state = "opening";
    this.#sentHere = { frames: 0, bytes: 0 };
    this.#credit = { maxFrames: 0, maxBytes: 0 };
    this.#unacked = 0;
    this.#ackSeq = null;
    this.#attachments = [];
    const { model, policy, deadlineMs, annotate, maxFps } = this.#settings;
    const options = withoutUnset({
      policy, deadline_ms: deadlineMs, annotate, max_fps: maxFps,
    });
    this.#link.send({ type: "open", stream: id, model, kind: "frames", options });
  }

  /** The connection broke: what was under way will not be answered any more. */
  disconnected() {
    this.#settleAll("disconnected");
    this.#id = null;
    if (this.#state === "ending") this.fail({ reason: "the connection broke" });
    else if (this.#state !== "closed") this.#state = "waiting";
  }

  /** The stream is over without the server's `closed`. */
  fail(detail) {
    if (this.#state === "closed") return;
    this.#settleAll("disconnected");
    this.#state = "closed";
    this.#emit("closed", detail);
  }

  /** A whole binary message of this stream. */
  attach(message) {
    if (message.type === MessageType.FRAME) throw new ProtocolError("a frame from the server");
    this.#attachments = this.#attachments.filter((earlier) => earlier.seq === message.seq);
    if (this.#attachments.length >= MAX_ATTACHMENTS) throw new ProtocolError("too many attachments");
    this.#attachments.push(message);
  }

  /** A control message of this stream. */
  handle(message) {
    switch (message.type) {
      case "opened":
        if (this.#state === "opening") this.#state = "open";
        this.#grant(message.credit);
        this.#emit("opened", { stream: this.#id });
        break;
      case "credit":
        this.#grant(message);
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
      case "hint":
        this.#emit("hint", message);
        break;
      case "closed":
        this.fail(message);
        break;
      default: // unknown types are ignored, as the protocol asks
    }
  }

  /** Sends an ack when one is due; the client calls this every 250 ms. */
  flushAck() {
    if (this.#unacked === 0 || this.#ackSeq === null || !this.#link.isOpen) return;
    if (this.#id === null) return;
    this.#unacked = 0;
    const rendered = this.#renderedSeq === null ? {} : { rendered_seq: this.#renderedSeq };
    this.#link.send({ type: "ack", stream: this.#id, seq: this.#ackSeq, ...rendered });
  }

  // --- inside -----------------------------------------------------------------------------------

  #takeSeq() {
    if (this.#nextSeq > MAX_SEQ) throw new RangeError("the stream has used every seq");
    return this.#nextSeq++;
  }

  #grant({ max_frames: maxFrames, max_bytes: maxBytes }) {
    // Limits only grow: an old grant that arrives late changes nothing.
    this.#credit.maxFrames = Math.max(this.#credit.maxFrames, maxFrames);
    this.#credit.maxBytes = Math.max(this.#credit.maxBytes, maxBytes);
    this.#emit("credit", { ...this.#credit, canSend: this.canSend });
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
    this.#emit("result", {
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

  #onError(message) {
    const { seq, problem, retryable } = message;
    if (this.#state === "opening" && seq === undefined) {
      this.#onRefused(message);
      return;
    }
    if (seq !== undefined && this.#settle(seq) !== null) this.#totals.errors += 1;
    this.#emit("error", { problem, retryable, seq: seq ?? null });
  }

  /** A model that warms up is asked again; other refusals are final. */
  #onRefused({ problem, retryable, retry_after_ms: retryAfterMs }) {
    if (!retryable) {
      this.fail({ problem });
      return;
    }
    this.#id = null;
    this.#state = "waiting";
    this.#openAt = this.#link.now() + (retryAfterMs ?? REOPEN_MS);
    this.#emit("error", { problem, retryable, seq: null });
  }

  /** The capture time of a frame that was in flight and now is not, or null. */
  #settle(seq) {
    const tCapture = this.#inFlight.get(seq);
    if (tCapture === undefined) return null;
    this.#inFlight.delete(seq);
    this.#ackSeq = Math.max(this.#ackSeq ?? 0, seq);
    this.#unacked += 1;
    if (this.#unacked >= ACK_MESSAGES) this.flushAck();
    return tCapture;
  }

  #settleAll(reason) {
    const seqs = [...this.#inFlight.keys()];
    this.#inFlight.clear();
    this.#countDrops(reason, seqs);
  }

  #countDrops(reason, seqs) {
    if (seqs.length === 0) return;
    if (reason === "cancelled") this.#totals.cancelled += seqs.length;
    else this.#drops[reason] = (this.#drops[reason] ?? 0) + seqs.length;
    this.#emit("drop", { reason, seqs });
  }

  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

function withoutUnset(options) {
  return Object.fromEntries(
    Object.entries(options).filter(([, value]) => value !== undefined && value !== null),
  );
}
