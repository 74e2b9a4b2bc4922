//! A connection to another member. Owns: how it is reached, what is asked of it, and how long that may take. Must not know: what
//! follows from an answer, whether it is asked at all.
//!
//! - [`codec`]: messages as they travel

pub(crate) mod codec;

use super::card::MemberCard;
use super::engines_known::{EnginesAsk, EnginesKnown};
use super::hold::PrefixHold;
use super::place;
use super::takeover::Takeover;
use crate::limits::{
    CLUSTER_REQUEST_BYTES_MAX, OFFER_WAIT, PEER_NOTE_BYTES_MAX, PEER_TELL_MAX, ROUTE_LOOK_MAX,
    ROUTE_PAGES_MAX,
};
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Response, Status};
use turnkv_cluster::limits::ASK_MS;
use turnkv_cluster::{MemberId, Message, Tip};
use turnkv_proto::limits::GRPC_ANSWER_BYTES_MAX;
use turnkv_proto::wire::cluster_client::ClusterClient;
use turnkv_proto::{BlockHash, CheckedSpec, Error, NamespaceId, SessionId, pack_hashes, unpack_hashes, wire};
use turnkv_transfer::tls::TlsConfig;

/// A connection to a member, made when it is first needed and again when it is lost.
pub(crate) struct MemberLink {
    client: ClusterClient<Channel>,
}

/// Which session is to be named.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NameAsk<'a> {
    /// Its namespace.
    pub(crate) namespace: &'a NamespaceId,
    /// Its name.
    pub(crate) session: &'a SessionId,
    /// Its next turn begins at whoever asks.
    pub(crate) turn_begins: bool,
}

/// What its home has of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedSession {
    /// Turns that have ended.
    pub(crate) turn: u32,
    /// Its pages from the first one on, in order.
    pub(crate) hashes: Vec<BlockHash>,
    /// Above 0: the last page is a partial tail of so many tokens.
    pub(crate) tail_tokens: u32,
    /// How long it had waited when its next turn began; 0: none begins, or nobody knows.
    pub(crate) waited_ms: u64,
}

/// What a member says of a session that it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    /// It has this of it.
    Home(NamedSession),
    /// It is not its home, and may know whose it is.
    NotHome(Option<Tip>),
}

/// A member did not answer as it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub(crate) struct LinkFault {
    why: String,
    /// It is there and refused: to wait does not help.
    pub(crate) is_refusal: bool,
    /// It said nothing in the time that it had.
    pub(crate) is_silence: bool,
}

impl MemberLink {
    /// To a member at this endpoint.
    pub(crate) fn new(endpoint: &str, tls: &TlsConfig) -> Result<MemberLink, LinkFault> {
        let channel = place::channel(endpoint, tls).map_err(|why| LinkFault::of_place(&why))?;
        let client = ClusterClient::new(channel)
            .max_encoding_message_size(CLUSTER_REQUEST_BYTES_MAX)
            .max_decoding_message_size(GRPC_ANSWER_BYTES_MAX);
        Ok(MemberLink { client })
    }

