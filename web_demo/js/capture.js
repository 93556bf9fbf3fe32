/**
 * Pictures in: camera or clip, one callback per new video frame, a bounded ring of recent frames.
 *
 * ImageBitmaps hold memory outside the garbage collector's view, so whoever owns one closes it.
 */

const RING_CAPACITY = 33; // a stream's default credit and one: a frame is here until it is answered
const MAX_CAPTURE_AGE_MS = 2_000;

const CAMERA_FAULTS = {
  NotAllowedError: "permission",
  SecurityError: "permission",
  NotFoundError: "no_camera",
  OverconstrainedError: "no_camera",
  NotReadableError: "camera_in_use",
  AbortError: "camera_in_use",
};

/** A source that cannot be used; `kind` names one of the page's notices. */
export class SourceError extends Error {
  name = "SourceError";

  constructor(kind, options) {
    super(kind, options);
    this.kind = kind;
  }
}

/**
 * Plays the camera in `video`; `onEnded` is called when it is unplugged or taken away. An aborted
 * `signal` gives the camera back, also when the user allows it only after that.
 */
export async function openCamera(video, { signal, onEnded }) {
  // Absent on plain http beyond localhost: browsers give cameras to secure pages only.
  if (navigator.mediaDevices === undefined) throw new SourceError("insecure");
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({
      audio: false,
      video: { width: { ideal: 1280 }, height: { ideal: 720 }, frameRate: { ideal: 30 } },
    });
  } catch (error) {
    throw new SourceError(CAMERA_FAULTS[error.name] ?? "camera_failed", { cause: error });
  }
  if (signal.aborted) {
    for (const track of stream.getTracks()) track.stop();
    return;
  }
  stream.getVideoTracks()[0].addEventListener("ended", onEnded, { once: true, signal });
  video.srcObject = stream;
  await play(video, "camera_failed");
}

/** Plays a clip of the server in `video`, over and over. */
export async function openClip(video, url) {
  video.src = url;
  video.loop = true;
  await play(video, "clip_missing");
}

/** Stops the source and lets the camera's light go out. Safe to call on an empty element. */
export function closeSource(video) {
  video.pause();
  for (const track of video.srcObject?.getTracks() ?? []) track.stop();
  video.srcObject = null;
  video.removeAttribute("src");
  video.load();
}

async function play(video, fault) {
  video.muted = true;
  video.playsInline = true;
  try {
    await video.play();
  } catch (error) {
    throw new SourceError(fault, { cause: error });
  }
}

/** Calls `onFrame(tCapture)` once for every new frame of a playing video, until stopped. */
export class FramePump {
  #video;
  #onFrame;
  #isRunning = false;
  #cancelNext = () => {}; // at most one callback waits, however often the pump is started
  #lastMediaTime = -1;

  constructor(video, onFrame) {
    this.#video = video;
    this.#onFrame = onFrame;
  }

  start() {
    this.#isRunning = true;
    this.#schedule();
  }

  stop() {
    this.#isRunning = false;
    this.#cancelNext();
  }

  #schedule() {
    this.#cancelNext();
    if (!this.#isRunning) return;
    const video = this.#video;
    if (typeof video.requestVideoFrameCallback === "function") {
      const act = (now, metadata) => this.#onVideoFrame(now, metadata);
      const handle = video.requestVideoFrameCallback(act);
      this.#cancelNext = () => video.cancelVideoFrameCallback(handle);
    } else {
      const handle = requestAnimationFrame((now) => this.#onAnimationFrame(now));
      this.#cancelNext = () => cancelAnimationFrame(handle);
    }
  }

  #onVideoFrame(now, { captureTime }) {
    // Cameras say when the picture was taken; a clip's frame is taken when it is shown.
    const age = captureTime === undefined ? 0 : performance.now() - captureTime;
    const isPlausible = age > 0 && age < MAX_CAPTURE_AGE_MS;
    this.#onFrame(performance.timeOrigin + (isPlausible ? captureTime : now));
    this.#schedule();
  }

  /** Without video frame callbacks, a changed media time is the sign of a new frame. */
  #onAnimationFrame(now) {
    if (this.#video.currentTime !== this.#lastMediaTime) {
      this.#lastMediaTime = this.#video.currentTime;
      this.#onFrame(performance.timeOrigin + now);
    }
    this.#schedule();
  }
}

/** The frames that wait for their result, by seq. When full the oldest is closed and forgotten. */
export class FrameRing {
  #frames = new Map(); // seq -> ImageBitmap, in rising order
  #capacity;

  constructor(capacity = RING_CAPACITY) {
    this.#capacity = capacity;
  }

  get size() {
    return this.#frames.size;
  }

  put(seq, bitmap) {
    if (this.#frames.size >= this.#capacity) {
      const oldest = this.#frames.keys().next().value;
      this.discard(oldest);
    }
    this.#frames.set(seq, bitmap);
  }

  /** Hands the frame out; the caller closes it. Null when it is not here (any more). */
  take(seq) {
    const bitmap = this.#frames.get(seq) ?? null;
    this.#frames.delete(seq);
    return bitmap;
  }

  discard(seq) {
    this.take(seq)?.close();
  }

  clear() {
    for (const seq of [...this.#frames.keys()]) this.discard(seq);
  }
}
