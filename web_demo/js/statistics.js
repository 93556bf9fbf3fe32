/**
 * What the page measures. Pure: every method takes `now` in milliseconds.
 *
 * All windows are bounded in time and in number, so that a page left open for a night stays small.
 */

const MAX_SAMPLES = 1024;
const RATE_WINDOW_MS = 3_000;
const LATENCY_WINDOW_MS = 5_000;
const SHARE_WINDOW_MS = 5_000;
const OVERLOAD_ENTER = 0.25; // share of frames skipped
const OVERLOAD_LEAVE = 0.1;
const OVERLOAD_MIN_FRAMES = 20;

/** The value below which the share `fraction` of `values` lies (nearest rank), or null. */
export function percentile(values, fraction) {
  if (values.length === 0) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(fraction * sorted.length) - 1)];
}

/** Values of the last `lengthMs`, oldest first; at most MAX_SAMPLES of them. */
export class SlidingWindow {
  #samples = []; // {at, value}
  #lengthMs;

  constructor(lengthMs) {
    this.#lengthMs = lengthMs;
  }

  add(now, value = 1) {
    this.#samples.push({ at: now, value });
    this.#trim(now);
  }

  sum(now) {
    this.#trim(now);
    return this.#samples.reduce((total, { value }) => total + value, 0);
  }

  /** Samples per second, over the time that was really observed. */
  rate(now) {
    this.#trim(now);
    if (this.#samples.length < 2) return 0;
    const spanMs = now - this.#samples[0].at;
    return spanMs <= 0 ? 0 : ((this.#samples.length - 1) * 1000) / spanMs;
  }

  /** See the function of that name; null when the window is empty. */
  percentile(now, fraction) {
    this.#trim(now);
    return percentile(this.#samples.map(({ value }) => value), fraction);
  }

  #trim(now) {
    const oldest = now - this.#lengthMs;
    let count = Math.max(0, this.#samples.length - MAX_SAMPLES);
    while (count < this.#samples.length && this.#samples[count].at < oldest) count += 1;
    if (count > 0) this.#samples.splice(0, count);
  }
}

/** Counters and windows of one run, from start to stop. */
export class RunStatistics {
  #results = new SlidingWindow(RATE_WINDOW_MS);
  #latencies = new SlidingWindow(LATENCY_WINDOW_MS);
  #offered = new SlidingWindow(SHARE_WINDOW_MS);
  #skipped = new SlidingWindow(SHARE_WINDOW_MS);
  #skippedHere = new SlidingWindow(SHARE_WINDOW_MS); // this device could not encode in time
  #phases = new Map(); // phase -> moving average, ms
  #losses = new Map(); // reason -> count
  #isOverloaded = false;

  /** The source produced a frame. */
  offered(now) {
    this.#offered.add(now);
  }

  /** `count` frames were given up, here or at the server. */
  lost(now, reason, count = 1) {
    this.#losses.set(reason, (this.#losses.get(reason) ?? 0) + count);
    this.#skipped.add(now, count);
    if (reason === "encoder") this.#skippedHere.add(now, count);
  }

  /** Frames that were given up, by reason. */
  get losses() {
    return new Map(this.#losses);
  }

  result(now, latencyMs, timing) {
    this.#results.add(now);
    this.#latencies.add(now, latencyMs);
    for (const [phase, ms] of Object.entries(phasesOf(latencyMs, timing))) {
      const before = this.#phases.get(phase) ?? ms;
      this.#phases.set(phase, before + 0.1 * (ms - before));
    }
  }

  snapshot(now) {
    const offered = this.#offered.sum(now);
    const skipped = this.#skipped.sum(now);
    const share = offered === 0 ? 0 : Math.min(1, skipped / offered);
    const limit = this.#isOverloaded ? OVERLOAD_LEAVE : OVERLOAD_ENTER;
    this.#isOverloaded = offered >= OVERLOAD_MIN_FRAMES && share > limit;
    return {
      resultsPerSecond: this.#results.rate(now),
      p50: this.#latencies.percentile(now, 0.5),
      p95: this.#latencies.percentile(now, 0.95),
      skippedShare: share,
      isOverloaded: this.#isOverloaded,
      isSlowDevice: this.#isOverloaded && this.#skippedHere.sum(now) > skipped / 2,
      losses: this.losses,
      phases: new Map(this.#phases),
    };
  }
}

/** Where one frame's time went, in ms; `timing` is the result's, in microseconds. */
function phasesOf(latencyMs, timing) {
  const ms = (...names) => names.reduce((sum, name) => sum + (timing[name] ?? 0), 0) / 1000;
  const phases = {
    queue: ms("queue", "batch"),
    model: ms("prepare", "run", "interpret"),
    delivery: ms("order", "pace"),
  };
  const atServer = phases.queue + phases.model + phases.delivery;
  return { transport: Math.max(0, latencyMs - atServer), ...phases };
}
