/** Prompts of the JavaScript client: answers in parallel, one end each, acks, breaks. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { DISCONNECTED } from "../../../web_demo/js/prompt_stream.js";
import { Bench, collect } from "./fake_gateway.mjs";

const HELLO = { messages: [{ role: "user", content: "Hello" }] };
const PROBLEM = { type: "urn:clawstream:problem:overloaded", title: "Too much", status: 429 };

async function openBench(options) {
  const bench = await new Bench().connected();
  const stream = await bench.promptsWith(options);
  return { bench, stream, socket: bench.socket };
}

function token(id, seq, text = "x") {
  return { type: "token", stream: 1, id, seq, text };
}

function end(id, seq, extra = {}) {
  return { type: "end", stream: 1, id, seq, finish_reason: "stop", ...extra };
}

/** The golden server message of that name, as the gateway's own tests write it. */
function golden(name) {
  const url = new URL("../vectors/control_server.json", import.meta.url);
  return JSON.parse(JSON.parse(readFileSync(url, "utf8")).cases.find((item) => item.name === name).text);
}

test("open asks for tokens and names only the options that are set", async () => {
  const { socket } = await openBench({ priority: "realtime" });
  assert.deepEqual(socket.ofType("open")[0], {
    type: "open", stream: 1, model: "m", kind: "tokens", options: { priority: "realtime" },
  });
});

test("a prompt carries what was given and nothing else", async () => {
  const { stream, socket } = await openBench();
  const sampling = { temperature: 0.5, max_tokens: 9 };
  assert.equal(stream.send({ ...HELLO, sampling, deadlineMs: 5000 }), "p1");
  assert.deepEqual(socket.ofType("prompt")[0], {
    type: "prompt", stream: 1, id: "p1", ...HELLO, sampling, deadline_ms: 5000,
  });
});

test("timing is asked for by those who want it, and read", async () => {
  const { stream, socket } = await openBench({ timing: true });
  assert.deepEqual(socket.ofType("open")[0].options, { timing: true });
  const tokens = collect(stream, "token");
  const id = stream.send(HELLO);
  socket.receive({ ...golden("token that says where its time went"), stream: 1, id, seq: 0 });
  socket.receive(token(id, 1));
  const told = tokens.map(({ pace, timing }) => ({ pace, timing }));
  assert.deepEqual(told, [
    { pace: 33.3, timing: { engineUs: 5000250000, heldUs: 41500, reserve: 3 } },
    { pace: null, timing: null },
  ]);
});

test("an event says how many tokens it is, and the pace until the next", async () => {
  const { stream, socket } = await openBench({ pace: "steady" });
  assert.deepEqual(socket.ofType("open")[0].options, { pace: "steady" });
  const tokens = collect(stream, "token");
  const id = stream.send(HELLO);
  socket.receive({ ...golden("paced tokens in one message"), stream: 1, id, seq: 0 });
  socket.receive(token(id, 1));
  const told = tokens.map(({ numTokens, pace }) => ({ numTokens, pace }));
  assert.deepEqual(told, [{ numTokens: 3, pace: 99.75 }, { numTokens: 1, pace: null }]);
});

test("answers that run in parallel are told apart", async () => {
  const { stream, socket } = await openBench();
  const tokens = collect(stream, "token");
  const ends = collect(stream, "end");
  const [first, second] = [stream.send(HELLO), stream.send(HELLO)];
  socket.receive(token(second, 0, "B"));
  socket.receive(token(first, 1, "A"));
  socket.receive(end(second, 2, { usage: { completion_tokens: 1 } }));
  socket.receive(token(first, 3, "a"));
  socket.receive(end(first, 4, { finish_reason: "length" }));
  assert.deepEqual(tokens.map(({ id, text }) => id + text), ["p2B", "p1A", "p1a"]);
  assert.deepEqual(ends, [
    { id: "p2", seq: 2, finishReason: "stop", usage: { completion_tokens: 1 }, version: null },
    { id: "p1", seq: 4, finishReason: "length", usage: null, version: null },
  ]);
  assert.deepEqual(stream.statistics(), { sent: 2, ended: 2, errors: 0, inFlight: 0, receiptsAddUp: true });
});

test("the golden token and end messages are understood", async () => {
  const { stream, socket } = await openBench();
  const tokens = collect(stream, "token");
  const ends = collect(stream, "end");
  stream.send(HELLO);
  socket.receive({ ...golden("token"), stream: 1, seq: 0 });
  socket.receive({ ...golden("end of a prompt"), stream: 1, seq: 1 });
  assert.equal(tokens[0].text, 'Hel"lo\n');
  const usage = { completion_tokens: 9 };
  assert.deepEqual(ends[0], { id: "p1", seq: 1, finishReason: "length", usage, version: "1+int8" });
});

