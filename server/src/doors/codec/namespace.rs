//! OpenNamespace on the wire. Owns: its two messages. Must not know: which namespaces are open.

use crate::access::Guest;
use turnkv_proto::{CheckedSpec, Error, wire};

/// Decodes what a namespace is to be.
pub(crate) fn spec(raw: &wire::NamespaceSpec, guest: &Guest) -> Result<CheckedSpec, Error> {
    let spec = CheckedSpec::try_from(raw)?;
    guest.tenant(spec.tenant())?;
    Ok(spec)
}

/// Says that a namespace is open.
pub(crate) fn opened(spec: &CheckedSpec) -> wire::OpenNamespaceReply {
    wire::OpenNamespaceReply {
        namespace: spec.id().0.to_vec().into(),
        shard_bytes: spec.shard_bytes(),
        page_tokens: spec.page_tokens(),
    }
}
