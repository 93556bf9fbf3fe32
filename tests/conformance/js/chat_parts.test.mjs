/** The Chat tab's pure parts: chats, what is sent of them, measurements, spoken text, states. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { AnswerStatistics } from "../../../web_demo/js/answer_statistics.js";
import { CHAT_CHIPS, CHAT_TRANSITIONS, FINISHES, REFUSALS } from "../../../web_demo/js/chat_state.js";
import {
  AnswerState, Conversation, Conversations, MAX_CHATS, MAX_EXCHANGES,
} from "../../../web_demo/js/conversation.js";
import { CHIPS, nextState, TRANSITIONS } from "../../../web_demo/js/page_state.js";
import { SpokenText } from "../../../web_demo/js/spoken_text.js";

/** A chat in which every question was answered. */
function chatOf(...pairs) {
  const chat = new Conversation(1);
  for (const [question, answer] of pairs) {
    const exchange = chat.ask(question, "m", 0);
    exchange.token(1, answer);
    exchange.end(2, "stop", null);
  }
  return chat;
}

test("an answer grows token by token and ends once", () => {
  const exchange = new Conversation(1).ask("Hi", "m", 0);
  assert.equal(exchange.state, AnswerState.WAITING);
  exchange.token(1, "Hel");
  exchange.token(2, "lo");
  assert.equal(exchange.state, AnswerState.STREAMING);
  exchange.end(3, "stop", null);
  exchange.token(4, "late");
  exchange.fail(5, "late");
  assert.deepEqual([exchange.text, exchange.state, exchange.problem], ["Hello", AnswerState.DONE, ""]);
});

test("an end that the user asked for is no failure", () => {
  const stopped = new Conversation(1).ask("Hi", "m", 0);
  stopped.end(1, "cancelled", null);
  assert.equal(stopped.state, AnswerState.STOPPED);
  const broken = new Conversation(1).ask("Hi", "m", 0);
  broken.isStopping = true;
  broken.fail(1, "connection lost");
  assert.deepEqual([broken.state, broken.problem], [AnswerState.STOPPED, ""]);
});

test("a prompt holds the system text, what was said, and the question", () => {
  const chat = chatOf(["One?", "1"], ["Two?", "2"]);
  chat.ask("Three?", "m", 0);
  assert.deepEqual(chat.messages("Be brief"), [
    { role: "system", content: "Be brief" },
    { role: "user", content: "One?" },
    { role: "assistant", content: "1" },
    { role: "user", content: "Two?" },
    { role: "assistant", content: "2" },
    { role: "user", content: "Three?" },
  ]);
  assert.equal(chat.messages("  ")[0].role, "user");
});

test("a question that got no answer is not told to the model again", () => {
  const chat = new Conversation(1);
  chat.ask("Lost?", "m", 0).fail(1, "no");
  chat.ask("Cut?", "m", 0).token(1, "par");
  chat.latest.end(2, "cancelled", null);
  chat.ask("Next?", "m", 0);
  assert.deepEqual(chat.messages("").map(({ content }) => content), ["Cut?", "par", "Next?"]);
});

test("a long chat loses its oldest exchanges, never the question", () => {
  const chat = chatOf(["a".repeat(400), "b".repeat(400)], ["c", "d"]);
  chat.ask("e", "m", 0);
  const roles = chat.messages("s", 300).map(({ content }) => content);
  assert.deepEqual(roles, ["s", "c", "d", "e"]);
  assert.deepEqual(chat.messages("s", 1).map(({ content }) => content), ["s", "e"]);
});

test("a question can be withdrawn and asked again", () => {
  const chat = chatOf(["One?", "1"]);
  chat.ask("Two?", "m", 0).fail(1, "no");
  assert.equal(chat.withdrawLatest().question, "Two?");
  assert.equal(chat.exchanges.length, 1);
});

test("one question at a time, and no more than a chat holds", () => {
  const chat = new Conversation(1);
  for (let index = 0; index < MAX_EXCHANGES; index += 1) chat.ask("?", "m", 0).end(1, "stop", null);
  assert.equal(chat.isFull, true);
  assert.throws(() => chat.ask("?", "m", 0));
  const busy = new Conversation(2);
  busy.ask("?", "m", 0);
  assert.throws(() => busy.ask("?", "m", 0));
});

test("a title is the first question, shortened", () => {
  assert.equal(new Conversation(1).title, "Empty chat");
  assert.equal(chatOf(["Why\n is it?", "x"]).title, "Why is it?");
  const { title } = chatOf(["word ".repeat(20), "x"]);
  assert.ok(title.length <= 36 && title.endsWith("…"));
});

