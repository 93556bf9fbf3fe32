/** How the results of one run flowed: age, jitter, freezes, hints. Pure: `now` is in ms. */

import { NO_HINT } from "./hints.js";
import { SlidingWindow } from "./statistics.js";

const MAX_POINTS = 240;
const WINDOW_MS = 5_000;
const JITTER_GAIN = 1 / 16; // RFC 3550, 6.4.1
// A freeze, as W3C's webrtc-stats counts it: max(3 intervals, an interval + 150 ms).
const FREEZE_INTERVALS = 3;
const FREEZE_EXTRA_MS = 150;
const INTERVALS_AVERAGED = 30;
const HELD_GAIN = 0.1;

export class FrameDelivery {
  #ages = []; // ms from capture to result, the newest MAX_POINTS
  #gaps = []; // ms between results
  #recentAges = new SlidingWindow(WINDOW_MS);
  #lastAt = null;
  #lastAge = null;
  #jitterMs = null;
  #heldMs = null;
  #shownAt = null;
  #intervals = []; // ms between pictures on the screen, the newest INTERVALS_AVERAGED
  #freezes = { count: 0, totalMs: 0 };
  #hint = NO_HINT;
  #numHints = 0;

  /** A result came, `latencyMs` after its frame's capture; `timing` is the wire's. */
  result(now, latencyMs, timing) {
    this.#recentAges.add(now, latencyMs);
    keep(this.#ages, latencyMs, MAX_POINTS);
    keep(this.#gaps, this.#lastAt === null ? null : now - this.#lastAt, MAX_POINTS);
    if (this.#lastAge !== null) {
      const step = Math.abs(latencyMs - this.#lastAge); // both clocks' offsets cancel out
      this.#jitterMs = moving(this.#jitterMs, step, JITTER_GAIN);
    }
    this.#heldMs = moving(this.#heldMs, (timing.pace ?? 0) / 1000, HELD_GAIN);
    this.#lastAt = now;
    this.#lastAge = latencyMs;
  }

  /** A picture with its result reached the screen. */
  shown(now) {
    if (this.#shownAt !== null) this.#noteInterval(now - this.#shownAt);
    this.#shownAt = now;
  }

  /** What the gateway asks of the camera; the same again says nothing new. */
  hint(hint) {
    const isNew = Object.keys(NO_HINT).some((name) => hint[name] !== this.#hint[name]);
    if (isNew) this.#numHints += 1;
    this.#hint = hint;
  }

  /** {series: {age, gap}, ageP50, ageP95, jitterMs, freezes, heldMs, hint, numHints}. */
  snapshot(now) {
    return {
      series: { age: [...this.#ages], gap: [...this.#gaps] },
      ageP50: this.#recentAges.percentile(now, 0.5),
      ageP95: this.#recentAges.percentile(now, 0.95),
      jitterMs: this.#jitterMs,
      freezes: { ...this.#freezes },
      heldMs: this.#heldMs,
      hint: this.#hint,
      numHints: this.#numHints,
    };
  }

  #noteInterval(intervalMs) {
    if (this.#intervals.length > 0) {
      const sum = this.#intervals.reduce((total, value) => total + value, 0);
      const usual = sum / this.#intervals.length;
      if (intervalMs >= Math.max(FREEZE_INTERVALS * usual, usual + FREEZE_EXTRA_MS)) {
        this.#freezes.count += 1;
        this.#freezes.totalMs += intervalMs;
      }
    }
    keep(this.#intervals, intervalMs, INTERVALS_AVERAGED);
  }
}

function keep(values, value, most) {
  values.push(value);
  if (values.length > most) values.shift();
}

function moving(before, value, gain) {
  return before === null ? value : before + gain * (value - before);
}
