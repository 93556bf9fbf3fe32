/**
 * The questions of all chats on one connection: one stream of prompts per model, opened when it is
 * first needed. Every question gets exactly one onEnd or onError.
 */

import { ClawstreamClient } from "./client.js";
import { REFUSALS } from "./chat_state.js";

const CLOSED = { title: "The connection was closed" };

/** One question on its way; `listener` is {onSent(), onToken(detail), onEnd(reason, usage), onError(problem)}. */
class Question {
  #listener;
  #stream = null;
  #id = null;
  isOver = false;

  constructor(listener) {
    this.#listener = listener;
  }

  /** Sends it; returns its id, or null when it was refused or cancelled before. */
  sendOn(stream, content) {
    if (this.isOver) return null;
    try {
      this.#id = stream.send(content);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      this.fail({ title: REFUSALS.too_large });
      return null;
    }
    if (this.#id === null) {
      this.fail({ title: REFUSALS[stream.refusal()] });
      return null;
    }
    this.#stream = stream;
    this.#listener.onSent();
    return this.#id;
  }

  /** Stops it; its end follows, at once if it has not left yet. */
  cancel() {
    if (this.#stream === null) this.end("cancelled", null);
    else this.#stream.cancel(this.#id);
  }

  /** `detail` is {text, pace, timing}. */
  token(detail) {
    this.#listener.onToken(detail);
  }

  end(finishReason, usage) {
    if (this.isOver) return;
    this.isOver = true;
    this.#listener.onEnd(finishReason, usage);
  }

  fail(problem) {
    if (this.isOver) return;
    this.isOver = true;
    this.#listener.onError(problem);
  }
}

export class ChatConnection {
  #client = new ClawstreamClient();
  #streams = new Map(); // model -> {opening, stream, questions: id -> Question, lastSeq}
  #url;
  #numBreaks = 0;

  constructor(url, { onState, onNews }) {
    this.#url = url;
    this.#client.addEventListener("state", ({ detail }) => {
      if (detail.state === "waiting") this.#numBreaks += 1;
      onState(detail);
    });
    this.#client.addEventListener("news", ({ detail }) => onNews(detail));
  }

  /** The way to the gateway: {state, rttMs of the quickest recent ping or null, numBreaks}. */
  get network() {
    const rttMs = this.#client.clock?.rttMs ?? null;
    return { state: this.#client.state, rttMs, numBreaks: this.#numBreaks };
  }

  /** Asks `model`: `content` is what PromptStream.send takes. Returns {cancel()}. */
  ask(model, content, listener, { key }) {
    const question = new Question(listener);
    this.#send(question, model, content, key);
    return question;
  }

  /** Everything that came is on the screen: the next acks say so. */
  rendered() {
    for (const { stream, lastSeq } of this.#streams.values()) {
      if (lastSeq !== null) stream.rendered(lastSeq);
    }
  }

  close() {
    this.#client.close();
  }

  async #send(question, model, content, key) {
    try {
      const { stream, questions } = await this.#entryOf(model, key);
      const id = question.sendOn(stream, content);
      if (id !== null) questions.set(id, question);
    } catch (error) {
      question.fail(error.problem ?? { title: error.message || CLOSED.title });
    }
  }

  /** The entry of a model, once its stream is open. */
  async #entryOf(model, key) {
    if (this.#client.state === "closed") {
      const connecting = this.#client.connect(this.#url, { token: key });
      connecting.catch(() => {}); // the state tells it
    }
    let entry = this.#streams.get(model);
    if (entry === undefined) {
      entry = { opening: null, stream: null, questions: new Map(), lastSeq: null };
      this.#streams.set(model, entry);
      entry.opening = this.#open(model, entry);
    }
    await entry.opening;
    return entry;
  }

  async #open(model, entry) {
    try {
      entry.stream = await this.#client.openPrompts({ model, timing: true });
    } catch (error) {
      this.#streams.delete(model);
      throw error;
    }
    this.#watch(model, entry);
  }

  #watch(model, entry) {
    const { stream, questions } = entry;
    const on = (name, act) => stream.addEventListener(name, ({ detail }) => act(detail));
    const take = (id) => {
      const question = questions.get(id);
      questions.delete(id);
      return question;
    };
    on("opened", () => (entry.lastSeq = null));
    on("token", (detail) => {
      entry.lastSeq = detail.seq;
      questions.get(detail.id)?.token(detail);
    });
    on("end", ({ id, finishReason, usage }) => take(id)?.end(finishReason, usage));
    on("error", ({ id, problem }) => take(id)?.fail(problem));
    on("closed", () => this.#streams.delete(model));
  }
}
