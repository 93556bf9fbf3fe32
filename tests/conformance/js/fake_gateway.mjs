/** The other end of a client under test: fake sockets, and time that only moves when told. */

import { ClawstreamClient } from "../../../web_demo/js/client.js";

export const LIMITS = { max_frame_bytes: 1_000_000, max_streams: 4, max_prompts: 3, ack_deadline_s: 10 };
export const WELCOME = { type: "welcome", session: "s1", limits: LIMITS, models: ["m"], now_us: 0 };

/** A WebSocket of which the test is the server. */
export class FakeSocket {
  bufferedAmount = 0;
  sent = []; // objects for text, Uint8Array for binary
  closedWith = null;

  constructor(url, protocols) {
    this.url = url;
    this.protocols = protocols;
  }

  send(data) {
    this.sent.push(typeof data === "string" ? JSON.parse(data) : data);
  }

  close(code) {
    this.closedWith = code;
  }

  /** What the server sends. */
  receive(message) {
    this.onmessage?.({ data: message instanceof Uint8Array ? message : JSON.stringify(message) });
  }

  /** How the connection ends from outside. */
  end(code, reason = "") {
    this.onclose?.({ code, reason });
  }

  ofType(type) {
    return this.sent.filter((message) => message.type === type);
  }

  get frames() {
    return this.sent.filter((message) => message instanceof Uint8Array);
  }
}

/** setTimeout and setInterval on a clock that the test moves. */
class FakeTimers {
  #timers = new Map(); // id -> {at, act, everyMs}
  #nextId = 1;
  #now = 0;

  install() {
    globalThis.setTimeout = (act, ms) => this.#add(act, ms, null);
    globalThis.setInterval = (act, ms) => this.#add(act, ms, ms);
    globalThis.clearTimeout = globalThis.clearInterval = (id) => this.#timers.delete(id);
  }

  tick(ms) {
    this.#now += ms;
    for (const [id, timer] of [...this.#timers]) {
      if (timer.at > this.#now || !this.#timers.has(id)) continue;
      if (timer.everyMs === null) this.#timers.delete(id);
      else timer.at += timer.everyMs;
      timer.act();
    }
  }

  #add(act, ms, everyMs) {
    this.#timers.set(this.#nextId, { at: this.#now + ms, act, everyMs });
    return this.#nextId++;
  }
}

/** A client on fake sockets. `random` is always 0.5, so a retry waits half of its limit. */
export class Bench {
  sockets = [];
  states = [];
  timers = new FakeTimers();
  time = 1_000_000;

  constructor() {
    const bench = this;
    this.timers.install();
    const webSocket = class extends FakeSocket {
      constructor(...args) {
        super(...args);
        bench.sockets.push(this);
      }
    };
    this.client = new ClawstreamClient({ webSocket, now: () => this.time, random: () => 0.5 });
    this.client.addEventListener("state", ({ detail }) => this.states.push(detail));
  }

  get socket() {
    return this.sockets.at(-1);
  }

  /** Lets `ms` pass in small steps, as timers would see them. */
  advance(ms) {
    for (let left = ms; left > 0; left -= 50) {
      const step = Math.min(50, left);
      this.time += step;
      this.timers.tick(step);
    }
  }

  /** The server accepts and says welcome. */
  accept(welcome = WELCOME) {
    this.socket.onopen();
    this.socket.receive(welcome);
  }

  async connected(options) {
    const connecting = this.client.connect("ws://gateway/v1/stream", options);
    this.accept();
    await connecting;
    return this;
  }

  /** An open stream with room for `maxFrames` frames. */
  async streamWith({ maxFrames = 100, maxBytes = 1e9, ...options } = {}) {
    const opening = this.client.openStream({ model: "m", ...options });
    this.opened({ maxFrames, maxBytes });
    return opening;
  }

  /** An open stream of prompts. */
  async promptsWith(options = {}) {
    const opening = this.client.openPrompts({ model: "m", ...options });
    this.opened();
    return opening;
  }

  /** The server opens the stream that was asked for last. */
  opened({ maxFrames = 100, maxBytes = 1e9 } = {}) {
    const { stream } = this.socket.ofType("open").at(-1);
    const credit = { max_frames: maxFrames, max_bytes: maxBytes };
    this.socket.receive({ type: "opened", stream, credit });
  }
}

/** Everything an EventTarget tells under `name`. */
export function collect(target, name) {
  const details = [];
  target.addEventListener(name, ({ detail }) => details.push(detail));
  return details;
}
