/** The golden vectors that the Python tests read too, against web_demo/js/protocol.js. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import {
  decodeBinary,
  encodeBinary,
  parseMeta,
  PieceAssembler,
  ProtocolError,
  splitBinary,
  UnknownType,
} from "../../../web_demo/js/protocol.js";

const bytes = (hex) => new Uint8Array(Buffer.from(hex, "hex"));
const hex = (data) => Buffer.from(data).toString("hex");
const metaText = (meta) => new TextDecoder().decode(meta).trimEnd();
const metaValue = (text) => (text === "" ? null : JSON.parse(text));
const headerOf = ({ type, flags = 0, stream, seq, t_us: tUs }) => ({ type, flags, stream, seq, tUs });

function forEachCase(file, part, check) {
  const url = new URL(`../vectors/${file}`, import.meta.url);
  const cases = JSON.parse(readFileSync(url, "utf8"))[part];
  assert.ok(cases.length > 0, `${file} has no ${part}`);
  for (const item of cases) test(`${file} ${part}: ${item.name}`, () => check(item));
}

forEachCase("binary.json", "cases", (item) => {
  const message = decodeBinary(bytes(item.hex));
  const { type, flags, stream, seq, tUs } = message;
  assert.deepEqual({ type, flags, stream, seq, tUs }, headerOf(item));
  assert.equal(metaText(message.meta), item.meta);
  assert.deepEqual(parseMeta(message.meta), metaValue(item.meta) ?? {});
  assert.equal(hex(message.payload), item.payload_hex);
});

forEachCase("binary.json", "cases", (item) => {
  const written = encodeBinary(headerOf(item), metaValue(item.meta), bytes(item.payload_hex));
  assert.equal(hex(written), item.hex);
});

forEachCase("binary_invalid.json", "cases", (item) => {
  const expected = item.close_code === null ? UnknownType : ProtocolError;
  assert.throws(() => decodeBinary(bytes(item.hex)), expected);
});

forEachCase("pieces.json", "split", ({ frame, piece_bytes: pieceBytes, messages }) => {
  const payload = bytes(frame.payload_hex);
  const pieces = splitBinary(headerOf(frame), metaValue(frame.meta), payload, pieceBytes);
  assert.deepEqual([...pieces].map(hex), messages);
});

forEachCase("pieces.json", "assemble", ({ messages, frames }) => {
  const assembler = new PieceAssembler({ maxBytes: 1000 });
  const whole = messages
    .map((message) => assembler.add(decodeBinary(bytes(message))))
    .filter((message) => message !== null)
    .map(({ type, stream, seq, tUs, meta, payload }) => ({
      type, stream, seq, t_us: tUs, meta: metaText(meta), payload_hex: hex(payload),
    }));
  assert.deepEqual(whole, frames);
});

forEachCase("pieces.json", "invalid", ({ messages, fails_at: failsAt }) => {
  const assembler = new PieceAssembler({ maxBytes: 1000 });
  const pieces = messages.map((message) => decodeBinary(bytes(message)));
  for (const piece of pieces.slice(0, failsAt)) assembler.add(piece);
  assert.throws(() => assembler.add(pieces[failsAt]), ProtocolError);
});
