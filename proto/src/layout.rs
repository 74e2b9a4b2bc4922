//! What a namespace is: the shape of its pages, how many bytes a shard has, and the id all of that hashes to.
//! Owns: [`Spec`] (as written) and [`CheckedSpec`] (as checked), overflow-checked. Must not know: messages, I/O.
//!
//! # The namespace id
//! SHA-256 of these bytes, integers little-endian, in this order:
//!
//! | field | bytes |
//! |---|---|
//! | domain | `turnkv.namespace.v1` and one zero byte (20) |
//! | model | u32 length, then UTF-8 |
//! | dtype | u8: the wire's number of it |
//! | page_tokens | u32 |
//! | shards | u32: `tp_size`, 0 written as 1 |
//! | layout | u8: the wire's number of it |
//! | groups | u32 count, then for each: kind u8, layers u32, kv_heads u32, head_dim u32, window_tokens u32 |
//! | opaque_shard_bytes | u64 |
//! | tenant | u32 length, then UTF-8 |
//! | salt | u32 length, then bytes |

use crate::ids::NamespaceId;
use crate::limits::{
    GROUPS_MAX, HEAD_DIM_MAX, KV_HEADS_MAX, LAYERS_MAX, MODEL_BYTES_MAX, PAGE_TOKENS_MAX, SALT_BYTES_MAX,
    SHARD_BYTES_MAX, SHARDS_MAX, TENANT_BYTES_MAX,
};
use sha2::{Digest, Sha256};

#[cfg(test)]
mod tests;

/// Everything that must agree for page bytes to be exchangeable, as its owner wrote it: not yet checked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Spec {
    /// Fingerprint of the weights; 1 to 256 bytes.
    pub model: String,
    /// Element type of the KV.
    pub dtype: Dtype,
    /// Tokens of a page; 1 to 4096.
    pub page_tokens: u32,
    /// Shards of a page: tensor-parallel ranks, or the canonical parts of its KV heads; 0 means 1, at most 64.
    pub tp_size: u32,
    /// Order of a page's bytes.
    pub layout: Layout,
    /// Layers by kind of attention; 1 to 64, may be empty with [`Layout::Opaque`].
    pub groups: Vec<Group>,
    /// Bytes of one shard of a page with [`Layout::Opaque`], else 0.
    pub opaque_shard_bytes: u64,
    /// Pages are never shared between tenants; up to 128 bytes.
    pub tenant: String,
    /// Separates namespaces that agree in all else; up to 64 bytes.
    pub salt: Vec<u8>,
}

/// Element type of the KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
    /// 8-bit float, 4 exponent bits.
    F8E4m3,
    /// 8-bit float, 5 exponent bits.
    F8E5m2,
    /// Bytes whose meaning is the engine's own.
    U8,
}

/// Order of a page's bytes, slowest dimension first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[layer, K/V, head, token, dim]`.
    LayerKvHeadToken,
    /// `[layer, K/V, token, head, dim]`.
    LayerKvTokenHead,
    /// The engine's own order, `opaque_shard_bytes` long.
    Opaque,
}

/// How a group of layers attends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Attention {
    /// To all tokens before.
    Full,
    /// To a window of tokens.
    Sliding,
    /// To all tokens, through one joint K and V vector a token that every rank holds whole.
    Mla,
}

/// Layers that attend alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Group {
    /// How they attend.
    pub kind: Attention,
    /// How many; 1 to 1024.
    pub layers: u32,
    /// KV heads over all ranks, a multiple or a divisor of the ranks; 1 for MLA.
    pub kv_heads: u32,
    /// Elements of one head's vector; 1 to 65536.
    pub head_dim: u32,
    /// Tokens of the window; 0 unless sliding.
    pub window_tokens: u32,
}

/// A [`Spec`] that holds together, with what follows from it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CheckedSpec {
    spec: Spec,
    id: NamespaceId,
    shard_bytes: u64,
}

