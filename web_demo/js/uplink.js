/**
 * The sending half of the page: owns the connection and turns bitmaps into JPEG.
 *
 * It lives in a module Worker (worker.js) or, without OffscreenCanvas, on the main thread.
 *
 * Page -> uplink: start {run, url, token, options, picture}, frame {bitmap, tCapture},
 *   rendered {seq}, stop.
 * Uplink -> page, each with `run` and `hasCredit`: state, opened, credit, hint {hint}, sent {seq, bitmap, bytes},
 *   skipped {reason}, news {kind, text, level}, result {…, annotated}, drop {reason, seqs}, problem {…}, refused {message},
 *   receipts {…}.
 *
 * Every `frame` is answered by exactly one `sent`, which gives the bitmap back, or `skipped`,
 * which says that it was closed.
 */

import { ClawstreamClient } from "./client.js";
import { NO_HINT, pictureWithin, RateLimit } from "./hints.js";

const RECEIPTS_INTERVAL_MS = 500;

/** One run, from start to stop; `post(message, transfer)` carries its answers to the page. */
class Uplink {
  #post;
  #client = new ClawstreamClient();
  #encoder = new JpegEncoder();
  #picture;
  #stream = null;
  #hint = NO_HINT; // what the gateway asks for
  #rate = new RateLimit(null);
  #isEncoding = false;
  #isStopped = false;
  #receiptsTimer;

