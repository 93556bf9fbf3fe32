/**
 * The bytes of clawstream.v1 (docs/wire-protocol.md): binary header, pieces, close codes.
 *
 * Pure: no socket, no clock, no DOM. The golden vectors under tests/conformance/ are read by this
 * file's tests and by the gateway's.
 */

export const SUBPROTOCOL = "clawstream.v1";
export const VERSION = 1;
export const HEADER_BYTES = 32;
export const PIECE_BYTES = 128 * 1024;
export const MAX_META_BYTES = 64 * 1024;
export const MAX_TEXT_BYTES = 64 * 1024; // of one control message
export const MAX_SEQ = Number.MAX_SAFE_INTEGER;

export const MessageType = Object.freeze({ FRAME: 1, TENSORS: 2, ANNOTATED_FRAME: 3 });
export const Flag = Object.freeze({ KEY: 1, CONFIG: 2, MORE: 8 });

const KNOWN_FLAGS = Flag.KEY | Flag.CONFIG | Flag.MORE;
const KNOWN_TYPES = new Set(Object.values(MessageType));
const HIGH = 2 ** 32;
const SPACE = 0x20;

// Standard codes after which coming back by itself makes sense. 1005 and 1006 never travel: they
// are what a browser reports when a connection ended without a code, or just broke.
const RETRYABLE_STANDARD = new Set([1001, 1005, 1006, 1011, 1012, 1013]);

/** Bytes that do not follow the protocol. */
export class ProtocolError extends Error {
  name = "ProtocolError";
}

/** A message type from the future: to be ignored. */
export class UnknownType extends ProtocolError {
  name = "UnknownType";
}

/** Whether a client should reconnect by itself after this close code. */
export function mayReconnect(code) {
  return RETRYABLE_STANDARD.has(code) || (code >= 4000 && code <= 4499);
}

/** Whether the server still has what was under way when the connection ended with this code. */
export function mayResume(code) {
  return code === 1006 || (code >= 4000 && code <= 4499);
}

/**
 * One binary message. `header` is {type, stream, seq, tUs, flags?}; `meta` is an object or null;
 * `payload` is a Uint8Array. The meta is padded with spaces so that the payload starts at a
 * multiple of 8.
 */
export function encodeBinary({ type, stream, seq, tUs, flags = 0 }, meta, payload) {
  const metaBytes = encodeMeta(meta);
  if (payload.length > PIECE_BYTES) throw new RangeError("the payload needs splitBinary");
  const message = new Uint8Array(HEADER_BYTES + metaBytes.length + payload.length);
  const view = new DataView(message.buffer);
  view.setUint8(0, VERSION);
  view.setUint8(1, type);
  view.setUint16(2, flags, true);
  view.setUint32(4, stream, true);
  writeUint64(view, 8, seq);
  writeUint64(view, 16, tUs);
  view.setUint32(24, metaBytes.length, true);
  message.set(metaBytes, HEADER_BYTES);
  message.set(payload, HEADER_BYTES + metaBytes.length);
  return message;
}

/**
 * The parts of one binary message: {type, flags, stream, seq, tUs, meta, payload}. `meta` and
 * `payload` are views into `buffer` (an ArrayBuffer or Uint8Array); parse the meta with parseMeta.
 */
export function decodeBinary(buffer) {
  const bytes = buffer instanceof Uint8Array ? buffer : new Uint8Array(buffer);
  if (bytes.length < HEADER_BYTES) throw new ProtocolError(`${bytes.length} bytes are no header`);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const header = {
    type: view.getUint8(1),
    flags: view.getUint16(2, true),
    stream: view.getUint32(4, true),
    seq: readUint64(view, 8),
    tUs: readUint64(view, 16),
  };
  const metaEnd = HEADER_BYTES + view.getUint32(24, true);
  checkHeader(view, header, metaEnd, bytes.length);
  return {
    ...header,
    meta: bytes.subarray(HEADER_BYTES, metaEnd),
    payload: bytes.subarray(metaEnd),
  };
}

/** The JSON object of a meta part; an empty part is an empty object. */
export function parseMeta(meta) {
  const text = new TextDecoder().decode(meta).trim();
  if (text === "") return {};
  try {
    return JSON.parse(text);
  } catch {
    throw new ProtocolError("the meta part is not JSON");
  }
}

