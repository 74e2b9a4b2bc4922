//! Manifests: what is written is read again, what no writer made is refused by its field's name, and nothing makes the parser fall.

use crate::support::*;
use turnkv_archive::limits::{MANIFEST_FREE_TEXT_BYTES_MAX, MANIFEST_FREE_VALUES_MAX};
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

/// What is written is the only word on a snapshot: one that its own parser refuses would be lost when it is acknowledged.
#[tokio::test]
async fn a_manifest_that_could_not_be_read_again_is_not_written() {
    let nested = |depth: usize| (0..depth).fold(serde_json::json!(1), |inner, _| serde_json::json!([inner]));
    let numbers = |count: usize| serde_json::Value::from(vec![7; count]);
    let text = |bytes: usize| serde_json::Value::from("x".repeat(bytes));
    let mut cases: Vec<(serde_json::Value, Option<bool>)> = vec![
        (nested(100), Some(true)),
        (nested(200), Some(false)),
        (numbers(MANIFEST_FREE_VALUES_MAX), Some(false)),
        (text(MANIFEST_FREE_TEXT_BYTES_MAX), Some(false)),
    ];
    // Where exactly it ends depends on what else is written: the two ends of it agree.
    cases.extend((120..130).map(|depth| (nested(depth), None)));
    cases.extend((0..12).map(|less| (numbers(MANIFEST_FREE_VALUES_MAX - less), None)));
    cases.extend((0..30).map(|less| (text(MANIFEST_FREE_TEXT_BYTES_MAX - less), None)));
    let mut random = Random::new(3);
    for (at, (spec, wanted)) in cases.into_iter().enumerate() {
        let mut manifest = random_manifest(&mut random);
        manifest.header.spec = spec;
        let written = manifest.to_json();
        assert!(wanted.is_none_or(|wanted| wanted == written.is_ok()), "case {at}: {:?}", written.err());
        if let Ok(text) = written {
            assert_eq!(Manifest::parse(&text).unwrap(), manifest, "case {at}");
        }
    }
    let store = crate::shaky::Shaky::new();
    let archive = open(&store).await.unwrap();
    let header = turnkv_archive::Header { spec: nested(200), ..plain_header() };
    let refused = capture(&archive, &header, &chain(&header, 1, 2)).await;
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    assert!(store.names_with("/manifests/").await.is_empty());
}

type Change = Box<dyn Fn(&mut Manifest)>;

fn change(change: impl Fn(&mut Manifest) + 'static) -> Change {
    Box::new(change)
}

/// A field, what it may be at its end, and what is beyond.
fn ends() -> Vec<(&'static str, Change, Change)> {
    let name = |bytes: usize| "n".repeat(bytes);
    vec![
        (
            "page_size_tokens",
            change(|it| it.header.page_tokens = 4096),
            change(|it| it.header.page_tokens = 4097),
        ),
        ("page_size_tokens", change(|it| it.header.page_tokens = 16), change(|it| it.header.page_tokens = 0)),
        ("n_heads", change(|it| it.header.heads = 0), change(|it| it.header.heads = u32::MAX)),
        ("n_layers", change(|it| it.header.layers = 0), change(|it| it.header.layers = u32::MAX)),
        (
            "turnkv.groups",
            change(|it| it.header.groups = vec![serde_json::json!({}); 64]),
            change(|it| it.header.groups = vec![serde_json::json!({}); 65]),
        ),
        (
            "dtype",
            change(move |it| it.header.dtype = name(128)),
            change(move |it| it.header.dtype = name(129)),
        ),
        (
            "dtype",
            change(|it| it.header.dtype = "\u{e9}".repeat(64)),
            change(|it| it.header.dtype = "a\nb".to_owned()),
        ),
        (
            "turnkv.page_layout",
            change(|it| it.header.page_layout = "x".to_owned()),
            change(|it| it.header.page_layout = String::new()),
        ),
        (
            "turnkv.shard_bytes",
            change(|it| it.header.shard_bytes = 64 << 20),
            change(|it| it.header.shard_bytes += 64 << 20),
        ),
        (
            "turnkv.shard_bytes",
            change(|it| it.header.shard_bytes = 1),
            change(|it| it.header.shard_bytes = 0),
        ),
        (
            "id",
            change(|it| it.sequences[0].id = "\u{1f600}".repeat(32)),
            change(|it| it.sequences[0].id = "x".repeat(129)),
        ),
        (
            "id",
            change(|it| it.sequences[0].id = " ".to_owned()),
            change(|it| it.sequences[0].id = "\u{7f}".to_owned()),
        ),
        ("id", change(|_| ()), change(|it| it.sequences.push(it.sequences[0].clone()))),
        ("page_ixs", change(|_| ()), change(|it| it.sequences[0].pages.clear())),
        ("page_ixs", change(|_| ()), change(|it| it.sequences[0].pages[0] = u32::MAX)),
        (
            "fill_in_last_page",
            change(|it| it.sequences[0].last_page_tokens = 16),
            change(|it| it.sequences[0].last_page_tokens = 17),
        ),
        ("fill_in_last_page", change(|_| ()), change(|it| it.sequences[0].last_page_tokens = 0)),
        ("pages[0]", change(|_| ()), change(|it| it.pages[0].shards.clear())),
        ("turnkv.pages[0].parent", change(|_| ()), change(|it| it.pages[0].parent = Some(0))),
    ]
}

#[test]
fn numbers_are_allowed_up_to_their_ends_and_refused_beyond() {
    let mut random = Random::new(11);
    for (at, (field, allowed, beyond)) in ends().into_iter().enumerate() {
        let mut manifest = random_manifest(&mut random);
        (manifest.header.split, manifest.header.shards) = (Split::Whole, 1);
        let whole = vec![ShardDigests::Whole(digest(&mut random))];
        manifest.pages.iter_mut().for_each(|page| page.shards = whole.clone());
        manifest.sequences = vec![sequence(manifest.pages.len(), 16)];
        let mut good = manifest.clone();
        allowed(&mut good);
        assert_eq!(Manifest::parse(&good.to_json().unwrap()).unwrap(), good, "case {at}");
        beyond(&mut manifest);
        match manifest.to_json() {
            Err(Error::Invalid { field: named, .. }) => assert!(named.contains(field), "case {at}: {named}"),
            other => panic!("case {at}, {field}: {other:?}"),
        }
    }
}

/// A sequence is a way from the first page of a prompt, one page after the other; nothing else is.
#[test]
fn a_sequence_follows_parents_and_begins_at_a_first_page() {
    each_seed(500, |random| {
        let mut manifest = random_manifest(random);
        manifest.sequences.clear();
        for at in 1..manifest.pages.len() {
            manifest.pages[at].parent = (!random.one_in(4)).then(|| random.below(at) as u32);
        }
        let count = manifest.pages.len();
        let pages: Vec<u32> = (0..1 + random.below(3)).map(|_| random.below(count + 1) as u32).collect();
        let parent = |page: &u32| manifest.pages.get(*page as usize).map(|page| page.parent);
        let starts = parent(&pages[0]) == Some(None);
        let holds = starts && pages.windows(2).all(|pair| parent(&pair[1]) == Some(Some(pair[0])));
        manifest.sequences = vec![Sequence { pages: pages.clone(), ..sequence(1, 1) }];
        assert_eq!(manifest.check().is_ok(), holds, "{pages:?} of {:?}", manifest.pages);
        assert_eq!(manifest.to_json().is_ok(), holds);
    });
}
