// Values to their neutral JSON form. Each of these takes the bytes of one whole value, and throws when they are of another type.

import { Decoder } from "@msgpack/msgpack";

import { contentOf, kindOf, partsOf } from "./wire.js";

const MAX_KEY_DEPTH = 4;

// Without useBigInt64 a 64-bit integer comes as a number and loses its low bits.
const decoder = new Decoder({ useBigInt64: true });
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function expect(bytes, ...kinds) {
  if (!kinds.includes(kindOf(bytes))) throw new Error(`expected ${kinds.join(" or ")}, got ${kindOf(bytes)}`);
}

export function text(bytes) {
  expect(bytes, "str");
  return utf8.decode(contentOf(bytes));
}

export function binary(bytes) {
  expect(bytes, "bin");
  return decoder.decode(bytes);
}

export function number(bytes) {
  expect(bytes, "int", "float");
  return Number(decoder.decode(bytes));
}

/** An integer; JSON readers lose those beyond 53 bits, so they are strings. */
export function integer(bytes) {
  expect(bytes, "int");
  const value = decoder.decode(bytes);
  return Number.isSafeInteger(Number(value)) ? Number(value) : { int: String(value) };
}

/** A block hash. Signed and unsigned integers are one hash: its 64 bits. */
export function blockHash(bytes) {
  if (kindOf(bytes) === "bin") return "bytes:" + hex(binary(bytes));
  expect(bytes, "int", "bin");
  return BigInt.asUintN(64, BigInt(decoder.decode(bytes))).toString(16).padStart(16, "0");
}

function hex(bytes) {
  return Buffer.from(bytes).toString("hex");
}

/** A token id, a pair of them on EAGLE's pages, or a string from TensorRT-LLM. */
export function token(bytes) {
  if (kindOf(bytes) === "str") return text(bytes);
  if (kindOf(bytes) !== "array") return integer(bytes);
  const pair = partsOf(bytes).map(integer);
  if (pair.length !== 2) throw new Error(`a token is an int or a pair of ints, not ${pair.length}`);
  return pair;
}

export function arrayOf(read) {
  return (bytes) => {
    expect(bytes, "array");
    return partsOf(bytes).map(read);
  };
}

export function orNil(read) {
  return (bytes) => (kindOf(bytes) === "nil" ? null : read(bytes));
}

/** One extra key, which may be anything but an extension type, a few levels deep. */
export function extraKey(bytes) {
  return keyWithin(bytes, MAX_KEY_DEPTH);
}

function keyWithin(bytes, depth) {
  const kind = kindOf(bytes);
  const inner = (part) => keyWithin(part, depth - 1);
  if (kind === "str") return text(bytes);
  if (kind === "int") return integer(bytes);
  if (kind === "bin") return { bytes: hex(binary(bytes)) };
  if (kind === "float") return { float: String(number(bytes)) };
  if (kind === "nil" || kind === "bool") return decoder.decode(bytes);
  if (kind === "ext" || depth === 0) throw new Error(`an extra key holds ${kind}, or is nested too deep`);
  const parts = partsOf(bytes).map(inner);
  if (kind === "array") return parts;
  return { map: parts.flatMap((key, at) => (at % 2 ? [] : [[key, parts[at + 1]]])) };
}

/**
 * A map's values by key, each as its bytes; keys that are no strings are left out. Two equal keys are refused: decoders disagree
 * on which of them counts.
 */
export function pairsOf(bytes) {
  expect(bytes, "map");
  const parts = partsOf(bytes);
  const found = new Map();
  const seen = new Set();
  for (let at = 0; at < parts.length; at += 2) {
    const named = kindOf(parts[at]) === "str";
    const key = named ? text(parts[at]) : `not a str: ${hex(parts[at])}`;
    if (seen.has(key)) throw new Error(`the key ${key} stands twice`);
    seen.add(key);
    if (named) found.set(key, parts[at + 1]);
  }
  return found;
}
