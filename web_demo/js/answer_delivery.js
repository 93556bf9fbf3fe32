/**
 * How one answer flowed: the engine's gaps beside those that arrived. Pure: `now` is in ms.
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
  #events = []; // {at, paceMs, engineMs, heldMs, reserve, gapMs, engineGapMs}, null: not told
  #firstEngineMs = null;
  #jitterMs = null;

  /** One event came; `pace` is in ms, `timing` {engineUs, heldUs, reserve}; null: not told. */
  token(now, { pace = null, timing = null } = {}) {
    const before = this.#events.at(-1) ?? null;
    const engineMs = timing === null ? null : timing.engineUs / 1000;
    const event = {
      at: now,
      paceMs: pace,
      engineMs,
      heldMs: timing === null ? null : timing.heldUs / 1000,
      reserve: timing?.reserve ?? null,
      gapMs: before === null ? null : now - before.at,
      engineGapMs: difference(engineMs, before?.engineMs ?? null),
    };
    this.#firstEngineMs ??= engineMs;
    this.#events.push(event);
    if (this.#events.length > MAX_TOKENS) this.#events.shift();
    if (before !== null) this.#noteJitter(before, event);
  }

  /**
   * {series: {engine, delivered, pace, held, reserve}, engine, delivered, paceMs, withinShare,
   * heldMs, longestHeldMs, reserve, engineMs, jitterMs}. `engine` and `delivered` are {meanMs,
   * stdMs, longestMs, stalls}; `engineMs` is how long the engine took from first to newest token.
   */
  snapshot() {
    const events = this.#events;
    const newest = events.at(-1) ?? null;
    const column = (name) => events.map((event) => event[name]);
    const engineGaps = known(column("engineGapMs"));
    // The pace that an event was announced with: that of the event before it.
    const paces = events.map((_, index) => events[index - 1]?.paceMs ?? null);
    return {
      series: {
        engine: column("engineGapMs"), delivered: column("gapMs"), pace: paces,
        held: column("heldMs"), reserve: column("reserve"),
      },
      engine: summary(engineGaps, engineGaps.map(() => null)),
      delivered: summary(column("gapMs").slice(1), paces.slice(1)),
      paceMs: newest?.paceMs ?? null,
      withinShare: shareWithin(events, paces),
      heldMs: newest?.heldMs ?? null,
      longestHeldMs: greatest(known(column("heldMs"))),
      reserve: newest?.reserve ?? null,
      engineMs: difference(newest?.engineMs ?? null, this.#firstEngineMs),
      jitterMs: this.#jitterMs,
    };
  }

  /** How unevenly events travel: their way's time against that of the one before. */
  #noteJitter(before, event) {
    if (before.engineMs === null || event.engineMs === null) return;
    const sentGapMs = event.engineMs + event.heldMs - before.engineMs - before.heldMs;
    const step = Math.abs(event.gapMs - sentGapMs);
    this.#jitterMs = this.#jitterMs === null ? step : this.#jitterMs + JITTER_GAIN * (step - this.#jitterMs);
  }
}

function summary(gaps, paces) {
  if (gaps.length === 0) return { meanMs: null, stdMs: null, longestMs: null, stalls: null };
  const meanMs = gaps.reduce((sum, gap) => sum + gap, 0) / gaps.length;
  const variance = gaps.reduce((sum, gap) => sum + (gap - meanMs) ** 2, 0) / gaps.length;
  const usual = percentile(gaps, 0.5); // what a gap without a pace is held against
  const isStall = (gap, index) => gap > Math.max(LEAST_STALL_MS, STALL_RATIO * (paces[index] ?? usual));
  return {
    meanMs, stdMs: Math.sqrt(variance), longestMs: greatest(gaps), stalls: gaps.filter(isStall).length,
  };
}

/** The share of gaps within TOLERANCE of the pace that was announced for them, or null. */
function shareWithin(events, paces) {
  const paced = events.map(({ gapMs }, index) => ({ gapMs, paceMs: paces[index] }))
    .filter(({ paceMs }) => paceMs !== null);
  if (paced.length === 0) return null;
  const within = paced.filter(({ gapMs, paceMs }) => Math.abs(gapMs - paceMs) <= TOLERANCE * paceMs);
  return within.length / paced.length;
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
