/** Streams of the JavaScript client: credit, receipts, acks, attachments, reopening. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { decodeBinary, encodeBinary, splitBinary } from "../../../web_demo/js/protocol.js";
import { Bench, collect } from "./fake_gateway.mjs";

const PICTURE = new Uint8Array([1, 2, 3, 4]);

async function openBench(options) {
  const bench = await new Bench().connected();
  const stream = await bench.streamWith(options);
  return { bench, stream, socket: bench.socket };
}

function result(seq, extra = {}) {
  return { type: "result", stream: 1, seq, t_us: 0, model: "m", version: "1", data: { seq }, timing: {}, ...extra };
}

test("open names the model and only the options that are set", async () => {
  const { socket } = await openBench({ policy: "fifo", deadlineMs: 300, annotate: "blur" });
  assert.deepEqual(socket.ofType("open")[0], {
    type: "open", stream: 1, model: "m", kind: "frames",
    options: { policy: "fifo", deadline_ms: 300, annotate: "blur" },
  });
});

test("a refused open rejects with the server's problem", async () => {
  const bench = await new Bench().connected();
  const opening = bench.client.openStream({ model: "nope" });
  const problem = { type: "urn:clawstream:problem:unknown-model", title: "The model is not served here" };
  bench.socket.receive({ type: "error", stream: 1, problem, retryable: false });
  await assert.rejects(opening, { message: problem.title });
});

test("a refusal that may pass is asked again under a new id", async () => {
  const bench = await new Bench().connected();
  const opening = bench.client.openStream({ model: "m" });
  const problem = { title: "The model cannot serve at the moment", status: 503 };
  bench.socket.receive({ type: "error", stream: 1, problem, retryable: true, retry_after_ms: 700 });
  bench.advance(500);
  assert.equal(bench.socket.ofType("open").length, 1);
  bench.advance(500);
  bench.opened();
  assert.equal((await opening).id, 2);
});

test("a frame carries seq and capture time", async () => {
  const { stream, socket } = await openBench();
  assert.equal(stream.sendFrame(PICTURE, 1_700_000_000_123.4567), 0);
  assert.equal(stream.sendFrame(PICTURE.buffer, 1_700_000_000_200), 1);
  const { seq, tUs, type, payload } = decodeBinary(socket.frames[0]);
  assert.deepEqual([type, seq, tUs], [1, 0, 1_700_000_000_123_457]);
  assert.deepEqual([...payload], [1, 2, 3, 4]);
});

test("a large frame travels in pieces and counts once", async () => {
  const { stream, socket } = await openBench({ maxFrames: 2 });
  stream.sendFrame(new Uint8Array(300_000), 0);
  assert.equal(socket.frames.length, 3);
  assert.equal(stream.statistics().sent, 1);
  assert.equal(stream.canSend, true);
});

test("without credit a frame is dropped at capture, and credit is cumulative", async () => {
  const { stream, socket } = await openBench({ maxFrames: 2 });
  const sent = [0, 1, 2].map(() => stream.sendFrame(PICTURE, 0));
  assert.deepEqual(sent, [0, 1, null]);
  assert.deepEqual(stream.statistics().droppedAtCapture, { no_credit: 1 });
  socket.receive({ type: "credit", stream: 1, max_frames: 3, max_bytes: 1e9 });
  assert.equal(stream.sendFrame(PICTURE, 0), 2);
  assert.equal(stream.canSend, false);
});

test("an older grant that comes late takes nothing away", async () => {
  const { stream, socket } = await openBench({ maxFrames: 5 });
  socket.receive({ type: "credit", stream: 1, max_frames: 1, max_bytes: 1 });
  stream.sendFrame(PICTURE, 0);
  assert.equal(stream.canSend, true);
});

test("credit in bytes holds a frame back", async () => {
  const { stream } = await openBench({ maxBytes: 6 });
  assert.equal(stream.sendFrame(PICTURE, 0), 0);
  assert.equal(stream.sendFrame(PICTURE, 0), null);
});

test("one frame is always allowed when none is in flight", async () => {
  const { stream, socket } = await openBench({ maxFrames: 0, maxBytes: 0 });
  assert.equal(stream.sendFrame(PICTURE, 0), 0);
  assert.equal(stream.sendFrame(PICTURE, 0), null);
  socket.receive(result(0));
  assert.equal(stream.sendFrame(PICTURE, 0), 1);
});

test("a socket that does not empty holds frames back", async () => {
  const { stream, socket } = await openBench();
  socket.bufferedAmount = 300_000;
  assert.equal(stream.sendFrame(PICTURE, 0), null);
  assert.deepEqual(stream.statistics().droppedAtCapture, { network: 1 });
});

test("every kind of receipt settles its frame exactly once", async () => {
  const { stream, socket } = await openBench();
  for (let seq = 0; seq < 8; seq += 1) stream.sendFrame(PICTURE, 0);
  socket.receive(result(0));
  socket.receive(result(0));
  socket.receive({ type: "drop", stream: 1, reason: "superseded", from: 1, to: 2, count: 2 });
  socket.receive({ type: "drop", stream: 1, reason: "cancelled", from: 3, to: 3, count: 1 });
  socket.receive({ type: "error", stream: 1, seq: 4, problem: { title: "Bad" }, retryable: false });
  const { sent, results, dropped, drops, cancelled, errors, inFlight, receiptsAddUp } = stream.statistics();
  assert.deepEqual({ sent, results, dropped, cancelled, errors, inFlight }, {
    sent: 8, results: 1, dropped: 2, cancelled: 1, errors: 1, inFlight: 3,
  });
  assert.deepEqual(drops, { superseded: 2 });
  assert.equal(receiptsAddUp, true);
});

test("a drop names the frames it gives up, and none that were answered", async () => {
  const { stream, socket } = await openBench();
  const drops = collect(stream, "drop");
  for (let seq = 0; seq < 4; seq += 1) stream.sendFrame(PICTURE, 0);
  socket.receive(result(1));
  socket.receive({ type: "drop", stream: 1, reason: "deadline", from: 0, to: 2, count: 2 });
  assert.deepEqual(drops, [{ reason: "deadline", seqs: [0, 2] }]);
});

test("latency counts from capture", async () => {
  const { bench, stream, socket } = await openBench();
  const results = collect(stream, "result");
  stream.sendFrame(PICTURE, bench.time - 30);
  bench.time += 70;
  socket.receive(result(0));
  assert.equal(results[0].latencyMs, 100);
  assert.equal(results[0].annotated, null);
});

test("an annotated frame comes with its result, also in pieces", async () => {
  const { stream, socket } = await openBench();
  const results = collect(stream, "result");
  stream.sendFrame(PICTURE, 0);
  const annotated = new Uint8Array(200_000).fill(7);
  for (const piece of splitBinary({ type: 3, stream: 1, seq: 0, tUs: 0 }, { width: 2 }, annotated)) {
    socket.receive(piece);
  }
  socket.receive(result(0, { attachments: [{ kind: 3, bytes: annotated.length }] }));
  assert.deepEqual(results[0].annotated, annotated);
});

test("an attachment is never given to another result", async () => {
  const { stream, socket } = await openBench();
  const results = collect(stream, "result");
  stream.sendFrame(PICTURE, 0);
  stream.sendFrame(PICTURE, 0);
  socket.receive(encodeBinary({ type: 3, stream: 1, seq: 0, tUs: 0 }, null, PICTURE));
  socket.receive(result(1));
  assert.equal(results[0].annotated, null);
});

test("an ack leaves after 8 messages, and after 250 ms for fewer", async () => {
  const { bench, stream, socket } = await openBench();
  for (let seq = 0; seq < 10; seq += 1) stream.sendFrame(PICTURE, 0);
  for (let seq = 0; seq < 8; seq += 1) socket.receive(result(seq));
  assert.deepEqual(socket.ofType("ack"), [{ type: "ack", stream: 1, seq: 7 }]);
  socket.receive(result(8));
  stream.rendered(8);
  stream.rendered(6);
  bench.advance(250);
  assert.deepEqual(socket.ofType("ack").at(-1), { type: "ack", stream: 1, seq: 8, rendered_seq: 8 });
  bench.advance(1000);
  assert.equal(socket.ofType("ack").length, 2);
});

test("a break settles what was in flight and the stream reopens under a new id", async () => {
  const { bench, stream } = await openBench();
  const drops = collect(stream, "drop");
  stream.sendFrame(PICTURE, 0);
  bench.socket.end(1006);
  assert.deepEqual(drops, [{ reason: "disconnected", seqs: [0] }]);
  assert.equal(stream.sendFrame(PICTURE, 0), null);
  bench.advance(250);
  bench.accept();
  assert.equal(bench.socket.ofType("open")[0].stream, 2);
  bench.opened();
  assert.equal(stream.sendFrame(PICTURE, 0), 1);
  assert.equal(stream.statistics().receiptsAddUp, true);
});

test("after goaway nothing new is sent, and answers still count", async () => {
  const { stream, socket } = await openBench();
  stream.sendFrame(PICTURE, 0);
  socket.receive({ type: "goaway", deadline_ms: 1000 });
  assert.equal(stream.refusal(), "draining");
  socket.receive(result(0));
  assert.equal(stream.statistics().results, 1);
});

test("end finishes what is accepted and tells closed", async () => {
  const { stream, socket } = await openBench();
  const closed = collect(stream, "closed");
  stream.sendFrame(PICTURE, 0);
  stream.end();
  assert.equal(stream.canSend, false);
  socket.receive(result(0));
  socket.receive({ type: "closed", stream: 1, accepted: 1, results: 1, dropped: 0, errors: 0, cancelled: 0 });
  assert.equal(closed.length, 1);
  assert.equal(closed[0].results, 1);
  assert.equal(stream.state, "closed");
});

test("messages for a closed id are ignored", async () => {
  const { stream, socket } = await openBench();
  stream.close();
  socket.receive({ type: "closed", stream: 1, accepted: 0, results: 0, dropped: 0, errors: 0, cancelled: 0 });
  socket.receive(result(0));
  assert.equal(stream.statistics().results, 0);
});
