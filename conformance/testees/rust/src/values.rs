//! Values to their neutral JSON form. Each function takes one whole msgpack value, and fails where it is of another type.

use std::collections::HashMap;
use std::io::Cursor;

use rmp::decode::{read_array_len, read_map_len};
use rmp::Marker;
use rmp_serde::{from_slice, Deserializer};
use serde::de::{Deserialize, IgnoredAny};
use serde_bytes::ByteBuf;
use serde_json::{json, Value};

/// How deep the values of one extra key may be nested; an identifier with its offset is one deep.
const MAX_KEY_DEPTH: u32 = 4;

/// Largest integer that every JSON reader keeps.
const SAFE: u64 = (1 << 53) - 1;

pub type Result<T> = std::result::Result<T, String>;

/// Reads a value that is not nil.
pub type Read = fn(&[u8]) -> Result<Value>;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Nil,
    Bool,
    Int,
    Float,
    Str,
    Bin,
    Array,
    Map,
    Ext,
}

/// The type that a value's first byte announces.
pub fn kind(bytes: &[u8]) -> Kind {
    match Marker::from_u8(bytes[0]) {
        Marker::Null => Kind::Nil,
        Marker::True | Marker::False => Kind::Bool,
        Marker::F32 | Marker::F64 => Kind::Float,
        Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => Kind::Str,
        Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => Kind::Bin,
        Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => Kind::Array,
        Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => Kind::Map,
        Marker::FixPos(_) | Marker::FixNeg(_) => Kind::Int,
        Marker::U8 | Marker::U16 | Marker::U32 | Marker::U64 => Kind::Int,
        Marker::I8 | Marker::I16 | Marker::I32 | Marker::I64 => Kind::Int,
        _ => Kind::Ext,
    }
}

fn expect(bytes: &[u8], wanted: Kind) -> Result<()> {
    match kind(bytes) {
        found if found == wanted => Ok(()),
        found => Err(format!("expected {wanted:?}, got {found:?}")),
    }
}

/// How many bytes the first value takes.
fn size(bytes: &[u8]) -> Result<usize> {
    let mut decoder = Deserializer::new(Cursor::new(bytes));
    IgnoredAny::deserialize(&mut decoder).map_err(|error| error.to_string())?;
    Ok(decoder.position() as usize)
}

/// The bytes, if they are one value and nothing else.
pub fn whole(bytes: &[u8]) -> Result<&[u8]> {
    match bytes.len() - size(bytes)? {
        0 => Ok(bytes),
        rest => Err(format!("{rest} bytes follow the value")),
    }
}

/// An array's elements, each as its bytes.
pub fn elements(bytes: &[u8]) -> Result<Vec<&[u8]>> {
    expect(bytes, Kind::Array)?;
    let mut rest = bytes;
    let count = read_array_len(&mut rest).map_err(|error| error.to_string())?;
    parts(rest, count as usize)
}

/// A map's keys and values in turn, each as its bytes.
fn flat(bytes: &[u8]) -> Result<Vec<&[u8]>> {
    expect(bytes, Kind::Map)?;
    let mut rest = bytes;
    let count = read_map_len(&mut rest).map_err(|error| error.to_string())?;
    parts(rest, 2 * count as usize)
}

fn parts(mut rest: &[u8], count: usize) -> Result<Vec<&[u8]>> {
    let mut found = Vec::new();
    for _ in 0..count {
        let (part, next) = rest.split_at(size(rest)?);
        found.push(part);
        rest = next;
    }
    Ok(found)
}

/// A map's values by key; a key that is no string has a name that no field has. Two equal keys are refused: decoders disagree
/// on which of them counts.
pub fn pairs(bytes: &[u8]) -> Result<HashMap<String, &[u8]>> {
    let mut found = HashMap::new();
    for pair in flat(bytes)?.chunks(2) {
        let key = match kind(pair[0]) {
            Kind::Str => string(pair[0])?,
            _ => format!("\0{:?}", pair[0]),
        };
        if found.insert(key, pair[1]).is_some() {
            return Err(format!("a key stands twice: {:?}", String::from_utf8_lossy(pair[0])));
        }
    }
    Ok(found)
}

