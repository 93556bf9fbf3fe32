/**
 * The sending half of the page: owns the connection and turns bitmaps into JPEG.
 *
 * The same class runs in a module Worker (worker.js) or, without OffscreenCanvas, on the main
 * thread. `post(message, transfer)` carries its answers to the page. Every `frame` is answered by
 * exactly one `sent` or `skipped`, which gives the bitmap back or says that it was closed.
 *
 * Page -> uplink: connect {url, token}, open {options, picture}, frame {bitmap, tCapture},
 *   rendered {seq}, stop.
 * Uplink -> page: state, opened, refused {message}, sent {seq, bitmap, bytes, canSend},
 *   skipped {reason}, result {…, annotated}, drop {reason, seqs}, problem {…}, receipts {…}.
 */

import { ClawstreamClient } from "./client.js";

const RECEIPTS_INTERVAL_MS = 500;

export class Uplink {
  #post;
  #encoder = new JpegEncoder();
  #client = null;
  #stream = null;
  #picture = { maxWidth: 640, quality: 0.75 };
  #isEncoding = false;
  #receiptsTimer = null;

  constructor(post) {
    this.#post = post;
  }

  /** One message of the page. */
  receive(message) {
    switch (message.type) {
      case "connect":
        this.#connect(message);
        break;
      case "open":
        this.#open(message);
        break;
      case "frame":
        this.#sendFrame(message);
        break;
      case "rendered":
        this.#stream?.rendered(message.seq);
        break;
      case "stop":
        this.#stop();
        break;
      default:
        throw new Error(`unknown message ${message.type}`);
    }
  }

  #connect({ url, token }) {
    this.#stop();
    const client = new ClawstreamClient();
    client.addEventListener("state", ({ detail }) => this.#post({ ...detail, type: "state" }));
    client.addEventListener("error", ({ detail }) => this.#post({ ...detail, type: "problem" }));
    this.#client = client;
    client.connect(url, { token }).catch(() => {}); // the state event says it too
  }

  async #open({ options, picture }) {
    this.#picture = { ...this.#picture, ...picture };
    const client = this.#client;
    try {
      const stream = await client.openStream(options);
      if (client !== this.#client) return;
      this.#watch(stream);
    } catch (error) {
      // A closed connection has told its own story through `state`.
      if (client === this.#client && client.state !== "closed") {
        this.#post({ type: "refused", message: error.message });
      }
    }
  }

  #watch(stream) {
    this.#stream = stream;
    const forward = (name) =>
      stream.addEventListener(name, ({ detail }) => {
        if (stream === this.#stream) this.#post({ ...detail, type: name });
      });
    forward("opened");
    forward("drop");
    stream.addEventListener("closed", ({ detail }) => this.#onClosed(stream, detail));
    stream.addEventListener("credit", () => this.#post({ type: "credit", canSend: stream.canSend }));
    stream.addEventListener("error", ({ detail }) => this.#post({ ...detail, type: "problem" }));
    stream.addEventListener("hint", ({ detail }) => this.#follow(detail));
    stream.addEventListener("result", ({ detail }) => this.#onResult(stream, detail));
    this.#receiptsTimer = setInterval(() => this.#postReceipts(), RECEIPTS_INTERVAL_MS);
    this.#post({ type: "opened", stream: stream.id });
    this.#post({ type: "credit", canSend: stream.canSend });
  }

  /** The stream ended although nobody asked: the server would not open it again. */
  #onClosed(stream, { problem }) {
    if (stream !== this.#stream || this.#client.state === "closed") return;
    this.#post({ type: "refused", message: problem?.detail || problem?.title || "stream closed" });
  }

  /** The server asks for less, or allows more again. */
  #follow({ max_width: maxWidth, quality }) {
    if (maxWidth !== undefined) this.#picture.hintedWidth = maxWidth;
    if (quality !== undefined) this.#picture.quality = quality;
  }

  async #sendFrame({ bitmap, tCapture }) {
    const stream = this.#stream;
    const reason = this.#refusal(stream);
    if (reason !== null) {
      bitmap.close();
      stream?.skip(reason);
      this.#post({ type: "skipped", reason });
      return;
    }
    this.#isEncoding = true;
    try {
      const { maxWidth, hintedWidth = Infinity, quality } = this.#picture;
      const jpeg = await this.#encoder.encode(bitmap, Math.min(maxWidth, hintedWidth), quality);
      this.#deliver(stream, bitmap, jpeg, tCapture);
    } catch (error) {
      bitmap.close();
      this.#post({ type: "skipped", reason: "encoder", message: error.message });
    } finally {
      this.#isEncoding = false;
    }
  }

  #refusal(stream) {
    if (stream === null) return "not_connected";
    if (this.#isEncoding) return "encoder";
    return stream.refusal();
  }

  #deliver(stream, bitmap, jpeg, tCapture) {
    const seq = stream.sendFrame(jpeg, tCapture);
    if (seq === null) {
      bitmap.close();
      this.#post({ type: "skipped", reason: stream.refusal(jpeg.byteLength) });
      return;
    }
    const sent = { type: "sent", seq, bitmap, bytes: jpeg.byteLength, canSend: stream.canSend };
    this.#post(sent, [bitmap]);
  }

  async #onResult(stream, detail) {
    let annotated = null;
    if (detail.annotated !== null) {
      const blob = new Blob([detail.annotated], { type: "image/jpeg" });
      annotated = await createImageBitmap(blob).catch(() => null);
    }
    if (stream !== this.#stream) {
      annotated?.close();
      return;
    }
    this.#post({ ...detail, type: "result", annotated }, annotated === null ? [] : [annotated]);
  }

  #postReceipts() {
    const clock = this.#client.clock;
    const rttMs = clock === null ? null : clock.rttMs;
    this.#post({ ...this.#stream.statistics(), type: "receipts", rttMs });
  }

  #stop() {
    clearInterval(this.#receiptsTimer);
    this.#client?.close();
    this.#client = null;
    this.#stream = null;
  }
}

/** Scales a bitmap down to a width and encodes it; keeps one canvas of the last size. */
class JpegEncoder {
  #canvas = null;
  #context = null;

  /** JPEG bytes (ArrayBuffer) of `bitmap`, at most `maxWidth` pixels wide. */
  async encode(bitmap, maxWidth, quality) {
    const width = Math.min(bitmap.width, Math.round(maxWidth));
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

/**
 * Starts an uplink for the page: {send(message, transfer?)}, in a Worker where the browser can
 * encode there. `onMessage` receives its answers.
 */
export function startUplink(onMessage) {
  if (typeof Worker !== "undefined" && typeof OffscreenCanvas !== "undefined") {
    const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    worker.onmessage = (event) => onMessage(event.data);
    return { send: (message, transfer = []) => worker.postMessage(message, transfer) };
  }
  const uplink = new Uplink((message) => queueMicrotask(() => onMessage(message)));
  return { send: (message) => uplink.receive(message) };
}
