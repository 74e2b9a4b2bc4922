//! Tests of the mapping between messages and plain types: lossless, and unknown numbers are refused.

use super::*;
use crate::limits::{PAGE_TOKENS_MAX, SHARD_BYTES_MAX};
use proptest::prelude::*;

#[test]
fn specs_survive_the_wire() {
    let dtypes = [Dtype::Bf16, Dtype::F16, Dtype::F32, Dtype::F8E4m3, Dtype::F8E5m2, Dtype::U8];
    let layouts = [Layout::LayerKvHeadToken, Layout::LayerKvTokenHead, Layout::Opaque];
    for dtype in dtypes {
        for layout in layouts {
            let mut spec =
                Spec::full("m", dtype, 16, 2, 4, 64).with_layout(layout).with_tenant("t").with_salt(*b"s");
            spec.opaque_shard_bytes = if layout == Layout::Opaque { 4096 } else { 0 };
            let spec = spec
                .with_group(Group { kind: Attention::Sliding, window_tokens: 9, ..Group::full(1, 4, 64) })
                .with_group(Group { kind: Attention::Mla, ..Group::full(1, 1, 64) });
            let message = wire::NamespaceSpec::from(&spec);
            assert_eq!(Spec::try_from(&message), Ok(spec.clone()));
            let checked = CheckedSpec::try_from(&message).unwrap();
            assert_eq!(checked, spec.check().unwrap());
            assert_eq!(CheckedSpec::try_from(&wire::NamespaceSpec::from(&checked)), Ok(checked));
        }
    }
}

#[test]
fn numbers_on_the_wire_are_the_numbers_of_the_id() {
    // layout.rs writes its own numbers so that it needs no messages; they must stay those of the wire.
    let message = wire::NamespaceSpec::from(&Spec::full("m", Dtype::F8E5m2, 16, 2, 4, 64));
    assert_eq!((message.dtype, message.layout, message.groups[0].kind), (5, 1, 1));
}

proptest! {
    #[test]
    fn any_message_is_a_spec_or_an_error(
        numbers in any::<(i32, i32, i32)>(),
        small in (-2..9i32, -2..5i32, -2..5i32),
        wild in any::<bool>(),
        counts in any::<(u32, u32, u64, u32, u32, u32, u32)>(),
        groups in 0..200usize,
        model in ".{0,300}",
        salt in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let (dtype, layout, kind) = if wild { numbers } else { small };
        let (page_tokens, tp_size, opaque_shard_bytes, layers, kv_heads, head_dim, window_tokens) = counts;
        let group = wire::AttentionGroup { kind, layers, kv_heads, head_dim, window_tokens };
        let message = wire::NamespaceSpec {
            model, dtype, page_tokens, tp_size, layout, groups: vec![group; groups], opaque_shard_bytes,
            tenant: String::new(), salt: salt.into(),
        };
        if let Ok(checked) = CheckedSpec::try_from(&message) {
            prop_assert!(checked.shard_bytes() > 0 && checked.shards() > 0);
        }
    }
}

#[test]
fn a_valid_spec_changed_in_its_fields_is_a_spec_that_comes_back_or_an_error() {
    use prost::Message;
    let group = Group { kind: Attention::Sliding, window_tokens: 9, ..Group::full(1, 4, 64) };
    let valid = [
        wire::NamespaceSpec::from(&Spec::opaque("m", 16, 4096)),
        wire::NamespaceSpec::from(
            &Spec::full("m", Dtype::Bf16, 16, 2, 4, 64).with_group(group).with_tenant("t"),
        ),
    ]
    .map(|message| message.encode_to_vec());
    let mut accepted = 0;
    turnkv_mutate::each_seed(3_000, |random| {
        let Some(bytes) = random.pick(&valid).cloned() else { return };
        let bytes = turnkv_mutate::mutate_message(random, &bytes);
        let Ok(message) = wire::NamespaceSpec::decode(bytes.as_slice()) else { return };
        let Ok(checked) = CheckedSpec::try_from(&message) else { return };
        assert!((1..=SHARD_BYTES_MAX).contains(&checked.shard_bytes()) && checked.shards() > 0);
        assert!((1..=PAGE_TOKENS_MAX).contains(&checked.page_tokens()));
        let again = CheckedSpec::try_from(&wire::NamespaceSpec::from(&checked)).unwrap();
        assert_eq!((again.id(), again.shard_bytes()), (checked.id(), checked.shard_bytes()));
        accepted += 1;
    });
    assert!(accepted > 100, "only {accepted} were specs: the others prove little");
}

#[test]
fn ids_of_any_bytes_are_ids_or_errors() {
    use crate::{BlockHash, NamespaceId, SessionId, pack_hashes, unpack_hashes};
    turnkv_mutate::each_seed(3_000, |random| {
        let bytes = turnkv_mutate::mutate_bytes(random, &[b'a'; 64]);
        assert_eq!(NamespaceId::parse(&bytes).is_ok(), bytes.len() == 32);
        match unpack_hashes(&bytes) {
            Ok(hashes) => assert_eq!(pack_hashes(&hashes), bytes),
            Err(_) => assert!(!bytes.len().is_multiple_of(32)),
        }
        if let Ok(Some(hash)) = BlockHash::parse_optional(&bytes) {
            assert_eq!(hash.0.as_slice(), bytes);
        }
        if let Ok(text) = std::str::from_utf8(&bytes)
            && let Ok(session) = SessionId::parse(text)
        {
            assert_eq!(session.as_str(), text);
        }
    });
}
