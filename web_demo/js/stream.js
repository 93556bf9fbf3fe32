/**
 * What every stream has in common: opening and reopening, acknowledging, ending.
 *
 * A stream outlives its connection. After a break one that can be recovered waits, and goes on under
 * its id if the server still has what it missed. Any other is opened again under a new id, as if
 * nothing had been sent yet: what was under way is settled by the subclass, exactly once.
 *
 * Events (CustomEvent, read `detail`): `opened`, `error` {problem, retryable, …}, `closed`.
 */

const ACK_MESSAGES = 8;
const REOPEN_MS = 1_000; // when the server gives no time

export class ServedStream extends EventTarget {
  #link;
  #request; // the `open` message without its id
  #id = null;
  #state = "waiting"; // waiting (for connection or server) | opening | open | ending | closed
  #openAt = 0; // not before this, while waiting
  #unacked = 0;
  #ackSeq = null;
  #renderedSeq = null;
  #toldRenderedSeq = null;
  #isStopped = false; // it is not only ending: nothing of it is wanted any more

  /**
   * `link` is the socket's side: {isOpen, isDraining, bufferedBytes, limits, now, send}. Options
   * that are undefined or null stay off the wire.
   */
  constructor(link, { kind, model, options }) {
    super();
    this.#link = link;
    this.#request = { type: "open", model, kind, options: withoutUnset(options) };
  }

  get id() {
    return this.#id;
  }

  get state() {
    return this.#state;
  }

  /** Tells the server, with the next ack, what the user really saw. */
  rendered(seq) {
    if (this.#renderedSeq === null || seq > this.#renderedSeq) this.#renderedSeq = seq;
  }

  /** No more input: what is accepted is finished, then `closed`. */
  end() {
    if (this.#state !== "open") return;
    this.#state = "ending";
    this._send({ type: "end" });
  }

  /** Stops now; the server answers with `closed`. */
  close() {
    if (this.#state === "closed") return;
    if (this.#link.isOpen && this.#id !== null) {
      this._send({ type: "close" });
      this.#state = "ending";
      this.#isStopped = true;
    } else {
      this.fail({ reason: "closed before it was open" });
    }
  }

  // --- called by the client that owns the stream ------------------------------------------------

  /** Whether the server should be asked (again) to open the stream. */
  wantsOpening(now) {
    return this.#state === "waiting" && now >= this.#openAt;
  }

  /** Opens the stream under `id`. */
  begin(id) {
    this.#id = id;
    this.#state = "opening";
    this.#unacked = 0;
    this.#ackSeq = this.#renderedSeq = this.#toldRenderedSeq = null;
    this._restart();
    this._send(this.#request);
  }

  /** Where the server should go on after a break: the newest event's seq, or null for nowhere. */
  get lastSeq() {
    return null;
  }

  /** The connection broke, and the stream may be recovered on the next one. */
  suspend() {
    this.#unacked = 0;
  }

  /** The stream goes on, on another connection; the server has received `numReceived` prompts. */
  resume(numReceived) {
    if (this.#state === "opening") {
      this.#state = "open";
      this._emit("opened", { stream: this.#id });
    }
    this._resend(numReceived);
    if (this.#state === "ending") this._send({ type: this.#isStopped ? "close" : "end" });
  }

  /** The connection broke: what was under way will not be answered any more. */
  disconnected() {
    this._settleAll();
    this.#id = null;
    if (this.#state === "ending") this.fail({ reason: "the connection broke" });
    else if (this.#state !== "closed") this.#state = "waiting";
  }

  /** The stream is over without the server's `closed`. */
  fail(detail) {
    if (this.#state === "closed") return;
    this._settleAll();
    this.#state = "closed";
    this._emit("closed", detail);
  }

  /** A control message of this stream. */
  handle(message) {
    switch (message.type) {
      case "opened":
        if (this.#state === "opening") this.#state = "open";
        this._receive(message);
        this._emit("opened", { stream: this.#id });
        break;
      case "error":
        if (this.#state === "opening" && isAboutStream(message)) this.#onRefused(message);
        else this._receive(message);
        break;
      case "closed":
        this.flushAck(); // or the server would keep the last events for a while
        this.fail(message);
        break;
      default:
        this._receive(message);
    }
  }

  /** Sends an ack when one is due; the client calls this every 250 ms. */
  flushAck() {
    if (this.#ackSeq === null || this.#id === null || !this.#link.isOpen) return;
    // What arrived last may be drawn only after it was acknowledged.
    if (this.#unacked === 0 && this.#renderedSeq === this.#toldRenderedSeq) return;
    this.#unacked = 0;
    this.#toldRenderedSeq = this.#renderedSeq;
    const rendered = this.#renderedSeq === null ? {} : { rendered_seq: this.#renderedSeq };
    this._send({ type: "ack", seq: this.#ackSeq, ...rendered });
  }

  // --- for subclasses ---------------------------------------------------------------------------

  /** Hook: nothing has been sent yet under the new id. */
  _restart() {}

  /** Hook: send again what has not arrived. */
  _resend(_numReceived) {}

  /** Hook: settle what is under way as disconnected. */
  _settleAll() {}

  /** Hook: any message but refusals and `closed`. Unknown types are ignored. */
  _receive(_message) {}

  /** Why nothing may be sent now, whatever it is, or null. */
  _refusal() {
    if (this.#state !== "open" || !this.#link.isOpen) return "not_connected";
    return this.#link.isDraining ? "draining" : null;
  }

  _send(message) {
    this.#link.send({ ...message, stream: this.#id });
  }

  /** Counts a message that the server wants acknowledged. */
  _acknowledge(seq) {
    this.#ackSeq = Math.max(this.#ackSeq ?? 0, seq);
    this.#unacked += 1;
    if (this.#unacked >= ACK_MESSAGES) this.flushAck();
  }

  _emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
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
    this._emit("error", { problem, retryable });
  }
}

function isAboutStream({ seq, id }) {
  return seq === undefined && id === undefined;
}

function withoutUnset(options) {
  return Object.fromEntries(
    Object.entries(options).filter(([, value]) => value !== undefined && value !== null),
  );
}
