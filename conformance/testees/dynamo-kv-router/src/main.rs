//! Testee: the decoder of NVIDIA Dynamo's KV router, `dynamo_kv_router::zmq_wire::decode_event_batch`.
//!
//! Each request's payload goes to that function, and the answer is what its `KvEventBatch` holds. The fields are taken from
//! the crate's own serialiser, so that one source serves every release: `Cargo.toml` and `Cargo.lock` of each release are in
//! `versions/`, and the version of this package is the crate's.
//!
//! What the decoder's events hold and the neutral form does not is left out: `is_eagle`, `block_mm_infos`. Tokens of an
//! event that is marked `is_eagle` are a run, which stands for the pairs of neighbours in it.

use std::io::{self, BufRead, Write};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use dynamo_kv_router::zmq_wire::{RawKvEvent, decode_event_batch};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Largest integer that every JSON reader keeps.
const SAFE: u64 = (1 << 53) - 1;

const NOTES: &str = "extra_keys are read for multimodal hashes and a tagged salt and then dropped; lora_id is read and \
dropped. Bigram tokens are kept as one run and answered as the pairs of neighbours in it. What the router leaves out later \
(locality, medium, group) is not asked here: this is the decoder alone.";

#[derive(Deserialize)]
struct Request {
    id: Value,
    payload: String,
}

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    say(&mut out, &hello())?;
    for line in io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let payload = BASE64_STANDARD
            .decode(&request.payload)
            .map_err(io::Error::other)?;
        let mut answer = answer(&payload);
        answer["id"] = request.id;
        say(&mut out, &answer)?;
    }
    Ok(())
}

fn say(out: &mut impl Write, value: &Value) -> io::Result<()> {
    writeln!(out, "{value}")?;
    out.flush()
}

fn hello() -> Value {
    json!({
        "protocol": 1,
        "name": "dynamo-kv-router",
        "version": env!("CARGO_PKG_VERSION"),
        "language": "Rust",
        "dialects": [
            "slot6", "slot7", "slot8", "slot8-lora", "slot9", "slot10", "slot12", "dynamo", "sglang-map1", "sglang-map2",
            "vllm-map1", "vllm-map2", "vllm-map3", "vllm-map4", "vllm-map5",
        ],
        "decoder": "dynamo_kv_router::zmq_wire::decode_event_batch",
        "homepage": "https://github.com/ai-dynamo/dynamo",
        "notes": NOTES,
    })
}

fn answer(payload: &[u8]) -> Value {
    match decode_event_batch(payload) {
        Ok(batch) => json!({
            "ts": batch.ts,
            "dp_rank": batch.data_parallel_rank,
            "events": batch.events.iter().filter_map(neutral).collect::<Vec<_>>(),
        }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}

/// One event in the neutral form; None for the decoder's `Ignored`.
fn neutral(event: &RawKvEvent) -> Option<Value> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(event) else {
        panic!("the crate does not serialise its event as a map");
    };
    if fields["type"] == "Ignored" {
        return None;
    }
    fields.remove("block_mm_infos");
    if fields.remove("is_eagle") == Some(Value::Bool(true)) {
        pair(&mut fields);
    }
    fields.retain(|_, value| !value.is_null());
    for (name, value) in &mut fields {
        match name.as_str() {
            "block_hashes" => value
                .as_array_mut()
                .expect("a list of hashes")
                .iter_mut()
                .for_each(hash),
            "parent_block_hash" => hash(value),
            "block_size" => integer(value),
            _ => {}
        }
    }
    Some(Value::Object(fields))
}

fn pair(fields: &mut Map<String, Value>) {
    if let Some(Value::Array(run)) = fields.get_mut("token_ids") {
        *run = run
            .windows(2)
            .map(|two| Value::Array(two.to_vec()))
            .collect();
    }
}

fn hash(value: &mut Value) {
    let bits = value
        .as_u64()
        .or_else(|| value.as_i64().map(i64::cast_unsigned));
    *value = Value::String(format!("{:016x}", bits.expect("a hash of 64 bits")));
}

fn integer(value: &mut Value) {
    if value.as_u64().is_some_and(|whole| whole > SAFE) {
        *value = json!({ "int": value.to_string() });
    }
}
