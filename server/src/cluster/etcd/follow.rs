//! What goes on between this member and etcd all the time. Owns: the lease, what was read of the members, which life etcd gave. Must
//! not know: what is believed of it.
//!
//! ```text
//!   asked (what all agree on, all keys, a watch) --a look a second: the lease, the own key--> followed
//!   any --a request fails, or is late--> not read: the last view stays --a pause--> asked, at another place
//! ```

use super::client::{EtcdClient, EtcdFault, KeyChange, StoredKeys};
use super::join::{JoinError, found, keep_mark, next_life};
use super::keys::{CLUSTER_PROTOCOL, Founded, Keys, card_text, read_card};
use crate::cluster::card::MemberCard;
use crate::cluster::seen::{NewLife, SeenMembers};
use crate::limits::{ETCD_LEASE, ETCD_LOOK, ETCD_PAUSE_MAX, ETCD_PAUSE_MIN, ETCD_PUT_LOOKS};
use crate::seldom::Seldom;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Instant;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, sleep};
use turnkv_cluster::limits::MEMBERS_MAX;
use turnkv_cluster::{Incarnation, Observation};
use turnkv_proto::{Error, ErrorKind};
use turnkv_transfer::tls::TlsConfig;

/// The members that etcd knows.
pub(crate) struct EtcdMembers {
    client: EtcdClient,
    keys: Keys,
    /// This member.
    name: String,
    state: Mutex<Following>,
    /// Rung when a life is wanted.
    bell: Notify,
    said: Seldom,
}

/// What is read, and what is to be written.
struct Following {
    /// Cards by name; none: they cannot be read now.
    seen: Option<BTreeMap<String, MemberCard>>,
    /// This member's, as it is to stand in etcd.
    own: Option<MemberCard>,
    founded: Founded,
    /// A life is wanted that is later than this.
    wanted: Option<Incarnation>,
    /// It was given, and has not begun.
    given: Option<NewLife>,
    /// By which the own key stands; 0: there is none.
    lease: i64,
}

impl EtcdMembers {
    /// Of etcd at these places. `fresh`: a number that nobody else has, for a cluster that is not there yet.
    pub(crate) fn new(
        (cluster, member): (&str, &str),
        endpoints: &[String],
        tls: &TlsConfig,
        fresh: u64,
    ) -> Result<EtcdMembers, String> {
        let founded = Founded { id: fresh, seed: fresh, protocol_floor: CLUSTER_PROTOCOL };
        let state = Following { seen: None, own: None, founded, wanted: None, given: None, lease: 0 };
        Ok(EtcdMembers {
            client: EtcdClient::new(endpoints, tls)?,
            keys: Keys::of(cluster),
            name: member.to_owned(),
            state: Mutex::new(state),
            bell: Notify::new(),
            said: Seldom::new(),
        })
    }

    /// A life that etcd gave, if one is due: the first one, or one that is later than what was heard of.
    pub(crate) fn next_life(&self, current: Option<Incarnation>, after: Incarnation) -> Option<NewLife> {
        let mut state = self.state.lock();
        if let Some(given) = state.given.take() {
            state.wanted = None;
            return Some(given);
        }
        if current.is_none_or(|current| after > current) && state.wanted.is_none() {
            state.wanted = Some(after);
            self.bell.notify_one();
        }
        None
    }

    /// The members as they were read last.
    pub(crate) fn look(&self) -> SeenMembers {
        let state = self.state.lock();
        let cards: Vec<MemberCard> = state.seen.iter().flat_map(BTreeMap::values).cloned().collect();
        let observation = match state.seen {
            Some(_) => Observation::Members(cards.iter().map(|card| card.member).collect()),
            None => Observation::Unreachable,
        };
        SeenMembers { observation, cards }
    }

    /// This member's card is to stand so from now on.
    pub(crate) fn put(&self, card: &MemberCard) {
        self.state.lock().own = Some(card.clone());
    }

    /// Has a member's keys removed. Whether there were any; it is there again if it lives.
    pub(crate) async fn forget(&self, name: &str) -> Result<bool, Error> {
        let failed = |fault: EtcdFault| Error::new(ErrorKind::Unavailable, format!("etcd does not: {fault}"));
        let known = self.client.delete(&self.keys.member(name)).await.map_err(failed)?;
        Ok(self.client.delete(&self.keys.mark(name)).await.map_err(failed)? || known)
    }

