/**
 * Is the other side still there, how far is it, and what does its clock say?
 *
 * Pure: every method takes `now` in milliseconds. A browser can neither send nor see protocol
 * pings, so the pings are messages of clawstream.v1.
 */

const PING_INTERVAL_MS = 5_000;
const FIRST_PINGS = 3; // quickly at the start, so that the clock offset is known early
const FIRST_INTERVAL_MS = 300;
const SILENCE_LIMIT_MS = 15_000;
const SAMPLES = 8;

export class Liveness {
  #lastHeard;
  #nextPing;
  #pings = 0;
  #samples = []; // the newest SAMPLES of {rttMs, offsetUs}

  constructor(now) {
    this.#lastHeard = now;
    this.#nextPing = now;
  }

  /** Whether a ping should leave now; true at most once per interval. */
  takePing(now) {
    if (now < this.#nextPing) return false;
    this.#pings += 1;
    this.#nextPing = now + (this.#pings < FIRST_PINGS ? FIRST_INTERVAL_MS : PING_INTERVAL_MS);
    return true;
  }

  /** Anything that arrives shows that the other side lives. */
  heard(now) {
    this.#lastHeard = now;
  }

  /** The answer to the ping that left at `sentAt`; `serverUs` is the server's clock. */
  ponged(sentAt, serverUs, now) {
    const rttMs = now - sentAt;
    if (!(rttMs >= 0)) return;
    this.#samples.push({ rttMs, offsetUs: serverUs - (sentAt + rttMs / 2) * 1000 });
    if (this.#samples.length > SAMPLES) this.#samples.shift();
  }

  isSilent(now) {
    return now - this.#lastHeard > SILENCE_LIMIT_MS;
  }

  /**
   * {rttMs, offsetUs} of the quickest of the last pings, or null: the less a message waited on its
   * way, the less its halves can differ. Server time = own time in microseconds + offsetUs.
   */
  best() {
    return this.#samples.reduce(
      (best, sample) => (best === null || sample.rttMs < best.rttMs ? sample : best),
      null,
    );
  }
}

/** Full jitter: a random share of a limit that doubles, so that a crowd does not come back at once. */
export class Backoff {
  #attempt = 0;
  #random;

  constructor({ firstMs = 500, maxMs = 15_000, random = Math.random } = {}) {
    this.firstMs = firstMs;
    this.maxMs = maxMs;
    this.#random = random;
  }

  get attempt() {
    return this.#attempt;
  }

  nextDelayMs() {
    const limit = Math.min(this.maxMs, this.firstMs * 2 ** this.#attempt);
    this.#attempt += 1;
    return Math.round(this.#random() * limit);
  }

  reset() {
    this.#attempt = 0;
  }
}
