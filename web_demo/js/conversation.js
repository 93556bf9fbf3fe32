/**
 * Chats and what was said in them. Pure: no DOM, no socket, `now` is an argument.
 *
 * Bounds: MAX_CHATS chats with MAX_EXCHANGES questions each; a full one asks for a new one. What
 * is sent to the model is cut at the front until it fits into one control message.
 */

import { AnswerDelivery } from "./answer_delivery.js";
import { AnswerStatistics } from "./answer_statistics.js";

export const MAX_CHATS = 20;
export const MAX_EXCHANGES = 200;
export const MAX_PROMPT_BYTES = 60 * 1024; // below a control message's limit, with room for the rest
const TITLE_CHARS = 36;
const UNTITLED = "Empty chat";

/** States of an answer; the last three are final. */
export const AnswerState = Object.freeze({
  WAITING: "waiting", // no token yet
  STREAMING: "streaming",
  DONE: "done",
  STOPPED: "stopped",
  FAILED: "failed",
});
const FINAL = new Set([AnswerState.DONE, AnswerState.STOPPED, AnswerState.FAILED]);

/** One question with its answer, as far as it has come. */
export class Exchange {
  text = "";
  state = AnswerState.WAITING;
  finishReason = "";
  problem = ""; // in words, when it failed
  isStopping = false; // the user has asked for it, the end has not come
  delivery = new AnswerDelivery(); // null once another question was asked: it is large

  constructor({ question, model, now }) {
    this.question = question;
    this.model = model;
    this.statistics = new AnswerStatistics(now);
  }

  get isOver() {
    return FINAL.has(this.state);
  }

  /** The prompt has really left; what came before was connecting. */
  sent(now) {
    this.statistics.sent(now);
  }

  /** `told` is what came with the text: {numTokens, pace, timing}. */
  token(now, text, told = {}) {
    if (this.isOver) return;
    this.state = AnswerState.STREAMING;
    this.text += text;
    this.statistics.token(now, told.numTokens);
    this.delivery.token(now, told);
  }

  end(now, finishReason, usage) {
    if (this.isOver) return;
    const wasStopped = finishReason === "cancelled";
    this.state = wasStopped ? AnswerState.STOPPED : AnswerState.DONE;
    this.finishReason = finishReason;
    this.statistics.end(now, usage);
  }

  /** An error after the user's stop is what the stop wanted. */
  fail(now, problem) {
    if (this.isStopping) {
      this.end(now, "cancelled", null);
      return;
    }
    if (this.isOver) return;
    this.state = AnswerState.FAILED;
    this.problem = problem;
    this.statistics.end(now, null);
  }
}

/** One chat. */
export class Conversation {
  exchanges = [];

  constructor(id) {
    this.id = id;
  }

  get title() {
    const first = this.exchanges[0]?.question.replace(/\s+/g, " ").trim();
    if (!first) return UNTITLED;
    return first.length > TITLE_CHARS ? `${first.slice(0, TITLE_CHARS - 1).trimEnd()}…` : first;
  }

  get latest() {
    return this.exchanges.at(-1) ?? null;
  }

  get isAnswering() {
    return this.latest !== null && !this.latest.isOver;
  }

  get isFull() {
    return this.exchanges.length >= MAX_EXCHANGES;
  }

  /** A new question, to be answered. */
  ask(question, model, now) {
    if (this.isAnswering || this.isFull) throw new Error("this chat takes no question now");
    if (this.latest !== null) this.latest.delivery = null;
    const exchange = new Exchange({ question, model, now });
    this.exchanges.push(exchange);
    return exchange;
  }

  /** Takes the last question out, so that it can be asked again. */
  withdrawLatest() {
    return this.exchanges.pop();
  }

  /**
   * The messages of a prompt: the system text if there is one, and as many of the newest exchanges
   * as fit into `maxBytes` of JSON. Exchanges without an answer are left out, but not the last.
   */
  messages(system, maxBytes = MAX_PROMPT_BYTES) {
    const opening = system.trim() === "" ? [] : [{ role: "system", content: system }];
    const said = this.exchanges.filter((item) => item === this.latest || item.text !== "");
    let turns = said.map((item) => turnsOf(item, item === this.latest));
    while (turns.length > 1 && sizeBytes([...opening, ...turns.flat()]) > maxBytes) {
      turns = turns.slice(1);
    }
    return [...opening, ...turns.flat()];
  }
}

/** The chats of a page; there is always one, and one is active. */
export class Conversations {
  #items = [];
  #nextId = 1;
  active;

  constructor() {
    this.active = this.#add();
  }

  get items() {
    return [...this.#items];
  }

  get isFull() {
    return this.#items.length >= MAX_CHATS;
  }

  get numAnswering() {
    return this.#items.filter(({ isAnswering }) => isAnswering).length;
  }

  /** A new chat, which becomes the active one; one that is empty already serves as well. */
  start() {
    const empty = this.#items.find(({ exchanges }) => exchanges.length === 0);
    if (empty === undefined && this.isFull) throw new Error("too many chats");
    this.active = empty ?? this.#add();
    return this.active;
  }

  select(id) {
    this.active = this.#items.find((item) => item.id === id) ?? this.active;
  }

  /** Removes a chat; its neighbour becomes active, or a new one when it was the last. */
  close(id) {
    const index = this.#items.findIndex((item) => item.id === id);
    if (index === -1) return;
    const [closed] = this.#items.splice(index, 1);
    if (closed !== this.active) return;
    this.active = this.#items[Math.min(index, this.#items.length - 1)] ?? this.#add();
  }

  #add() {
    const conversation = new Conversation(this.#nextId++);
    this.#items.push(conversation);
    return conversation;
  }
}

function turnsOf({ question, text }, isLatest) {
  const asked = { role: "user", content: question };
  return isLatest ? [asked] : [asked, { role: "assistant", content: text }];
}

function sizeBytes(value) {
  return new TextEncoder().encode(JSON.stringify(value)).length;
}
