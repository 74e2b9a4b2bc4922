//! How rails come to be. Owns: which of the rails that a client offers is opened. Must not know: messages, sockets.

use super::clients::{RemoteClient, Remotes};
use super::lent::Domain;
use super::rails::{Rail, RailGoods};
use super::secrets::Awaited;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use turnkv_proto::{Error, ErrorKind};
use turnkv_transfer::fabric::framed::RailSecret;
use turnkv_transfer::fabric::{Engine, Initiator, RailAddress};

/// A rail that a client could open.
pub(crate) struct OfferedRail {
    /// Over which fabric; none: one that this version does not know.
    pub(crate) engine: Option<Engine>,
    /// What it would belong to.
    pub(crate) domain: Domain,
    /// Of the client's end; framed rails have none.
    pub(crate) address: RailAddress,
}

/// What became of offers.
pub(crate) enum Taken {
    /// This one may be joined by a connection that knows the secret.
    Framed {
        /// Its place among the offers.
        at: usize,
        /// What the connection must know.
        secret: RailSecret,
        /// Names the rail.
        rail: u64,
    },
    /// This one is open, over a NIC.
    Nic {
        /// Its place among the offers.
        at: usize,
        /// Of the server's end.
        address: RailAddress,
        /// Names the rail.
        rail: u64,
    },
}

/// The rail that a connection becomes which knew a secret.
pub(crate) struct Joining {
    /// Whose it is.
    pub(crate) client: Arc<RemoteClient>,
    domain: Domain,
    number: u64,
}

impl Remotes {
    /// Compares the rails that a client has with those that are here: gives those that it has in vain, and ends the others.
    /// `names_framed`: it named all of them, not only those over NICs.
    pub(crate) fn compare_rails(&self, client: &RemoteClient, held: &[u64], names_framed: bool) -> Vec<u64> {
        client.rails.compare(held, names_framed)
    }

    /// Opens the first of these rails that can be opened, or lets it be joined. Blocking where a NIC takes its time.
    ///
    /// # Errors
    /// None of the fabrics is here, or none of the rails could be opened: why, for each.
    pub(crate) fn open_rail(&self, client: &RemoteClient, offers: &[OfferedRail]) -> Result<Taken, Error> {
        let (mut whys, mut kind) = (Vec::new(), ErrorKind::Invalid);
        for (at, offer) in offers.iter().enumerate() {
            let Some(engine) = offer.engine.filter(|engine| self.fabrics.contains(engine)) else { continue };
            if !client.rails.has_room(engine) {
                kind = ErrorKind::Limit;
                whys.push(format!("{engine}: the client has as many rails as it may"));
                continue;
            }
            if engine == Engine::Framed {
                let number = self.next_rail.fetch_add(1, Ordering::Relaxed);
                let awaited = Awaited { client: client.id, peer: client.peer, domain: offer.domain, number };
                let secret = self.known.lock().secrets.draw(awaited, Instant::now())?;
                return Ok(Taken::Framed { at, secret, rail: number });
            }
            match self.open_over_nic(client, engine, offer) {
                Ok(Some((address, rail))) => return Ok(Taken::Nic { at, address, rail }),
                Ok(None) => {}
                Err(why) => whys.push(format!("{engine}: {why}")),
            }
        }
        if whys.is_empty() {
            let has =
                |engine: &&Engine| **engine == Engine::Framed || self.nics.of(**engine).next().is_some();
            let here: Vec<&str> = self.fabrics.iter().filter(has).map(|engine| engine.name()).collect();
            let asked =
                offers.iter().map(|offer| offer.engine.map_or("one that it does not know", Engine::name));
            let asked: Vec<&str> = asked.collect();
            let text =
                format!("this server has rails over {}, not over {}", here.join(", "), asked.join(", "));
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Err(Error::new(kind, format!("no rail could be opened: {}", whys.join("; "))))
    }

    /// Opens a rail over the first NIC that can reach this address; none: there is no NIC of this engine.
    fn open_over_nic(
        &self,
        client: &RemoteClient,
        engine: Engine,
        offer: &OfferedRail,
    ) -> Result<Option<(RailAddress, u64)>, String> {
        let mut nics: Vec<_> = self.nics.of(engine).collect();
        // One after the other: where networks are apart, the first NICs of two hosts are on one, and so on.
        nics.sort_by_key(|(place, _)| client.rails.count_over(*place));
        let mut why = None;
        for (place, nic) in nics {
            match nic.answer(&offer.address, self.completions()) {
                Ok(answer) => {
                    let number = self.next_rail.fetch_add(1, Ordering::Relaxed);
                    let (initiator, domain, nic) = (answer.rail, offer.domain, Some(place));
                    let rail = Rail { initiator, engine, domain, nic, number };
                    // One that finds no room ends as it is dropped.
                    return if client.rails.add(rail, Box::new(())) {
                        Ok(Some((answer.address, number)))
                    } else {
                        Err("the client has left, or has as many rails as it may".to_owned())
                    };
                }
                Err(error) => why = Some(format!("{}: {error}", nic.name())),
            }
        }
        why.map_or(Ok(None), Err)
    }

    /// Whose rail a connection becomes that knows this secret. Good once. None: no rail was offered with it, or not lately.
    pub(crate) fn join_rail(&self, secret: RailSecret) -> Option<Joining> {
        let mut known = self.known.lock();
        let Awaited { client, domain, number, .. } = known.secrets.take(secret, Instant::now())?;
        let client = Arc::clone(known.clients.get(&client)?);
        Some(Joining { client, domain, number })
    }

    /// A connection is a rail now; `with` goes when it has ended. False: its client has left meanwhile, or has as many as it may.
    pub(crate) fn add_rail(&self, joining: &Joining, rail: &Arc<dyn Initiator>, with: RailGoods) -> bool {
        let (engine, domain, number) = (Engine::Framed, joining.domain, joining.number);
        let rail = Rail { initiator: Arc::clone(rail), engine, domain, nic: None, number };
        joining.client.rails.add(rail, with)
    }

    /// A rail over a NIC that a test plays.
    #[cfg(test)]
    pub(in crate::engine) fn add_played(
        &self,
        client: &RemoteClient,
        rail: &Arc<dyn Initiator>,
        engine: Engine,
        domain: Domain,
    ) {
        let number = self.next_rail.fetch_add(1, Ordering::Relaxed);
        let rail = Rail { initiator: Arc::clone(rail), engine, domain, nic: None, number };
        assert!(client.rails.add(rail, Box::new(())));
    }
}

impl Joining {
    /// Whether the client may have one more such rail.
    pub(crate) fn has_room(&self) -> bool {
        self.client.rails.has_room(Engine::Framed)
    }
}
