/** The Chat tab's elements: shows what it is told, decides nothing. Text is only ever text. */

import { Announcer } from "./announcer.js";
import { FINISHES } from "./chat_state.js";
import { AnswerState } from "./conversation.js";
import { Plot } from "./plots.js";

const GAPS_SHOWN = 120;
const NEAR_END_PX = 60; // this close to the end the log follows the text
const LIMIT_HINT = "This chat is full. Start a new one.";

const byId = (id) => document.getElementById(id);
const whole = (value) => (value === null ? "–" : String(Math.round(value)));
const milliseconds = (value) => (value === null ? "–" : `${value.toFixed(1)} ms`);

export class ChatView {
  announcer = new Announcer(byId("panel-chat"));
  #form = byId("composer");
  #question = byId("question");
  #log = byId("log");
  #plot = new Plot(byId("gaps-plot"), { kind: "bars", points: GAPS_SHOWN, minimumMax: 20 });
  #turns = new Map(); // exchange -> Turn, of the conversation that is shown
  #shown = null; // that conversation
  #chatsKey = "";
  #notice = "";
  #isFollowing = true; // the log shows the newest text until the user scrolls up
  #handlers;

  /** What the user does: onAsk(text) -> taken?, onStop, onAgain, onNew, onSelect, onClose, onKey. */
  bind(handlers) {
    this.#handlers = handlers;
    this.#form.addEventListener("submit", (event) => this.#onSubmit(event));
    this.#form.addEventListener("input", () => this.#onInput());
    this.#question.addEventListener("keydown", (event) => this.#onKey(event));
    this.#log.addEventListener("scroll", () => (this.#isFollowing = this.#isNearEnd()));
    new ResizeObserver(() => this.#follow()).observe(this.#log);
    byId("new-chat").addEventListener("click", () => handlers.onNew());
    for (const button of byId("ideas").querySelectorAll("button")) {
      button.addEventListener("click", () => handlers.onAsk(button.textContent));
    }
    const keyForm = byId("chat-key-form");
    keyForm.addEventListener("submit", (event) => {
      event.preventDefault();
      handlers.onKey(keyForm.elements.key.value);
      keyForm.reset();
    });
    this.#onInput();
  }

  /** What the user chose for the next question. */
  get settings() {
    const { model, system, temperature, maxTokens } = this.#form.elements;
    return {
      model: model.value,
      system: system.value,
      sampling: {
        temperature: Number(temperature.value),
        max_tokens: Math.max(1, Math.round(Number(maxTokens.value)) || 1),
      },
    };
  }

  showModels(models) {
    const select = this.#form.elements.model;
    const chosen = select.value;
    select.replaceChildren(...models.map(modelOption));
    const usable = models.filter(({ ready }) => ready).map(({ id }) => id);
    if (usable.includes(chosen)) select.value = chosen;
    else if (usable.length > 0) select.value = usable[0];
    select.disabled = models.length === 0;
  }

  /** The list of chats; rebuilt only when something in it changed. */
  showChats(chats, active, { isFull }) {
    byId("new-chat").disabled = isFull;
    const entries = chats.map(({ id, title, isAnswering }) => ({
      id, title, isAnswering, isActive: id === active.id, canClose: chats.length > 1,
    }));
    const key = JSON.stringify(entries);
    if (key === this.#chatsKey) return;
    this.#chatsKey = key;
    const { activeElement: focused } = document;
    const chat = focused?.closest("#chat-list [data-chat]")?.dataset.chat;
    byId("chat-list").replaceChildren(...entries.map((entry) => this.#chatItem(entry)));
    if (chat === undefined) return; // else the focus stays where it was, on the new elements
    byId("chat-list").querySelector(`[data-chat="${chat}"] .${focused.className}`)?.focus();
  }

  /** The messages of a chat, or a card with `notice` in their place. */
  showConversation(conversation, { notice, isLocked, isReady }) {
    if (conversation !== this.#shown) this.#clear(conversation);
    this.#dropWithdrawn(conversation);
    for (const exchange of conversation.exchanges) {
      const turn = this.#turns.get(exchange) ?? this.#addTurn(exchange);
      turn.show(exchange, { canAskAgain: exchange === conversation.latest && isReady });
    }
    this.#showNotice(notice, { isLocked, isReady });
    this.#follow();
  }

  /** Goes to the newest text and stays there until the user scrolls up. */
  followAnswer() {
    this.#isFollowing = true;
    this.#follow();
  }

  showComposer({ canAsk, isAnswering, isStopping, isFull }) {
    const send = byId("send");
    send.textContent = isAnswering ? "Stop" : "Send";
    send.classList.toggle("is-active", isAnswering);
    send.disabled = isAnswering ? isStopping : !canAsk;
    byId("question-hint").textContent = isFull ? LIMIT_HINT : "";
    for (const button of byId("ideas").children) button.disabled = !canAsk;
  }

  showNumbers(exchange, rttMs) {
    const numbers = exchange?.statistics.snapshot() ?? null;
    const rate = numbers?.tokensPerSecond ?? null;
    byId("rate").textContent = rate === null ? "–" : rate.toFixed(1);
    byId("ttft").textContent = whole(numbers?.ttftMs ?? null);
    byId("gap-p50").textContent = whole(numbers?.p50 ?? null);
    byId("gap-p95").textContent = whole(numbers?.p95 ?? null);
    byId("prompt-tokens").textContent = whole(numbers?.promptTokens ?? null);
    byId("cached-tokens").textContent = whole(numbers?.cachedTokens ?? null);
    byId("answer-tokens").textContent = whole(numbers?.tokens ?? null);
    byId("chat-rtt").textContent = milliseconds(rttMs);
    this.#plot.show(numbers?.gaps ?? []);
  }

  /** A slim message above the question; an empty one hides it. */
  showBanner(text) {
    const banner = byId("chat-banner");
    if (banner.hidden && text !== "") this.announcer.say(text, { isUrgent: true });
    banner.textContent = text;
    banner.hidden = text === "";
  }

  focusQuestion() {
    this.#question.focus();
  }

  // --- inside -----------------------------------------------------------------------------------

  #chatItem({ id, title, isAnswering, isActive, canClose }) {
    const item = element("li", { className: "chat-item" });
    item.dataset.chat = id;
    const open = element("button", { type: "button", className: "chat-open" });
    if (isActive) open.setAttribute("aria-current", "true");
    open.append(element("span", { className: "chat-title", textContent: title }));
    if (isAnswering) {
      open.append(element("span", { className: "dot is-live" }));
      open.append(element("span", { className: "visually-hidden", textContent: "answering" }));
    }
    open.addEventListener("click", () => this.#handlers.onSelect(id));
    item.append(open);
    if (canClose) {
      const close = element("button", { type: "button", className: "chat-close", textContent: "×" });
      close.setAttribute("aria-label", `Close ${title}`);
      close.addEventListener("click", () => this.#handlers.onClose(id));
      item.append(close);
    }
    return item;
  }

  #clear(conversation) {
    this.#shown = conversation;
    this.#isFollowing = true; // the scroll position was that of another chat
    this.#turns.clear();
    byId("turns").replaceChildren();
  }

  #dropWithdrawn({ exchanges }) {
    const kept = new Set(exchanges);
    for (const [exchange, turn] of this.#turns) {
      if (kept.has(exchange)) continue;
      turn.remove();
      this.#turns.delete(exchange);
    }
  }

  #addTurn(exchange) {
    const turn = new Turn(exchange, () => this.#handlers.onAgain());
    this.#turns.set(exchange, turn);
    byId("turns").append(...turn.items);
    return turn;
  }

  #showNotice(notice, { isLocked, isReady }) {
    byId("chat-notice").hidden = notice === null;
    const keyForm = byId("chat-key-form");
    const wasHidden = keyForm.hidden;
    keyForm.hidden = !isLocked;
    if (isLocked && wasHidden && !byId("panel-chat").hidden) keyForm.elements.key.focus();
    byId("ideas").hidden = !isReady;
    if (notice === null) return;
    byId("chat-notice-title").textContent = notice.title;
    byId("chat-notice-text").textContent = notice.text;
    if (notice.title === this.#notice) return;
    this.#notice = notice.title;
    this.announcer.say(`${notice.title}. ${notice.text}`, { isUrgent: true });
  }

  #follow() {
    if (this.#isFollowing) this.#log.scrollTop = this.#log.scrollHeight;
  }

  #isNearEnd() {
    const { scrollTop, scrollHeight, clientHeight } = this.#log;
    return scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
  }

  #onSubmit(event) {
    event.preventDefault();
    if (byId("send").classList.contains("is-active")) {
      this.#handlers.onStop();
    } else if (this.#handlers.onAsk(this.#question.value)) {
      this.#question.value = "";
      this.#onInput();
    }
  }

  /** Enter sends, Shift+Enter makes a line; while an input method composes, Enter is its own. */
  #onKey(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!byId("send").classList.contains("is-active")) this.#form.requestSubmit();
  }

  #onInput() {
    const { temperature } = this.#form.elements;
    byId("temperature-value").value = Number(temperature.value).toFixed(1);
    this.#question.style.height = "auto";
    this.#question.style.height = `${this.#question.scrollHeight + 2}px`; // the border's two
  }
}

