/** Says something politely through the page's one live region, for the tab that is shown. */

const INTERVAL_MS = 8_000;

export class Announcer {
  #region = document.getElementById("status");
  #panel;
  #saidAt = 0;
  #said = "";

  /** `panel` is the tab's panel: while it is hidden nothing is said. */
  constructor(panel) {
    this.#panel = panel;
  }

  /** What is not urgent is said seldom; nothing is said twice in a row. */
  say(text, { isUrgent = false } = {}) {
    const now = performance.now();
    if (this.#panel.hidden || text === this.#said) return;
    if (!isUrgent && now - this.#saidAt < INTERVAL_MS) return;
    this.#said = text;
    this.#saidAt = now;
    this.#region.textContent = text;
  }
}
