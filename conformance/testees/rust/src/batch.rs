//! Batches and events to their neutral JSON form.

use std::collections::HashSet;

use serde_json::{json, Map, Value};

use crate::values::{
    binary, block_hash, block_hashes, elements, extra_keys, integer, kind, lookahead, number, or_nil, pairs, string, text,
    tokens, whole, Kind, Read, Result,
};

const SALT_PREFIX: &str = "dynamo-cache-salt:";
const MEDIA: [&str; 8] = ["GPU", "CPU_PINNED", "DISK", "EXTERNAL", "CPU", "STORAGE", "FS", "OBJ"];

type Field = (&'static str, Read);
type Event = Map<String, Value>;

/// What array events hold from slot 1 on; a shorter layout ends earlier.
const STORED: [Field; 13] = [
    ("block_hashes", block_hashes),
    ("parent_block_hash", block_hash),
    ("token_ids", tokens),
    ("block_size", integer),
    ("lora_id", integer),
    ("medium", text),
    ("lora_name", text),
    ("extra_keys", extra_keys),
    ("group_idx", integer),
    ("kv_cache_spec_kind", text),
    ("kv_cache_spec_sliding_window", integer),
    ("locality", text),
    ("ownership", text),
];
const STORED_KEYS: [Field; 3] = [("cache_salt", text), ("session_id", text), ("lookahead_token_ids", lookahead)];
const REMOVED: [Field; 7] = [
    ("block_hashes", block_hashes),
    ("medium", text),
    ("group_idx", integer),
    ("kv_cache_spec_kind", text),
    ("kv_cache_spec_sliding_window", integer),
    ("locality", text),
    ("ownership", text),
];
const CLEARED: [Field; 1] = [("ownership", text)];

/// Slot of a stored event that holds a metadata map, beside slot 7, where it may stand in place of a LoRA name.
const METADATA: usize = 14;

/// The slots, the keys that are in maps alone, and what must be there; None for a tag that is not known.
fn layout(tag: &str) -> Option<(&'static [Field], &'static [Field], &'static [&'static str])> {
    match tag {
        "BlockStored" => Some((&STORED, &STORED_KEYS, &["block_hashes", "token_ids", "block_size"])),
        "BlockRemoved" => Some((&REMOVED, &[], &["block_hashes"])),
        "AllBlocksCleared" => Some((&CLEARED, &[], &[])),
        _ => None,
    }
}

/// Reads one payload; fails only where not even the list of events can be reached.
pub fn read_batch(payload: &[u8]) -> Result<Value> {
    let parts = elements(whole(payload)?)?;
    let [ts, list, rest @ ..] = &parts[..] else {
        return Err("a batch has ts and events".into());
    };
    let raws = elements(list)?;
    if raws.len() > 4096 && raws.len() * 8 > list.len() {
        return Err("far more events than bytes to hold them".into());
    }
    let (mut events, mut faults) = (Vec::new(), Vec::new());
    for (index, raw) in raws.into_iter().enumerate() {
        match read_event(raw) {
            Ok(found) => events.extend(found),
            Err(error) => faults.push(format!("events[{index}]: {error}")),
        }
    }
    let ts = number(ts).ok().filter(|ts| ts.is_finite());
    let rank = rest.first().and_then(|rank| or_nil(rank, integer).ok());
    Ok(json!({ "events": events, "ts": ts, "dp_rank": rank, "faults": faults }))
}

/// Reads one event; None for a tag that is not known.
fn read_event(bytes: &[u8]) -> Result<Option<Event>> {
    match kind(bytes) {
        // Some producers encode each event by itself and put the bytes into the batch.
        Kind::Bin => match whole(&binary(bytes)?)? {
            inner if kind(inner) == Kind::Bin => Err("an event is a bin in a bin".into()),
            inner => read_event(inner),
        },
        Kind::Array => read_array(&elements(bytes)?),
        Kind::Map => read_map(bytes),
        other => Err(format!("an event is an array or a map, not {other:?}")),
    }
}

