// Batches and events to their neutral JSON form.

import { arrayOf, binary, blockHash, extraKey, integer, number, orNil, pairsOf, text, token } from "./values.js";
import { kindOf, partsOf, whole } from "./wire.js";

const SALT_PREFIX = "dynamo-cache-salt:";
const MEDIA = new Set(["GPU", "CPU_PINNED", "DISK", "EXTERNAL", "CPU", "STORAGE", "FS", "OBJ"]);

const FIELDS = {
  block_hashes: arrayOf(blockHash),
  parent_block_hash: orNil(blockHash),
  token_ids: (bytes) => orNil(arrayOf(token))(bytes) ?? [],
  block_size: (bytes) => orNil(integer)(bytes) ?? 0,
  lora_id: orNil(integer),
  medium: orNil(text),
  lora_name: orNil(text),
  extra_keys: orNil(arrayOf(orNil(arrayOf(extraKey)))),
  group_idx: orNil(integer),
  kv_cache_spec_kind: orNil(text),
  kv_cache_spec_sliding_window: orNil(integer),
  locality: orNil(text),
  ownership: orNil(text),
  cache_salt: orNil(text),
  session_id: orNil(text),
  lookahead_token_ids: orNil(arrayOf(arrayOf(integer))),
};

const TAIL = ["group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership"];
const REMOVED = ["block_hashes", "medium", ...TAIL];
const STORED = [
  ...["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys"],
  ...TAIL,
];

/** What the slots (from 1 on) and the keys of each tag's events hold. */
const LAYOUTS = new Map([
  ["BlockStored", {
    slots: [...STORED, "metadata"],
    keys: [...STORED, "cache_salt", "session_id", "lookahead_token_ids"],
    required: ["block_hashes", "token_ids", "block_size"],
  }],
  ["BlockRemoved", { slots: REMOVED, keys: REMOVED, required: ["block_hashes"] }],
  ["AllBlocksCleared", { slots: ["ownership"], keys: ["ownership"], required: [] }],
]);

/** One payload; throws where not even the list of events can be reached. */
export function readBatch(payload) {
  if (kindOf(whole(payload)) !== "array") throw new Error("a batch is an array");
  const [ts, list, rank] = partsOf(payload);
  if (list === undefined) throw new Error("a batch has ts and events");
  if (kindOf(list) !== "array") throw new Error("the events are an array");
  const raws = partsOf(list);
  if (raws.length > 4096 && raws.length * 8 > list.length) throw new Error("far more events than bytes to hold them");
  const faults = [];
  const attempt = (where, read) => {
    try {
      return read();
    } catch (error) {
      faults.push(`${where}: ${error.message}`);
      return null;
    }
  };
  return {
    events: raws.map((raw, at) => attempt(`events[${at}]`, () => readEvent(raw))).filter((event) => event !== null),
    ts: attempt("ts", () => finite(number(ts))),
    dp_rank: rank === undefined ? null : attempt("dp_rank", () => orNil(integer)(rank)),
    faults,
  };
}

function finite(value) {
  if (!Number.isFinite(value)) throw new Error("not a finite number");
  return value;
}

/** One event; null for a tag that is not known. */
function readEvent(bytes) {
  // Some producers encode each event by itself and put the bytes into the batch.
  const event = kindOf(bytes) === "bin" ? whole(binary(bytes)) : bytes;
  if (kindOf(event) === "array") return readArray(partsOf(event));
  if (kindOf(event) === "map") return readMap(pairsOf(event));
  throw new Error(`an event is an array or a map, not ${kindOf(event)}`);
}

function readArray(slots) {
  if (slots.length === 0) throw new Error("an event has a tag");
  const tag = text(slots[0]);
  const layout = LAYOUTS.get(tag);
  if (layout === undefined) return null;
  const known = knownSlots(tag, layout, slots);
  const fields = {};
  const salts = new Set();
  slots.slice(1).forEach((bytes, at) => {
    const name = layout.slots[at];
    const isMap = kindOf(bytes) === "map";
    if (at >= known) {
      // Passing over a salt would make a tenant's own blocks anybody's.
      if (isMap && hasSalt(bytes)) throw new Error(`a salt in slot ${at + 1}, which holds none`);
    } else if (name === "metadata" || (name === "lora_name" && isMap)) {
      const salt = orNil(pairsOf)(bytes)?.get("cache_salt");
      if (salt !== undefined) salts.add(orNil(text)(salt));
    } else {
      fields[name] = FIELDS[name](bytes);
    }
  });
  return neutral(tag, layout, fields, salts);
}

/** How many slots have a meaning: in lengths that no dialect has, the doubtful ones only where their type fits. */
function knownSlots(tag, layout, slots) {
  let [from, to] = [0, 0];
  if (tag === "BlockStored" && slots.length === 13) [from, to] = [12, 13];
  if (tag === "BlockRemoved" && slots.length < 8) [from, to] = [4, slots.length];
  if (tag === "AllBlocksCleared" && slots.length > 1) [from, to] = [1, 2];
  for (let at = from; at < to; at++) {
    if (!fits(tag, layout.slots[at - 1], slots[at])) return at - 1;
  }
  return layout.slots.length;
}

function fits(tag, name, bytes) {
  try {
    // ATOM clears with a medium where Dynamo has the owner.
    return !(MEDIA.has(FIELDS[name](bytes)) && tag === "AllBlocksCleared");
  } catch {
    return false;
  }
}

function hasSalt(bytes) {
  const salt = pairsOf(bytes).get("cache_salt");
  return salt !== undefined && kindOf(salt) === "str";
}

function readMap(pairs) {
  if (!pairs.has("type")) throw new Error("an event has a type");
  const tag = text(pairs.get("type"));
  const layout = LAYOUTS.get(tag);
  if (layout === undefined) return null;
  const present = layout.keys.filter((name) => pairs.has(name));
  const fields = Object.fromEntries(present.map((name) => [name, FIELDS[name](pairs.get(name))]));
  return neutral(tag, layout, fields, new Set([fields.cache_salt ?? null]));
}

/** The event with its salt, which may stand in several places, and without what is nil. */
function neutral(tag, layout, fields, salts) {
  for (const name of layout.required) {
    if (fields[name] === undefined) throw new Error(`the event has no ${name}`);
  }
  for (const key of (fields.extra_keys ?? []).flatMap((entry) => entry ?? [])) {
    if (typeof key === "string" && key.startsWith(SALT_PREFIX)) salts.add(key.slice(SALT_PREFIX.length));
  }
  salts.delete(null);
  if (salts.size > 1) throw new Error("two salts in one event");
  for (const salt of salts) fields.cache_salt = salt;
  const there = Object.entries(fields).filter(([, value]) => value !== null);
  return { type: tag, ...Object.fromEntries(there) };
}
