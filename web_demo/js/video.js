/** The Video tab: joins source, uplink, stage and numbers; page_state.js says what may follow what. */

import { streamUrl } from "./client.js";
import { FrameDelivery } from "./frame_delivery.js";
import { closeSource, FramePump, FrameRing, openCamera, openClip } from "./capture.js";
import { describe, Stage } from "./overlay.js";
import { isChatModel } from "./gateway_watch.js";
import {
  ACTIVE, BANNERS, CHIPS, NOTICES, nextState, reconnectText, TRANSITIONS,
} from "./page_state.js";
import { RunStatistics } from "./statistics.js";
import { startUplink } from "./uplink.js";
import { View } from "./view.js";

const TICK_MS = 500;
const PROBLEM_MS = 3_000; // how long a complaint stays after its last repetition
const CALM_TICK_MS = 2_000; // for people who asked for less motion
const JPEG_QUALITY = 0.8;
const CODE_AUTH = 4501;
// A radio button that is chosen has no use for it.
const OWN_SPACE = "input:not([type=radio]:checked), select, button, textarea, summary, a, [contenteditable]";

export class VideoTab {
  #tabs;
  #watch;
  #view = new View();
  #stage = new Stage(this.#view.picture, (seq, data) => this.#onDrawn(seq, data));
  #uplink = startUplink(
    (message) => this.#onUplink(message),
    () => this.#fail("no_worker"),
  );
  #ring = new FrameRing();
  #pump = new FramePump(this.#view.video, (tCapture) => this.#onFrame(tCapture));
  #statistics = new RunStatistics();
  #delivery = new FrameDelivery();
  #rttMs = null;
  #state = "loading";
  #run = 0; // number of the current run; messages of earlier ones are ignored
  #ending = new AbortController(); // of the current run
  #settings = null;
  #isBusy = false; // a frame is with the uplink
  #hasCredit = false;
  #retryAt = 0;
  #problem = { text: "", until: 0 }; // what the gateway complained about lately

  /** `watch` tells which models there are; `tabs` shows what this tab is doing. */
  constructor({ tabs, watch }) {
    this.#tabs = tabs;
    this.#watch = watch;
  }

  begin() {
    const { controls, keyForm } = this.#view;
    controls.addEventListener("submit", (event) => this.#onSubmit(event, () => this.#toggle()));
    controls.addEventListener("change", () => this.#onSettings());
    controls.addEventListener("input", () => this.#view.showDeadline());
    keyForm.addEventListener("submit", (event) => this.#onSubmit(event, () => this.#useKey()));
    document.addEventListener("keydown", (event) => this.#onKey(event));
    addEventListener("pagehide", () => this.#stop());
    const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    setInterval(() => this.#onTick(), isCalm ? CALM_TICK_MS : TICK_MS);
    this.#view.showDeadline();
    const on = (name, act) => this.#watch.addEventListener(name, ({ detail }) => act(detail));
    on("models", (detail) => this.#onModels(detail));
    on("unauthorized", (detail) => this.#onUnauthorized(detail));
    on("unreachable", () => this.#move("unreachable"));
    on("key", () => this.#move("key_given"));
  }

  // --- states -----------------------------------------------------------------------------------

  /** Moves on when the event means something now; returns whether it did. */
  #move(event, notice) {
    const next = nextState(TRANSITIONS, this.#state, event);
    if (next === null) return false;
    this.#state = next;
    if (!ACTIVE.has(next)) this.#release();
    const isActive = ACTIVE.has(next);
    this.#tabs.showState("video", { state: next, text: CHIPS[next], isLive: isActive });
    this.#view.showState(next, { isActive, canStart: next === "idle" });
    if (next !== "running") this.#view.showBanner("");
    this.#view.showNotice(next === "running" ? null : (notice ?? NOTICES[next] ?? null));
    return true;
  }

  #fail(kind, text = NOTICES[kind].text) {
    this.#move("failed", { ...NOTICES[kind], text });
  }

  #onModels({ models: served, reason }) {
    const models = served.filter((model) => !isChatModel(model));
    this.#view.showModels(models);
    if (models.some(({ ready }) => ready)) {
      this.#move("ready");
    } else if (models.length === 0) {
      this.#move("absent");
    } else {
      const why = reason ?? models[0].reason;
      const text = why ? `${NOTICES.warming.text} (${why})` : NOTICES.warming.text;
      const notice = { ...NOTICES.warming, text };
      if (!this.#move("not_ready", notice) && this.#state === "warming") this.#view.showNotice(notice);
    }
  }

  #onUnauthorized({ wasGiven }) {
    this.#move("unauthorized", wasGiven ? NOTICES.wrong_key : undefined);
  }

  #moveOrStay(event, notice) {
    if (!this.#move(event, notice)) this.#view.showNotice(notice);
  }

  #useKey() {
    const { key } = this.#view.keyForm.elements;
    this.#watch.useKey(key.value);
    this.#view.keyForm.reset();
  }

  // --- a run ------------------------------------------------------------------------------------

  #toggle() {
    if (ACTIVE.has(this.#state)) this.#stop();
    else this.#start();
  }

  async #start() {
    if (!this.#move("start")) return;
    const run = (this.#run += 1);
    this.#settings = this.#view.settings;
    this.#statistics = new RunStatistics();
    this.#delivery = new FrameDelivery();
    this.#isBusy = this.#hasCredit = false;
    this.#ending = new AbortController();
    this.#view.clearPlots();
    try {
      await this.#openSource();
    } catch (error) {
      if (run === this.#run) this.#fail(error.kind);
      return;
    }
    if (run !== this.#run) return; // stopped while the browser asked for the camera
    this.#move("source_ready");
    this.#view.showPicture("source");
    this.#connect(run);
  }

  #connect(run) {
    const { options, width } = this.#settings;
    const url = streamUrl(location);
    const picture = { maxWidth: width, quality: JPEG_QUALITY };
    this.#uplink.send({ type: "start", run, url, token: this.#watch.key, options, picture });
    this.#pump.start();
  }

  async #openSource() {
    const { source } = this.#settings;
    const { video } = this.#view;
    if (source === "camera") {
      const onEnded = () => this.#fail("camera_gone");
      await openCamera(video, { signal: this.#ending.signal, onEnded });
    } else {
      await openClip(video, `/clips/${source}.mp4`);
    }
  }

  #stop() {
    this.#move("stop");
  }

  /** Everything a run holds is given back: camera, socket, bitmaps. */
  #release() {
    this.#run += 1;
    this.#ending.abort();
    this.#pump.stop();
    this.#uplink.send({ type: "stop" });
    closeSource(this.#view.video);
    this.#ring.clear();
    this.#stage.clear();
    this.#view.showPicture("none");
    this.#view.describePicture("", "");
  }

  // --- frames -----------------------------------------------------------------------------------

  async #onFrame(tCapture) {
    if (this.#state !== "running") return;
    const now = performance.now();
    this.#statistics.offered(now);
    if (this.#isBusy || !this.#hasCredit) {
      this.#statistics.lost(now, this.#isBusy ? "encoder" : "no_credit");
      return;
    }
    const run = this.#run;
    this.#isBusy = true;
    // The video can lose its picture between the callback and here.
    const bitmap = await createImageBitmap(this.#view.video).catch(() => null);
    if (run !== this.#run) bitmap?.close();
    else if (bitmap === null) this.#isBusy = false;
    else this.#uplink.send({ type: "frame", bitmap, tCapture }, [bitmap]);
  }

  #onUplink(message) {
    if (message.run !== this.#run) {
      message.bitmap?.close();
      message.annotated?.close();
      return;
    }
    this.#hasCredit = message.hasCredit;
    const now = performance.now();
    switch (message.type) {
      case "state":
        this.#onConnection(message);
        break;
      case "opened":
        this.#move("opened");
        break;
      case "refused":
        this.#fail("refused", message.message);
        break;
      case "sent":
        this.#isBusy = false;
        this.#ring.put(message.seq, message.bitmap);
        break;
      case "skipped":
        this.#isBusy = false;
        this.#statistics.lost(now, message.reason);
        break;
      case "result":
        this.#onResult(message, now);
        break;
      case "drop":
        for (const seq of message.seqs) this.#ring.discard(seq);
        this.#statistics.lost(now, message.reason, message.seqs.length);
        break;
      case "hint":
        this.#delivery.hint(message.hint);
        break;
      case "problem":
        this.#onProblem(message, now);
        break;
      case "news":
        this.#watch.tellNews(message);
        break;
      case "receipts":
        this.#rttMs = message.rttMs;
        this.#view.showReceipts(message);
        break;
      default: // credit: its news was hasCredit
    }
  }

  #onConnection({ state, code, retryInMs, problem }) {
    if (state === "waiting") {
      this.#retryAt = performance.now() + retryInMs;
      this.#moveOrStay("lost", this.#reconnectNotice());
    } else if (state === "connecting") {
      this.#retryAt = 0;
    } else if (state === "open") {
      this.#move("connected");
    } else if (state === "closed" && code === CODE_AUTH) {
      this.#onUnauthorized({ wasGiven: this.#watch.key !== null });
    } else if (state === "closed") {
      this.#fail("ended", problem?.detail || problem?.title || `Close code ${code}.`);
    }
  }

  #onProblem({ seq, problem }, now) {
    if (seq !== undefined && seq !== null) this.#ring.discard(seq);
    const isUnavailable = problem.type?.endsWith(":unavailable") === true;
    const text = isUnavailable ? BANNERS.unavailable : problemText(problem);
    this.#problem = { text, until: now + PROBLEM_MS };
    if (isUnavailable && this.#state === "connecting") this.#view.showNotice(NOTICES.unavailable);
  }

  #onResult({ seq, data, latencyMs, timing, annotated }, now) {
    this.#statistics.result(now, latencyMs, timing);
    this.#delivery.result(now, latencyMs, timing);
    const own = this.#ring.take(seq);
    // With blurring on, a frame without its blurred picture is not shown at all.
    const isBlurred = this.#settings.options.annotate === "blur";
    const bitmap = isBlurred ? annotated : own;
    if (isBlurred) own?.close();
    else annotated?.close();
    if (bitmap !== null) this.#stage.show({ seq, bitmap, data });
  }

  #onDrawn(seq, data) {
    this.#delivery.shown(performance.now());
    this.#view.showPicture("results");
    this.#view.describePicture(describe(data), `frame ${seq}, sent as ${data.width} × ${data.height}`);
    this.#uplink.send({ type: "rendered", seq });
  }

  // --- for the Delivery tab -----------------------------------------------------------------------

  /** What FrameDelivery says of the run, and {state, isLive, losses, rttMs, isPlayout}. */
  get delivery() {
    const now = performance.now();
    return {
      ...this.#delivery.snapshot(now),
      state: this.#state,
      isLive: ACTIVE.has(this.#state),
      losses: this.#statistics.losses,
      rttMs: this.#rttMs,
      isPlayout: this.#settings?.options.pace === "playout",
    };
  }

  // --- clock and keys ---------------------------------------------------------------------------

  #onTick() {
    if (this.#state === "reconnecting") this.#view.showNotice(this.#reconnectNotice());
    if (this.#state !== "running") return;
    const now = performance.now();
    const snapshot = this.#statistics.snapshot(now);
    this.#view.showNumbers(snapshot);
    this.#view.showBanner(now < this.#problem.until ? this.#problem.text : bannerOf(snapshot));
  }

  #reconnectNotice() {
    const leftMs = Math.max(0, this.#retryAt - performance.now());
    return reconnectText(Math.ceil(leftMs / 1000));
  }

  #onSettings() {
    this.#view.showDeadline();
    if (!ACTIVE.has(this.#state)) return;
    this.#stop();
    this.#start();
  }

  #onSubmit(event, act) {
    event.preventDefault();
    act();
  }

  #onKey(event) {
    if (this.#tabs.selected !== "video") return;
    if (event.code !== "Space" || event.repeat || event.target.closest(OWN_SPACE) !== null) return;
    event.preventDefault(); // the page would scroll
    this.#toggle();
  }
}

function bannerOf({ isOverloaded, isSlowDevice }) {
  if (isSlowDevice) return BANNERS.slow_device;
  return isOverloaded ? BANNERS.overload : "";
}

function problemText({ title, detail }) {
  return `The gateway answers: ${title}${detail ? ` (${detail})` : ""}.`;
}
