/** The Delivery tab's elements: shows what it is told, decides nothing. */

import { Chart } from "./chart.js";
import { percent } from "./overlay.js";
import { showReasons } from "./view.js";

const TOKENS_SHOWN = 120;
const RESULTS_SHOWN = 180;
const PREVIEW_CHARS = 600; // more than its box shows
const PACING_LINES = {
  steady: "Text leaves evenly: a small reserve hides the engine's pauses, and each gap is announced before it begins.",
  off: "Text leaves as it comes: what the engine does is what you see.",
};
const NETWORK_STATES = {
  closed: "not needed yet", connecting: "connecting", open: "connected", waiting: "lost, coming back",
};
const RUN_STATES = {
  running: "of the running stream", reconnecting: "the connection is lost, coming back",
};
const NO_ANSWER = "Ask something to see its tokens here";
const NO_TIMING = "Nothing told by the gateway yet";
const NO_RUN = "Start a stream in the Video tab";
const NO_GAPS = { medianMs: null, stdMs: null, longestMs: null, stalls: null };
const NO_SERIES = { engine: [], delivered: [], arrived: [], pace: [], held: [], reserve: [] };

const byId = (id) => document.getElementById(id);
const shown = (value, digits = 0) => (value === null ? "–" : value.toFixed(digits));
const milliseconds = (value, digits = 0) => (value === null ? "–" : `${value.toFixed(digits)} ms`);
const set = (id, text) => {
  byId(id).textContent = text;
};

export class DeliveryView {
  pacing = byId("pacing");
  #charts = {
    gaps: tokenChart("chart-gaps", "ms", 40, [
      { kind: "bars", colour: "--engine" },
      { kind: "thin", colour: "--plot-2" },
      { kind: "dashed", colour: "--pace" },
      { kind: "line", colour: "--plot-1" },
    ], NO_ANSWER),
    reserve: tokenChart("chart-reserve", "", 6, [{ kind: "area", colour: "--plot-1" }], NO_TIMING),
    held: tokenChart("chart-held", "ms", 100, [{ kind: "area", colour: "--pace" }], NO_TIMING),
    age: resultChart("chart-age", { kind: "area", colour: "--plot-1" }, 100),
    results: resultChart("chart-results", { kind: "bars", colour: "--plot-1" }, 50),
  };

  showPacing(pace, { canAsk, isFirst }) {
    set("pacing-line", PACING_LINES[pace]);
    byId("repeat").disabled = !canAsk;
    set("repeat", isFirst ? "Ask" : "Ask again");
  }

  /** `delivery` is AnswerDelivery's snapshot, or null without an answer; `ttftMs` until its text. */
  showAnswer(delivery, { ttftMs = null, text = "", model = "", isOver = false } = {}) {
    const isKnown = delivery !== null;
    set("answer-state", isKnown ? `${isOver ? "answered" : "being answered"} by ${model}` : "of the newest answer");
    set("preview", text.slice(-PREVIEW_CHARS));
    const { engine, delivered, arrived, pace, held, reserve } = delivery?.series ?? NO_SERIES;
    this.#charts.gaps.show(engine, arrived, pace, delivered);
    this.#charts.reserve.show(reserve);
    this.#charts.held.show(held);
    const paceMs = delivery?.paceMs ?? null;
    set("pace-rate", paceMs === null ? (isKnown ? "off" : "–") : shown(1000 / paceMs, 1));
    set("pace-within", isKnown && delivery.withinShare !== null ? percent(delivery.withinShare) : "–");
    showGaps("engine", delivery?.engine ?? NO_GAPS);
    showGaps("delivered", delivery?.delivered ?? NO_GAPS);
    showGaps("arrived", delivery?.arrived ?? NO_GAPS);
    showTime(ttftMs, delivery);
    set("network-jitter", milliseconds(delivery?.jitterMs ?? null, 1));
  }

  /** `run` is VideoTab's `delivery`. */
  showFrames(run) {
    set("run-state", RUN_STATES[run.state] ?? (run.isLive ? "a stream begins" : "no stream runs"));
    this.#charts.age.show(run.series.age);
    this.#charts.results.show(run.series.gap);
    const isEmpty = run.series.age.length === 0;
    set("age-p50", milliseconds(run.ageP50));
    set("age-p95", milliseconds(run.ageP95));
    set("frame-jitter", milliseconds(run.jitterMs, 1));
    const { count, totalMs } = run.freezes;
    set("freezes", isEmpty ? "–" : count === 0 ? "none" : `${count}, ${(totalMs / 1000).toFixed(1)} s`);
    set("playout", run.isPlayout ? milliseconds(run.heldMs) : "off");
    set("hints", isEmpty ? "–" : hintText(run));
    showReasons(byId("delivery-reasons"), run.losses);
  }

  /** `level` is the service level's name, "" while nobody has told it. */
  showNetwork({ level, state, rttMs, numBreaks }) {
    byId("service-level").dataset.level = level;
    set("service-level", level === "" ? "–" : level.replaceAll("_", " "));
    set("network-state", NETWORK_STATES[state]);
    set("network-rtt", milliseconds(rttMs, 1));
    set("network-breaks", String(numBreaks));
  }
}

function tokenChart(id, unit, minimumMax, series, emptyText) {
  return new Chart(byId(id), { unit, points: TOKENS_SHOWN, minimumMax, series, emptyText });
}

function resultChart(id, series, minimumMax) {
  const options = { unit: "ms", points: RESULTS_SHOWN, minimumMax, series: [series], emptyText: NO_RUN };
  return new Chart(byId(id), options);
}

function showGaps(side, { medianMs, stdMs, longestMs, stalls }) {
  set(`${side}-median`, shown(medianMs, 1));
  set(`${side}-std`, shown(stdMs, 1));
  set(`${side}-longest`, shown(longestMs));
  set(`${side}-stalls`, shown(stalls));
}

/** Pacing delay beside the engine's time, so that nobody takes delay for speed. */
function showTime(ttftMs, delivery) {
  const parts = { first: ttftMs, engine: delivery?.engineMs ?? null, held: delivery?.heldMs ?? null };
  for (const bar of byId("answer-phases").children) bar.style.flexGrow = parts[bar.dataset.part] ?? 0;
  for (const [part, ms] of Object.entries(parts)) set(`answer-${part}`, milliseconds(ms));
  set("answer-held-most", milliseconds(delivery?.longestHeldMs ?? null));
  set("answer-reserve", shown(delivery?.reserve ?? null));
}

function hintText({ numHints, hint: { maxFps, maxWidth, quality } }) {
  const asked = [];
  if (maxFps !== null) asked.push(`${maxFps.toFixed(1)} fps`);
  if (maxWidth !== null) asked.push(`${maxWidth} px`);
  if (quality !== null) asked.push(`quality ${quality.toFixed(2)}`);
  const now = asked.length === 0 ? "" : `: ${asked.join(", ")}`;
  return numHints === 0 ? "none" : `${numHints}${now}`;
}
