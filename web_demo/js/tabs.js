/** The tabs: one panel is shown, and the chip in the corner tells that one's state. */

const NAMES = ["video", "chat", "delivery"];
const SKIPS_TO = { video: "#controls", chat: "#composer", delivery: "#pacing" };
const byId = (id) => document.getElementById(id);

export class Tabs {
  #selected = NAMES[0];
  #states = new Map(); // name -> {state, text}

  begin() {
    for (const name of NAMES) {
      const tab = byId(`tab-${name}`);
      tab.addEventListener("click", () => this.select(name));
      tab.addEventListener("keydown", (event) => this.#onKey(event, name));
    }
    addEventListener("hashchange", () => this.#followAddress());
    this.#followAddress();
  }

  get selected() {
    return this.#selected;
  }

  /** Whether the address asks for a tab by name. */
  get isAddressed() {
    return NAMES.includes(location.hash.slice(1));
  }

  select(name) {
    this.#selected = name;
    for (const other of NAMES) {
      const isSelected = other === name;
      const tab = byId(`tab-${other}`);
      tab.setAttribute("aria-selected", String(isSelected));
      tab.tabIndex = isSelected ? 0 : -1;
      byId(`panel-${other}`).hidden = !isSelected;
    }
    for (const line of document.querySelectorAll(".foot [data-for]")) {
      line.hidden = line.dataset.for !== name;
    }
    byId("skip").href = SKIPS_TO[name];
    this.#showChip();
  }

  /** What a tab is doing: `state` colours the chip, `isLive` marks the tab while it is hidden. */
  showState(name, { state, text, isLive }) {
    this.#states.set(name, { state, text });
    byId(`tab-${name}`).classList.toggle("is-live", isLive);
    byId(`tab-${name}-live`).hidden = !isLive;
    if (name === this.#selected) this.#showChip();
  }

  #showChip() {
    const shown = this.#states.get(this.#selected);
    if (shown === undefined) return;
    byId("chip").dataset.state = shown.state;
    byId("chip-text").textContent = shown.text;
  }

  #followAddress() {
    if (this.isAddressed) this.select(location.hash.slice(1));
  }

  #onKey(event, name) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const target = { Home: 0, End: NAMES.length - 1 }[event.key] ?? NAMES.indexOf(name) + step;
    if (Number.isNaN(target)) return;
    event.preventDefault();
    const next = NAMES[(target + NAMES.length) % NAMES.length];
    this.select(next);
    byId(`tab-${next}`).focus();
  }
}
