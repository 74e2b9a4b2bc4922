//! Record on the wire. Owns: the names of the calls that are told of. Must not know: what is told, and when.

use crate::engine::recorder::{Recorded, RecordedKind};
use turnkv_proto::wire;

/// Encodes one call of a recording.
pub(crate) fn call(recorded: Recorded) -> wire::RecordedCall {
    let Recorded { kind, at_ms, session, client, parent, blocks, dropped, page_tokens } = recorded;
    let kind = kind.map_or(wire::RecordedKind::Unspecified, recorded_kind).into();
    wire::RecordedCall { kind, at_ms, session, client, parent, blocks, dropped, page_tokens }
}

fn recorded_kind(kind: RecordedKind) -> wire::RecordedKind {
    match kind {
        RecordedKind::BeginTurn => wire::RecordedKind::BeginTurn,
        RecordedKind::Reload => wire::RecordedKind::Reload,
        RecordedKind::Offload => wire::RecordedKind::Offload,
        RecordedKind::EndTurn => wire::RecordedKind::EndTurn,
    }
}
