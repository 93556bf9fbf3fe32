/** Hints: what a gateway asks of a camera, and how the page obeys. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { NO_HINT, pictureWithin, RateLimit, readHint } from "../../../web_demo/js/hints.js";
import { Bench, collect } from "./fake_gateway.mjs";

function passed(limit, fps, seconds) {
  const times = Array.from({ length: fps * seconds }, (_, n) => (n * 1000) / fps);
  return times.filter((at) => limit.passes(at)).length;
}

test("a limit passes every other frame of a camera that is twice as fast", () => {
  assert.equal(passed(new RateLimit(15), 30, 2), 30);
});

test("without a limit every frame passes", () => {
  assert.equal(passed(new RateLimit(null), 30, 2), 60);
});

test("a limit above the camera's rate loses no frame to jitter", () => {
  const limit = new RateLimit(30);
  const times = Array.from({ length: 60 }, (_, n) => (n * 1000) / 30 + (n % 2) * 4);
  assert.equal(times.filter((at) => limit.passes(at)).length, 60);
});

test("what a hint does not name has no limit", () => {
  assert.deepEqual(readHint({ stream: 1, max_fps: 5 }), { maxFps: 5, maxWidth: null, quality: null });
  assert.deepEqual(readHint({ stream: 1 }), NO_HINT);
});

test("the user's choice holds where it is the smaller one", () => {
  const choice = { maxWidth: 640, quality: 0.8 };
  assert.deepEqual(pictureWithin(choice, NO_HINT), choice);
  const hint = { maxFps: null, maxWidth: 960, quality: 0.6 };
  assert.deepEqual(pictureWithin(choice, hint), { maxWidth: 640, quality: 0.6 });
});

test("a stream tells hints, and that there is none after it was opened again", async () => {
  const bench = await new Bench().connected();
  const stream = await bench.streamWith({});
  const hints = collect(stream, "hint");
  bench.socket.receive({ type: "hint", stream: 1, max_fps: 10, quality: 0.7 });
  assert.deepEqual(hints, [{ maxFps: 10, maxWidth: null, quality: 0.7 }]);
  bench.socket.end(1006);
  bench.advance(250);
  bench.accept();
  assert.deepEqual(hints.at(-1), NO_HINT);
});
