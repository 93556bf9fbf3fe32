/** The Delivery tab's pure parts: gaps of an answer, ages and freezes of frames, scales. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { AnswerDelivery } from "../../../web_demo/js/answer_delivery.js";
import { scaleOf } from "../../../web_demo/js/chart.js";
import { FrameDelivery } from "../../../web_demo/js/frame_delivery.js";
import { NO_HINT } from "../../../web_demo/js/hints.js";

function timing(engineMs, heldMs, reserve = 0) {
  return { engineUs: engineMs * 1000, heldUs: heldMs * 1000, reserve };
}

/** The engine says two tokens at a time, the gateway lets one leave every 40 ms. */
function pacedAnswer(num) {
  const delivery = new AnswerDelivery();
  for (let index = 0; index < num; index += 1) {
    const engineMs = 1000 + 80 * Math.floor(index / 2);
    const deliveredMs = 1000 + 40 * index;
    const told = { pace: 40, timing: timing(engineMs, deliveredMs - engineMs, 1 - (index % 2)) };
    delivery.token(500 + 40 * index + (index % 2), told); // the network adds 1 ms to every other
  }
  return delivery;
}

test("gaps of the engine, of the gateway and of here are told apart", () => {
  const { series, engine, delivered, arrived } = pacedAnswer(6).snapshot();
  assert.deepEqual(series.engine, [null, 0, 80, 0, 80, 0]);
  assert.deepEqual(series.delivered, [null, 40, 40, 40, 40, 40]);
  assert.deepEqual(series.arrived, [null, 41, 39, 41, 39, 41]);
  assert.deepEqual([delivered.medianMs, delivered.stdMs, delivered.longestMs], [40, 0, 40]);
  assert.ok(engine.stdMs > 35);
  assert.equal(arrived.longestMs, 41);
});

test("pace, delay, reserve and the engine's own time are shown beside each other", () => {
  const snapshot = pacedAnswer(6).snapshot();
  assert.deepEqual(snapshot.series.pace, [null, 40, 40, 40, 40, 40]);
  assert.equal(snapshot.withinShare, 1);
  assert.deepEqual(snapshot.series.held, [0, 40, 0, 40, 0, 40]);
  assert.deepEqual(
    [snapshot.paceMs, snapshot.heldMs, snapshot.longestHeldMs, snapshot.reserve, snapshot.engineMs],
    [40, 40, 40, 0, 160],
  );
  assert.ok(Math.abs(snapshot.jitterMs - 1) < 1e-9);
});

test("a stall is long and over twice the pace, or the usual gap where none was announced", () => {
  const paced = new AnswerDelivery();
  for (const [at, engineMs, heldMs] of [[0, 0, 0], [60, 0, 60], [240, 240, 0], [290, 240, 50]]) {
    paced.token(at, { pace: 60, timing: timing(engineMs, heldMs) });
  }
  assert.equal(paced.snapshot().delivered.stalls, 1);
  assert.equal(paced.snapshot().engine.stalls, 1);
  const plain = new AnswerDelivery();
  for (const at of [0, 20, 40, 60, 155, 175, 300]) plain.token(at);
  assert.equal(plain.snapshot().arrived.stalls, 1); // 95 ms is short enough, 125 is not
});

test("what the gateway does not tell is unknown, not zero", () => {
  const delivery = new AnswerDelivery();
  for (const at of [0, 30, 60]) delivery.token(at);
  const snapshot = delivery.snapshot();
  assert.deepEqual(snapshot.series.arrived, [null, 30, 30]);
  assert.deepEqual(snapshot.series.delivered, [null, null, null]);
  assert.equal(snapshot.engine.medianMs, null);
  assert.deepEqual([snapshot.withinShare, snapshot.heldMs, snapshot.engineMs], [null, null, null]);
  const empty = new AnswerDelivery().snapshot();
  assert.deepEqual([empty.paceMs, empty.reserve, empty.arrived.stalls], [null, null, null]);
});

test("a long answer keeps its newest tokens only", () => {
  const { series } = pacedAnswer(2000).snapshot();
  assert.equal(series.arrived.length, 512);
  assert.ok(series.arrived.every((gap) => gap !== null));
});

test("age and jitter of results follow their way, not the camera's rhythm", () => {
  const frames = new FrameDelivery();
  for (const at of [0, 33, 120, 153]) frames.result(at, 50, {});
  assert.deepEqual(frames.snapshot(153).series, { age: [50, 50, 50, 50], gap: [null, 33, 87, 33] });
  assert.deepEqual([frames.snapshot(153).ageP50, frames.snapshot(153).jitterMs], [50, 0]);
  frames.result(200, 66, { pace: 16_000 });
  const { jitterMs, heldMs } = frames.snapshot(200);
  assert.deepEqual([jitterMs, Math.round(heldMs * 10) / 10], [1, 1.6]);
});

test("a picture that stands for three intervals, and 150 ms longer than usual, is frozen", () => {
  const frames = new FrameDelivery();
  for (const at of [0, 40, 80, 120, 300, 340]) frames.shown(at);
  assert.deepEqual(frames.snapshot(340).freezes, { count: 0, totalMs: 0 }); // 180 is below 190
  frames.shown(640);
  assert.deepEqual(frames.snapshot(640).freezes, { count: 1, totalMs: 300 });
});

test("hints are counted when they say something new", () => {
  const frames = new FrameDelivery();
  frames.hint(NO_HINT);
  assert.equal(frames.snapshot(0).numHints, 0);
  const slower = { maxFps: 10, maxWidth: null, quality: null };
  frames.hint(slower);
  frames.hint({ ...slower });
  assert.deepEqual([frames.snapshot(0).numHints, frames.snapshot(0).hint], [1, slower]);
});

test("a scale ends at a round number above everything", () => {
  assert.deepEqual(scaleOf(40), { max: 40, ticks: [0, 20, 40] });
  assert.deepEqual(scaleOf(121).ticks, [0, 50, 100, 150]);
  for (const value of [1, 6, 7.3, 99, 100, 101, 583, 12_000]) {
    const { max, ticks } = scaleOf(value);
    assert.ok(max >= value && max <= 2 * value, `${value} on ${ticks}`);
    assert.ok(ticks.length >= 2 && ticks.length <= 5);
  }
});