test("there is always one chat, and never more than the bound", () => {
  const chats = new Conversations();
  assert.equal(chats.start(), chats.active);
  assert.equal(chats.items.length, 1); // the empty one served
  for (let index = 0; index < MAX_CHATS; index += 1) {
    chats.active.ask("?", "m", 0);
    if (!chats.isFull) chats.start();
  }
  assert.equal(chats.items.length, MAX_CHATS);
  assert.throws(() => chats.start());
  for (const { id } of chats.items) chats.close(id);
  assert.equal(chats.items.length, 1);
  assert.equal(chats.active.exchanges.length, 0);
});

test("closing the active chat shows its neighbour, closing another one changes nothing", () => {
  const chats = new Conversations();
  const [first, second, third] = ["a", "b", "c"].map((question) => {
    const chat = chats.start();
    chat.ask(question, "m", 0);
    return chat;
  });
  chats.select(second.id);
  chats.close(first.id);
  assert.equal(chats.active, second);
  chats.close(second.id);
  assert.equal(chats.active, third);
  assert.equal(chats.numAnswering, 1);
});

test("time to first token counts from the moment the question left", () => {
  const statistics = new AnswerStatistics(0);
  statistics.sent(300);
  statistics.token(420);
  assert.equal(statistics.snapshot().ttftMs, 120);
  assert.equal(statistics.snapshot().tokensPerSecond, null);
});

test("tokens per second count from the first token, and by the server's count in the end", () => {
  const statistics = new AnswerStatistics(0);
  for (const at of [100, 150, 250]) statistics.token(at);
  assert.equal(statistics.snapshot().tokens, 3);
  assert.ok(Math.abs(statistics.snapshot().tokensPerSecond - 2000 / 150) < 1e-9);
  assert.deepEqual(statistics.snapshot().gaps, [50, 100]);
  statistics.end(260, { prompt_tokens: 7, completion_tokens: 4, cached_tokens: 2 });
  const { tokens, promptTokens, cachedTokens, tokensPerSecond, p50, p95 } = statistics.snapshot();
  assert.deepEqual([tokens, promptTokens, cachedTokens, tokensPerSecond, p50, p95], [4, 7, 2, 20, 50, 100]);
});

test("an event of several tokens counts as so many", () => {
  const statistics = new AnswerStatistics(0);
  statistics.token(100);
  statistics.token(200, 4);
  assert.equal(statistics.snapshot().tokens, 5);
  assert.equal(statistics.snapshot().tokensPerSecond, 40);
});

test("gaps are bounded", () => {
  const statistics = new AnswerStatistics(0);
  for (let at = 0; at < 1000; at += 1) statistics.token(at);
  assert.equal(statistics.snapshot().gaps.length, 120);
});

test("speech waits for the end of a sentence and leaves nothing out", () => {
  const spoken = new SpokenText();
  assert.equal(spoken.push("One", 0), null);
  assert.equal(spoken.push(" two. Thr", 10), "One two.");
  assert.equal(spoken.push("ee. Four. Fi", 500), null); // too soon
  assert.equal(spoken.push("ve", 5000), "Three. Four.");
  assert.equal(spoken.finish(5001), "Five");
  assert.equal(spoken.finish(5002), null);
});

test("text without sentences is spoken in bounded parts", () => {
  const spoken = new SpokenText();
  assert.equal(spoken.push("3.14".repeat(100), 0), null);
  assert.equal(spoken.push("x".repeat(300), 1).length, 700);
});

test("every state of both tabs has a chip, and every transition ends in a state", () => {
  for (const [table, chips] of [[TRANSITIONS, CHIPS], [CHAT_TRANSITIONS, CHAT_CHIPS]]) {
    assert.deepEqual(Object.keys(table).sort(), Object.keys(chips).sort());
    for (const next of Object.values(table).flatMap(Object.values)) assert.ok(next in table, next);
  }
  assert.equal(nextState(CHAT_TRANSITIONS, "ready", "asked"), "answering");
  assert.equal(nextState(CHAT_TRANSITIONS, "locked", "asked"), null);
});

test("every reason has words", () => {
  for (const reason of ["not_connected", "draining", "too_many", "too_large"]) assert.ok(REFUSALS[reason]);
  for (const reason of ["length", "content_filter", "cancelled"]) assert.ok(FINISHES[reason]);
});
