//! Manifests: what is written is read again, what no writer made is refused by its field's name, and nothing makes the parser fall.

use crate::support::*;
use turnkv_archive::{Digest, Error, Manifest, ManifestPage, ObjectId, Sequence, ShardDigests, Split};
use turnkv_mutate::{Random, each_seed, mutate_bytes, mutate_text};
use turnkv_proto::BlockHash;

fn digest(random: &mut Random) -> Digest {
    Digest(std::array::from_fn(|_| random.number() as u8))
}

fn random_manifest(random: &mut Random) -> Manifest {
    let shards = 1 + random.below(3) as u32;
    let split = if random.one_in(2) { Split::Whole } else { Split::by_layers(2, 64).unwrap() };
    let count = 1 + random.below(6);
    let mut pages: Vec<ManifestPage> = Vec::new();
    for at in 0..count {
        let shards = (0..shards).map(|_| match split {
            Split::Whole => ShardDigests::Whole(digest(random)),
            Split::KeyValue { .. } => ShardDigests::KeyValue { k: digest(random), v: digest(random) },
        });
        let parent = at.checked_sub(1).map(|parent| parent as u32);
        pages.push(ManifestPage { shards: shards.collect(), hash: BlockHash([at as u8; 32]), parent });
    }
    let fill = 1 + random.below(16) as u32;
    let tokens = (0..(count as u32 - 1) * 16 + fill).collect();
    let sequence = Sequence { tokens: random.one_in(2).then_some(tokens), ..sequence(count, fill) };
    let other = serde_json::json!({"comment": "kept", "nested": {"numbers": [1.5, 2, null]}});
    Manifest {
        id: ObjectId::new(),
        header: header(shards, 64, split),
        pages,
        sequences: if random.one_in(4) { Vec::new() } else { vec![sequence] },
        created_unix_s: random.number() >> 20,
        packs: (0..random.below(4)).map(|_| ObjectId::new()).collect(),
        other: other.as_object().cloned().unwrap(),
    }
}

#[test]
fn what_is_written_is_read_again() {
    each_seed(500, |random| {
        let manifest = random_manifest(random);
        let text = manifest.to_json().unwrap();
        assert_eq!(Manifest::parse(&text).unwrap(), manifest);
    });
}

#[test]
fn a_page_names_its_parent_where_that_is_not_the_page_before() {
    let mut random = Random::new(7);
    let mut manifest = random_manifest(&mut random);
    while manifest.pages.len() < 5 {
        manifest = random_manifest(&mut random);
    }
    manifest.pages.truncate(5);
    manifest.sequences.clear();
    for (page, parent) in manifest.pages.iter_mut().zip([None, Some(0), Some(0), None, Some(3)]) {
        page.parent = parent;
    }
    let text = manifest.to_json().unwrap();
    let shown = std::str::from_utf8(&text).unwrap();
    assert_eq!(shown.matches("\"parent\":").count(), 2, "{shown}");
    assert!(shown.contains("\"parent\":0}") && shown.contains("\"parent\":null}"), "{shown}");
    assert_eq!(Manifest::parse(&text).unwrap(), manifest);
}

/// A text with its seal made good, as somebody who means harm would.
fn seal(text: &str) -> Vec<u8> {
    let mut text = text.as_bytes().to_vec();
    let mark = b"\"sha256\":\"";
    let Some(at) = text.windows(mark.len()).rposition(|window| window == mark) else { return text };
    let at = at + mark.len();
    if text.len() < at + 64 {
        return text;
    }
    text[at..at + 64].fill(b'0');
    let digits = Digest::of(&text).to_string();
    text[at..at + 64].copy_from_slice(digits.as_bytes());
    text
}

#[test]
fn nothing_makes_the_parser_fall() {
    let words = [
        "null",
        "-1",
        "18446744073709551615",
        "\"\"",
        "[]",
        "{}",
        "pages",
        "ix",
        "k",
        "kv",
        "turnkv",
        "1e300",
    ];
    each_seed(3000, |random| {
        let manifest = random_manifest(random);
        let text = manifest.to_json().unwrap();
        let mutated = mutate_bytes(random, &text);
        if mutated != text {
            assert!(Manifest::parse(&mutated).is_err(), "its seal is broken");
        }
        let mutated = mutate_text(random, std::str::from_utf8(&text).unwrap(), &words);
        // With a good seal everything else must hold together.
        if let Ok(parsed) = Manifest::parse(&seal(&mutated)) {
            parsed.check().unwrap();
            assert!(parsed.to_json().is_ok());
        }
    });
}

