/** The Video tab's elements: shows what it is told, decides nothing. */

import { Announcer } from "./announcer.js";
import { percent } from "./overlay.js";
import { Plot } from "./plots.js";

const KINDS = { faces: "faces", classify: "classes", detect: "objects" };
const REASONS = {
  no_credit: "gateway busy",
  encoder: "this device busy",
  network: "network busy",
  asked: "gateway asked for fewer",
  superseded: "newer frame came",
  deadline: "past the deadline",
  late: "too late to show",
  queue_full: "queue full",
  worker_lost: "worker lost",
  disconnected: "connection lost",
  too_large: "too large",
  shutdown: "gateway restarting",
};

const byId = (id) => document.getElementById(id);
const whole = (value) => (value === null ? "–" : String(Math.round(value)));

export class View {
  video = byId("video");
  picture = byId("picture");
  controls = byId("controls");
  keyForm = byId("key-form");
  #announcer = new Announcer(byId("panel-video"));
  #notice = "";
  #plots = {
    fps: new Plot(byId("fps-plot"), { minimumMax: 10 }),
    latency: new Plot(byId("latency-plot"), { series: 2, minimumMax: 50 }),
    skipped: new Plot(byId("skipped-plot"), { kind: "bars", minimumMax: 0.5 }),
  };

  /** What the user chose. */
  get settings() {
    const { source, model, policy, deadline, width, blur, pace } = this.controls.elements;
    const isLossless = policy.value === "lossless";
    return {
      source: source.value,
      options: {
        model: model.value,
        policy: policy.value,
        // A deadline drops frames, which lossless promises not to do.
        deadlineMs: isLossless ? undefined : Number(deadline.value),
        annotate: blur.checked ? "blur" : undefined,
        // Playout drops what comes too late, which lossless promises not to do either.
        pace: isLossless ? undefined : pace.value || undefined,
      },
      width: Number(width.value),
    };
  }

  showState(state, { isActive, canStart }) {
    const start = byId("start");
    start.textContent = isActive ? "Stop" : "Start";
    start.classList.toggle("is-active", isActive);
    start.disabled = !isActive && !canStart;
    this.keyForm.hidden = state !== "locked";
    if (state === "locked" && !byId("panel-video").hidden) byId("key").focus();
    byId("stage").classList.toggle("is-stale", state === "reconnecting" || state === "connecting");
  }

  /** The card on the stage; null hides it. Told once to people who do not see it. */
  showNotice(notice) {
    byId("notice").hidden = notice === null;
    if (notice === null) return;
    byId("notice-title").textContent = notice.title;
    byId("notice-text").textContent = notice.text;
    if (notice.title === this.#notice) return; // a countdown is not read out
    this.#notice = notice.title;
    this.#announcer.say(`${notice.title}. ${notice.text}`, { isUrgent: true });
  }

  /** The picture that is on the stage: none, the source itself, or frames with results. */
  showPicture(kind) {
    this.video.hidden = kind !== "source";
    this.picture.hidden = kind !== "results";
  }

  /** What is on the stage, in words; `found` is empty when nothing is. */
  describePicture(found, frameInfo) {
    byId("found").textContent = found;
    byId("frame-info").textContent = frameInfo;
    if (found === "") return;
    this.picture.setAttribute("aria-label", `Picture with results: ${found}`);
    this.#announcer.say(found);
  }

  /** A slim message under the stage; an empty one hides it. */
  showBanner(text) {
    const banner = byId("banner");
    if (banner.textContent === text) return;
    banner.textContent = text;
    banner.hidden = text === "";
    if (text !== "") this.#announcer.say(text, { isUrgent: true });
  }

  showModels(models) {
    const select = byId("model");
    const chosen = select.value;
    select.replaceChildren(...models.map(modelOption));
    const usable = models.filter(({ ready }) => ready).map(({ id }) => id);
    if (usable.includes(chosen)) select.value = chosen;
    else if (usable.length > 0) select.value = usable[0];
    select.disabled = models.length === 0;
  }

  showDeadline() {
    const { deadline, pace, policy } = this.controls.elements;
    deadline.disabled = pace.disabled = policy.value === "lossless";
    byId("deadline-value").value = deadline.disabled ? "none" : `${deadline.value} ms`;
  }

  showNumbers({ resultsPerSecond, p50, p95, skippedShare, losses, phases }) {
    byId("fps").textContent = resultsPerSecond.toFixed(1);
    byId("p50").textContent = whole(p50);
    byId("p95").textContent = whole(p95);
    byId("skipped").textContent = percent(skippedShare);
    this.#plots.fps.push(resultsPerSecond);
    this.#plots.latency.push(p50, p95);
    this.#plots.skipped.push(skippedShare);
    showReasons(byId("reasons"), losses);
    showPhases(phases);
  }

  showReceipts({ sent, results, inFlight, dropped, cancelled, errors, rttMs, receiptsAddUp }) {
    byId("sent").textContent = sent;
    byId("results").textContent = results;
    byId("in-flight").textContent = inFlight;
    byId("dropped").textContent = dropped + cancelled;
    byId("errors").textContent = errors;
    byId("rtt").textContent = rttMs === null ? "–" : `${rttMs.toFixed(1)} ms`;
    byId("receipts-line").textContent = receiptsAddUp
      ? "Every frame sent has exactly one receipt, or is in flight."
      : "Receipts do not add up: please report this.";
  }

  clearPlots() {
    for (const plot of Object.values(this.#plots)) plot.clear();
  }
}

function modelOption({ id, kind, ready }) {
  const option = new Option(KINDS[kind] ? `${id} · ${KINDS[kind]}` : id, id);
  option.disabled = !ready;
  if (!ready) option.text += " (warming up)";
  return option;
}

/** Fills a list with what was given up, and why. */
export function showReasons(list, losses) {
  const items = [...losses].map(([reason, count]) => {
    const item = document.createElement("li");
    item.dataset.reason = reason;
    item.textContent = `${REASONS[reason] ?? reason}: ${count}`;
    return item;
  });
  list.replaceChildren(...items);
}

function showPhases(phases) {
  for (const bar of byId("phases").children) {
    bar.style.flexGrow = phases.get(bar.dataset.phase) ?? 0;
  }
  for (const [phase, ms] of phases) byId(`phase-${phase}`).textContent = `${ms.toFixed(1)} ms`;
}
