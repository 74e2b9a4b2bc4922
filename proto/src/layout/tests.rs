//! Tests of the layout: known shapes, every bound, and that no numbers overflow.

use super::*;
use proptest::prelude::*;

fn qwen3_8b() -> Spec {
    Spec::full("qwen3-8b", Dtype::Bf16, 16, 36, 8, 128)
}

#[test]
fn known_shapes_have_known_sizes() {
    let whole = qwen3_8b().check().unwrap();
    assert_eq!(whole.shard_bytes(), 36 * 2 * 8 * 128 * 16 * 2);
    assert_eq!((whole.page_tokens(), whole.shards(), whole.tenant()), (16, 1, ""));
    let split = qwen3_8b().with_tp_size(4).check().unwrap();
    assert_eq!(split.shard_bytes() * 4, whole.shard_bytes());
    let replicated = qwen3_8b().with_tp_size(16).check().unwrap();
    assert_eq!(replicated.shard_bytes() * 8, whole.shard_bytes(), "16 ranks of 8 heads hold one head each");
    let mla = Group { kind: Attention::Mla, layers: 61, kv_heads: 1, head_dim: 576, window_tokens: 0 };
    let mut deepseek = Spec::full("deepseek", Dtype::Bf16, 64, 1, 1, 1).with_tp_size(8);
    deepseek.groups = vec![mla];
    assert_eq!(deepseek.check().unwrap().shard_bytes(), 61 * 576 * 64 * 2, "every rank holds MLA whole");
    assert_eq!(Spec::opaque("cpu", 32, 12345).check().unwrap().shard_bytes(), 12345);
}

#[test]
fn groups_add_up() {
    let sliding =
        Group { kind: Attention::Sliding, layers: 24, kv_heads: 4, head_dim: 64, window_tokens: 1024 };
    let spec = Spec::full("gemma", Dtype::F8E4m3, 16, 6, 4, 64).with_group(sliding).check().unwrap();
    assert_eq!(spec.shard_bytes(), 30 * 2 * 4 * 64 * 16);
}

#[test]
fn the_id_is_stable_and_depends_on_every_field() {
    // A change of this value breaks every pool on disk: it needs a new domain string.
    let id = qwen3_8b().check().unwrap().id().to_string();
    assert_eq!(id, "231e03b28679b61ac4e16e727ef2cc06b11113dc2db144e5e989f488d04a730f");
    let sliding = Group { kind: Attention::Sliding, window_tokens: 128, ..Group::full(36, 8, 128) };
    let mut others = vec![
        qwen3_8b(),
        Spec { model: "qwen3-8c".into(), ..qwen3_8b() },
        Spec { dtype: Dtype::F16, ..qwen3_8b() },
        Spec { page_tokens: 32, ..qwen3_8b() },
        qwen3_8b().with_tp_size(2),
        qwen3_8b().with_layout(Layout::LayerKvTokenHead),
        qwen3_8b().with_tenant("a"),
        qwen3_8b().with_salt(*b"a"),
        qwen3_8b().with_group(Group::full(1, 8, 128)),
        Spec { groups: vec![sliding], ..qwen3_8b() },
        Spec { groups: vec![Group { window_tokens: 129, ..sliding }], ..qwen3_8b() },
        Spec { groups: vec![Group::full(36, 4, 256)], ..qwen3_8b() },
        Spec { groups: vec![Group::full(18, 16, 128)], ..qwen3_8b() },
        Spec { layout: Layout::Opaque, opaque_shard_bytes: 1 << 20, ..qwen3_8b() },
        Spec { layout: Layout::Opaque, opaque_shard_bytes: 1 << 21, ..qwen3_8b() },
    ];
    let count = others.len();
    let mut ids: Vec<_> = others.drain(..).map(|spec| spec.check().unwrap().id()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count);
    assert_eq!(qwen3_8b().with_tp_size(0).check().unwrap().id(), qwen3_8b().check().unwrap().id());
}

#[test]
fn a_page_may_have_the_most_shards_and_no_more() {
    let heads = |shards| {
        let groups = vec![Group::full(1, 2 * SHARDS_MAX, 128)];
        Spec { groups, ..qwen3_8b() }.with_tp_size(shards).check()
    };
    assert_eq!(heads(SHARDS_MAX).unwrap().shards(), SHARDS_MAX as u16);
    assert!(heads(2 * SHARDS_MAX).is_err(), "the heads could be divided so far");
}

