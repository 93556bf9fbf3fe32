/** The Delivery tab: looks at what the other two tabs receive, and switches the pacing of text. */

import { DeliveryView } from "./delivery_view.js";
import { CHIPS } from "./page_state.js";

const TICK_MS = 100;
const CALM_TICK_MS = 1_000; // for people who asked for less motion
const OPENING = "Explain in ten sentences how a river becomes a sea.";

export class DeliveryTab {
  #tabs;
  #watch;
  #chat;
  #video;
  #view = new DeliveryView();
  #level = ""; // the gateway's service level, once a connection has heard it

  /** `chat` and `video` have `delivery`; see there. */
  constructor({ tabs, watch, chat, video }) {
    this.#tabs = tabs;
    this.#watch = watch;
    this.#chat = chat;
    this.#video = video;
  }

  begin() {
    const { pacing } = this.#view;
    pacing.addEventListener("change", () => this.#onPace());
    pacing.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#chat.repeat(OPENING);
    });
    this.#watch.addEventListener("news", ({ detail: { kind, level } }) => {
      if (kind === "service_level") this.#level = level;
    });
    const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    setInterval(() => this.#draw(), isCalm ? CALM_TICK_MS : TICK_MS);
    this.#onPace(); // a browser may restore the choice of the last visit
  }

  #onPace() {
    this.#chat.pace = this.#view.pacing.elements.pace.value;
  }

  #draw() {
    if (this.#tabs.selected !== "delivery") return;
    const { exchange, network, canAsk } = this.#chat.delivery;
    const run = this.#video.delivery;
    const isAnswering = exchange !== null && !exchange.isOver;
    this.#tabs.showState("delivery", { ...chipOf({ isAnswering, run }), isLive: false });
    this.#view.showPacing(this.#chat.pace, { canAsk, isFirst: exchange === null });
    this.#view.showAnswer(exchange?.delivery?.snapshot() ?? null, answerOf(exchange));
    this.#view.showFrames(run);
    const isLost = run.state === "reconnecting" || network.state === "waiting";
    this.#view.showNetwork({
      ...network, level: isLost ? "" : this.#level, rttMs: network.rttMs ?? run.rttMs,
    });
  }
}

function chipOf({ isAnswering, run }) {
  if (isAnswering) return { state: "answering", text: "Answering" };
  return run.isLive ? { state: run.state, text: CHIPS[run.state] } : { state: "idle", text: "Quiet" };
}

function answerOf(exchange) {
  if (exchange === null) return {};
  const { text, model, isOver, statistics } = exchange;
  return { text, model, isOver, ttftMs: statistics.snapshot().ttftMs };
}
