//! A testee in Rust with rmp-serde.
//!
//! main.rs speaks the protocol, batch.rs takes batches and events apart, values.rs reads what is in them. One `from_slice` into
//! a struct would not do: it stops at the first value that does not fit and so costs the whole batch, takes a bin for a
//! `String` and a str that is not UTF-8 for bytes, knows a hash as signed or as unsigned, and does not see what follows the
//! value. So each value is looked at by its marker, and rmp-serde reads one at a time.

mod batch;
mod values;

use std::error::Error;
use std::io::{self, BufRead, Write};

use base64::prelude::{Engine, BASE64_STANDARD};
use serde_json::{json, Value};

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    let hello = json!({
        "protocol": 1,
        "name": "rust",
        "version": env!("CARGO_PKG_VERSION"),
        "language": "Rust",
        "decoder": "rmp_serde::from_slice",
        "dialects": [
            "slot6-b2", "slot6", "slot7", "slot8", "slot8-lora", "slot9", "slot10", "slot12", "dynamo", "sglang-map1",
            "sglang-map2", "vllm-map1", "vllm-map2", "vllm-map3", "vllm-map4", "vllm-map5",
        ],
    });
    say(&mut out, &hello)?;
    for line in io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let payload = BASE64_STANDARD.decode(request["payload"].as_str().unwrap_or_default())?;
        let mut answer = batch::read_batch(&payload).unwrap_or_else(|error| json!({ "error": error }));
        answer["id"] = request["id"].clone();
        say(&mut out, &answer)?;
    }
    Ok(())
}

fn say(out: &mut impl Write, line: &Value) -> io::Result<()> {
    writeln!(out, "{line}")?;
    out.flush()
}