    /// Tells it some messages, in order.
    pub(crate) async fn tell<'a>(
        &self,
        cluster: &str,
        from: &MemberCard,
        to: MemberId,
        messages: impl Iterator<Item = &'a Message>,
    ) -> Result<(), LinkFault> {
        let told = wire::TellRequest {
            cluster: cluster.to_owned(),
            from: Some(codec::card(from)),
            to: to.0,
            notes: messages.map(codec::note).collect(),
        };
        let mut client = self.client.clone();
        answered(PEER_TELL_MAX, client.tell(told)).await?;
        Ok(())
    }

    /// How many leading ones of these pages it has.
    pub(crate) async fn count_pages(
        &self,
        namespace: &NamespaceId,
        hashes: &[BlockHash],
    ) -> Result<usize, LinkFault> {
        let asked = wire::CountPagesRequest {
            namespace: namespace.0.to_vec().into(),
            hashes: pack_hashes(hashes).into(),
        };
        let mut client = self.client.clone();
        let answer = answered(Duration::from_millis(ASK_MS), client.count_pages(asked)).await?;
        Ok(answer.present as usize)
    }

    /// The pages that end with this one, in order; none: it does not have it. It has so long to say it.
    pub(crate) async fn name_prefix(
        &self,
        namespace: &NamespaceId,
        last: &BlockHash,
        most: Duration,
    ) -> Result<Vec<BlockHash>, LinkFault> {
        let (namespace, last) = (namespace.0.to_vec().into(), last.0.to_vec().into());
        let mut client = self.client.clone();
        let asked = wire::NamePrefixRequest { namespace, last };
        let answer = answered(most, client.name_prefix(asked)).await?;
        unpack_hashes(&answer.hashes).map_err(|error| LinkFault::unreadable(&error))
    }

    /// What it knows of engines; `with_pages`: for these pages, too.
    pub(crate) async fn look_at_engines(
        &self,
        ask: &EnginesAsk<'_>,
        with_pages: bool,
    ) -> Result<EnginesKnown, LinkFault> {
        let pages = if with_pages { &ask.hashes[..ask.hashes.len().min(ROUTE_PAGES_MAX)] } else { &[] };
        let asked = wire::LookAtEnginesRequest {
            namespace: ask.namespace.0.to_vec().into(),
            session: ask.session.map(|session| session.as_str().to_owned()).unwrap_or_default(),
            hashes: pack_hashes(pages).into(),
            engines: ask.engines.clone(),
        };
        let mut client = self.client.clone();
        Ok(codec::read_engines(&answered(ROUTE_LOOK_MAX, client.look_at_engines(asked)).await?))
    }

    /// Has it take a session over; its answer comes when it has, or will not.
    pub(crate) async fn offer_session(
        &self,
        cluster: &str,
        spec: &CheckedSpec,
        session: &SessionId,
        tip: Tip,
    ) -> Result<Takeover, LinkFault> {
        let offered = wire::TakeSessionRequest {
            cluster: cluster.to_owned(),
            spec: Some(spec.into()),
            session: session.as_str().to_owned(),
            tip: Some(codec::tip_of(tip)),
        };
        let mut client = self.client.clone();
        let answer = answered(OFFER_WAIT, client.take_session(offered)).await?;
        let taken = codec::read_taken(answer);
        let taken = taken.map_err(|error| LinkFault::unreadable(&error))?;
        Ok(if let Takeover::Failed(why) = &taken { Takeover::Failed(cut(why)) } else { taken })
    }

    /// Has it hold a prefix, or let go of it; its answer comes when it does, or says why it does not.
    pub(crate) async fn hold_prefix(
        &self,
        cluster: &str,
        from: MemberId,
        hold: &PrefixHold,
    ) -> Result<String, LinkFault> {
        let PrefixHold { spec, last, ttl_ms } = hold;
        let asked = wire::HoldPrefixRequest {
            cluster: cluster.to_owned(),
            from: from.0,
            spec: Some(spec.into()),
            last: last.0.to_vec().into(),
            ttl_ms: *ttl_ms,
        };
        let mut client = self.client.clone();
        Ok(cut(&answered(OFFER_WAIT, client.hold_prefix(asked)).await?.refused))
    }

    /// Which pages it has of a session. It has so long to say it.
    pub(crate) async fn name_session(&self, ask: NameAsk<'_>, most: Duration) -> Result<Named, LinkFault> {
        let asked = wire::NameSessionRequest {
            namespace: ask.namespace.0.to_vec().into(),
            session: ask.session.as_str().to_owned(),
            turn_begins: ask.turn_begins,
        };
        let mut client = self.client.clone();
        let answer = answered(most, client.name_session(asked)).await?;
        if answer.not_home {
            let elsewhere = answer.elsewhere.map(codec::read_tip).transpose();
            return Ok(Named::NotHome(elsewhere.map_err(|error| LinkFault::unreadable(&error))?));
        }
        let hashes = unpack_hashes(&answer.hashes).map_err(|error| LinkFault::unreadable(&error))?;
        let (turn, tail_tokens, waited_ms) = (answer.turn, answer.tail_tokens, answer.waited_ms);
        Ok(Named::Home(NamedSession { turn, hashes, tail_tokens, waited_ms }))
    }
}

impl LinkFault {
    fn of(status: &Status) -> LinkFault {
        // What our servers say has their details; a server of another version may not know the method.
        let is_refusal = Error::from_status(status).is_some() || status.code() == tonic::Code::Unimplemented;
        LinkFault { why: cut(status.message()), is_refusal, is_silence: false }
    }

    fn unreadable(why: &dyn std::fmt::Display) -> LinkFault {
        LinkFault { why: why.to_string(), is_refusal: true, is_silence: false }
    }

    /// It is asked nothing for a while.
    pub(crate) fn paused() -> LinkFault {
        LinkFault::of_place("it did not answer before, and is asked again soon")
    }

    fn of_place(why: &str) -> LinkFault {
        LinkFault { why: cut(why), is_refusal: false, is_silence: false }
    }
}

/// An answer, if it comes in time; a connection that is made for it counts.
async fn answered<T>(
    most: Duration,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, LinkFault> {
    match tokio::time::timeout(most, answer).await {
        Ok(answer) => answer.map(Response::into_inner).map_err(|status| LinkFault::of(&status)),
        Err(_) => {
            let why = format!("no answer within {} ms", most.as_millis());
            Err(LinkFault { why, is_refusal: false, is_silence: true })
        }
    }
}

/// As much of a peer's words as a message may hold; no control character in it leads a log astray.
fn cut(text: &str) -> String {
    let plain = |letter: char| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter };
    text[..text.floor_char_boundary(PEER_NOTE_BYTES_MAX)].chars().map(plain).collect()
}