  constructor(post, { run, picture }) {
    this.#post = (message, transfer) => {
      // After `stop` only bitmaps would travel, to a page that has moved on.
      if (this.#isStopped) for (const item of transfer ?? []) item.close();
      else post({ ...message, run, hasCredit: this.#hasCredit }, transfer);
    };
    this.#picture = picture; // {maxWidth, quality}
  }

  /** Connects, opens the stream and keeps both up. */
  async start({ url, token, options }) {
    const client = this.#client;
    client.addEventListener("state", ({ detail }) => this.#post({ ...detail, type: "state" }));
    client.addEventListener("error", ({ detail }) => this.#post({ ...detail, type: "problem" }));
    client.addEventListener("news", ({ detail }) => this.#post({ ...detail, type: "news" }));
    const connecting = client.connect(url, { token });
    connecting.catch(() => {}); // the state event tells it
    try {
      await connecting;
      this.#watch(await client.openStream(options));
    } catch (error) {
      this.#refused(error.message);
    }
  }

  stop() {
    this.#isStopped = true;
    clearInterval(this.#receiptsTimer);
    this.#client.close();
  }

  rendered(seq) {
    this.#stream?.rendered(seq);
  }

  async sendFrame({ bitmap, tCapture }) {
    const reason = this.#refusal() ?? (this.#rate.passes(tCapture) ? null : "asked");
    if (reason !== null) {
      this.#skip(bitmap, reason);
      return;
    }
    this.#isEncoding = true;
    try {
      const { maxWidth, quality } = pictureWithin(this.#picture, this.#hint);
      const jpeg = await this.#encoder.encode(bitmap, maxWidth, quality);
      this.#deliver(bitmap, jpeg, tCapture);
    } catch (error) {
      this.#skip(bitmap, "encoder", error.message);
    } finally {
      this.#isEncoding = false;
    }
  }

  get #hasCredit() {
    return this.#stream !== null && this.#stream.refusal() !== "no_credit";
  }

  #refusal() {
    if (this.#stream === null) return "not_connected";
    return this.#isEncoding ? "encoder" : this.#stream.refusal();
  }

  #deliver(bitmap, jpeg, tCapture) {
    const seq = this.#stream.sendFrame(jpeg, tCapture);
    if (seq === null) this.#skip(bitmap, this.#stream.refusal(jpeg.byteLength));
    else this.#post({ type: "sent", seq, bitmap, bytes: jpeg.byteLength }, [bitmap]);
  }

  #skip(bitmap, reason, message = "") {
    bitmap.close();
    this.#post({ type: "skipped", reason, message });
  }

  #watch(stream) {
    this.#stream = stream;
    const on = (name, act) => stream.addEventListener(name, ({ detail }) => act(detail));
    on("opened", () => this.#post({ type: "opened" }));
    on("credit", () => this.#post({ type: "credit" }));
    on("hint", (hint) => this.#obey(hint));
    on("drop", (detail) => this.#post({ ...detail, type: "drop" }));
    on("error", (detail) => this.#post({ ...detail, type: "problem" }));
    on("result", (detail) => this.#onResult(detail));
    on("closed", ({ problem }) => this.#refused(problem?.detail || problem?.title));
    this.#receiptsTimer = setInterval(() => this.#postReceipts(), RECEIPTS_INTERVAL_MS);
    this.#post({ type: "opened" }); // openStream resolves after that event
  }

  #obey(hint) {
    this.#hint = hint;
    this.#rate = new RateLimit(hint.maxFps);
    this.#post({ type: "hint", hint });
  }

  /** The stream is over although nobody asked; a closed connection tells its own story. */
  #refused(message = "the stream was closed") {
    if (this.#client.state !== "closed") this.#post({ type: "refused", message });
  }

  async #onResult(detail) {
    let annotated = null;
    if (detail.annotated !== null) {
      const blob = new Blob([detail.annotated], { type: "image/jpeg" });
      annotated = await createImageBitmap(blob).catch(() => null);
    }
    const transfer = annotated === null ? [] : [annotated];
    this.#post({ ...detail, type: "result", annotated }, transfer);
  }

  #postReceipts() {
    const rttMs = this.#client.clock?.rttMs ?? null;
    this.#post({ ...this.#stream.statistics(), type: "receipts", rttMs });
  }
}

/** Scales a bitmap down to a width and encodes it; keeps one canvas of the last size. */
class JpegEncoder {
  #canvas = null;
  #context = null;

  /** JPEG bytes (ArrayBuffer) of `bitmap`, at most `maxWidth` pixels wide. */
  async encode(bitmap, maxWidth, quality) {
    const width = Math.min(bitmap.width, maxWidth);
    const height = Math.max(1, Math.round((bitmap.height * width) / bitmap.width));
    this.#resize(width, height);
    this.#context.drawImage(bitmap, 0, 0, width, height);
    const blob = await toJpeg(this.#canvas, quality);
    return blob.arrayBuffer();
  }

  #resize(width, height) {
    if (this.#canvas?.width === width && this.#canvas.height === height) return;
    this.#canvas = makeCanvas(width, height);
    this.#context = this.#canvas.getContext("2d", { alpha: false });
  }
}

function makeCanvas(width, height) {
  if (typeof OffscreenCanvas !== "undefined") return new OffscreenCanvas(width, height);
  return Object.assign(document.createElement("canvas"), { width, height });
}

function toJpeg(canvas, quality) {
  const type = "image/jpeg";
  if (typeof canvas.convertToBlob === "function") return canvas.convertToBlob({ type, quality });
  return new Promise((resolve, reject) => {
    const done = (blob) => (blob === null ? reject(new Error("no JPEG")) : resolve(blob));
    canvas.toBlob(done, type, quality);
  });
}

/** Receives the page's messages; at most one run at a time. */
export class UplinkHost {
  #post;
  #uplink = null;

  constructor(post) {
    this.#post = post;
  }

  receive(message) {
    switch (message.type) {
      case "start":
        this.#uplink?.stop();
        this.#uplink = new Uplink(this.#post, message);
        this.#uplink.start(message);
        break;
      case "frame":
        if (this.#uplink === null) message.bitmap.close();
        else this.#uplink.sendFrame(message);
        break;
      case "rendered":
        this.#uplink?.rendered(message.seq);
        break;
      case "stop":
        this.#uplink?.stop();
        this.#uplink = null;
        break;
      default:
        throw new Error(`unknown message ${message.type}`);
    }
  }
}

/**
 * Starts an uplink for the page: {send(message, transfer?)}, in a Worker where the browser can
 * encode there. `onMessage` receives its answers; `onFailure` tells that the Worker broke.
 */
export function startUplink(onMessage, onFailure) {
  if (typeof Worker !== "undefined" && typeof OffscreenCanvas !== "undefined") {
    const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    worker.onmessage = (event) => onMessage(event.data);
    worker.onerror = onFailure;
    return { send: (message, transfer = []) => worker.postMessage(message, transfer) };
  }
  const host = new UplinkHost((message) => queueMicrotask(() => onMessage(message)));
  return { send: (message) => host.receive(message) };
}