test("an error replaces the end of its prompt", async () => {
  const { stream, socket } = await openBench();
  const errors = collect(stream, "error");
  const ends = collect(stream, "end");
  const id = stream.send(HELLO);
  socket.receive({ type: "error", stream: 1, id, seq: 0, problem: PROBLEM, retryable: true });
  socket.receive(end(id, 1));
  assert.deepEqual(errors, [{ id, seq: 0, problem: PROBLEM, retryable: true }]);
  assert.deepEqual(ends, []);
  assert.equal(stream.statistics().receiptsAddUp, true);
});

test("an error of the stream is nobody's answer", async () => {
  const { stream, socket } = await openBench();
  const errors = collect(stream, "error");
  stream.send(HELLO);
  socket.receive({ type: "error", stream: 1, problem: PROBLEM, retryable: false });
  assert.equal(errors[0].id, null);
  assert.equal(stream.inFlight, 1);
});

test("cancel names the prompt, and its end still comes", async () => {
  const { stream, socket } = await openBench();
  const ends = collect(stream, "end");
  const id = stream.send(HELLO);
  stream.cancel(id);
  stream.cancel("p99");
  assert.deepEqual(socket.ofType("cancel"), [{ type: "cancel", stream: 1, id }]);
  socket.receive(token(id, 0));
  socket.receive(end(id, 1, { finish_reason: "cancelled" }));
  assert.equal(ends[0].finishReason, "cancelled");
});

test("more prompts at once than the server takes are held back", async () => {
  const { stream, socket } = await openBench();
  assert.deepEqual([0, 1, 2, 3].map(() => stream.send(HELLO)), ["p1", "p2", "p3", null]);
  assert.equal(stream.refusal(), "too_many");
  socket.receive(end("p2", 0));
  assert.equal(stream.send(HELLO), "p4");
});

test("a prompt larger than a control message is refused before it is sent", async () => {
  const { stream, socket } = await openBench();
  assert.throws(() => stream.send({ prompt: "é".repeat(33_000) }), RangeError);
  assert.equal(socket.ofType("prompt").length, 0);
  assert.equal(stream.statistics().sent, 0);
});

test("every event is acknowledged: after 8, and after 250 ms for fewer", async () => {
  const { bench, stream, socket } = await openBench();
  const id = stream.send(HELLO);
  for (let seq = 0; seq < 8; seq += 1) socket.receive(token(id, seq));
  assert.deepEqual(socket.ofType("ack"), [{ type: "ack", stream: 1, seq: 7 }]);
  stream.rendered(6);
  socket.receive(end(id, 8));
  bench.advance(250);
  assert.deepEqual(socket.ofType("ack").at(-1), { type: "ack", stream: 1, seq: 8, rendered_seq: 6 });
});

test("late tokens of a settled prompt are acknowledged and not told", async () => {
  const { bench, stream, socket } = await openBench();
  const tokens = collect(stream, "token");
  const id = stream.send(HELLO);
  socket.receive(end(id, 0));
  socket.receive(token(id, 1));
  bench.advance(250);
  assert.deepEqual(tokens, []);
  assert.equal(socket.ofType("ack").at(-1).seq, 1);
});

test("a break settles what was under way, and the stream reopens for new prompts", async () => {
  const { bench, stream } = await openBench();
  const errors = collect(stream, "error");
  stream.send(HELLO);
  stream.send(HELLO);
  bench.socket.end(1006);
  assert.deepEqual(errors.map(({ id, problem }) => [id, problem.type]), [
    ["p1", DISCONNECTED],
    ["p2", DISCONNECTED],
  ]);
  assert.equal(stream.send(HELLO), null);
  assert.equal(stream.refusal(), "not_connected");
  bench.advance(250);
  bench.accept();
  bench.opened();
  assert.equal(stream.send(HELLO), "p3");
  assert.equal(bench.socket.ofType("prompt")[0].stream, 2);
  assert.equal(stream.statistics().receiptsAddUp, true);
});

test("after goaway nothing new is asked, and answers still come", async () => {
  const { stream, socket } = await openBench();
  const ends = collect(stream, "end");
  const id = stream.send(HELLO);
  socket.receive({ type: "goaway", deadline_ms: 1000 });
  assert.equal(stream.send(HELLO), null);
  socket.receive(end(id, 0));
  assert.equal(ends.length, 1);
});

test("a closed connection answers what was asked", async () => {
  const { bench, stream } = await openBench();
  const errors = collect(stream, "error");
  const closed = collect(stream, "closed");
  stream.send(HELLO);
  bench.client.close();
  assert.equal(errors.length, 1);
  assert.equal(closed.length, 1);
  assert.equal(stream.send(HELLO), null);
});

test("prompts and frames share a connection", async () => {
  const { bench, stream, socket } = await openBench();
  const frames = await bench.streamWith();
  frames.sendFrame(new Uint8Array(4), 0);
  const tokens = collect(stream, "token");
  const id = stream.send(HELLO);
  socket.receive(token(id, 0));
  assert.deepEqual([stream.id, frames.id, tokens.length], [1, 2, 1]);
});
