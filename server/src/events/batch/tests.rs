//! What a message says, read again by rules that were written without a look at its writer.

use super::*;
use turnkv_proto::NamespaceId;

fn change(at: u8, parent: Option<u8>, tier: PageTier, here: bool) -> PageChange {
    let hash = |at| BlockHash([at; 32]);
    let (hash, parent) = (hash(at), parent.map(hash));
    PageChange { namespace: NamespaceId([9; 32]), page_tokens: 16, hash, parent, tier, here }
}

#[test]
fn a_chain_is_one_event_and_what_interrupts_it_ends_it() {
    let (dram, nvme) = (PageTier::Dram, PageTier::Nvme);
    let changes = [
        change(1, None, dram, true),
        change(2, Some(1), dram, true),
        change(4, Some(3), dram, true),
        change(1, None, nvme, true),
        change(4, Some(3), dram, false),
        change(2, Some(1), dram, false),
    ];
    let groups: Vec<usize> = changes.chunk_by(goes_on).map(<[PageChange]>::len).collect();
    assert_eq!(groups, [2, 1, 1, 2]);
    let teller = |names| Teller { incarnation: 5, names };
    let bytes = batch(1.0, teller(PageNames::Bytes), true, &changes);
    assert_eq!(bytes[0], 0x93, "three values");
    assert_eq!(bytes[10], 0x95, "five events");
    let count = |word: &str| bytes.windows(word.len()).filter(|window| *window == word.as_bytes()).count();
    assert_eq!((count("AllBlocksCleared"), count("BlockStored"), count("BlockRemoved")), (1, 3, 1));
    assert_eq!(count("turnkv@5@"), 4);
    let short = batch(1.0, teller(PageNames::Int), true, &changes);
    let names = changes.len() + 1; // and one parent
    assert_eq!(bytes.len() - short.len(), names * (34 - 9), "64 bits of each name instead of all");
}

/// A value of msgpack, as far as a message has some.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Nothing,
    Number(u64),
    Fraction(f64),
    Text(String),
    Bytes(Vec<u8>),
    Array(Vec<Value>),
    Map(Vec<(String, Value)>),
}

/// Reads one value, by <https://github.com/msgpack/msgpack/blob/master/spec.md>.
fn read(bytes: &mut &[u8]) -> Value {
    let first = take(bytes, 1)[0];
    match first {
        0..0x80 => Value::Number(first.into()),
        0x80..0x90 => Value::Map(pairs(bytes, usize::from(first & 0x0f))),
        0x90..0xa0 => Value::Array(values(bytes, usize::from(first & 0x0f))),
        0xa0..0xc0 => text(bytes, usize::from(first & 0x1f)),
        0xc0 => Value::Nothing,
        0xc4 => {
            let length = number(bytes, 1);
            Value::Bytes(take(bytes, length).to_vec())
        }
        0xcb => Value::Fraction(f64::from_bits(number(bytes, 8) as u64)),
        0xce => Value::Number(number(bytes, 4) as u64),
        0xcf => Value::Number(number(bytes, 8) as u64),
        0xd9 => {
            let length = number(bytes, 1);
            text(bytes, length)
        }
        0xdc => {
            let length = number(bytes, 2);
            Value::Array(values(bytes, length))
        }
        0xdd => {
            let length = number(bytes, 4);
            Value::Array(values(bytes, length))
        }
        other => panic!("no form that a message has: {other:#x}"),
    }
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (these, rest) = bytes.split_at(count);
    *bytes = rest;
    these
}

