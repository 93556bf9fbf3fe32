/**
 * One stream of prompts: each is answered by text, piece by piece, then by exactly one end or error.
 *
 *     const stream = await client.openPrompts({ model: "smollm2-135m" });
 *     stream.addEventListener("token", ({ detail }) => show(detail.id, detail.text));
 *     const id = stream.send({ messages: [{ role: "user", content: "Hello" }] });
 *
 * Prompts run in parallel, at most `limits.max_prompts` at once. A break settles what was under way
 * as an error of type DISCONNECTED; nothing is asked a second time.
 *
 * Events (CustomEvent, read `detail`): `opened`, `token` {id, seq, text}, `end` {id, seq,
 * finishReason, usage}, `error` {id, seq, problem, retryable} with id null when it is about the
 * stream, `closed`.
 */

import { MAX_TEXT_BYTES, ProtocolError } from "./protocol.js";
import { ServedStream } from "./stream.js";

export const DISCONNECTED = "urn:clawstream:problem:disconnected";

export class PromptStream extends ServedStream {
  #link;
  #inFlight = new Set(); // ids
  #nextId = 1;
  #totals = { sent: 0, ended: 0, errors: 0 };

  /** `link` is the socket's side, see ServedStream. */
  constructor(link, { model, priority, weight }) {
    super(link, { kind: "tokens", model, options: { priority, weight } });
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
    this.#totals.sent += 1;
    this.#inFlight.add(id);
    return id;
  }

  /** Stops one answer; what came is kept, and its end (or error) still follows. */
  cancel(id) {
    if (this.#inFlight.has(id) && this.#link.isOpen) this._send({ type: "cancel", id });
  }

  /** Called by the client: prompts are answered without binary messages. */
  attach() {
    throw new ProtocolError("a binary message on a stream of tokens");
  }

  // --- inside -----------------------------------------------------------------------------------

  _settleAll() {
    const ids = [...this.#inFlight];
    this.#inFlight.clear();
    this.#totals.errors += ids.length;
    const problem = { type: DISCONNECTED, title: "The connection was lost" };
    for (const id of ids) this._emit("error", { id, seq: null, problem, retryable: true });
  }

  _receive(message) {
    // Late news of a settled prompt is not told, but it is acknowledged like all others.
    if (Number.isSafeInteger(message.seq)) this._acknowledge(message.seq);
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

  #onToken({ id, seq, text }) {
    if (this.#inFlight.has(id)) this._emit("token", { id, seq, text });
  }

  #onEnd({ id, seq, finish_reason: finishReason, usage }) {
    if (!this.#inFlight.delete(id)) return;
    this.#totals.ended += 1;
    this._emit("end", { id, seq, finishReason, usage: usage ?? null });
  }

  #onError({ id, seq, problem, retryable }) {
    if (id !== undefined) {
      if (!this.#inFlight.delete(id)) return;
      this.#totals.errors += 1;
    }
    this._emit("error", { id: id ?? null, seq: seq ?? null, problem, retryable });
  }
}

/** Bytes of a control message on the wire. */
function sizeBytes(message) {
  return new TextEncoder().encode(JSON.stringify(message)).length;
}