fn read_array(slots: &[&[u8]]) -> Result<Option<Event>> {
    let tag = string(slots.first().ok_or("an event has a tag")?)?;
    let Some((fields, _, required)) = layout(&tag) else {
        return Ok(None);
    };
    let fields = &fields[..known(&tag, fields, slots)];
    let stored = tag == "BlockStored";
    let mut event = Event::from_iter([("type".into(), json!(tag))]);
    let mut salts = HashSet::new();
    for (at, slot) in slots.iter().enumerate().skip(1) {
        let is_map = kind(slot) == Kind::Map;
        if stored && (at == METADATA || (at == 7 && is_map)) {
            salts.extend(metadata_salt(slot)?);
        } else if let Some((name, read)) = fields.get(at - 1) {
            set(&mut event, name, *read, slot)?;
        } else if is_map && matches!(pairs(slot)?.get("cache_salt"), Some(salt) if kind(salt) == Kind::Str) {
            // Passing over a salt would make a tenant's own blocks anybody's.
            return Err(format!("a salt in slot {at}, which holds none"));
        }
    }
    complete(event, required, salts).map(Some)
}

/// How many slots have a meaning: in lengths that no dialect has, the doubtful ones only where their type fits.
fn known(tag: &str, fields: &[Field], slots: &[&[u8]]) -> usize {
    let doubtful = match (tag, slots.len()) {
        ("BlockStored", 13) => 12..13,
        ("BlockRemoved", length @ 5..=7) => 4..length,
        ("AllBlocksCleared", 2..) => 1..2,
        _ => 0..0,
    };
    for at in doubtful {
        let fits = match or_nil(slots[at], fields[at - 1].1) {
            // ATOM clears with a medium where Dynamo has the owner.
            Ok(Value::String(word)) => tag != "AllBlocksCleared" || !MEDIA.contains(&word.as_str()),
            Ok(_) => true,
            Err(_) => false,
        };
        if !fits {
            return at - 1;
        }
    }
    fields.len()
}

fn metadata_salt(bytes: &[u8]) -> Result<Option<String>> {
    if kind(bytes) == Kind::Nil {
        return Ok(None);
    }
    match pairs(bytes)?.get("cache_salt") {
        Some(salt) if kind(salt) != Kind::Nil => string(salt).map(Some),
        _ => Ok(None),
    }
}

fn read_map(bytes: &[u8]) -> Result<Option<Event>> {
    let found = pairs(bytes)?;
    let tag = string(found.get("type").ok_or("an event has a type")?)?;
    let Some((fields, keys, required)) = layout(&tag) else {
        return Ok(None);
    };
    let mut event = Event::from_iter([("type".into(), json!(tag))]);
    for (name, read) in fields.iter().chain(keys) {
        if let Some(value) = found.get(*name) {
            set(&mut event, name, *read, value)?;
        }
    }
    let salts = event.get("cache_salt").and_then(Value::as_str).map(String::from);
    complete(event, required, salts.into_iter().collect()).map(Some)
}

/// Reads a field into the event. A nil is left out, but where there must be something.
fn set(event: &mut Event, name: &str, read: Read, bytes: &[u8]) -> Result<()> {
    let value = match (kind(bytes), name) {
        (Kind::Nil, "token_ids") => json!([]),
        (Kind::Nil, "block_size") => json!(0),
        (Kind::Nil, "block_hashes") => return Err("block_hashes is nil".into()),
        (Kind::Nil, _) => return Ok(()),
        _ => read(bytes).map_err(|error| format!("{name}: {error}"))?,
    };
    event.insert(name.into(), value);
    Ok(())
}

/// Checks that nothing is missing, and adds the salt, which may stand in several places.
fn complete(mut event: Event, required: &[&str], mut salts: HashSet<String>) -> Result<Event> {
    if let Some(name) = required.iter().find(|name| !event.contains_key(**name)) {
        return Err(format!("the event has no {name}"));
    }
    let entries = event.get("extra_keys").and_then(Value::as_array).into_iter().flatten();
    let keys = entries.filter_map(Value::as_array).flatten().filter_map(Value::as_str);
    salts.extend(keys.filter_map(|key| key.strip_prefix(SALT_PREFIX)).map(String::from));
    if salts.len() > 1 {
        return Err("two salts in one event".into());
    }
    if let Some(salt) = salts.into_iter().next() {
        event.insert("cache_salt".into(), json!(salt));
    }
    Ok(event)
}