/** The two items of one exchange. Text is appended, never set again: long answers stay cheap. */
class Turn {
  #text = document.createTextNode("");
  #shownChars = 0;
  #answer;
  #note = element("p", { className: "note" });
  #again = element("button", { type: "button", className: "quiet again", textContent: "Ask again" });

  constructor({ question, model }, onAgain) {
    const asked = element("li", { className: "turn asked" });
    asked.append(
      element("span", { className: "visually-hidden", textContent: "You: " }),
      element("p", { className: "bubble", textContent: question }),
    );
    this.#answer = element("li", { className: "turn answer" });
    const paragraph = element("p", { className: "text" });
    paragraph.append(this.#text, element("span", { className: "caret" }));
    this.#answer.append(
      element("span", { className: "visually-hidden", textContent: `${model}: ` }),
      paragraph, this.#note, this.#again,
    );
    this.#again.addEventListener("click", onAgain);
    this.items = [asked, this.#answer];
  }

  show(exchange, { canAskAgain }) {
    if (exchange.text.length > this.#shownChars) {
      this.#text.appendData(exchange.text.slice(this.#shownChars));
      this.#shownChars = exchange.text.length;
    }
    this.#again.hidden = exchange.state !== AnswerState.FAILED || !canAskAgain;
    if (this.#answer.dataset.state === exchange.state) return;
    this.#answer.dataset.state = exchange.state;
    this.#note.textContent = noteOf(exchange);
  }

  remove() {
    for (const item of this.items) item.remove();
  }
}

function noteOf(exchange) {
  if (exchange.state === AnswerState.FAILED) return exchange.problem;
  if (!exchange.isOver) return "";
  const { tokens, tokensPerSecond } = exchange.statistics.snapshot();
  const parts = [exchange.model, `${tokens} ${tokens === 1 ? "token" : "tokens"}`];
  if (tokensPerSecond !== null) parts.push(`${tokensPerSecond.toFixed(1)} per second`);
  const finish = FINISHES[exchange.finishReason];
  if (finish !== undefined) parts.push(finish);
  return parts.join(" · ");
}

function modelOption({ id, ready }) {
  const option = new Option(ready ? id : `${id} (warming up)`, id);
  option.disabled = !ready;
  return option;
}

function element(name, properties) {
  return Object.assign(document.createElement(name), properties);
}
