/** What the gateway asks of a camera: fewer frames, or smaller ones, than the page would send. Pure. */

const SLACK = 0.25; // of a period: capture times jitter, and every other frame must not be lost

export const NO_HINT = Object.freeze({ maxFps: null, maxWidth: null, quality: null });

/** A `hint` of the wire as the page keeps it: what it does not name has no limit. */
export function readHint({ max_fps: maxFps, max_width: maxWidth, quality }) {
  return { maxFps: maxFps ?? null, maxWidth: maxWidth ?? null, quality: quality ?? null };
}

/** The picture to send: the user's choice, or less where the gateway asks for less. */
export function pictureWithin({ maxWidth, quality }, hint) {
  return {
    maxWidth: Math.min(maxWidth, hint.maxWidth ?? Infinity),
    quality: Math.min(quality, hint.quality ?? Infinity),
  };
}

/** Passes at most `fps` frames per second; null: all. */
export class RateLimit {
  #periodMs;
  #nextAt = null;

  constructor(fps) {
    this.#periodMs = fps === null ? null : 1000 / fps;
  }

  /** Whether the frame captured at `at` (ms, never falling) is sent. */
  passes(at) {
    if (this.#periodMs === null) return true;
    this.#nextAt ??= at;
    const slack = this.#periodMs * SLACK;
    if (at < this.#nextAt - slack) return false;
    this.#nextAt = Math.max(this.#nextAt, at - slack) + this.#periodMs;
    return true;
  }
}
