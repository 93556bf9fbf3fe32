/** The page's pure parts: windows, overload, the ring of frames, descriptions. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { FramePump, FrameRing } from "../../../web_demo/js/capture.js";
import { colourOf, describe } from "../../../web_demo/js/overlay.js";
import { RunStatistics, SlidingWindow } from "../../../web_demo/js/statistics.js";

test("rate is counted over the observed span", () => {
  const window = new SlidingWindow(3000);
  for (let index = 0; index <= 10; index += 1) window.add(index * 100);
  assert.equal(window.rate(1000), 10);
  assert.equal(window.rate(9000), 0);
});

test("percentiles use the nearest rank and forget the past", () => {
  const window = new SlidingWindow(1000);
  for (let value = 1; value <= 100; value += 1) window.add(value, value);
  assert.equal(window.percentile(100, 0.5), 50);
  assert.equal(window.percentile(100, 0.95), 95);
  assert.equal(window.percentile(5000, 0.5), null);
});

test("a window never holds more than its bound", () => {
  const window = new SlidingWindow(Infinity);
  for (let index = 0; index < 5000; index += 1) window.add(index);
  assert.equal(window.sum(5000), 1024);
});

test("overload has hysteresis and needs enough frames", () => {
  const statistics = new RunStatistics();
  for (let at = 0; at < 10; at += 1) {
    statistics.offered(at);
    statistics.lost(at, "superseded");
  }
  assert.equal(statistics.snapshot(10).isOverloaded, false);
  for (let at = 10; at < 40; at += 1) {
    statistics.offered(at);
    if (at % 3 === 0) statistics.lost(at, "no_credit");
  }
  assert.equal(statistics.snapshot(40).isOverloaded, true);
  for (let at = 40; at < 150; at += 1) statistics.offered(at);
  assert.equal(statistics.snapshot(150).isOverloaded, true);
  for (let at = 150; at < 300; at += 1) statistics.offered(at);
  assert.equal(statistics.snapshot(300).isOverloaded, false);
});

test("phases split the latency into server time and transport", () => {
  const statistics = new RunStatistics();
  statistics.result(0, 50, { queue: 5000, batch: 1000, prepare: 4000, run: 20000, interpret: 1000, order: 500 });
  const { phases } = statistics.snapshot(0);
  assert.deepEqual(Object.fromEntries(phases), { transport: 18.5, queue: 6, model: 25, delivery: 0.5 });
});

test("a full ring closes its oldest frame", () => {
  const ring = new FrameRing(2);
  const closed = [];
  const bitmap = (name) => ({ close: () => closed.push(name) });
  ring.put(1, bitmap("a"));
  ring.put(2, bitmap("b"));
  ring.put(3, bitmap("c"));
  assert.deepEqual(closed, ["a"]);
  assert.equal(ring.take(1), null);
  assert.notEqual(ring.take(2), null);
  ring.clear();
  assert.deepEqual(closed, ["a", "c"]);
  assert.equal(ring.size, 0);
});

test("results are described in words", () => {
  assert.equal(describe({ objects: [] }), "nothing found");
  assert.equal(describe({ objects: [{ label: "car" }, { label: "cup" }, { label: "car" }] }), "2 × car, cup");
  assert.equal(describe({ classes: [{ label: "espresso", score: 0.951 }] }), "espresso, 95 %");
});

test("a label keeps its colour", () => {
  assert.equal(colourOf("car"), colourOf("car"));
  assert.notEqual(colourOf("car"), colourOf("cup"));
});

class FakeVideo {
  waiting = new Map(); // handle -> callback
  #handles = 0;

  requestVideoFrameCallback(act) {
    this.waiting.set(++this.#handles, act);
    return this.#handles;
  }

  cancelVideoFrameCallback(handle) {
    this.waiting.delete(handle);
  }

  showFrame() {
    const acts = [...this.waiting.values()];
    this.waiting.clear();
    for (const act of acts) act(performance.now(), {});
  }
}

test("a pump that was started again offers every frame once", () => {
  const video = new FakeVideo();
  let offered = 0;
  const pump = new FramePump(video, () => (offered += 1));
  pump.start();
  for (let change = 0; change < 3; change += 1) {
    pump.stop();
    pump.start();
  }
  for (let frame = 0; frame < 10; frame += 1) video.showFrame();
  assert.equal(offered, 10);
  pump.stop();
  video.showFrame();
  assert.equal(offered, 10);
  assert.equal(video.waiting.size, 0);
});

test("a pump may be stopped and started from its own frame", () => {
  const video = new FakeVideo();
  const pump = new FramePump(video, () => {
    pump.stop();
    pump.start();
  });
  pump.start();
  video.showFrame();
  assert.equal(video.waiting.size, 1);
});