    /// Goes on for as long as it is polled.
    pub(crate) async fn run(&self) {
        let mut pause = ETCD_PAUSE_MIN;
        loop {
            let began = Instant::now();
            let error = match self.follow().await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            let was_read = self.state.lock().seen.take().is_some();
            if let Some(unsaid) = self.said.may_say() {
                tracing::warn!(%error, unsaid, was_read, "etcd cannot be followed: the last view stays, and nobody joins");
            }
            self.client.go_on();
            if began.elapsed() > ETCD_PAUSE_MAX {
                pause = ETCD_PAUSE_MIN;
            }
            sleep(pause).await;
            pause = (2 * pause).min(ETCD_PAUSE_MAX);
        }
    }

    async fn follow(&self) -> Result<Infallible, JoinError> {
        self.agree().await?;
        let listed = self.client.list(&self.keys.members()).await?;
        let mut watch = self.client.watch(&self.keys.members(), listed.revision + 1).await?;
        self.saw_all(listed);
        let mut looks = interval(ETCD_LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut number = 0u64;
        loop {
            tokio::select! {
                changes = watch.next() => self.saw(changes?),
                _ = looks.tick() => {
                    number += 1;
                    self.stay(number.is_multiple_of(ETCD_PUT_LOOKS)).await?;
                }
                () = self.bell.notified() => self.give_life().await?,
            }
        }
    }

    /// Reads what all agree on, or says it. Where etcd has lost it, what this member knows is said again; where another one said
    /// something else meanwhile, a life begins by that.
    async fn agree(&self) -> Result<(), JoinError> {
        let known = self.state.lock().founded.clone();
        let founded = found(&self.client, &self.keys, known.clone()).await?;
        let life = self.state.lock().own.as_ref().map(|own| own.member.incarnation);
        if let Some(life) = life {
            keep_mark(&self.client, &self.keys, &self.name, life).await?;
        }
        let mut state = self.state.lock();
        if state.own.is_some() && founded.seed != known.seed {
            tracing::warn!(
                id = founded.id,
                was = known.id,
                "etcd has another cluster of this name: a life begins in it"
            );
            state.wanted = state.wanted.or(life);
        }
        state.founded = founded;
        Ok(())
    }

    /// Keeps the lease, and sees to it that the own key stands under it.
    async fn stay(&self, again: bool) -> Result<(), JoinError> {
        self.give_life().await?;
        let lease = self.state.lock().lease;
        let is_kept = lease != 0 && self.client.keep(lease).await?;
        let lease = if is_kept { lease } else { self.client.grant(ETCD_LEASE).await? };
        self.state.lock().lease = lease;
        let Some(own) = self.to_put(again || !is_kept) else { return Ok(()) };
        self.client.put(&self.keys.member(&self.name), card_text(&own), lease).await?;
        // Somebody may have had this member forgotten, which lives: its next life is to begin above this one.
        keep_mark(&self.client, &self.keys, &self.name, own.member.incarnation).await
    }

    /// The own card, if it is to be put: it does not stand as it should, or is put again in any case.
    fn to_put(&self, again: bool) -> Option<MemberCard> {
        let state = self.state.lock();
        let (own, seen) = (state.own.as_ref()?, state.seen.as_ref()?);
        let stands = seen.get(&self.name);
        // A later life's key is not written over: this one's is over.
        let is_over = stands.is_some_and(|card| card.member.incarnation > own.member.incarnation);
        (!is_over && (again || stands != Some(own))).then(|| own.clone())
    }

    /// Has etcd give a life, if one is wanted.
    async fn give_life(&self) -> Result<(), JoinError> {
        let (wanted, seed) = {
            let state = self.state.lock();
            (state.wanted.filter(|_| state.given.is_none()), state.founded.seed)
        };
        let Some(after) = wanted else { return Ok(()) };
        let incarnation = next_life(&self.client, &self.keys, &self.name, after).await?;
        self.state.lock().given = Some(NewLife { incarnation, seed });
        Ok(())
    }

    fn saw_all(&self, listed: StoredKeys) {
        let cards = listed
            .keys
            .into_iter()
            .filter_map(|(name, value)| Some((name.clone(), read_card(&name, &value)?)));
        self.state.lock().seen = Some(cards.collect());
    }

    fn saw(&self, changes: Vec<KeyChange>) {
        let mut state = self.state.lock();
        let Some(seen) = &mut state.seen else { return };
        for KeyChange { name, value } in changes {
            match value.and_then(|value| read_card(&name, &value)) {
                Some(card) if seen.len() < MEMBERS_MAX || seen.contains_key(&name) => {
                    seen.insert(name, card);
                }
                Some(_) => {}
                None => drop(seen.remove(&name)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
