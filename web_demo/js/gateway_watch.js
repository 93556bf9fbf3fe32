/**
 * What the gateway serves, asked until every model is ready, for all tabs at once. Holds the API
 * key, in memory only.
 *
 * Events (CustomEvent, read `detail`): `models` {models, reason} with reason null when the gateway
 * is ready; `unauthorized` {wasGiven}; `unreachable`; `key` when the user has given one; `news` {kind,
 * text, level}, which the tabs' connections bring.
 */

import { fetchModels, fetchReadiness, Unauthorized } from "./server.js";

const POLL_MS = 1_500;

export class GatewayWatch extends EventTarget {
  #key = null;
  #isAsking = false;

  get key() {
    return this.#key;
  }

  /** Asks now, and again until everything that is served is ready. */
  async ask() {
    if (this.#isAsking) return;
    this.#isAsking = true;
    const isSettled = await this.#askOnce();
    this.#isAsking = false;
    if (!isSettled) setTimeout(() => this.ask(), POLL_MS);
  }

  useKey(key) {
    this.#key = key;
    this.#emit("key");
    this.ask();
  }

  /** A connection has heard something for everybody. */
  tellNews(news) {
    this.#emit("news", news);
  }

  async #askOnce() {
    try {
      const models = await fetchModels(this.#key);
      const isAnyReady = models.some(({ ready }) => ready);
      const reason = isAnyReady ? null : await fetchReadiness(this.#key);
      this.#emit("models", { models, reason });
      return models.every(({ ready }) => ready);
    } catch (error) {
      if (error instanceof Unauthorized) {
        this.#emit("unauthorized", { wasGiven: this.#key !== null });
        return true;
      }
      this.#emit("unreachable");
      return false;
    }
  }

  #emit(name, detail = {}) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

/** Models for the Chat tab; all others belong to Video. */
export function isChatModel({ kind }) {
  return kind === "chat";
}
