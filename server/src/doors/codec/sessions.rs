//! The session verbs on the wire: turns, forks, branches, lists. Owns: their messages. Must not know: sessions' state.

use crate::access::{Guest, Seen};
use crate::cluster::MemberCard;
use crate::cluster::link::codec::card;
use crate::engine::session::{
    BeginTurn, BegunTurn, Described, EndOfTurn, EndedTurn, ListSessions, Listed, SessionKey, SessionList,
};
use bytes::Bytes;
use std::collections::BTreeMap;
use turnkv_pool::{SessionInfo, TurnBegun};
use turnkv_proto::{Error, SessionId, unpack_hashes, wire};

/// The session that a message is about.
pub(crate) fn key(namespace: &[u8], session: &str, guest: &Guest) -> Result<SessionKey, Error> {
    Ok(SessionKey { namespace: guest.namespace(namespace)?, session: SessionId::parse(session)? })
}

/// Decodes a BeginTurn.
pub(crate) fn begin_turn<'a>(raw: &'a wire::BeginTurnRequest, guest: &Guest) -> Result<BeginTurn<'a>, Error> {
    let engine = Some(raw.engine.as_str()).filter(|engine| !engine.is_empty());
    let of = key(&raw.namespace, &raw.session, guest)?;
    Ok(BeginTurn { of, engine, ended: raw.ended, may_go: raw.may_go })
}

/// Encodes its answer.
pub(crate) fn turn_begun(begun: BegunTurn) -> wire::BeginTurnReply {
    let BegunTurn { begun: TurnBegun { turn, pages, dram, tail }, archived, afar } = begun;
    let (tail, tail_tokens) =
        tail.map_or((Bytes::new(), 0), |(hash, tokens)| (hash.0.to_vec().into(), tokens));
    wire::BeginTurnReply { turn, pages, dram, tail_tokens, tail, archived, afar, home: None }
}

/// Encodes NOT_HOME: nothing began here, and that is where it can.
pub(crate) fn turn_elsewhere(home: &MemberCard) -> wire::BeginTurnReply {
    wire::BeginTurnReply { home: Some(card(home)), ..Default::default() }
}

/// Decodes an EndTurn.
pub(crate) fn end_turn(raw: &wire::EndTurnRequest, guest: &Guest) -> Result<EndOfTurn, Error> {
    Ok(EndOfTurn {
        of: key(&raw.namespace, &raw.session, guest)?,
        keep: raw.keep,
        hashes: unpack_hashes(&raw.hashes)?,
        tail_tokens: raw.tail_tokens,
        expected_return_ms: raw.expected_return_ms,
        ttl_ms: raw.ttl_ms,
        priority: raw.priority,
        last: raw.r#final,
        archive: raw.archive,
    })
}

/// Encodes its answer.
pub(crate) fn turn_ended(ended: EndedTurn) -> wire::EndTurnReply {
    wire::EndTurnReply { pages: ended.pages, archiving: ended.archiving }
}

/// Decodes a Fork: the session, and the new one.
pub(crate) fn fork(raw: &wire::ForkRequest, guest: &Guest) -> Result<(SessionKey, SessionId), Error> {
    Ok((key(&raw.namespace, &raw.session, guest)?, SessionId::parse(&raw.fork)?))
}

/// Decodes a List.
pub(crate) fn list(raw: &wire::ListRequest, guest: &Guest) -> Result<ListSessions, Error> {
    let limit = (raw.limit > 0).then_some(raw.limit as usize);
    let of = match (guest.optional_namespace(&raw.namespace)?, guest.seen()) {
        (Some(namespace), _) => Listed::Namespace(namespace),
        (None, Seen::All) => Listed::All,
        (None, Seen::These(tenants)) => Listed::Tenants(tenants.clone()),
    };
    Ok(ListSessions { of, limit })
}

/// Encodes its answer. The ids of the sessions' namespaces are made once each.
pub(crate) fn listed(list: SessionList) -> wire::ListReply {
    let ids: BTreeMap<_, Bytes> =
        list.namespaces.into_iter().map(|(ns, id)| (ns, Bytes::copy_from_slice(&id.0))).collect();
    let id_of = |info: &SessionInfo| ids.get(&info.ns).cloned().unwrap_or_default();
    let sessions = list.sessions.into_iter().map(|info| session_info(id_of(&info), &info)).collect();
    wire::ListReply { sessions, total: list.total }
}

/// Encodes the answer to a Describe of a session of this namespace.
pub(crate) fn described(namespace: Bytes, answer: Described) -> wire::DescribeReply {
    let Described { detail, engine } = answer;
    wire::DescribeReply {
        info: Some(session_info(namespace, &detail.info)),
        dram_pages: detail.dram_pages,
        nvme_pages: detail.nvme_pages,
        shared_pages: detail.shared_pages,
        protected_pages: detail.protected_pages,
        bytes: detail.bytes,
        tail: detail.tail.map_or(Vec::new(), |tail| tail.0.to_vec()).into(),
        returns_in_ms: detail.returns_in_ms.unwrap_or(0),
        forgotten_in_ms: detail.forgotten_in_ms,
        protected_for_ms: detail.protected_for_ms,
        priority: detail.priority,
        engine,
    }
}

fn session_info(namespace: Bytes, info: &SessionInfo) -> wire::SessionInfo {
    wire::SessionInfo {
        namespace,
        session: info.session.as_str().to_owned(),
        turn: info.turn,
        pages: info.pages,
        tail_tokens: info.tail_tokens,
        idle_ms: info.idle_ms,
        in_turn: info.in_turn,
    }
}
