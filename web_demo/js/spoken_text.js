/**
 * Streamed text for people who hear it: whole sentences, not too often. Pure.
 *
 * Reading out every token would interrupt itself; so text waits until a sentence is over and the
 * last words were `intervalMs` ago. Nothing is said twice and nothing is left out.
 */

const INTERVAL_MS = 4_000;
const MAX_CHARS = 600; // said even without the end of a sentence

export class SpokenText {
  #waiting = "";
  #spokenAt = -Infinity;

  /** What should be said now, or null. */
  push(text, now) {
    this.#waiting += text;
    if (now - this.#spokenAt < INTERVAL_MS) return null;
    const end = sentenceEnd(this.#waiting);
    const cut = end === 0 && this.#waiting.length >= MAX_CHARS ? this.#waiting.length : end;
    return cut === 0 ? null : this.#take(cut, now);
  }

  /** The rest, when the answer is over; null when there is none. */
  finish(now) {
    return this.#waiting.trim() === "" ? null : this.#take(this.#waiting.length, now);
  }

  #take(length, now) {
    const text = this.#waiting.slice(0, length).trim();
    this.#waiting = this.#waiting.slice(length);
    this.#spokenAt = now;
    return text;
  }
}

/** Where the last whole sentence ends, or 0. */
function sentenceEnd(text) {
  const ends = [...text.matchAll(/[.!?…。！？]["')\]]*\s|\n/g)];
  return ends.length === 0 ? 0 : ends.at(-1).index + ends.at(-1)[0].length;
}