pub fn string(bytes: &[u8]) -> Result<String> {
    expect(bytes, Kind::Str)?;
    from_slice(bytes).map_err(|error| error.to_string())
}

pub fn binary(bytes: &[u8]) -> Result<Vec<u8>> {
    expect(bytes, Kind::Bin)?;
    let found: ByteBuf = from_slice(bytes).map_err(|error| error.to_string())?;
    Ok(found.into_vec())
}

pub fn number(bytes: &[u8]) -> Result<f64> {
    if kind(bytes) != Kind::Float {
        expect(bytes, Kind::Int)?;
    }
    from_slice(bytes).map_err(|error| error.to_string())
}

fn wide(bytes: &[u8]) -> Result<i128> {
    expect(bytes, Kind::Int)?;
    let unsigned = from_slice::<u64>(bytes).map(i128::from);
    unsigned.or_else(|_| from_slice::<i64>(bytes).map(i128::from)).map_err(|error| error.to_string())
}

pub fn text(bytes: &[u8]) -> Result<Value> {
    string(bytes).map(Value::from)
}

pub fn integer(bytes: &[u8]) -> Result<Value> {
    let value = wide(bytes)?;
    if value.unsigned_abs() > SAFE.into() {
        return Ok(json!({ "int": value.to_string() }));
    }
    Ok(json!(value as i64))
}

/// A block hash. Signed and unsigned integers of the same 64 bits are one.
pub fn block_hash(bytes: &[u8]) -> Result<Value> {
    if kind(bytes) == Kind::Bin {
        return Ok(json!(format!("bytes:{}", hex(&binary(bytes)?))));
    }
    Ok(json!(format!("{:016x}", wide(bytes)? as u64)))
}

pub fn block_hashes(bytes: &[u8]) -> Result<Value> {
    array(bytes, block_hash)
}

pub fn tokens(bytes: &[u8]) -> Result<Value> {
    array(bytes, token)
}

/// A token id, a pair of them on EAGLE's pages, or a string from TensorRT-LLM.
fn token(bytes: &[u8]) -> Result<Value> {
    match kind(bytes) {
        Kind::Str => text(bytes),
        Kind::Array => match elements(bytes)?[..] {
            [first, second] => Ok(json!([integer(first)?, integer(second)?])),
            _ => Err("a token is an int or a pair of ints".into()),
        },
        _ => integer(bytes),
    }
}

pub fn lookahead(bytes: &[u8]) -> Result<Value> {
    array(bytes, |block| array(block, integer))
}

pub fn extra_keys(bytes: &[u8]) -> Result<Value> {
    array(bytes, |entry| or_nil(entry, |entry| array(entry, |key| extra_key(key, MAX_KEY_DEPTH))))
}

/// One extra key, which may be anything but an extension type, a few levels deep.
fn extra_key(bytes: &[u8], depth: u32) -> Result<Value> {
    match kind(bytes) {
        Kind::Nil => Ok(Value::Null),
        Kind::Bool => from_slice::<bool>(bytes).map(Value::from).map_err(|error| error.to_string()),
        Kind::Int => integer(bytes),
        Kind::Float => Ok(json!({ "float": format!("{:?}", number(bytes)?) })),
        Kind::Str => text(bytes),
        Kind::Bin => Ok(json!({ "bytes": hex(&binary(bytes)?) })),
        Kind::Array if depth > 0 => array(bytes, |part| extra_key(part, depth - 1)),
        Kind::Map if depth > 0 => {
            let parts: Result<Vec<Value>> = flat(bytes)?.into_iter().map(|part| extra_key(part, depth - 1)).collect();
            Ok(json!({ "map": parts?.chunks(2).collect::<Vec<_>>() }))
        }
        other => Err(format!("an extra key holds {other:?}, or is nested too deep")),
    }
}

fn array(bytes: &[u8], each: impl Fn(&[u8]) -> Result<Value>) -> Result<Value> {
    elements(bytes)?.into_iter().map(each).collect()
}

pub fn or_nil(bytes: &[u8], read: impl Fn(&[u8]) -> Result<Value>) -> Result<Value> {
    match kind(bytes) {
        Kind::Nil => Ok(Value::Null),
        _ => read(bytes),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
