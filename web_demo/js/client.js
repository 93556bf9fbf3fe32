/**
 * ClawstreamClient: one connection to a gateway, with its streams, kept up across breaks.
 *
 *     const client = new ClawstreamClient();
 *     await client.connect("wss://gateway.example/v1/stream", { token: "…" });
 *     const stream = await client.openStream({ model: "centerface", policy: "latest" });
 *     stream.addEventListener("result", ({ detail }) => console.log(detail.seq, detail.data));
 *     stream.sendFrame(jpegBytes, client.now());
 *     const prompts = await client.openPrompts({ model: "smollm2-135m" });
 *
 * Events (CustomEvent, read `detail`): `state` {state, code?, reason?, retryInMs?, problem?} with
 * state connecting | open | waiting | closed; `error` {problem, retryable} about the connection;
 * `news` {kind, text, level}: an operator's `message`, or the gateway's `service_level`.
 * Needs only WebSocket, so it runs in a page, in a Worker, or with any class of that shape.
 */

import { FrameStream } from "./frame_stream.js";
import { Backoff, Liveness } from "./liveness.js";
import { PromptStream } from "./prompt_stream.js";
import {
  decodeBinary,
  mayReconnect,
  mayResume,
  PieceAssembler,
  ProtocolError,
  SUBPROTOCOL,
  UnknownType,
} from "./protocol.js";

const TICK_MS = 250;
const WELCOME_LIMIT_MS = 10_000;
const ATTEMPTS_PER_WINDOW = 8; // at least so many try to resume, if they fail quickly
const STABLE_MS = 5_000; // a connection that lived this long resets the backoff
const MAX_BINARY_BYTES = 16 * 1024 * 1024;

// Codes that this side reports or sends (docs/wire-protocol.md).
const CODE_NORMAL = 1000;
const CODE_BROKEN = 1006;
const CODE_NO_PONG = 4009;
const CODE_PROTOCOL = 4503;

/** A connection or stream is over and will not come back by itself; `code` and `problem` say why. */
export class ClawstreamError extends Error {
  name = "ClawstreamError";

  constructor({ code, reason, problem }) {
    super(problem?.detail || problem?.title || reason || `closed with ${code}`);
    this.code = code;
    this.problem = problem ?? null;
  }
}

export class ClawstreamClient extends EventTarget {
  #WebSocket;
  #backoff;
  #url = null;
  #token = null;
  #socket = null;
  #state = "closed";
  #streams = new Set();
  #nextStream = 1;
  #welcome = null;
  #openedAt = null;
  #liveness = null;
  #assembler = null;
  #draining = false;
  #problem = null;
  #tick = null;
  #retry = null;
  #left = null; // {welcome, lostAt} of the session that may be resumed, after a break
  #connected = null; // {resolve, reject} of connect()

  constructor({ webSocket = globalThis.WebSocket, now = epochMs, random = Math.random } = {}) {
    super();
    this.#WebSocket = webSocket;
    this.#backoff = new Backoff({ random });
    /** Milliseconds since the epoch; the clock of every time in this module. */
    this.now = now;
  }

  get state() {
    return this.#state;
  }

  /** The server's `welcome`, or null before it: session, limits, models. */
  get welcome() {
    return this.#welcome;
  }

  /** {rttMs, offsetUs} of the quickest recent ping, or null. */
  get clock() {
    return this.#liveness?.best() ?? null;
  }