/// A manifest's text with one part replaced, sealed again.
fn with(text: &[u8], from: &str, to: &str) -> Result<Manifest, Error> {
    let text = std::str::from_utf8(text).unwrap();
    assert!(text.contains(from), "{from} is not in {text}");
    Manifest::parse(&seal(&text.replacen(from, to, 1)))
}

#[test]
fn the_field_that_is_wrong_is_named() {
    let mut random = Random::new(1);
    let mut manifest = random_manifest(&mut random);
    while manifest.sequences.is_empty() || manifest.header.split == Split::Whole || manifest.pages.len() < 3 {
        manifest = random_manifest(&mut random);
    }
    manifest.header.shards = 1;
    manifest.pages.iter_mut().for_each(|page| page.shards.truncate(1));
    manifest.packs = vec![ObjectId::new()];
    let text = manifest.to_json().unwrap();
    let hash = "\"hash\":\"0101";
    let (second, first) = ("01".repeat(32), "00".repeat(32));
    let (quoted, itself) = (format!("{second}\""), format!("{second}\",\"parent\":1"));
    let cases = [
        ("\"paged-batchinvariant-v1\"", "\"paged-batchinvariant-v2\"", "layout"),
        ("\"page_size_tokens\":16", "\"page_size_tokens\":0", "page_size_tokens"),
        ("\"page_size_tokens\":16", "\"page_size_tokens\":-3", "page_size_tokens"),
        ("\"page_size_tokens\":16,", "", "page_size_tokens"),
        ("\"head_dim\":64", "\"head_dim\":99999", "head_dim"),
        ("\"dtype\":\"bf16\"", "\"dtype\":\"\"", "dtype"),
        ("\"dtype\":\"bf16\"", "\"dtype\":7", "dtype"),
        ("{\"ix\":1,", "{\"ix\":2,", "pages[1].ix"),
        ("{\"ix\":1,\"k\":\"", "{\"ix\":1,\"k\":\"x", "pages[1].k"),
        ("{\"ix\":1,\"k\":", "{\"ix\":1,\"kv\":", "pages[1]"),
        ("{\"ix\":1,", "{\"ix\":1,\"z\":1,", "z"),
        ("\"page_ixs\":[0,1", "\"page_ixs\":[1,0", "page_ixs"),
        ("\"page_ixs\":[0,1", "\"page_ixs\":[0,9999", "page_ixs"),
        ("\"fill_in_last_page\":", "\"fill_in_last_page\":9", "fill_in_last_page"),
        ("\"turnkv\":{\"version\":1", "\"turnkv\":{\"version\":2", "turnkv.version"),
        ("\"turnkv\":{\"version\":1", "\"turnkv\":{\"new\":3,\"version\":1", "new"),
        ("\"tp\":1", "\"tp\":65", "turnkv.tp"),
        ("\"shard_bytes\":64", "\"shard_bytes\":65", "turnkv.split"),
        ("\"split\":{\"k\":[[0,16]", "\"split\":{\"k\":[[1,16]", "turnkv.split"),
        (hash, "\"hash\":\"zz01", "turnkv.pages[1].hash"),
        (&second, &first, "turnkv.pages[1].hash"),
        (&quoted, &itself, "turnkv.pages[1].parent"),
        ("\"packs\":[\"", "\"packs\":[\"0", "turnkv.packs[0]"),
        ("\"namespace\":\"07", "\"namespace\":\"0", "turnkv.namespace"),
    ];
    for (from, to, field) in cases {
        match with(&text, from, to) {
            Err(Error::Invalid { field: named, fault }) => {
                assert!(
                    named.contains(field) || fault.contains(field),
                    "{to}: {named} is named, not {field}: {fault}"
                );
            }
            other => panic!("{to}: {other:?}"),
        }
    }
    let unsealed = String::from_utf8(text).unwrap().replacen("a model", "b model", 1);
    let refused = Manifest::parse(unsealed.as_bytes());
    assert!(matches!(&refused, Err(Error::Invalid { field, .. }) if field == "turnkv.sha256"), "{refused:?}");
}
