/** Answers go on after a break: under their id, without a hole or a repeat. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { DISCONNECTED } from "../../../web_demo/js/prompt_stream.js";
import { Bench, collect, WELCOME } from "./fake_gateway.mjs";

const HELLO = { prompt: "Hello" };
const GREETING = { ...WELCOME, resume_window_s: 30, resume_token: "r1" };
const token = (id, seq, text = "x") => ({ type: "token", stream: 1, id, seq, text });
const end = (id, seq) => ({ type: "end", stream: 1, id, seq, finish_reason: "stop" });

/** A client with a stream of prompts on a server that keeps what was under way. */
async function openBench() {
  const bench = new Bench();
  const connecting = bench.client.connect("ws://gateway/v1/stream", { token: "key" });
  bench.accept(GREETING);
  await connecting;
  const stream = await bench.promptsWith();
  return { bench, stream };
}

/** The server takes the client back, and says what became of stream 1. */
function takeBack(bench, entry, more = {}) {
  const resumed = [{ stream: 1, recovered: true, next_seq: 0, received_seq: 0, ...entry }];
  bench.accept({ ...GREETING, resume_token: "r2", resumed, ...more });
}

test("a break asks for what is missing, with the key and the last event", async () => {
  const { bench, stream } = await openBench();
  const id = stream.send(HELLO);
  bench.socket.receive(token(id, 0));
  bench.socket.receive(token(id, 1));
  bench.socket.end(1006);
  bench.advance(250);
  bench.socket.onopen();
  assert.deepEqual(bench.socket.sent[0], {
    type: "hello",
    token: "key",
    resume: { session: "s1", token: "r1", streams: [{ stream: 1, last_seq: 1 }] },
  });
});

test("the answer goes on, and what came before is not told again", async () => {
  const { bench, stream } = await openBench();
  const [tokens, ends, errors] = ["token", "end", "error"].map((name) => collect(stream, name));
  const id = stream.send(HELLO);
  bench.socket.receive(token(id, 0, "a"));
  bench.socket.end(1006);
  assert.equal(stream.refusal(), "not_connected");
  bench.advance(250);
  takeBack(bench);
  bench.socket.receive(token(id, 0, "a"));
  bench.socket.receive(token(id, 1, "b"));
  bench.socket.receive(end(id, 2));
  assert.equal(tokens.map(({ text }) => text).join(""), "ab");
  assert.equal(ends.length, 1);
  assert.deepEqual(errors, []);
  assert.deepEqual(bench.socket.ofType("open"), []);
  assert.deepEqual(bench.socket.ofType("prompt"), []);
});

test("what has not arrived is sent again, and nothing else", async () => {
  const { bench, stream } = await openBench();
  const [first, second] = [stream.send(HELLO), stream.send(HELLO)];
  stream.cancel(first);
  bench.socket.end(1006);
  bench.advance(250);
  takeBack(bench, { received_seq: 0 });
  assert.deepEqual(bench.socket.ofType("prompt").map(({ id }) => id), [second]);
  assert.deepEqual(bench.socket.ofType("cancel").map(({ id }) => id), [first]);
});

test("what cannot be recovered fails, and the stream opens again", async () => {
  const { bench, stream } = await openBench();
  const errors = collect(stream, "error");
  stream.send(HELLO);
  bench.socket.end(1006);
  bench.advance(250);
  takeBack(bench, { recovered: false }, { session: "s2" });
  assert.deepEqual(errors.map(({ problem }) => problem.type), [DISCONNECTED]);
  assert.equal(bench.socket.ofType("open")[0].stream, 2);
});

test("another session is not mistaken for the one that was left", async () => {
  const { bench, stream } = await openBench();
  const errors = collect(stream, "error");
  stream.send(HELLO);
  bench.socket.end(1006);
  bench.advance(250);
  takeBack(bench, {}, { session: "s2" });
  assert.equal(errors.length, 1);
});

test("a second break asks with the newest token", async () => {
  const { bench, stream } = await openBench();
  const id = stream.send(HELLO);
  bench.socket.end(1006);
  bench.advance(250);
  takeBack(bench);
  bench.socket.receive(token(id, 0));
  bench.socket.end(4009);
  bench.advance(1_000);
  bench.socket.onopen();
  const { resume } = bench.socket.sent[0];
  assert.equal(resume.token, "r2");
  assert.deepEqual(resume.streams, [{ stream: 1, last_seq: 0 }]);
});

test("while time is short, attempts come quickly; when it is over, answers fail", async () => {
  const { bench, stream } = await openBench();
  const errors = collect(stream, "error");
  stream.send(HELLO);
  bench.socket.end(1006);
  for (let waited = 0; waited < 40_000 && errors.length === 0; waited += 4_000) {
    bench.advance(4_000);
    bench.socket.end(1006);
  }
  assert.ok(bench.sockets.length >= 8);
  assert.deepEqual(errors.map(({ problem }) => problem.type), [DISCONNECTED]);
  bench.advance(8_000);
  bench.socket.onopen();
  assert.equal(bench.socket.sent[0].resume, undefined);
});

test("a stream that is closed during an outage is not asked for", async () => {
  const { bench, stream } = await openBench();
  stream.send(HELLO);
  bench.socket.end(1006);
  stream.close();
  bench.advance(250);
  bench.socket.onopen();
  assert.deepEqual(bench.socket.sent[0].resume.streams, []);
});

test("frames are settled by a break, and their stream opens again", async () => {
  const { bench } = await openBench();
  const opening = bench.client.openStream({ model: "m" });
  bench.opened();
  const frames = await opening;
  const drops = collect(frames, "drop");
  frames.sendFrame(new Uint8Array(10), 0);
  bench.socket.end(1006);
  assert.deepEqual(drops.map(({ reason }) => reason), ["disconnected"]);
  bench.advance(250);
  takeBack(bench);
  assert.deepEqual(bench.socket.ofType("open").map(({ stream }) => stream), [3]);
});

test("a restart or a goodbye is not resumed", async () => {
  const { bench, stream } = await openBench();
  const errors = collect(stream, "error");
  stream.send(HELLO);
  bench.socket.end(1012);
  assert.equal(errors.length, 1);
  bench.advance(250);
  bench.socket.onopen();
  assert.equal(bench.socket.sent[0].resume, undefined);
});

test("a hole in the events ends the connection instead of being shown", async () => {
  const { bench, stream } = await openBench();
  const tokens = collect(stream, "token");
  const id = stream.send(HELLO);
  bench.socket.receive(token(id, 0));
  bench.socket.receive(token(id, 2));
  assert.equal(tokens.length, 1);
  assert.equal(bench.socket.closedWith, 4503);
});
