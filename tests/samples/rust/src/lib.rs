//! The project's own decoder of KV-cache events: SGLang's, as they are since 0.5.9.

use rmpv::Value;

/// One event of any kind; `tag` says which. Hashes are the 64 bits, whichever sign they have on the wire.
#[derive(Debug, Default)]
pub struct Event {
    pub tag: String,
    pub hashes: Vec<u64>,
    pub parent: Option<u64>,
    pub tokens: Vec<u64>,
    pub block_size: u64,
    pub lora_id: Option<i64>,
    pub medium: Option<String>,
    pub salt: Option<String>,
}

/// What one message carries.
#[derive(Debug)]
pub struct Batch {
    pub ts: f64,
    pub events: Vec<Event>,
    pub rank: Option<i64>,
}

/// Reads one payload.
pub fn decode(payload: &[u8]) -> Result<Batch, String> {
    let value = rmpv::decode::read_value(&mut &payload[..]).map_err(|error| error.to_string())?;
    let Some([ts, events, rank]) = value.as_array().map(Vec::as_slice) else {
        return Err("a batch has three elements".into());
    };
    let events = events.as_array().ok_or("a batch has an array of events")?;
    Ok(Batch {
        ts: ts.as_f64().ok_or("a batch has a time")?,
        events: events.iter().map(event).collect::<Result<_, _>>()?,
        rank: rank.as_i64(),
    })
}

fn event(value: &Value) -> Result<Event, String> {
    let slots = value.as_array().ok_or("an event is an array of slots")?;
    let tag = slots
        .first()
        .and_then(Value::as_str)
        .ok_or("an event has a tag")?;
    let mut event = Event {
        tag: tag.into(),
        ..Event::default()
    };
    match (tag, slots.len()) {
        ("BlockStored", 7..) => {
            event.hashes = hashes(&slots[1])?;
            event.parent = hash(&slots[2]);
            let tokens = slots[3].as_array().ok_or("tokens are an array")?;
            event.tokens = tokens
                .iter()
                .map(|token| token.as_u64().ok_or("a token is an integer"))
                .collect::<Result<_, _>>()?;
            event.block_size = slots[4].as_u64().ok_or("a block has a size")?;
            event.lora_id = slots[5].as_i64();
            event.medium = text(&slots[6]);
            let metadata = slots.get(7).and_then(Value::as_map);
            let salt = metadata
                .into_iter()
                .flatten()
                .find(|(key, _)| key.as_str() == Some("cache_salt"));
            event.salt = salt.and_then(|(_, salt)| text(salt));
        }
        ("BlockRemoved", 3..) => {
            event.hashes = hashes(&slots[1])?;
            event.medium = text(&slots[2]);
        }
        ("AllBlocksCleared", _) => {}
        (tag, length) => return Err(format!("{tag:?} with {length} slots")),
    }
    Ok(event)
}

fn hashes(value: &Value) -> Result<Vec<u64>, &'static str> {
    let values = value.as_array().ok_or("hashes are an array")?;
    values
        .iter()
        .map(|value| hash(value).ok_or("a hash is an integer"))
        .collect()
}

fn hash(value: &Value) -> Option<u64> {
    value
        .as_u64()
        .or_else(|| value.as_i64().map(|signed| signed as u64))
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(String::from)
}
