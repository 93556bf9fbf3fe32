/** The Chat tab: joins chats, connection and elements; chat_state.js says what may follow what. */

import { ChatConnection } from "./chat_connection.js";
import {
  CHAT_CHIPS, CHAT_NOTICES, CHAT_TRANSITIONS, chatReconnectText,
} from "./chat_state.js";
import { ChatView } from "./chat_view.js";
import { streamUrl } from "./client.js";
import { Conversations } from "./conversation.js";
import { isChatModel } from "./gateway_watch.js";
import { nextState } from "./page_state.js";
import { SpokenText } from "./spoken_text.js";

const TICK_MS = 500;
const CODE_AUTH = 4501;

export class ChatTab {
  #tabs;
  #watch;
  #chats = new Conversations();
  #view = new ChatView();
  #connection = new ChatConnection(streamUrl(location), {
    onState: (detail) => this.#onConnection(detail),
    onNews: (detail) => this.#watch.tellNews(detail),
  });
  #asked = new Map(); // exchange under way -> its question, to be cancelled
  #state = "loading";
  #notice = CHAT_NOTICES.loading;
  #retryAt = 0;
  #isScheduled = false;
  pace = "steady"; // of the questions to come: steady, or off

  /** `watch` tells which models there are; `tabs` shows what this tab is doing. */
  constructor({ tabs, watch }) {
    this.#tabs = tabs;
    this.#watch = watch;
  }

  begin() {
    this.#view.bind({
      onAsk: (text) => this.#ask(text),
      onStop: () => this.#stop(),
      onAgain: () => this.#askAgain(),
      onNew: () => this.#startChat(),
      onSelect: (id) => this.#select(id),
      onClose: (id) => this.#close(id),
      onKey: (key) => this.#watch.useKey(key),
    });
    document.addEventListener("keydown", (event) => this.#onKey(event));
    addEventListener("pagehide", () => this.#connection.close());
    setInterval(() => this.#onTick(), TICK_MS);
    const on = (name, act) => this.#watch.addEventListener(name, ({ detail }) => act(detail));
    on("models", (detail) => this.#onModels(detail));
    on("unauthorized", (detail) => this.#onUnauthorized(detail));
    on("unreachable", () => this.#move("unreachable"));
    on("key", () => this.#move("key_given"));
    this.#schedule();
  }

  // --- states -----------------------------------------------------------------------------------

  #move(event, notice) {
    const next = nextState(CHAT_TRANSITIONS, this.#state, event);
    if (next === null) return false;
    this.#state = next;
    this.#notice = notice ?? CHAT_NOTICES[next] ?? CHAT_NOTICES.ready;
    const isLive = this.#chats.numAnswering > 0;
    this.#tabs.showState("chat", { state: next, text: CHAT_CHIPS[next], isLive });
    if (next !== "reconnecting") this.#view.showBanner("");
    this.#schedule();
    return true;
  }

  #onModels({ models: served, reason }) {
    const models = served.filter(isChatModel);
    this.#view.showModels(models);
    if (models.some(({ ready }) => ready)) {
      this.#move("ready");
    } else if (models.length === 0) {
      this.#move("absent");
    } else {
      const why = models[0].reason || reason;
      const { title, text } = CHAT_NOTICES.warming;
      const notice = { title, text: why ? `${text} (${why})` : text };
      if (!this.#move("not_ready", notice) && this.#state === "warming") this.#notice = notice;
      this.#schedule();
    }
  }

  #onUnauthorized({ wasGiven }) {
    this.#move("unauthorized", wasGiven ? CHAT_NOTICES.wrong_key : undefined);
  }

  #onConnection({ state, code, retryInMs }) {
    if (state === "waiting") {
      this.#retryAt = performance.now() + retryInMs;
      this.#move("lost");
    } else if (state === "open") {
      this.#move("connected");
      if (this.#chats.numAnswering > 0) this.#move("asked");
    } else if (state === "closed" && code === CODE_AUTH) {
      this.#onUnauthorized({ wasGiven: this.#watch.key !== null });
    } else if (state === "closed") {
      this.#move("ended");
    }
  }

  // --- for the Delivery tab -----------------------------------------------------------------------

  /** {exchange, network, canAsk}: the newest question of this chat, or null, and how it travels. */
  get delivery() {
    const { latest } = this.#chats.active;
    return { exchange: latest, network: this.#connection.network, canAsk: this.#canAsk };
  }

  /** Asks the newest question of this chat once more, or `opening` in an empty one. */
  repeat(opening) {
    if (this.#chats.active.latest === null) this.#ask(opening);
    else this.#askAgain();
  }

  // --- questions --------------------------------------------------------------------------------

  get #canAsk() {
    const { isAnswering, isFull } = this.#chats.active;
    const isUp = this.#state === "ready" || this.#state === "answering";
    return isUp && !isAnswering && !isFull;
  }

  /** Returns whether the question was taken. */
  #ask(text) {
    if (!this.#canAsk || text.trim() === "") return false;
    const conversation = this.#chats.active;
    const { model, system, sampling } = this.#view.settings;
    const exchange = conversation.ask(text, model, performance.now());
    const content = { messages: conversation.messages(system), sampling, pace: this.pace };
    this.#move("asked");
    const listener = this.#listenerFor(conversation, exchange);
    const { key } = this.#watch;
    this.#asked.set(exchange, this.#connection.ask(model, content, listener, { key }));
    this.#view.followAnswer();
    this.#schedule();
    return true;
  }

  #listenerFor(conversation, exchange) {
    const spoken = new SpokenText();
    const isShown = () => conversation === this.#chats.active;
    const over = () => {
      this.#asked.delete(exchange);
      if (this.#chats.numAnswering === 0) this.#move("settled");
      if (isShown()) this.#say(spoken.finish(performance.now()));
      else if (!exchange.isStopping) this.#say(`${conversation.title}: answered`);
      this.#schedule();
    };
    return {
      onSent: () => exchange.sent(performance.now()),
      onToken: ({ text, ...told }) => {
        exchange.token(performance.now(), text, told);
        if (isShown()) this.#say(spoken.push(text, performance.now()));
        this.#schedule();
      },
      onEnd: (finishReason, usage) => {
        exchange.end(performance.now(), finishReason, usage);
        over();
      },
      onError: (problem) => {
        exchange.fail(performance.now(), problemText(problem));
        if (isShown() && exchange.problem !== "") this.#say(exchange.problem);
        over();
      },
    };
  }

  #stop() {
    const { latest } = this.#chats.active;
    const question = this.#asked.get(latest);
    if (question === undefined || latest.isStopping) return;
    latest.isStopping = true;
    question.cancel();
    this.#schedule();
  }

  #askAgain() {
    if (!this.#canAsk) return;
    const { question } = this.#chats.active.withdrawLatest();
    this.#ask(question);
  }

  #startChat() {
    this.#chats.start();
    this.#view.focusQuestion();
    this.#schedule();
  }

  #select(id) {
    this.#chats.select(id);
    this.#schedule();
  }

  /** A chat that is closed while it is answered stops being answered. */
  #close(id) {
    const { latest } = this.#chats.items.find((item) => item.id === id);
    if (latest !== null) {
      latest.isStopping = true;
      this.#asked.get(latest)?.cancel();
    }
    this.#chats.close(id);
    this.#view.focusQuestion();
    this.#schedule();
  }

  // --- what is shown ----------------------------------------------------------------------------

  /** Draws once per animation frame, however many tokens came. */
  #schedule() {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    requestAnimationFrame(() => {
      this.#isScheduled = false;
      this.#draw();
    });
  }

  #draw() {
    const { active, isFull } = this.#chats;
    const isReady = ["ready", "answering", "reconnecting"].includes(this.#state);
    this.#view.showChats(this.#chats.items, active, { isFull });
    this.#view.showConversation(active, {
      notice: isReady && active.exchanges.length > 0 ? null : this.#notice,
      isLocked: this.#state === "locked",
      isReady,
    });
    this.#view.showComposer({
      canAsk: this.#canAsk,
      isAnswering: active.isAnswering,
      isStopping: active.latest?.isStopping === true && active.isAnswering,
      isFull: active.isFull,
    });
    this.#view.showNumbers(active.latest, this.#connection.network.rttMs);
    this.#connection.rendered();
  }

  #say(text) {
    if (text !== null) this.#view.announcer.say(text, { isUrgent: true });
  }

  #onTick() {
    if (this.#state !== "reconnecting") return;
    const leftMs = Math.max(0, this.#retryAt - performance.now());
    this.#view.showBanner(chatReconnectText(Math.ceil(leftMs / 1000)));
  }

  #onKey(event) {
    if (this.#tabs.selected !== "chat" || event.key !== "Escape" || event.isComposing) return;
    this.#stop();
  }
}

function problemText({ title, detail }) {
  return `${title}${detail ? `: ${detail}` : ""}.`.replace(/\.\.$/, ".");
}