  /**
   * Connects and resolves with `welcome`. Keeps trying with backoff while the server cannot be
   * reached; rejects with ClawstreamError when it must not (a wrong key) or after close().
   */
  connect(url, { token = null } = {}) {
    if (this.#state !== "closed") throw new Error("already connected");
    this.#url = url;
    this.#token = token;
    this.#backoff.reset();
    return new Promise((resolve, reject) => {
      this.#connected = { resolve, reject };
      this.#dial();
    });
  }

  /**
   * Opens a stream of frames: {model, policy?, deadlineMs?, annotate?, maxFps?}. Resolves when the
   * server has opened it, rejects with the server's problem. Later breaks reopen it by themselves.
   */
  openStream(options) {
    return this.#open(new FrameStream(this.#link(), options));
  }

  /** Opens a stream of prompts, in the same way: {model, priority?, weight?, pace?, timing?}. */
  openPrompts(options) {
    return this.#open(new PromptStream(this.#link(), options));
  }

  /** Ends the connection; streams are closed, nothing reconnects. Safe to call twice. */
  close() {
    if (this.#state === "closed") return;
    this.#socket?.close(CODE_NORMAL);
    this.#finish({ code: CODE_NORMAL, reason: "closed by the client" });
  }

  // --- connection -------------------------------------------------------------------------------

  #open(stream) {
    this.#streams.add(stream);
    return new Promise((resolve, reject) => {
      const settle = new AbortController();
      const once = (name, act) => {
        const listener = (event) => {
          settle.abort();
          act(event.detail);
        };
        stream.addEventListener(name, listener, { signal: settle.signal });
      };
      once("opened", () => resolve(stream));
      once("closed", (detail) => reject(new ClawstreamError(detail)));
      stream.addEventListener("closed", () => this.#streams.delete(stream));
      if (this.#state === "open") stream.begin(this.#nextStream++);
    });
  }

  #dial() {
    this.#setState("connecting", { attempt: this.#backoff.attempt });
    this.#problem = null;
    this.#draining = false;
    this.#openedAt = null;
    const dialedAt = this.now();
    this.#liveness = new Liveness(dialedAt);
    this.#assembler = new PieceAssembler({ maxBytes: MAX_BINARY_BYTES });
    const socket = new this.#WebSocket(this.#url, [SUBPROTOCOL]);
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    socket.onopen = () => this.#send(this.#hello());
    socket.onmessage = (event) => this.#receive(event.data);
    socket.onclose = ({ code, reason }) => this.#lost({ code, reason });
    this.#tick = setInterval(() => this.#onTick(dialedAt), TICK_MS);
  }

  #onTick(dialedAt) {
    const now = this.now();
    if (this.#state === "connecting") {
      if (now - dialedAt > WELCOME_LIMIT_MS) this.#abandon(CODE_BROKEN, "no welcome");
      return;
    }
    if (this.#liveness.isSilent(now)) {
      this.#abandon(CODE_NO_PONG, "the server is silent");
      return;
    }
    if (this.#liveness.takePing(now)) this.#send({ type: "ping", t: now });
    for (const stream of this.#streams) {
      stream.flushAck();
      if (stream.wantsOpening(now)) stream.begin(this.#nextStream++);
    }
  }

  /** Gives the socket up without waiting: a dead peer would answer no close frame. */
  #abandon(code, reason) {
    // Never 1000, which would tell the server that nobody comes back.
    this.#socket.close(code === CODE_BROKEN ? CODE_NO_PONG : code);
    this.#lost({ code, reason });
  }

  #lost({ code, reason }) {
    this.#release();
    if (this.#openedAt !== null && this.now() - this.#openedAt >= STABLE_MS) this.#backoff.reset();
    if (!mayReconnect(code)) {
      this.#finish({ code, reason });
      return;
    }
    this.#leave(code);
    let retryInMs = this.#backoff.nextDelayMs();
    if (this.#left !== null) {
      // Time is short, and several attempts should fit into it.
      const windowMs = 1_000 * this.#left.welcome.resume_window_s;
      retryInMs = Math.min(retryInMs, Math.round(windowMs / ATTEMPTS_PER_WINDOW));
    }
    this.#setState("waiting", { code, reason, retryInMs, problem: this.#problem });
    this.#retry = setTimeout(() => this.#dial(), retryInMs);
  }

  /** What a broken connection leaves: streams that wait to be recovered, and the others. */
  #leave(code) {
    const now = this.now();
    if (this.#openedAt !== null) {
      const hasWindow = this.#welcome.resume_window_s > 0;
      this.#left = hasWindow && mayResume(code) ? { welcome: this.#welcome, lostAt: now } : null;
    } else if (this.#left !== null) {
      const { welcome, lostAt } = this.#left;
      if (now - lostAt > 1_000 * welcome.resume_window_s) this.#left = null; // nobody waits so long
    }
    for (const stream of this.#streams) {
      if (this.#left !== null && stream.lastSeq !== null && stream.id !== null) stream.suspend();
      else stream.disconnected();
    }
  }

  #hello() {
    const token = this.#token === null ? {} : { token: this.#token };
    if (this.#left === null) return { type: "hello", ...token };
    const { session, resume_token: resumeToken } = this.#left.welcome;
    // Also without a stream: what the server keeps of the others is then given up at once.
    const streams = [...this.#streams]
      .filter(({ id }) => id !== null)
      .map(({ id, lastSeq }) => ({ stream: id, last_seq: lastSeq }));
    return { type: "hello", ...token, resume: { session, token: resumeToken, streams } };
  }

  #finish({ code, reason }) {
    this.#left = null;
    this.#release();
    clearTimeout(this.#retry);
    const detail = { code, reason, problem: this.#problem };
    this.#setState("closed", detail); // first: a stream that ends looks why
    for (const stream of [...this.#streams]) stream.fail(detail);
    this.#streams.clear();
    this.#connected?.reject(new ClawstreamError(detail));
    this.#connected = null;
  }

  #release() {
    clearInterval(this.#tick);
    if (this.#socket === null) return;
    this.#socket.onopen = this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket = null;
  }

  // --- messages ---------------------------------------------------------------------------------

  #receive(data) {
    this.#liveness.heard(this.now());
    try {
      if (typeof data === "string") this.#onControl(parseControl(data));
      else this.#onBinary(data);
    } catch (error) {
      if (error instanceof UnknownType) return;
      if (!(error instanceof ProtocolError)) throw error;
      this.#problem = { title: "The server broke the protocol", detail: error.message };
      this.#abandon(CODE_PROTOCOL, error.message);
    }
  }

  #onControl(message) {
    switch (message.type) {
      case "welcome":
        this.#onWelcome(message);
        break;
      case "ping":
        this.#send({ type: "pong", t: message.t, now_us: Math.round(this.now() * 1000) });
        break;
      case "pong":
        this.#liveness.ponged(message.t, message.now_us, this.now());
        break;
      case "server_event":
        this.#tellNews(message);
        break;
      case "goaway":
        // What is under way is still answered; the close that follows makes us come back.
        this.#draining = true;
        break;
      default:
        this.#onStreamMessage(message);
    }
  }

  #onStreamMessage(message) {
    if (message.stream !== undefined) {
      this.#streamOf(message.stream)?.handle(message); // a closed id: late, ignored
    } else if (message.type === "error") {
      this.#problem = message.problem;
      this.#emit("error", { problem: message.problem, retryable: message.retryable });
    }
  }

  #onBinary(data) {
    const message = this.#assembler.add(decodeBinary(data));
    if (message !== null) this.#streamOf(message.stream)?.attach(message);
  }

  #onWelcome(welcome) {
    this.#welcome = welcome;
    this.#openedAt = this.now();
    const goingOn = recovered(this.#left, welcome);
    this.#left = null;
    this.#setState("open", { session: welcome.session });
    this.#tellNews({ kind: "service_level", level: welcome.service_level ?? "normal" });
    for (const stream of [...this.#streams]) {
      const entry = goingOn.get(stream.id);
      if (entry !== undefined) {
        goingOn.delete(stream.id);
        stream.resume(entry.received_seq + 1);
        continue;
      }
      if (stream.id !== null) stream.disconnected();
      if (stream.state === "waiting") stream.begin(this.#nextStream++);
    }
    // Given up at the very last moment.
    for (const id of goingOn.keys()) this.#send({ type: "close", stream: id });
    this.#connected?.resolve(welcome);
    this.#connected = null;
  }

  #tellNews({ kind, text = "", level = null }) {
    this.#emit("news", { kind, text, level });
  }

  #streamOf(id) {
    for (const stream of this.#streams) if (stream.id === id) return stream;
    return null;
  }

  #send(message) {
    this.#socket.send(message instanceof Uint8Array ? message : JSON.stringify(message));
  }

  /** What a stream sees of the connection. */
  #link() {
    const client = this;
    return {
      get isOpen() {
        return client.#state === "open";
      },
      get isDraining() {
        return client.#draining;
      },
      get bufferedBytes() {
        return client.#socket?.bufferedAmount ?? 0;
      },
      get limits() {
        return client.#welcome.limits;
      },
      now: () => client.now(),
      send: (message) => client.#send(message),
    };
  }

  #setState(state, detail = {}) {
    this.#state = state;
    this.#emit("state", { state, ...detail });
  }

  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

/** The streams of the session that was left which go on in the new one, by their id. */
function recovered(left, welcome) {
  if (left?.welcome.session !== welcome.session) return new Map();
  const entries = (welcome.resumed ?? []).filter((entry) => entry.recovered);
  return new Map(entries.map((entry) => [entry.stream, entry]));
}

/** The address of the stream endpoint on the page's own server. */
export function streamUrl(location) {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  return `${scheme}//${location.host}/v1/stream`;
}

/** Wall-clock ms with sub-millisecond steps, the same in a page and in its workers. */
function epochMs() {
  return performance.timeOrigin + performance.now();
}

function parseControl(text) {
  try {
    const message = JSON.parse(text);
    if (typeof message?.type === "string") return message;
  } catch {
    // Told below, like JSON that is no message.
  }
  throw new ProtocolError("a text message is no control message");
}
