/** What a gateway says to the people at the page. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Bench, collect, WELCOME } from "./fake_gateway.mjs";

globalThis.document = { getElementById: () => null };
const { bulletinText } = await import("../../../web_demo/js/bulletin.js");

test("an operator's words are told, also those about one stream", async () => {
  const bench = await new Bench().connected();
  const news = collect(bench.client, "news");
  bench.socket.receive({ type: "server_event", kind: "message", text: "soon" });
  bench.socket.receive({ type: "server_event", kind: "message", text: "you", stream: 1 });
  assert.deepEqual(news.map(({ text }) => text), ["soon", "you"]);
});

test("the service level is told with every welcome", async () => {
  const bench = new Bench();
  const news = collect(bench.client, "news");
  const connecting = bench.client.connect("ws://gateway/v1/stream");
  bench.accept({ ...WELCOME, service_level: "no_extras" });
  await connecting;
  bench.socket.end(1006);
  bench.advance(250);
  bench.accept();
  assert.deepEqual(news.map(({ level }) => level), ["no_extras", "normal"]);
});

test("levels are told in words, and normal by silence", () => {
  assert.match(bulletinText({ kind: "service_level", text: "x", level: "shed_standard" }), /realtime/);
  assert.equal(bulletinText({ kind: "service_level", text: "x", level: "normal" }), "");
  assert.equal(bulletinText({ kind: "message", text: "soon", level: null }), "soon");
});
