//! Messages of members as they travel. Owns: both directions, and what is refused of what comes. Must not know: connections.

use crate::clock::Clock;
use crate::cluster::card::MemberCard;
use crate::cluster::engines_known::EnginesKnown;
use crate::cluster::takeover::Takeover;
use crate::limits::{CLUSTER_NAME_BYTES_MAX, CLUSTER_WEIGHT_MAX, MEMBER_TEXT_BYTES_MAX};
use bytes::Bytes;
use turnkv_cluster::limits::PUBLISH_MAX;
use turnkv_cluster::{
    CallId, Incarnation, Life, Member, MemberId, MemberState, Message, PrefixKey, SessionKey, Tip,
};
use turnkv_proto::{Error, wire};
use turnkv_router::EngineView;
use wire::note::Says;

/// A member's card.
pub(crate) fn card(card: &MemberCard) -> wire::Member {
    let state = match card.member.state {
        MemberState::Serving => wire::MemberState::Serving,
        MemberState::Away => wire::MemberState::Away,
        MemberState::Draining => wire::MemberState::Draining,
    };
    wire::Member {
        name: card.name.clone(),
        endpoint: card.endpoint.clone(),
        zone: card.zone.clone(),
        weight: card.member.weight,
        state: state.into(),
        incarnation: card.member.incarnation.0,
    }
}

/// The card that a message says.
pub(crate) fn read_card(said: wire::Member) -> Result<MemberCard, Error> {
    let state = match said.state() {
        wire::MemberState::Serving => MemberState::Serving,
        wire::MemberState::Away => MemberState::Away,
        wire::MemberState::Draining => MemberState::Draining,
        wire::MemberState::Unspecified => return Err(Error::invalid("a member without a state")),
    };
    let fits = (1..=CLUSTER_NAME_BYTES_MAX).contains(&said.name.len())
        && said.endpoint.len() <= MEMBER_TEXT_BYTES_MAX
        && said.zone.len() <= MEMBER_TEXT_BYTES_MAX
        && said.weight <= CLUSTER_WEIGHT_MAX;
    if !fits {
        return Err(Error::invalid("a member's name, endpoint, zone or weight is out of its bounds"));
    }
    let (id, incarnation) = (MemberId::of(&said.name), read_incarnation(said.incarnation)?);
    let member = Member { id, incarnation, weight: said.weight, state };
    Ok(MemberCard { name: said.name, endpoint: said.endpoint, zone: said.zone, member })
}

/// A message.
pub(crate) fn note(message: &Message) -> wire::Note {
    let says = match message {
        Message::Publish { tips, posts } => {
            let home_tip = |(session, tip): &(SessionKey, Tip)| wire::HomeTip {
                session: key(session),
                turn: tip.turn,
                moves: tip.moves,
                pages: tip.pages,
            };
            let tips = tips.iter().map(home_tip).collect();
            Says::Publish(wire::PublishNote { tips, posts: keys(posts) })
        }
        Message::Withdraw { session, home, turn } => {
            Says::Withdraw(wire::WithdrawNote { session: key(session), home: Some(life(*home)), turn: *turn })
        }
        Message::Outdone { session, tip } => {
            Says::Outdone(wire::OutdoneNote { session: key(session), tip: Some(tip_of(*tip)) })
        }
        Message::Over { latest } => Says::Over(wire::OverNote { latest: latest.0 }),
        Message::AskTip { call, session } => {
            Says::AskTip(wire::AskTipNote { call: call.0, session: key(session) })
        }
        Message::TipIs { call, tip } => Says::TipIs(wire::TipNote { call: call.0, tip: tip.map(tip_of) }),
        Message::AskPosts { call, posts } => {
            Says::AskPosts(wire::AskPostsNote { call: call.0, posts: keys(posts) })
        }
        Message::PostsAre { call, held } => {
            let held_post = |(post, holder): &(PrefixKey, Life)| wire::HeldPost {
                post: post.0.to_vec().into(),
                holder: Some(life(*holder)),
            };
            let held = held.iter().map(held_post).collect();
            Says::PostsAre(wire::PostsNote { call: call.0, held })
        }
    };
    wire::Note { says: Some(says) }
}

