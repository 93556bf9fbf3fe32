/** The line at the top for what the gateway says to everybody: an operator's words, its load. */

import { Announcer } from "./announcer.js";

const MESSAGE_MS = 60_000; // an operator's words stay this long, or until they are dismissed

/** What each service level means to the people at the page; normal says nothing. */
const LEVELS = {
  no_extras: "The gateway is busy: pictures come without extras.",
  less_input: "The gateway is busy: it asks cameras for fewer and smaller pictures.",
  cheaper_model: "The gateway is very busy: it may answer with a lighter model.",
  shed_background: "The gateway is overloaded: background work is refused.",
  shed_standard: "The gateway is overloaded: only realtime work is taken.",
};

/** What a `server_event` says, or "" for nothing. */
export function bulletinText({ kind, text, level }) {
  return kind === "service_level" ? (LEVELS[level] ?? "") : text;
}

export class Bulletin {
  #line = document.getElementById("bulletin");
  #announcer = new Announcer(document.body);
  #level = "";
  #message = "";
  #timer;

  constructor() {
    this.#line.addEventListener("click", () => this.#dismiss());
  }

  /** Shows a `server_event`. The tabs' connections bring the same news: it is shown once. */
  show(news) {
    const text = bulletinText(news);
    if (news.kind === "service_level") {
      this.#level = text;
    } else {
      this.#message = text;
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#dismiss(), MESSAGE_MS);
    }
    this.#render();
  }

  #dismiss() {
    this.#message = "";
    clearTimeout(this.#timer);
    this.#render();
  }

  /** An operator's words before the load. */
  #render() {
    const text = this.#message || this.#level;
    if (this.#line.textContent === text) return;
    this.#line.textContent = text;
    this.#line.hidden = text === "";
    if (text !== "") this.#announcer.say(text, { isUrgent: true });
  }
}
