/**
 * What the page measures of one answer. Pure: every method takes `now` in milliseconds.
 *
 * Tokens without a text of their own (bytes or a possible stop string were held back) have no event,
 * so the count is exact only once the server has told it at the end.
 */

import { percentile } from "./statistics.js";

const MAX_GAPS = 120;

export class AnswerStatistics {
  #sentAt;
  #firstAt = null;
  #lastAt = null;
  #tokens = 0;
  #usage = null;
  #gaps = []; // ms between events, the newest MAX_GAPS

  constructor(now) {
    this.#sentAt = now;
  }

  sent(now) {
    this.#sentAt = now;
  }

  /** One event came, of `numTokens` tokens. */
  token(now, numTokens = 1) {
    this.#tokens += numTokens;
    if (this.#lastAt === null) {
      this.#firstAt = now;
    } else {
      this.#gaps.push(now - this.#lastAt);
      if (this.#gaps.length > MAX_GAPS) this.#gaps.shift();
    }
    this.#lastAt = now;
  }

  /** `usage` is the server's count, or null when the answer was cut short. */
  end(_now, usage) {
    this.#usage = usage;
  }

  /** {tokens, promptTokens, cachedTokens, ttftMs, tokensPerSecond, gaps, p50, p95}; null: unknown. */
  snapshot() {
    const tokens = this.#usage?.completion_tokens ?? this.#tokens;
    const spanMs = this.#lastAt === null ? 0 : this.#lastAt - this.#firstAt;
    return {
      tokens,
      promptTokens: this.#usage?.prompt_tokens ?? null,
      cachedTokens: this.#usage?.cached_tokens ?? null,
      ttftMs: this.#firstAt === null ? null : this.#firstAt - this.#sentAt,
      // The first token is what the others are counted from.
      tokensPerSecond: spanMs > 0 && tokens > 1 ? ((tokens - 1) * 1000) / spanMs : null,
      gaps: [...this.#gaps],
      p50: percentile(this.#gaps, 0.5),
      p95: percentile(this.#gaps, 0.95),
    };
  }
}
