//! What a manifest says of its namespace. Owns: making it from a spec, and the check that all of it is so. Must not know: pages.

use super::spec_text;
use turnkv_archive::{Header, Split};
use turnkv_proto::{Attention, CheckedSpec, Error, ErrorKind, Layout, Spec};

/// The header of snapshots of a namespace.
pub(super) fn header_of(spec: &CheckedSpec) -> Result<Header, Error> {
    let inner = spec.spec();
    let (text, groups) = spec_text::written(inner)
        .map_err(|fault| Error::new(ErrorKind::Internal, format!("a spec is not JSON: {fault}")))?;
    let is_told = inner.layout != Layout::Opaque;
    let alike = |of: fn(&turnkv_proto::Group) -> u32| match inner.groups.first().map(of) {
        Some(value) if is_told && inner.groups.iter().all(|group| of(group) == value) => value,
        _ => 0,
    };
    Ok(Header {
        namespace: spec.id(),
        spec: text,
        page_layout: spec_text::layout_word(inner.layout).to_owned(),
        page_tokens: spec.page_tokens(),
        layers: if is_told { inner.groups.iter().map(|group| group.layers).sum() } else { 0 },
        heads: alike(|group| group.kv_heads),
        head_dim: alike(|group| group.head_dim),
        dtype: spec_text::dtype_word(inner.dtype).to_owned(),
        groups,
        shards: spec.shards().into(),
        shard_bytes: spec.shard_bytes(),
        split: split_of(inner, spec.shard_bytes()),
    })
}

/// Where K and V are in a shard: layers follow one another, each with all its K before all its V.
fn split_of(spec: &Spec, shard_bytes: u64) -> Split {
    let joint = spec.groups.iter().any(|group| group.kind == Attention::Mla);
    let alike = spec
        .groups
        .windows(2)
        .all(|pair| (pair[0].kv_heads, pair[0].head_dim) == (pair[1].kv_heads, pair[1].head_dim));
    let layers = spec.groups.iter().map(|group| group.layers).sum();
    if spec.layout == Layout::Opaque || joint || !alike || layers > LAYERS_SPLIT_MAX {
        return Split::Whole;
    }
    Split::by_layers(layers, shard_bytes).unwrap_or(Split::Whole)
}

/// Layers whose K and V are told apart: of more, a shard is one blob.
const LAYERS_SPLIT_MAX: u32 = turnkv_archive::limits::SPLIT_RANGES_MAX as u32;

/// The namespace that a manifest's header says, if all that it says of it is so and it is this tenant's.
///
/// # Errors
/// The field that is not.
pub(super) fn namespace_of(header: &Header, tenant: &str) -> Result<CheckedSpec, Error> {
    let wrong = |field: &str, fault: String| {
        let text = format!("{field}: {fault}; the snapshot is not what this server writes");
        Err(Error::invalid(text))
    };
    let spec = match spec_text::read(&header.spec) {
        Ok(spec) => spec,
        Err(fault) => return wrong("turnkv.spec", fault),
    };
    if spec.id() != header.namespace {
        return wrong(
            "turnkv.namespace",
            format!("is {}, its spec is that of {}", header.namespace, spec.id()),
        );
    }
    if spec.tenant() != tenant {
        let text = "turnkv.spec.tenant: the snapshot is another tenant's".to_owned();
        return Err(Error::new(ErrorKind::PermissionDenied, text));
    }
    let numbers = [
        ("page_size_tokens", u64::from(header.page_tokens), u64::from(spec.page_tokens())),
        ("turnkv.tp", u64::from(header.shards), u64::from(spec.shards())),
        ("turnkv.shard_bytes", header.shard_bytes, spec.shard_bytes()),
    ];
    for (field, found, wanted) in numbers {
        if found != wanted {
            return wrong(field, format!("is {found}, of its spec {wanted}"));
        }
    }
    let told = header_of(&spec)?;
    let others = [
        ("dtype", header.dtype == told.dtype),
        ("n_layers", header.layers == told.layers),
        ("n_heads", header.heads == told.heads),
        ("head_dim", header.head_dim == told.head_dim),
        ("turnkv.page_layout", header.page_layout == told.page_layout),
        ("turnkv.groups", header.groups == told.groups),
        ("turnkv.split", header.split == told.split),
    ];
    match others.iter().find(|(_, is_so)| !is_so) {
        Some((field, _)) => wrong(field, "is not what its spec says".to_owned()),
        None => Ok(spec),
    }
}

#[cfg(test)]
mod tests {
    use super::{header_of, namespace_of};
    use turnkv_archive::Split;
    use turnkv_proto::{Attention, Dtype, Group, Layout, Spec};

    #[test]
    fn a_header_says_the_namespace_and_each_field_that_is_wrong_is_named() {
        let specs = [
            Spec::opaque("m", 16, 4096).with_tenant("a").with_salt([7, 0, 255]),
            Spec::full("m", Dtype::Bf16, 16, 4, 8, 64).with_tp_size(2).with_tenant("a"),
            Spec::full("m", Dtype::F8E4m3, 32, 2, 8, 64)
                .with_layout(Layout::LayerKvTokenHead)
                .with_tenant("a")
                .with_group(Group {
                    kind: Attention::Sliding,
                    layers: 3,
                    kv_heads: 4,
                    head_dim: 64,
                    window_tokens: 128,
                }),
            Spec {
                groups: vec![Group {
                    kind: Attention::Mla,
                    layers: 2,
                    kv_heads: 1,
                    head_dim: 576,
                    window_tokens: 0,
                }],
                ..Spec::full("m", Dtype::Bf16, 16, 1, 1, 1).with_tenant("a")
            },
        ];
        let split = [false, true, false, false];
        for (spec, split) in specs.into_iter().zip(split) {
            let spec = spec.check().unwrap();
            let header = header_of(&spec).unwrap();
            assert_eq!(namespace_of(&header, "a").unwrap(), spec);
            assert_eq!(header.split != Split::Whole, split, "{header:?}");
            let said = |header| namespace_of(&header, "a").unwrap_err().message;
            let mut other = header.clone();
            other.page_tokens += 1;
            assert!(said(other).starts_with("page_size_tokens: "));
            let mut other = header.clone();
            other.shards += 1;
            assert!(said(other).starts_with("turnkv.tp: "));
            let mut other = header.clone();
            other.shard_bytes += 1;
            assert!(said(other).starts_with("turnkv.shard_bytes: "));
            let mut other = header.clone();
            other.dtype = "x".to_owned();
            assert!(said(other).starts_with("dtype: "));
            let mut other = header.clone();
            other.head_dim += 1;
            assert!(said(other).starts_with("head_dim: "));
            if let Split::KeyValue { k, v } = &header.split {
                let mut other = header.clone();
                other.split = Split::KeyValue { k: v.clone(), v: k.clone() };
                assert!(said(other).starts_with("turnkv.split: "));
            }
            let mut other = header.clone();
            other.spec["model"] = "n".into();
            assert!(said(other).starts_with("turnkv.namespace: "));
            let mut other = header.clone();
            other.spec["nonsense"] = 1.into();
            assert!(said(other).starts_with("turnkv.spec: "));
            assert!(namespace_of(&header, "b").unwrap_err().message.contains("another tenant"));
        }
    }
}
