/**
 * What the Video tab is doing, as a table, and what it says about it. Pure.
 *
 * An event that is not in the table changes nothing: late messages of an ended run are harmless.
 */

export const TRANSITIONS = {
  loading: {
    ready: "idle", not_ready: "warming", absent: "absent", unauthorized: "locked",
    unreachable: "offline",
  },
  warming: { ready: "idle", absent: "absent", unauthorized: "locked", unreachable: "offline" },
  offline: { ready: "idle", not_ready: "warming", absent: "absent", unauthorized: "locked" },
  absent: { ready: "idle", not_ready: "warming", unauthorized: "locked" },
  locked: { key_given: "loading" },
  idle: { start: "asking" },
  asking: { source_ready: "connecting", failed: "idle", stop: "idle" },
  connecting: {
    opened: "running", lost: "reconnecting", failed: "idle", unauthorized: "locked", stop: "idle",
  },
  running: { lost: "reconnecting", failed: "idle", unauthorized: "locked", stop: "idle" },
  reconnecting: { connected: "connecting", failed: "idle", unauthorized: "locked", stop: "idle" },
};

/** States in which a source is playing or about to. */
export const ACTIVE = new Set(["asking", "connecting", "running", "reconnecting"]);

/** The next state by a table of this shape, or null when the event means nothing now. */
export function nextState(table, state, event) {
  return table[state][event] ?? null;
}

/** Short word for the chip in the corner. */
export const CHIPS = {
  loading: "Loading",
  warming: "Warming up",
  offline: "Offline",
  absent: "No model",
  locked: "Key needed",
  idle: "Ready",
  asking: "Starting",
  connecting: "Connecting",
  running: "Live",
  reconnecting: "Reconnecting",
};

/** What happened and what to do about it, by kind. */
export const NOTICES = {
  loading: {
    title: "One moment",
    text: "Asking the gateway which models it serves.",
  },
  warming: {
    title: "The model is warming up",
    text: "The gateway runs a first inference before it takes pictures. This page goes on by itself.",
  },
  offline: {
    title: "The gateway does not answer",
    text: "Check that it is running. This page tries again every few seconds.",
  },
  absent: {
    title: "No video model is served here",
    text: "Start the gateway with one, such as “clawstream demo”. Then reload this page.",
  },
  locked: {
    title: "This gateway asks for a key",
    text: "Enter an API key. It stays in this page's memory and is gone when you leave.",
  },
  wrong_key: {
    title: "That key was not accepted",
    text: "Check it and try again. It stays in this page's memory only.",
  },
  idle: {
    title: "See what the model sees",
    text: "Choose a source and press Start. Every result is drawn on the very frame it belongs to.",
  },
  asking: {
    title: "Waiting for the source",
    text: "If your browser asks for the camera, allow it.",
  },
  connecting: {
    title: "Connecting",
    text: "Opening a stream to the gateway.",
  },
  permission: {
    title: "The camera is blocked",
    text: "This page may not use the camera. Allow it in the address bar’s site settings and press Start again, or choose a clip.",
  },
  no_camera: {
    title: "No camera found",
    text: "Plug one in and press Start again, or choose a clip.",
  },
  camera_in_use: {
    title: "The camera is in use",
    text: "Another program holds it. Close that program and press Start again, or choose a clip.",
  },
  camera_failed: {
    title: "The camera does not start",
    text: "Unplug it and plug it in again, or choose a clip.",
  },
  camera_gone: {
    title: "The camera is gone",
    text: "It was unplugged or taken away. Press Start when it is back.",
  },
  insecure: {
    title: "Cameras need a secure page",
    text: "Browsers give the camera only to https pages and to localhost. Open the page that way, or choose a clip.",
  },
  clip_missing: {
    title: "The clip cannot be played",
    text: "The gateway does not have it yet: “clawstream demo” downloads it. The camera works without.",
  },
  unavailable: {
    title: "The model is not ready",
    text: "The gateway is bringing it up. This page goes on by itself.",
  },
  no_worker: {
    title: "This browser is too old",
    text: "It cannot run module workers. Update it, or use another one.",
  },
  refused: {
    title: "The gateway refused the stream",
    text: "",
  },
  ended: {
    title: "The gateway ended the connection",
    text: "",
  },
};

/** Slim messages under the picture while a stream runs. */
export const BANNERS = {
  overload:
    "The model is slower than the camera: frames are skipped so that what you see stays fresh.",
  slow_device:
    "This device is slower than the camera: frames are skipped so that what you see stays fresh.",
  unavailable: "The model cannot serve at the moment. The gateway is bringing it back.",
};

/** What the page says while it waits to reconnect. */
export function reconnectText(seconds) {
  const when = seconds > 0 ? `Trying again in ${seconds} s.` : "Trying again now.";
  return { title: "Connection lost", text: `${when} The picture below is the last one answered.` };
}