/// The message that a note says. `from`: who says it; what it publishes is its own.
pub(crate) fn read_note(note: wire::Note, from: Life) -> Result<Message, Error> {
    let says = note.says.ok_or_else(|| Error::invalid("a note that says nothing this server knows"))?;
    Ok(match says {
        Says::Publish(wire::PublishNote { tips, posts }) => {
            bounded(tips.len())?;
            let home_tip = |said: wire::HomeTip| {
                let tip = Tip { home: from, turn: said.turn, moves: said.moves, pages: said.pages };
                Ok((SessionKey(read_key(&said.session)?), tip))
            };
            let tips = tips.into_iter().map(home_tip).collect::<Result<_, Error>>()?;
            Message::Publish { tips, posts: read_keys(&posts)? }
        }
        Says::Withdraw(said) => Message::Withdraw {
            session: SessionKey(read_key(&said.session)?),
            home: read_life(said.home)?,
            turn: said.turn,
        },
        Says::Outdone(said) => {
            let tip = said.tip.ok_or_else(|| Error::invalid("a tip is missing"))?;
            Message::Outdone { session: SessionKey(read_key(&said.session)?), tip: read_tip(tip)? }
        }
        Says::Over(said) => Message::Over { latest: read_incarnation(said.latest)? },
        Says::AskTip(said) => {
            Message::AskTip { call: CallId(said.call), session: SessionKey(read_key(&said.session)?) }
        }
        Says::TipIs(said) => {
            Message::TipIs { call: CallId(said.call), tip: said.tip.map(read_tip).transpose()? }
        }
        Says::AskPosts(said) => Message::AskPosts { call: CallId(said.call), posts: read_keys(&said.posts)? },
        Says::PostsAre(said) => {
            bounded(said.held.len())?;
            let held_post =
                |held: wire::HeldPost| Ok((PrefixKey(read_key(&held.post)?), read_life(held.holder)?));
            let held = said.held.into_iter().map(held_post).collect::<Result<_, Error>>()?;
            Message::PostsAre { call: CallId(said.call), held }
        }
    })
}

/// A tip.
pub(crate) fn tip_of(tip: Tip) -> wire::Tip {
    wire::Tip { home: Some(life(tip.home)), turn: tip.turn, moves: tip.moves, pages: tip.pages }
}

/// The tip that a message says.
pub(crate) fn read_tip(said: wire::Tip) -> Result<Tip, Error> {
    Ok(Tip { home: read_life(said.home)?, turn: said.turn, moves: said.moves, pages: said.pages })
}

/// The answer to an offer.
pub(crate) fn taken(taken: Takeover) -> wire::TakeSessionReply {
    let (outcome, tip, note) = match taken {
        Takeover::Done(tip) => (wire::TakeOutcome::Taken, Some(tip_of(tip)), String::new()),
        Takeover::Gone => (wire::TakeOutcome::Gone, None, String::new()),
        Takeover::NoRoom => (wire::TakeOutcome::NoRoom, None, String::new()),
        Takeover::Failed(why) => (wire::TakeOutcome::Failed, None, why),
    };
    wire::TakeSessionReply { outcome: outcome.into(), tip, note }
}

/// What an answer to an offer says.
pub(crate) fn read_taken(said: wire::TakeSessionReply) -> Result<Takeover, Error> {
    Ok(match said.outcome() {
        wire::TakeOutcome::Taken => {
            Takeover::Done(read_tip(said.tip.ok_or_else(|| Error::invalid("a tip is missing"))?)?)
        }
        wire::TakeOutcome::Gone => Takeover::Gone,
        wire::TakeOutcome::NoRoom => Takeover::NoRoom,
        wire::TakeOutcome::Failed => Takeover::Failed(said.note),
        wire::TakeOutcome::Unspecified => return Err(Error::invalid("an answer without an outcome")),
    })
}

fn life(life: Life) -> wire::Life {
    wire::Life { member: life.member.0, incarnation: life.incarnation.0 }
}

fn read_life(said: Option<wire::Life>) -> Result<Life, Error> {
    let said = said.ok_or_else(|| Error::invalid("a member's life is missing"))?;
    Ok(Life { member: MemberId(said.member), incarnation: read_incarnation(said.incarnation)? })
}

fn read_incarnation(said: u64) -> Result<Incarnation, Error> {
    Incarnation::said(said, Clock::system().unix_ms())
        .ok_or_else(|| Error::invalid("no member lives as often as that"))
}

fn key(session: &SessionKey) -> Bytes {
    session.0.to_vec().into()
}

fn keys(posts: &[PrefixKey]) -> Bytes {
    posts.iter().flat_map(|post| post.0).collect::<Vec<u8>>().into()
}

fn read_key(said: &[u8]) -> Result<[u8; 16], Error> {
    said.try_into().map_err(|_| Error::invalid("a key has 16 bytes"))
}

fn read_keys(said: &[u8]) -> Result<Vec<PrefixKey>, Error> {
    let (keys, rest) = said.as_chunks::<16>();
    bounded(keys.len())?;
    if !rest.is_empty() {
        return Err(Error::invalid("a key has 16 bytes"));
    }
    Ok(keys.iter().map(|key| PrefixKey(*key)).collect())
}

fn bounded(count: usize) -> Result<(), Error> {
    if count <= PUBLISH_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!("{count} in one message, at most {PUBLISH_MAX}")))
}

