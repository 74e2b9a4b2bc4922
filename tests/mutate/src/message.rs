//! Damage that a parser of protobuf does not see: fields that are well formed and mean something else. Owns: the wire's form of
//! fields. Must not know: any message.

use crate::Random;

/// One field as it travels.
#[derive(Clone, Debug)]
struct Field {
    number: u64,
    value: Value,
}

#[derive(Clone, Debug)]
enum Value {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(Vec<u8>),
    Fixed32([u8; 4]),
}

/// Levels of messages within messages that are looked into.
const DEPTH_MAX: usize = 3;

/// Changes a few fields of an encoded message: numbers go to their edges, lists get longer, shorter or uneven, fields are lost,
/// doubled, renumbered or exchanged, at any depth. What is not a message comes back as it is.
#[must_use]
pub fn mutate_message(random: &mut Random, encoded: &[u8]) -> Vec<u8> {
    mutate(random, encoded, DEPTH_MAX).unwrap_or_else(|| encoded.to_vec())
}

fn mutate(random: &mut Random, encoded: &[u8], depth: usize) -> Option<Vec<u8>> {
    let mut fields = read_fields(encoded)?;
    for _ in 0..1 + random.below(3) {
        let at = random.below(fields.len());
        match random.below(10) {
            _ if fields.is_empty() => fields.push(new_field(random)),
            0 => drop(fields.remove(at)),
            1 => fields.insert(at, fields[at].clone()),
            2 => fields[at].number = 1 + random.below(20) as u64,
            3 => fields.push(new_field(random)),
            4 => {
                let other = random.below(fields.len());
                let value = fields[other].value.clone();
                fields[at].value = value;
            }
            _ => change(random, &mut fields[at].value, depth),
        }
    }
    let mut bytes = Vec::new();
    fields.iter().for_each(|field| write_field(field, &mut bytes));
    Some(bytes)
}

fn new_field(random: &mut Random) -> Field {
    let value = match random.below(3) {
        0 => Value::Bytes((0..random.below(100)).map(|_| random.number() as u8).collect()),
        _ => Value::Varint(random.extreme()),
    };
    Field { number: 1 + random.below(20) as u64, value }
}

fn change(random: &mut Random, value: &mut Value, depth: usize) {
    match value {
        Value::Varint(number) => *number = random.extreme(),
        Value::Fixed64(bytes) => *bytes = random.extreme().to_le_bytes(),
        Value::Fixed32(bytes) => *bytes = (random.extreme() as u32).to_le_bytes(),
        Value::Bytes(bytes) => {
            let inner = if depth > 0 && random.one_in(2) { mutate(random, bytes, depth - 1) } else { None };
            match inner {
                Some(inner) => *bytes = inner,
                None => change_bytes(random, bytes),
            }
        }
    }
}

fn change_bytes(random: &mut Random, bytes: &mut Vec<u8>) {
    let len = bytes.len();
    match random.below(8) {
        0 => bytes.clear(),
        1 => bytes.truncate(random.below(len + 1)),
        2 => bytes.resize([31, 32, 33, 64, 4096][random.below(5)], 7),
        3 => bytes.extend_from_within(..len.min(4096)),
        // Lists of hashes: one of them again, or none of them known.
        4 if len >= 64 => bytes.copy_within(..32, 32),
        5 => bytes.iter_mut().take(32).for_each(|byte| *byte ^= 0x55),
        6 => bytes.resize(1 << random.below(18), 0xa5),
        _ if len > 0 => bytes[random.below(len)] ^= 1 << random.below(8),
        _ => bytes.push(random.number() as u8),
    }
}

fn read_fields(mut bytes: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = read_varint(&mut bytes)?;
        let value = match key & 7 {
            0 => Value::Varint(read_varint(&mut bytes)?),
            1 => Value::Fixed64(*take(&mut bytes, 8)?.first_chunk()?),
            2 => {
                let len = usize::try_from(read_varint(&mut bytes)?).ok()?;
                Value::Bytes(take(&mut bytes, len)?.to_vec())
            }
            5 => Value::Fixed32(*take(&mut bytes, 4)?.first_chunk()?),
            _ => return None,
        };
        if key >> 3 == 0 {
            return None;
        }
        fields.push(Field { number: key >> 3, value });
    }
    Some(fields)
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for at in 0..10 {
        let byte = *take(bytes, 1)?.first()?;
        number |= u64::from(byte & 0x7f).checked_shl(7 * at)?;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn write_field(field: &Field, out: &mut Vec<u8>) {
    let mut key = |kind: u64| write_varint(field.number << 3 | kind, out);
    match &field.value {
        Value::Varint(number) => {
            key(0);
            write_varint(*number, out);
        }
        Value::Fixed64(bytes) => {
            key(1);
            out.extend_from_slice(bytes);
        }
        Value::Bytes(bytes) => {
            key(2);
            write_varint(bytes.len() as u64, out);
            out.extend_from_slice(bytes);
        }
        Value::Fixed32(bytes) => {
            key(5);
            out.extend_from_slice(bytes);
        }
    }
}

fn write_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests;
