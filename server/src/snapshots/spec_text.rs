//! A namespace's spec as a manifest has it: JSON with the words of the protocol. Owns: its fields, both ways. Must not know:
//! manifests.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use turnkv_proto::{Attention, CheckedSpec, Dtype, Group, Layout, Spec};

/// A spec, field by field as it was written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpecText {
    model: String,
    dtype: String,
    page_tokens: u32,
    tp_size: u32,
    layout: String,
    groups: Vec<GroupText>,
    opaque_shard_bytes: u64,
    tenant: String,
    /// In hexadecimal digits.
    salt: String,
}

/// Layers that attend alike.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupText {
    kind: String,
    layers: u32,
    kv_heads: u32,
    head_dim: u32,
    window_tokens: u32,
}

const DTYPES: [(&str, Dtype); 6] = [
    ("bf16", Dtype::Bf16),
    ("f16", Dtype::F16),
    ("f32", Dtype::F32),
    ("f8_e4m3", Dtype::F8E4m3),
    ("f8_e5m2", Dtype::F8E5m2),
    ("u8", Dtype::U8),
];
const LAYOUTS: [(&str, Layout); 3] = [
    ("layer_kv_head_token", Layout::LayerKvHeadToken),
    ("layer_kv_token_head", Layout::LayerKvTokenHead),
    ("opaque", Layout::Opaque),
];
const KINDS: [(&str, Attention); 3] =
    [("full", Attention::Full), ("sliding", Attention::Sliding), ("mla", Attention::Mla)];

/// The word of an element type.
pub(super) fn dtype_word(dtype: Dtype) -> &'static str {
    word_of(&DTYPES, dtype)
}

/// The word of an order of a page's bytes.
pub(super) fn layout_word(layout: Layout) -> &'static str {
    word_of(&LAYOUTS, layout)
}

/// A spec as JSON, and its groups.
pub(super) fn written(spec: &Spec) -> serde_json::Result<(Value, Vec<Value>)> {
    let group = |group: &Group| GroupText {
        kind: word_of(&KINDS, group.kind).to_owned(),
        layers: group.layers,
        kv_heads: group.kv_heads,
        head_dim: group.head_dim,
        window_tokens: group.window_tokens,
    };
    let groups = spec.groups.iter().map(|one| serde_json::to_value(group(one))).collect::<Result<_, _>>()?;
    let text = SpecText {
        model: spec.model.clone(),
        dtype: dtype_word(spec.dtype).to_owned(),
        page_tokens: spec.page_tokens,
        tp_size: spec.tp_size,
        layout: layout_word(spec.layout).to_owned(),
        groups: spec.groups.iter().map(group).collect(),
        opaque_shard_bytes: spec.opaque_shard_bytes,
        tenant: spec.tenant.clone(),
        salt: spec.salt.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    Ok((serde_json::to_value(text)?, groups))
}

/// The spec that JSON says, checked; or what is wrong with it.
pub(super) fn read(value: &Value) -> Result<CheckedSpec, String> {
    let text = SpecText::deserialize(value).map_err(|fault| fault.to_string())?;
    let group = |text: GroupText| {
        Some(Group {
            kind: known(&KINDS, &text.kind)?,
            layers: text.layers,
            kv_heads: text.kv_heads,
            head_dim: text.head_dim,
            window_tokens: text.window_tokens,
        })
    };
    let groups: Option<Vec<Group>> = text.groups.into_iter().map(group).collect();
    let spec = Spec {
        model: text.model,
        dtype: known(&DTYPES, &text.dtype).ok_or("its dtype is not known")?,
        page_tokens: text.page_tokens,
        tp_size: text.tp_size,
        layout: known(&LAYOUTS, &text.layout).ok_or("its layout is not known")?,
        groups: groups.ok_or("the kind of a group is not known")?,
        opaque_shard_bytes: text.opaque_shard_bytes,
        tenant: text.tenant,
        salt: unhex(&text.salt).ok_or("its salt is not hexadecimal")?,
    };
    spec.check().map_err(|fault| fault.to_string())
}

/// The fields in which two specs differ, each with both values.
pub(super) fn differences(snapshot: &CheckedSpec, namespace: &CheckedSpec) -> Vec<String> {
    let (Ok((one, _)), Ok((other, _))) = (written(snapshot.spec()), written(namespace.spec())) else {
        return Vec::new();
    };
    let (Value::Object(one), Value::Object(other)) = (one, other) else { return Vec::new() };
    let differs = |(field, value): (&String, &Value)| {
        let other = other.get(field).unwrap_or(&Value::Null);
        (value != other).then(|| format!("{field} is {value} in the snapshot and {other} in the namespace"))
    };
    one.iter().filter_map(differs).collect()
}

fn word_of<T: PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, one)| *one == value).map_or("", |(word, _)| word)
}

fn known<T: Copy>(words: &[(&'static str, T)], word: &str) -> Option<T> {
    words.iter().find(|(one, _)| *one == word).map(|(_, value)| *value)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |letter: u8| char::from(letter).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| Some((digit(*high)? * 16 + digit(*low)?) as u8);
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}