/// Why a [`Spec`] was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A required message or enum was not given.
    #[error("{0} must be given")]
    Missing(&'static str),
    /// An enum number that this version does not know.
    #[error("{what} {got} is not known to this version")]
    Unknown {
        /// Which field.
        what: &'static str,
        /// The number.
        got: i32,
    },
    /// A number outside its bounds.
    #[error("{what} must be {min} to {max}, got {got}")]
    OutOfRange {
        /// Which field.
        what: &'static str,
        /// What was given.
        got: u64,
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
    /// A text with control characters.
    #[error("{0} must not contain control characters")]
    ControlCharacters(&'static str),
    /// Heads that can neither be split evenly nor replicated evenly over the ranks.
    #[error("{kv_heads} KV heads cannot be split or replicated evenly over {tp_size} ranks")]
    UnevenHeads {
        /// KV heads of the group.
        kv_heads: u32,
        /// Ranks.
        tp_size: u32,
    },
    /// A field that means nothing beside the others.
    #[error("{what} must be {expected}")]
    Contradiction {
        /// Which field.
        what: &'static str,
        /// What it must be here.
        expected: &'static str,
    },
    /// A page whose shards are larger than the pool serves.
    #[error("one shard of a page would be larger than {SHARD_BYTES_MAX} bytes: use fewer tokens a page")]
    ShardTooLarge,
}

impl Spec {
    /// A namespace of plain full attention: `layers` layers of `kv_heads` heads of `head_dim` elements.
    pub fn full(
        model: impl Into<String>,
        dtype: Dtype,
        page_tokens: u32,
        layers: u32,
        kv_heads: u32,
        head_dim: u32,
    ) -> Spec {
        let group = Group { kind: Attention::Full, layers, kv_heads, head_dim, window_tokens: 0 };
        Spec {
            layout: Layout::LayerKvHeadToken,
            groups: vec![group],
            dtype,
            ..Spec::opaque(model, page_tokens, 0)
        }
    }

    /// A namespace whose pages are `shard_bytes` bytes a shard, in the engine's own order.
    pub fn opaque(model: impl Into<String>, page_tokens: u32, shard_bytes: u64) -> Spec {
        Spec {
            model: model.into(),
            dtype: Dtype::U8,
            page_tokens,
            tp_size: 1,
            layout: Layout::Opaque,
            groups: Vec::new(),
            opaque_shard_bytes: shard_bytes,
            tenant: String::new(),
            salt: Vec::new(),
        }
    }

    /// Adds a group of layers.
    #[must_use]
    pub fn with_group(mut self, group: Group) -> Spec {
        self.groups.push(group);
        self
    }

    /// Sets the order of a page's bytes.
    #[must_use]
    pub fn with_layout(mut self, layout: Layout) -> Spec {
        self.layout = layout;
        self
    }

    /// Sets the number of tensor-parallel ranks.
    #[must_use]
    pub fn with_tp_size(mut self, tp_size: u32) -> Spec {
        self.tp_size = tp_size;
        self
    }

    /// Sets the tenant.
    #[must_use]
    pub fn with_tenant(mut self, tenant: impl Into<String>) -> Spec {
        self.tenant = tenant.into();
        self
    }

    /// Sets the salt.
    #[must_use]
    pub fn with_salt(mut self, salt: impl Into<Vec<u8>>) -> Spec {
        self.salt = salt.into();
        self
    }

    /// Checks every bound and relation, and works out the shard's bytes and the id.
    pub fn check(mut self) -> Result<CheckedSpec, LayoutError> {
        in_range("model's length in bytes", self.model.len() as u64, 1, MODEL_BYTES_MAX as u64)?;
        in_range("tenant's length in bytes", self.tenant.len() as u64, 0, TENANT_BYTES_MAX as u64)?;
        in_range("salt's length in bytes", self.salt.len() as u64, 0, SALT_BYTES_MAX as u64)?;
        in_range("page_tokens", self.page_tokens.into(), 1, PAGE_TOKENS_MAX.into())?;
        in_range("tp_size", self.tp_size.into(), 0, SHARDS_MAX.into())?;
        for (what, text) in [("model", &self.model), ("tenant", &self.tenant)] {
            if text.chars().any(char::is_control) {
                return Err(LayoutError::ControlCharacters(what));
            }
        }
        self.tp_size = self.tp_size.max(1);
        let groups_min = if self.layout == Layout::Opaque { 0 } else { 1 };
        in_range("number of groups", self.groups.len() as u64, groups_min, GROUPS_MAX as u64)?;
        for group in &self.groups {
            group.check(self.tp_size)?;
        }
        let shard_bytes = self.shard_bytes()?;
        let id = NamespaceId(Sha256::digest(self.canonical_bytes()).into());
        Ok(CheckedSpec { spec: self, id, shard_bytes })
    }

    fn shard_bytes(&self) -> Result<u64, LayoutError> {
        if self.layout == Layout::Opaque {
            in_range("opaque_shard_bytes", self.opaque_shard_bytes, 1, SHARD_BYTES_MAX)?;
            return Ok(self.opaque_shard_bytes);
        }
        if self.opaque_shard_bytes != 0 {
            return Err(LayoutError::Contradiction {
                what: "opaque_shard_bytes",
                expected: "0 unless the layout is opaque",
            });
        }
        let mut token_elements: u64 = 0;
        for group in &self.groups {
            let elements = group.elements_per_token(self.tp_size).ok_or(LayoutError::ShardTooLarge)?;
            token_elements = token_elements.checked_add(elements).ok_or(LayoutError::ShardTooLarge)?;
        }
        let bytes = token_elements
            .checked_mul(self.page_tokens.into())
            .and_then(|elements| elements.checked_mul(self.dtype.bytes()))
            .filter(|bytes| *bytes <= SHARD_BYTES_MAX)
            .ok_or(LayoutError::ShardTooLarge)?;
        assert!(bytes > 0, "every factor was checked to be at least 1");
        Ok(bytes)
    }

    fn canonical_bytes(&self) -> Vec<u8> {
        fn text(out: &mut Vec<u8>, bytes: &[u8]) {
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        }
        let mut out = Vec::with_capacity(128 + self.model.len() + 17 * self.groups.len());
        out.extend_from_slice(b"turnkv.namespace.v1\0");
        text(&mut out, self.model.as_bytes());
        out.push(self.dtype.number());
        out.extend_from_slice(&self.page_tokens.to_le_bytes());
        out.extend_from_slice(&self.tp_size.to_le_bytes());
        out.push(self.layout.number());
        out.extend_from_slice(&(self.groups.len() as u32).to_le_bytes());
        for group in &self.groups {
            out.push(group.kind.number());
            for field in [group.layers, group.kv_heads, group.head_dim, group.window_tokens] {
                out.extend_from_slice(&field.to_le_bytes());
            }
        }
        out.extend_from_slice(&self.opaque_shard_bytes.to_le_bytes());
        text(&mut out, self.tenant.as_bytes());
        text(&mut out, &self.salt);
        out
    }
}

impl Group {
    /// Full attention over `layers` layers.
    pub fn full(layers: u32, kv_heads: u32, head_dim: u32) -> Group {
        Group { kind: Attention::Full, layers, kv_heads, head_dim, window_tokens: 0 }
    }

    fn check(&self, tp_size: u32) -> Result<(), LayoutError> {
        in_range("layers", self.layers.into(), 1, LAYERS_MAX.into())?;
        in_range("kv_heads", self.kv_heads.into(), 1, KV_HEADS_MAX.into())?;
        in_range("head_dim", self.head_dim.into(), 1, HEAD_DIM_MAX.into())?;
        let sliding = self.kind == Attention::Sliding;
        if sliding != (self.window_tokens > 0) {
            let expected = "at least 1 with sliding attention and 0 without";
            return Err(LayoutError::Contradiction { what: "window_tokens", expected });
        }
        if self.kind == Attention::Mla && self.kv_heads != 1 {
            return Err(LayoutError::Contradiction { what: "kv_heads", expected: "1 with MLA" });
        }
        if self.kind != Attention::Mla
            && !self.kv_heads.is_multiple_of(tp_size)
            && !tp_size.is_multiple_of(self.kv_heads)
        {
            return Err(LayoutError::UnevenHeads { kv_heads: self.kv_heads, tp_size });
        }
        Ok(())
    }

    /// Elements one rank holds for one token. With more ranks than heads each rank holds one head (replicated).
    fn elements_per_token(&self, tp_size: u32) -> Option<u64> {
        let (vectors, heads) = match self.kind {
            Attention::Mla => (1, 1),
            Attention::Full | Attention::Sliding => (2, (self.kv_heads / tp_size).max(1)),
        };
        let per_layer = u64::from(heads).checked_mul(self.head_dim.into())?.checked_mul(vectors)?;
        per_layer.checked_mul(self.layers.into())
    }
}

impl CheckedSpec {
    /// The namespace's id: see the module's table.
    pub fn id(&self) -> NamespaceId {
        self.id
    }

    /// Bytes of one shard of a page; 1 to 64 MiB.
    pub fn shard_bytes(&self) -> u64 {
        self.shard_bytes
    }

    /// Tokens of a page.
    pub fn page_tokens(&self) -> u32 {
        self.spec.page_tokens
    }

    /// Shards of a page: the tensor-parallel ranks, or the canonical parts of its KV heads.
    pub fn shards(&self) -> u16 {
        self.spec.tp_size as u16
    }

    /// The tenant.
    pub fn tenant(&self) -> &str {
        &self.spec.tenant
    }

    /// The spec that was checked, with `tp_size` at least 1.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }
}

impl Dtype {
    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::Bf16 | Dtype::F16 => 2,
            Dtype::F32 => 4,
            Dtype::F8E4m3 | Dtype::F8E5m2 | Dtype::U8 => 1,
        }
    }

    fn number(self) -> u8 {
        match self {
            Dtype::Bf16 => 1,
            Dtype::F16 => 2,
            Dtype::F32 => 3,
            Dtype::F8E4m3 => 4,
            Dtype::F8E5m2 => 5,
            Dtype::U8 => 6,
        }
    }
}

impl Layout {
    fn number(self) -> u8 {
        match self {
            Layout::LayerKvHeadToken => 1,
            Layout::LayerKvTokenHead => 2,
            Layout::Opaque => 3,
        }
    }
}

impl Attention {
    fn number(self) -> u8 {
        match self {
            Attention::Full => 1,
            Attention::Sliding => 2,
            Attention::Mla => 3,
        }
    }
}

fn in_range(what: &'static str, got: u64, min: u64, max: u64) -> Result<(), LayoutError> {
    if (min..=max).contains(&got) { Ok(()) } else { Err(LayoutError::OutOfRange { what, got, min, max }) }
}