/** A message as pieces of at most `pieceBytes` of payload: MORE on all but the last, meta first. */
export function* splitBinary(header, meta, payload, pieceBytes = PIECE_BYTES) {
  let start = 0;
  do {
    const end = Math.min(start + pieceBytes, payload.length);
    const more = end < payload.length ? Flag.MORE : 0;
    const flags = ((header.flags ?? 0) & ~Flag.MORE) | more;
    yield encodeBinary({ ...header, flags }, start === 0 ? meta : null, payload.subarray(start, end));
    start = end;
  } while (start < payload.length);
}

/**
 * Puts pieces together again, one message at a time per stream.
 *
 * Bounded by `maxBytes` per message and `maxStreams` messages under way; beyond either it throws.
 */
export class PieceAssembler {
  #maxBytes;
  #maxStreams;
  #open = new Map(); // stream -> {first, parts, bytes}

  constructor({ maxBytes = 16 * 1024 * 1024, maxStreams = 64 } = {}) {
    this.#maxBytes = maxBytes;
    this.#maxStreams = maxStreams;
  }

  /** The whole message when `piece` (from decodeBinary) is its last part, else null. */
  add(piece) {
    const open = this.#open.get(piece.stream);
    const more = (piece.flags & Flag.MORE) !== 0;
    if (open === undefined && !more) return piece;
    if (open !== undefined && !continues(open.first, piece)) {
      throw new ProtocolError(`stream ${piece.stream}: a message in pieces was not finished`);
    }
    if (more && piece.payload.length === 0) throw new ProtocolError("an empty piece says MORE");
    const message = open ?? this.#begin(piece);
    message.parts.push(piece.payload);
    message.bytes += piece.payload.length;
    if (message.bytes > this.#maxBytes) throw new ProtocolError("the message is too large");
    if (more) return null;
    this.#open.delete(piece.stream);
    return { ...message.first, flags: message.first.flags & ~Flag.MORE, payload: concatenate(message) };
  }

  #begin(piece) {
    if (this.#open.size >= this.#maxStreams) throw new ProtocolError("too many open messages");
    const message = { first: piece, parts: [], bytes: 0 };
    this.#open.set(piece.stream, message);
    return message;
  }
}

function encodeMeta(meta) {
  if (meta === null || meta === undefined) return new Uint8Array(0);
  const json = new TextEncoder().encode(JSON.stringify(meta));
  // The header is a multiple of 8 itself, so padding the meta aligns the payload.
  const padded = new Uint8Array(Math.ceil(json.length / 8) * 8).fill(SPACE);
  padded.set(json);
  return padded;
}

function checkHeader(view, header, metaEnd, length) {
  const version = view.getUint8(0);
  if (version !== VERSION) throw new ProtocolError(`version ${version} is unknown`);
  if (view.getUint32(28, true) !== 0) throw new ProtocolError("the reserved field is not 0");
  if ((header.flags & ~KNOWN_FLAGS) !== 0) throw new ProtocolError("a flag is unknown");
  if (header.seq > MAX_SEQ || header.tUs > MAX_SEQ) {
    throw new ProtocolError("seq and t_us must be below 2^53");
  }
  const metaBytes = metaEnd - HEADER_BYTES;
  if (metaBytes % 8 !== 0 || metaBytes > MAX_META_BYTES || metaEnd > length) {
    throw new ProtocolError(`meta_len ${metaBytes} is not possible here`);
  }
  if (length - metaEnd > PIECE_BYTES) throw new ProtocolError("one message carries too much");
  if (!KNOWN_TYPES.has(header.type)) throw new UnknownType(`type ${header.type} is unknown`);
}

function writeUint64(view, offset, value) {
  if (!Number.isSafeInteger(value) || value < 0) {
    throw new RangeError(`${value} is not an integer in 0..2^53-1`);
  }
  view.setUint32(offset, value % HIGH, true);
  view.setUint32(offset + 4, Math.floor(value / HIGH), true);
}

/** Exact below 2^53; larger values are rounded and then refused. */
function readUint64(view, offset) {
  return view.getUint32(offset + 4, true) * HIGH + view.getUint32(offset, true);
}

function continues(first, piece) {
  const isSame = first.type === piece.type && first.seq === piece.seq && first.tUs === piece.tUs;
  return isSame && piece.meta.length === 0;
}

function concatenate({ parts, bytes }) {
  const payload = new Uint8Array(bytes);
  let offset = 0;
  for (const part of parts) {
    payload.set(part, offset);
    offset += part.length;
  }
  return payload;
}
