/** The connection of the JavaScript client: hello, liveness, reconnecting, errors. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { ClawstreamError, streamUrl } from "../../../web_demo/js/client.js";
import { Backoff, Liveness } from "../../../web_demo/js/liveness.js";
import { mayReconnect } from "../../../web_demo/js/protocol.js";
import { Bench, collect, WELCOME } from "./fake_gateway.mjs";

test("hello carries the key and the subprotocol is offered", async () => {
  const { socket } = await new Bench().connected({ token: "secret" });
  assert.deepEqual(socket.sent[0], { type: "hello", token: "secret" });
  assert.deepEqual(socket.protocols, ["clawstream.v1"]);
});

test("hello without a key has no token", async () => {
  const { socket } = await new Bench().connected();
  assert.deepEqual(socket.sent[0], { type: "hello" });
});

test("connect resolves with welcome", async () => {
  const bench = new Bench();
  const connecting = bench.client.connect("ws://gateway/v1/stream");
  bench.accept();
  assert.deepEqual(await connecting, WELCOME);
  assert.equal(bench.client.state, "open");
});

test("a close code that forbids it is not retried, and the problem says why", async () => {
  const bench = new Bench();
  const connecting = bench.client.connect("ws://gateway/v1/stream");
  bench.socket.onopen();
  const problem = { type: "urn:clawstream:problem:unauthorized", title: "A valid key is required" };
  bench.socket.receive({ type: "error", problem, retryable: false });
  bench.socket.end(4501);
  await assert.rejects(connecting, (error) => error instanceof ClawstreamError && error.code === 4501);
  assert.deepEqual(bench.states.at(-1).problem, problem);
  bench.advance(60_000);
  assert.equal(bench.sockets.length, 1);
});

test("a broken connection comes back with growing, jittered delays", async () => {
  const bench = await new Bench().connected();
  const delays = [];
  for (let attempt = 0; attempt < 8; attempt += 1) {
    bench.socket.end(1006);
    delays.push(bench.states.at(-1).retryInMs);
    bench.advance(bench.states.at(-1).retryInMs);
  }
  assert.deepEqual(delays, [250, 500, 1000, 2000, 4000, 7500, 7500, 7500]);
  assert.equal(bench.sockets.length, 9);
});

test("a connection that lasted starts the delays anew", async () => {
  const bench = await new Bench().connected();
  bench.socket.end(1012);
  bench.advance(250);
  bench.accept();
  for (let second = 0; second < 6; second += 1) {
    bench.advance(1000);
    bench.socket.receive({ type: "ping", t: second });
  }
  bench.socket.end(1012);
  assert.equal(bench.states.at(-1).retryInMs, 250);
});

test("a server ping is answered with the same t", async () => {
  const { socket } = await new Bench().connected();
  socket.receive({ type: "ping", t: 12.5 });
  const { now_us: nowUs, ...pong } = socket.sent.at(-1);
  assert.deepEqual(pong, { type: "pong", t: 12.5 });
  assert.ok(Number.isSafeInteger(nowUs)); // the clock of its frames
});

test("a silent server is given up without waiting for its close", async () => {
  const bench = await new Bench().connected();
  bench.advance(15_500);
  assert.equal(bench.sockets[0].closedWith, 4009);
  assert.equal(bench.states.find(({ state }) => state === "waiting").code, 4009);
});

test("a server that never says welcome is given up", async () => {
  const bench = new Bench();
  bench.client.connect("ws://gateway/v1/stream").catch(() => {});
  bench.socket.onopen();
  bench.advance(10_500);
  assert.equal(bench.states.find(({ state }) => state === "waiting").code, 1006);
});

test("pings give the clock offset", async () => {
  const bench = await new Bench().connected();
  bench.advance(250);
  const ping = bench.socket.ofType("ping")[0];
  bench.time += 20;
  const serverUs = (ping.t + 10) * 1000 + 7_000_000;
  bench.socket.receive({ type: "pong", t: ping.t, now_us: serverUs });
  assert.deepEqual(bench.client.clock, { rttMs: 20, offsetUs: 7_000_000 });
});

test("text that is no message ends the connection for good", async () => {
  const bench = await new Bench().connected();
  bench.socket.onmessage({ data: "not json" });
  assert.equal(bench.socket.closedWith, 4503);
  assert.equal(bench.client.state, "closed");
});

test("messages and binary types from the future are ignored", async () => {
  const bench = await new Bench().connected();
  bench.socket.receive({ type: "novelty", x: 1 });
  const unknownType = new Uint8Array(32);
  unknownType.set([1, 9]);
  bench.socket.receive(unknownType);
  assert.equal(bench.client.state, "open");
});

test("close ends quietly, twice as well as once", async () => {
  const bench = await new Bench().connected();
  bench.client.close();
  bench.client.close();
  assert.equal(bench.socket.closedWith, 1000);
  bench.advance(60_000);
  assert.equal(bench.sockets.length, 1);
});

test("close while waiting cancels the retry", async () => {
  const bench = await new Bench().connected();
  bench.socket.end(1006);
  bench.client.close();
  bench.advance(60_000);
  assert.equal(bench.sockets.length, 1);
});

test("an error about the connection is told", async () => {
  const bench = await new Bench().connected();
  const errors = collect(bench.client, "error");
  bench.socket.receive({ type: "error", problem: { title: "Slow down" }, retryable: true });
  assert.deepEqual(errors, [{ problem: { title: "Slow down" }, retryable: true }]);
});

test("only codes that allow it lead to a reconnect", () => {
  const codes = [1000, 1001, 1002, 1005, 1006, 1007, 1009, 1011, 1012, 1013, 4008, 4009, 4501, 4510];
  assert.deepEqual(codes.filter(mayReconnect), [1001, 1005, 1006, 1011, 1012, 1013, 4008, 4009]);
});

test("the quickest of the last pings decides the offset", () => {
  const liveness = new Liveness(0);
  liveness.ponged(0, 105_000, 100);
  liveness.ponged(200, 212_000, 204);
  assert.deepEqual(liveness.best(), { rttMs: 4, offsetUs: 10_000 });
});

test("full jitter stays below a limit that doubles up to its maximum", () => {
  const backoff = new Backoff({ firstMs: 100, maxMs: 1000, random: () => 1 });
  const limits = Array.from({ length: 6 }, () => backoff.nextDelayMs());
  assert.deepEqual(limits, [100, 200, 400, 800, 1000, 1000]);
});

test("the endpoint follows the page's scheme", () => {
  assert.equal(streamUrl({ protocol: "https:", host: "a:1" }), "wss://a:1/v1/stream");
  assert.equal(streamUrl({ protocol: "http:", host: "a:1" }), "ws://a:1/v1/stream");
});