#[test]
fn every_bound_is_checked() {
    let group = |layers, kv_heads, head_dim| Spec {
        groups: vec![Group::full(layers, kv_heads, head_dim)],
        ..qwen3_8b()
    };
    let bad = [
        Spec { model: String::new(), ..qwen3_8b() },
        Spec { model: "x".repeat(MODEL_BYTES_MAX + 1), ..qwen3_8b() },
        Spec { model: "a\0".into(), ..qwen3_8b() },
        Spec { page_tokens: 0, ..qwen3_8b() },
        Spec { page_tokens: PAGE_TOKENS_MAX + 1, ..qwen3_8b() },
        qwen3_8b().with_tp_size(SHARDS_MAX + 1),
        qwen3_8b().with_tp_size(3),
        qwen3_8b().with_tenant("t".repeat(TENANT_BYTES_MAX + 1)),
        qwen3_8b().with_tenant("a\tb"),
        qwen3_8b().with_salt(vec![0; SALT_BYTES_MAX + 1]),
        Spec { groups: vec![], ..qwen3_8b() },
        Spec { groups: vec![Group::full(1, 1, 1); GROUPS_MAX + 1], ..qwen3_8b() },
        Spec { opaque_shard_bytes: 1, ..qwen3_8b() },
        Spec::opaque("m", 16, 0),
        Spec::opaque("m", 16, SHARD_BYTES_MAX + 1),
        Spec::opaque("m", 16, u64::MAX),
        group(0, 8, 128),
        group(LAYERS_MAX + 1, 8, 128),
        group(1, 0, 128),
        group(1, KV_HEADS_MAX + 1, 128),
        group(1, 8, 0),
        group(1, 8, HEAD_DIM_MAX + 1),
        group(LAYERS_MAX, KV_HEADS_MAX, HEAD_DIM_MAX),
        Spec { groups: vec![Group { window_tokens: 4, ..Group::full(1, 8, 128) }], ..qwen3_8b() },
        Spec { groups: vec![Group { kind: Attention::Sliding, ..Group::full(1, 8, 128) }], ..qwen3_8b() },
        Spec { groups: vec![Group { kind: Attention::Mla, ..Group::full(1, 8, 128) }], ..qwen3_8b() },
    ];
    for spec in bad {
        let refused = spec.clone().check();
        assert!(refused.is_err(), "{spec:?} was accepted");
    }
}

fn any_group() -> impl Strategy<Value = Group> {
    let kind = prop_oneof![Just(Attention::Full), Just(Attention::Sliding), Just(Attention::Mla)];
    let number = || prop_oneof![Just(0), 1..9u32, Just(1024), Just(65_536), any::<u32>()];
    (kind, number(), number(), number(), number()).prop_map(
        |(kind, layers, kv_heads, head_dim, window_tokens)| Group {
            kind,
            layers,
            kv_heads,
            head_dim,
            window_tokens,
        },
    )
}

proptest! {
    #[test]
    fn no_numbers_overflow(
        groups in prop::collection::vec(any_group(), 0..70),
        page_tokens in prop_oneof![1..5000u32, any::<u32>()],
        tp_size in prop_oneof![0..70u32, any::<u32>()],
        opaque_shard_bytes in prop_oneof![Just(0), any::<u64>()],
        opaque in any::<bool>(),
    ) {
        let layout = if opaque { Layout::Opaque } else { Layout::LayerKvHeadToken };
        let spec = Spec { groups, page_tokens, tp_size, opaque_shard_bytes, layout, ..qwen3_8b() };
        if let Ok(checked) = spec.clone().check() {
            prop_assert!((1..=SHARD_BYTES_MAX).contains(&checked.shard_bytes()));
            // The plain sum in 128 bits agrees.
            let ranks = u128::from(tp_size.max(1));
            let elements: u128 = spec.groups.iter().map(|group| {
                let (vectors, heads) = match group.kind {
                    Attention::Mla => (1, 1),
                    _ => (2, (u128::from(group.kv_heads) / ranks).max(1)),
                };
                u128::from(group.layers) * vectors * heads * u128::from(group.head_dim)
            }).sum();
            let expected = if opaque { opaque_shard_bytes.into() } else { elements * u128::from(page_tokens) * 2 };
            prop_assert_eq!(u128::from(checked.shard_bytes()), expected);
        }
    }

    #[test]
    fn neighbouring_texts_do_not_run_together(a in "[a-z]{1,8}", b in "[a-z]{0,8}", c in "[a-z]{0,8}") {
        let one = Spec { model: a.clone(), ..qwen3_8b() }.with_tenant(b.clone()).with_salt(c.as_bytes()).check().unwrap();
        let joined = format!("{b}{c}");
        let two = Spec { model: a, ..qwen3_8b() }.with_tenant(joined).check().unwrap();
        prop_assert_eq!(one.id() == two.id(), c.is_empty());
    }
}