fn number(bytes: &mut &[u8], count: usize) -> usize {
    take(bytes, count).iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

fn text(bytes: &mut &[u8], length: usize) -> Value {
    Value::Text(String::from_utf8(take(bytes, length).to_vec()).unwrap())
}

fn values(bytes: &mut &[u8], count: usize) -> Vec<Value> {
    (0..count).map(|_| read(bytes)).collect()
}

fn pairs(bytes: &mut &[u8], count: usize) -> Vec<(String, Value)> {
    let pair = |_| match read(bytes) {
        Value::Text(key) => (key, read(bytes)),
        other => panic!("a key that is no text: {other:?}"),
    };
    (0..count).map(pair).collect()
}

/// The changes that an event tells, as a subscriber takes them: each page of a chain after the one before it.
fn told(event: &Value) -> Vec<PageChange> {
    let Value::Map(fields) = event else { panic!("an event is a map: {event:?}") };
    let field = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value);
    let word = |name: &str| match field(name) {
        Some(Value::Text(word)) => word.clone(),
        other => panic!("{name}: {other:?}"),
    };
    let hash = |value: &Value| match value {
        Value::Bytes(bytes) => BlockHash(bytes.as_slice().try_into().unwrap()),
        other => panic!("a page is named by its hash: {other:?}"),
    };
    let here = word("type") == "BlockStored";
    let tier = if word("medium") == "CPU" { PageTier::Dram } else { PageTier::Nvme };
    let owner = word("ownership");
    let digits = owner.strip_prefix("turnkv@5@").unwrap();
    let byte = |at: usize| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap();
    let namespace = NamespaceId(std::array::from_fn(byte));
    let mut parent = match field("parent_block_hash") {
        Some(Value::Nothing) | None => None,
        Some(value) => Some(hash(value)),
    };
    let page_tokens = match field("block_size") {
        Some(Value::Number(tokens)) => *tokens as u32,
        _ => 0,
    };
    let Some(Value::Array(pages)) = field("block_hashes") else { panic!("an event without pages") };
    assert!(!pages.is_empty());
    let change = |page: &Value| {
        let (hash, before) = (hash(page), parent);
        parent = here.then_some(hash);
        PageChange { namespace, page_tokens, hash, parent: before, tier, here }
    };
    pages.iter().map(change).collect()
}

#[test]
fn whoever_reads_a_message_by_the_rules_of_msgpack_hears_every_change_in_order() {
    let mut chained = 0;
    turnkv_mutate::each_seed(300, |random| {
        let mut changes: Vec<PageChange> = Vec::new();
        for _ in 0..random.below(60) {
            let before = changes.last().filter(|_| !random.one_in(3)).map(|change| change.hash);
            let parent = before.or_else(|| random.one_in(2).then_some(BlockHash([200; 32])));
            let hash = BlockHash([random.below(100) as u8; 32]);
            let tier = if random.one_in(2) { PageTier::Dram } else { PageTier::Nvme };
            let namespace = NamespaceId([random.below(2) as u8 * 0xab; 32]);
            let page_tokens = [1, 16, 127, 128, 4096][random.below(5)];
            changes.push(PageChange { namespace, page_tokens, hash, parent, tier, here: !random.one_in(3) });
        }
        // A namespace has pages of one size.
        changes.iter_mut().for_each(|change| change.page_tokens = 16 + u32::from(change.namespace.0[0]));
        let cleared = random.one_in(2);
        let teller = Teller { incarnation: 5, names: PageNames::Bytes };
        let bytes = batch(2.5, teller, cleared, &changes);
        let mut rest = &bytes[..];
        let Value::Array(message) = read(&mut rest) else { panic!("a message is an array") };
        assert!(rest.is_empty() && message.len() == 3, "{} bytes are left", rest.len());
        assert_eq!((&message[0], &message[2]), (&Value::Fraction(2.5), &Value::Nothing));
        let Value::Array(events) = &message[1] else { panic!("events are an array") };
        let all_gone = Value::Map(vec![("type".to_owned(), Value::Text("AllBlocksCleared".to_owned()))]);
        assert_eq!(events.first() == Some(&all_gone), cleared);
        let heard: Vec<PageChange> = events[usize::from(cleared)..].iter().flat_map(told).collect();
        // Of what goes its name is all that is said.
        let said = changes.iter().map(|change| match change.here {
            true => *change,
            false => PageChange { parent: None, page_tokens: 0, ..*change },
        });
        assert_eq!(heard, said.collect::<Vec<_>>());
        chained += changes.len() + usize::from(cleared) - events.len();
    });
    assert!(chained > 500, "only {chained} pages shared an event: this proves little");
}
