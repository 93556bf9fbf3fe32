/**
 * One stream of prompts: each is answered by text, piece by piece, then by exactly one end or error.
 *
 *     const stream = await client.openPrompts({ model: "smollm2-135m" });
 *     stream.addEventListener("token", ({ detail }) => show(detail.id, detail.text));
 *     const id = stream.send({ messages: [{ role: "user", content: "Hello" }] });
 *
 * Prompts run in parallel, at most `limits.max_prompts` at once. After a break the answers go on
 * where they were, without a hole or a repeat; what cannot be recovered is settled as an error of
 * type DISCONNECTED. Nothing is asked a second time.
 *
 * Events (CustomEvent, read `detail`): `opened`, `token` {id, seq, text, numTokens, pace, timing} with
 * null for what was not told, `end` {id, seq, finishReason, usage, version} (both null for
 * a cancelled prompt), `error` {id, seq, problem, retryable} with id null when it is about the stream, `closed`.
 */

import { MAX_TEXT_BYTES, ProtocolError } from "./protocol.js";
import { ServedStream } from "./stream.js";

export const DISCONNECTED = "urn:clawstream:problem:disconnected";

export class PromptStream extends ServedStream {
  #link;
  #inFlight = new Map(); // id -> {message, number, isCancelled}, to be sent again if need be
  #numSent = 0; // under the present id
  #lastSeq = -1;
  #nextId = 1;
  #totals = { sent: 0, ended: 0, errors: 0 };

  /**
   * `link` is the socket's side, see ServedStream. `pace` is that of prompts that do not say: steady
   * or off. With `timing` the tokens say where their time went: {engineUs, heldUs, reserve}.
   */
  constructor(link, { model, priority, weight, pace, timing }) {
    super(link, { kind: "tokens", model, options: { priority, weight, pace, timing } });
    this.#link = link;
  }

  get inFlight() {
    return this.#inFlight.size;
  }

  /** Why a prompt may not leave now, or null: not_connected, draining, too_many. */
  refusal() {
    const refusal = this._refusal();
    if (refusal !== null) return refusal;
    return this.inFlight < this.#link.limits.max_prompts ? null : "too_many";
  }

  /** Counts since the stream was created; `receiptsAddUp` is the promise of this class. */
  statistics() {
    const { sent, ended, errors } = this.#totals;
    const inFlight = this.inFlight;
    return { ...this.#totals, inFlight, receiptsAddUp: sent === ended + errors + inFlight };
  }

  /**
   * Asks for an answer: {messages | prompt, sampling?, priority?, pace?, deadlineMs?}. Returns the
   * prompt's id, or null when it may not leave now (see refusal()).
   *
   * Throws RangeError when the prompt is larger than one control message.
   */
  send({ messages, prompt, sampling, priority, pace, deadlineMs }) {
    if (this.refusal() !== null) return null;
    const id = `p${this.#nextId}`;
    const content = { messages, prompt, sampling, priority, pace, deadline_ms: deadlineMs };
    const message = { type: "prompt", id, ...content };
    if (sizeBytes({ ...message, stream: this.id }) > MAX_TEXT_BYTES) {
      throw new RangeError(`a prompt has at most ${MAX_TEXT_BYTES} bytes`);
    }
    this._send(message);
    this.#nextId += 1;
    this.#numSent += 1;
    this.#totals.sent += 1;
    this.#inFlight.set(id, { message, number: this.#numSent, isCancelled: false });
    return id;
  }

  /** Stops one answer; what came is kept, and its end (or error) still follows. */
  cancel(id) {
    const prompt = this.#inFlight.get(id);
    if (prompt === undefined) return;
    prompt.isCancelled = true;
    if (this.#link.isOpen) this._send({ type: "cancel", id });
  }

  get lastSeq() {
    return this.#lastSeq;
  }

  /** Called by the client: prompts are answered without binary messages. */
  attach() {
    throw new ProtocolError("a binary message on a stream of tokens");
  }

  // --- inside -----------------------------------------------------------------------------------

  _restart() {
    this.#numSent = 0;
    this.#lastSeq = -1;
  }

  _resend(numReceived) {
    for (const [id, { message, number, isCancelled }] of this.#inFlight) {
      if (number > numReceived) this._send(message);
      if (isCancelled) this._send({ type: "cancel", id });
    }
  }

  _settleAll() {
    const ids = [...this.#inFlight.keys()];
    this.#inFlight.clear();
    this.#totals.errors += ids.length;
    const problem = { type: DISCONNECTED, title: "The connection was lost" };
    for (const id of ids) this._emit("error", { id, seq: null, problem, retryable: true });
  }

  _receive(message) {
    if (Number.isSafeInteger(message.seq)) {
      if (message.seq <= this.#lastSeq) return; // it has come before
      if (message.seq > this.#lastSeq + 1) throw new ProtocolError(`event ${message.seq} too early`);
      this.#lastSeq = message.seq;
      // Late news of a settled prompt is not told, but it is acknowledged like all others.
      this._acknowledge(message.seq);
    }
    switch (message.type) {
      case "token":
        this.#onToken(message);
        break;
      case "end":
        this.#onEnd(message);
        break;
      case "error":
        this.#onError(message);
        break;
      default: // credit means nothing here; unknown types are ignored, as the protocol asks
    }
  }

  #onToken({ id, seq, text, count: numTokens = 1, pace = null, timing }) {
    if (!this.#inFlight.has(id)) return;
    this._emit("token", { id, seq, text, numTokens, pace, timing: readTiming(timing) });
  }

  #onEnd({ id, seq, finish_reason: finishReason, usage = null, version = null }) {
    if (!this.#inFlight.delete(id)) return;
    this.#totals.ended += 1;
    this._emit("end", { id, seq, finishReason, usage, version });
  }

  #onError({ id, seq, problem, retryable }) {
    if (id !== undefined) {
      if (!this.#inFlight.delete(id)) return;
      this.#totals.errors += 1;
    }
    this._emit("error", { id: id ?? null, seq: seq ?? null, problem, retryable });
  }
}

function readTiming(timing) {
  if (timing === undefined) return null;
  const { engine_us: engineUs, held_us: heldUs, reserve } = timing;
  return { engineUs, heldUs, reserve };
}

/** Bytes of a control message on the wire. */
function sizeBytes(message) {
  return new TextEncoder().encode(JSON.stringify(message)).length;
}
