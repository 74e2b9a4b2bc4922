//! Tests of the mapping between messages and plain types: lossless, and unknown numbers are refused.

use super::*;
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
