//! Between the wire's namespace messages and the plain types of [`crate::layout`].
//! Owns: that mapping. Must not know: what the fields mean.

use crate::layout::{Attention, CheckedSpec, Dtype, Group, Layout, LayoutError, Spec};
use crate::wire;

#[cfg(test)]
mod tests;

impl TryFrom<&wire::NamespaceSpec> for CheckedSpec {
    type Error = LayoutError;

    fn try_from(raw: &wire::NamespaceSpec) -> Result<CheckedSpec, LayoutError> {
        Spec::try_from(raw)?.check()
    }
}

impl TryFrom<&wire::NamespaceSpec> for Spec {
    type Error = LayoutError;

    fn try_from(raw: &wire::NamespaceSpec) -> Result<Spec, LayoutError> {
        // Bounded before anything is allocated for it: the message may say anything.
        let groups_max = crate::limits::GROUPS_MAX;
        if raw.groups.len() > groups_max {
            let got = raw.groups.len() as u64;
            return Err(LayoutError::OutOfRange {
                what: "number of groups",
                got,
                min: 0,
                max: groups_max as u64,
            });
        }
        Ok(Spec {
            model: raw.model.clone(),
            dtype: dtype(raw.dtype)?,
            page_tokens: raw.page_tokens,
            tp_size: raw.tp_size,
            layout: layout(raw.layout)?,
            groups: raw.groups.iter().map(group).collect::<Result<_, _>>()?,
            opaque_shard_bytes: raw.opaque_shard_bytes,
            tenant: raw.tenant.clone(),
            salt: raw.salt.to_vec(),
        })
    }
}

impl From<&Spec> for wire::NamespaceSpec {
    fn from(spec: &Spec) -> wire::NamespaceSpec {
        wire::NamespaceSpec {
            model: spec.model.clone(),
            dtype: wire_dtype(spec.dtype) as i32,
            page_tokens: spec.page_tokens,
            tp_size: spec.tp_size,
            layout: wire_layout(spec.layout) as i32,
            groups: spec.groups.iter().map(wire_group).collect(),
            opaque_shard_bytes: spec.opaque_shard_bytes,
            tenant: spec.tenant.clone(),
            salt: spec.salt.clone().into(),
        }
    }
}

impl From<&CheckedSpec> for wire::NamespaceSpec {
    fn from(spec: &CheckedSpec) -> wire::NamespaceSpec {
        spec.spec().into()
    }
}

fn dtype(number: i32) -> Result<Dtype, LayoutError> {
    match wire::Dtype::try_from(number) {
        Ok(wire::Dtype::Bf16) => Ok(Dtype::Bf16),
        Ok(wire::Dtype::F16) => Ok(Dtype::F16),
        Ok(wire::Dtype::F32) => Ok(Dtype::F32),
        Ok(wire::Dtype::F8E4m3) => Ok(Dtype::F8E4m3),
        Ok(wire::Dtype::F8E5m2) => Ok(Dtype::F8E5m2),
        Ok(wire::Dtype::U8) => Ok(Dtype::U8),
        Ok(wire::Dtype::Unspecified) => Err(LayoutError::Missing("dtype")),
        Err(_) => Err(LayoutError::Unknown { what: "dtype", got: number }),
    }
}

fn layout(number: i32) -> Result<Layout, LayoutError> {
    match wire::Layout::try_from(number) {
        Ok(wire::Layout::LayerKvHeadToken) => Ok(Layout::LayerKvHeadToken),
        Ok(wire::Layout::LayerKvTokenHead) => Ok(Layout::LayerKvTokenHead),
        Ok(wire::Layout::Opaque) => Ok(Layout::Opaque),
        Ok(wire::Layout::Unspecified) => Err(LayoutError::Missing("layout")),
        Err(_) => Err(LayoutError::Unknown { what: "layout", got: number }),
    }
}

fn group(raw: &wire::AttentionGroup) -> Result<Group, LayoutError> {
    let kind = match wire::AttentionKind::try_from(raw.kind) {
        Ok(wire::AttentionKind::Full) => Attention::Full,
        Ok(wire::AttentionKind::Sliding) => Attention::Sliding,
        Ok(wire::AttentionKind::Mla) => Attention::Mla,
        Ok(wire::AttentionKind::Unspecified) => return Err(LayoutError::Missing("kind of a group")),
        Err(_) => return Err(LayoutError::Unknown { what: "kind of a group", got: raw.kind }),
    };
    let (layers, kv_heads, head_dim, window_tokens) =
        (raw.layers, raw.kv_heads, raw.head_dim, raw.window_tokens);
    Ok(Group { kind, layers, kv_heads, head_dim, window_tokens })
}

fn wire_dtype(dtype: Dtype) -> wire::Dtype {
    match dtype {
        Dtype::Bf16 => wire::Dtype::Bf16,
        Dtype::F16 => wire::Dtype::F16,
        Dtype::F32 => wire::Dtype::F32,
        Dtype::F8E4m3 => wire::Dtype::F8E4m3,
        Dtype::F8E5m2 => wire::Dtype::F8E5m2,
        Dtype::U8 => wire::Dtype::U8,
    }
}

fn wire_layout(layout: Layout) -> wire::Layout {
    match layout {
        Layout::LayerKvHeadToken => wire::Layout::LayerKvHeadToken,
        Layout::LayerKvTokenHead => wire::Layout::LayerKvTokenHead,
        Layout::Opaque => wire::Layout::Opaque,
    }
}

fn wire_group(group: &Group) -> wire::AttentionGroup {
    let kind = match group.kind {
        Attention::Full => wire::AttentionKind::Full,
        Attention::Sliding => wire::AttentionKind::Sliding,
        Attention::Mla => wire::AttentionKind::Mla,
    };
    wire::AttentionGroup {
        kind: kind as i32,
        layers: group.layers,
        kv_heads: group.kv_heads,
        head_dim: group.head_dim,
        window_tokens: group.window_tokens,
    }
}