/// What a member knows of engines.
pub(crate) fn engines(known: &EnginesKnown) -> wire::LookAtEnginesReply {
    let sight = |view: &EngineView| wire::EngineSight {
        held_pages: view.held_pages,
        load_pages: view.load,
        home: view.is_home,
    };
    wire::LookAtEnginesReply {
        engines: known.views.iter().map(sight).collect(),
        turn: known.turn,
        prompt_pages: known.prompt_pages as u32,
        pool_pages: known.pool_pages,
    }
}

/// The same, read.
pub(super) fn read_engines(raw: &wire::LookAtEnginesReply) -> EnginesKnown {
    let view = |sight: &wire::EngineSight| EngineView {
        held_pages: sight.held_pages,
        // What is no number of pages is no load.
        load: if sight.load_pages.is_finite() { sight.load_pages.max(0.0) } else { 0.0 },
        is_home: sight.home,
    };
    EnginesKnown {
        views: raw.engines.iter().map(view).collect(),
        turn: raw.turn,
        prompt_pages: raw.prompt_pages.into(),
        pool_pages: raw.pool_pages,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use turnkv_cluster::limits::INCARNATION_AHEAD_MS;

    fn life_of(member: u64) -> Life {
        Life { member: MemberId(member), incarnation: Incarnation(3) }
    }

    fn every_message() -> Vec<Message> {
        let (from, session, post) = (life_of(1), SessionKey([7; 16]), PrefixKey([8; 16]));
        let tip = Tip { home: from, turn: 4, moves: 2, pages: 90 };
        let other = Tip { home: life_of(2), turn: 5, moves: 0, pages: 1 };
        let call = CallId(1 << 41);
        vec![
            Message::Publish { tips: vec![(session, tip); 3], posts: vec![post; 2] },
            Message::Withdraw { session, home: life_of(2), turn: 9 },
            Message::Outdone { session, tip: other },
            Message::Over { latest: Incarnation(Clock::system().unix_ms()) },
            Message::AskTip { call, session },
            Message::TipIs { call, tip: Some(other) },
            Message::TipIs { call, tip: None },
            Message::AskPosts { call, posts: vec![post] },
            Message::PostsAre { call, held: vec![(post, life_of(2))] },
        ]
    }

    #[test]
    fn what_is_said_is_what_is_heard() {
        for message in every_message() {
            let bytes = note(&message).encode_to_vec();
            let heard = read_note(wire::Note::decode(bytes.as_slice()).unwrap(), life_of(1)).unwrap();
            assert_eq!(heard, message);
        }
    }

    #[test]
    fn what_is_published_is_the_speakers() {
        let tip = Tip { home: life_of(1), turn: 4, moves: 0, pages: 90 };
        let said = note(&Message::Publish { tips: vec![(SessionKey([7; 16]), tip)], posts: Vec::new() });
        let Message::Publish { tips, .. } = read_note(said, life_of(9)).unwrap() else { panic!("a claim") };
        assert_eq!(tips[0].1.home, life_of(9));
    }

    #[test]
    fn a_life_after_which_none_could_begin_is_refused() {
        let far = Clock::system().unix_ms() + INCARNATION_AHEAD_MS + 60_000;
        for latest in [far, 1 << 48, u64::MAX] {
            let over = Says::Over(wire::OverNote { latest });
            assert!(read_note(wire::Note { says: Some(over) }, life_of(1)).is_err(), "{latest}");
        }
        let home = Life { member: MemberId(2), incarnation: Incarnation(far) };
        let withdraw = note(&Message::Withdraw { session: SessionKey([7; 16]), home, turn: 9 });
        assert!(read_note(withdraw, life_of(1)).is_err());
        let member =
            Member { id: home.member, incarnation: home.incarnation, weight: 1, state: MemberState::Serving };
        let (name, endpoint, zone) = ("b".to_owned(), "tcp://b:1".to_owned(), String::new());
        assert!(read_card(card(&MemberCard { name, endpoint, zone, member })).is_err());
    }

    #[test]
    fn damaged_and_endless_messages_are_refused() {
        let whole: Vec<u8> =
            every_message().iter().flat_map(|message| note(message).encode_to_vec()).collect();
        turnkv_mutate::each_seed(5_000, |random| {
            let bytes = turnkv_mutate::mutate_bytes(random, &whole);
            if let Ok(said) = wire::Note::decode(bytes.as_slice()) {
                // Whatever it says is within bounds, or refused; never a panic.
                if let Ok(Message::Publish { tips, posts }) = read_note(said, life_of(1)) {
                    assert!(tips.len().max(posts.len()) <= PUBLISH_MAX);
                }
            }
        });
        let posts = vec![0; 16 * (PUBLISH_MAX + 1)].into();
        let many = wire::Note { says: Some(Says::AskPosts(wire::AskPostsNote { call: 1, posts })) };
        assert!(read_note(many, life_of(1)).is_err());
        assert!(read_note(wire::Note { says: None }, life_of(1)).is_err());
    }
}
