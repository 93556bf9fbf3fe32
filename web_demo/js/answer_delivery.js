/**
 * How one answer flowed: gaps as the engine made them, as the gateway delivered them, and as they
 * arrived here, which is what network and browser add. Pure: `now` is in ms.
 *
 * Everything is kept for the newest MAX_TOKENS events. What only the gateway knows (`timing`) is
 * null where it did not say.
 */

import { percentile } from "./statistics.js";

const MAX_TOKENS = 512;
const TOLERANCE = 0.15; // of the announced pace
const STALL_RATIO = 2;
const LEAST_STALL_MS = 100; // a gap over both is one that readers notice
const JITTER_GAIN = 1 / 16; // RFC 3550, 6.4.1

export class AnswerDelivery {
  #events = []; // {at, paceMs, engineMs, heldMs, reserve, engineGap, deliveredGap, arrivedGap}
  #firstEngineMs = null;
  #jitterMs = null;

  /** One event came; `pace` is in ms, `timing` {engineUs, heldUs, reserve}; null: not told. */
  token(now, { pace = null, timing = null } = {}) {
    const before = this.#events.at(-1) ?? null;
    const engineMs = timing === null ? null : timing.engineUs / 1000;
    const deliveredMs = timing === null ? null : (timing.engineUs + timing.heldUs) / 1000;
    const event = {
      at: now,
      paceMs: pace,
      engineMs,
      deliveredMs,
      heldMs: timing === null ? null : timing.heldUs / 1000,
      reserve: timing?.reserve ?? null,
      engineGap: difference(engineMs, before?.engineMs ?? null),
      deliveredGap: difference(deliveredMs, before?.deliveredMs ?? null),
      arrivedGap: before === null ? null : now - before.at,
    };
    this.#firstEngineMs ??= engineMs;
    this.#events.push(event);
    if (this.#events.length > MAX_TOKENS) this.#events.shift();
    if (event.deliveredGap !== null) this.#noteJitter(event);
  }

  /**
   * {series: {engine, delivered, arrived, pace, held, reserve}, engine, delivered, arrived, paceMs,
   * withinShare, heldMs, longestHeldMs, reserve, engineMs, jitterMs}. `engine`, `delivered` and
   * `arrived` are {medianMs, stdMs, longestMs, stalls}; `engineMs` is how long the engine took from
   * first to newest token.
   */
  snapshot() {
    const events = this.#events;
    const newest = events.at(-1) ?? null;
    const column = (name) => events.map((event) => event[name]);
    const series = {
      engine: column("engineGap"),
      delivered: column("deliveredGap"),
      arrived: column("arrivedGap"),
      // What was announced for a gap came with the event before it.
      pace: events.map((_, index) => events[index - 1]?.paceMs ?? null),
      held: column("heldMs"),
      reserve: column("reserve"),
    };
    return {
      series,
      engine: summary(series.engine, events.map(() => null)),
      delivered: summary(series.delivered, series.pace),
      arrived: summary(series.arrived, series.pace),
      paceMs: newest?.paceMs ?? null,
      withinShare: shareWithin(series.delivered, series.pace),
      heldMs: newest?.heldMs ?? null,
      longestHeldMs: greatest(known(column("heldMs"))),
      reserve: newest?.reserve ?? null,
      engineMs: difference(newest?.engineMs ?? null, this.#firstEngineMs),
      jitterMs: this.#jitterMs,
    };
  }

  /** How unevenly events travel: the time of their way against that of the one before. */
  #noteJitter({ arrivedGap, deliveredGap }) {
    const step = Math.abs(arrivedGap - deliveredGap);
    const jitterMs = this.#jitterMs ?? step;
    this.#jitterMs = jitterMs + JITTER_GAIN * (step - jitterMs);
  }
}

/** Of the gaps that are known; `paces` has what was announced for each, or null. */
function summary(allGaps, allPaces) {
  const gaps = known(allGaps);
  const paces = allPaces.filter((_, index) => allGaps[index] !== null);
  if (gaps.length === 0) return { medianMs: null, stdMs: null, longestMs: null, stalls: null };
  const medianMs = percentile(gaps, 0.5); // a gap without a pace is held against it
  const meanMs = gaps.reduce((sum, gap) => sum + gap, 0) / gaps.length;
  const variance = gaps.reduce((sum, gap) => sum + (gap - meanMs) ** 2, 0) / gaps.length;
  const isStall = (gap, index) =>
    gap > Math.max(LEAST_STALL_MS, STALL_RATIO * (paces[index] ?? medianMs));
  return {
    medianMs,
    stdMs: Math.sqrt(variance),
    longestMs: greatest(gaps),
    stalls: gaps.filter(isStall).length,
  };
}

/** The share of gaps within TOLERANCE of the pace that was announced for them, or null. */
function shareWithin(gaps, paces) {
  const errors = gaps.map((gap, index) => difference(gap, paces[index]));
  const shares = errors.map((error, index) => (error === null ? null : Math.abs(error) / paces[index]));
  const paced = known(shares);
  return paced.length === 0 ? null : paced.filter((share) => share <= TOLERANCE).length / paced.length;
}

function difference(later, sooner) {
  return later === null || sooner === null ? null : later - sooner;
}

function known(values) {
  return values.filter((value) => value !== null);
}

function greatest(values) {
  return values.length === 0 ? null : Math.max(...values);
}
