//! Asking a server for a rail. Owns: the exchange. Must not know: which rail is wanted when.

use super::nics::{HeldRail, Nic};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::local::{Lent, Port};
use std::sync::Arc;
use turnkv_proto::wire::{self, Fabric, Verb};
use turnkv_transfer::fabric::framed::wire::{HEADER_BYTES, VERSION};
use turnkv_transfer::fabric::framed::{FramedDomain, FramedTarget, Join, JoinAnswer, RailSecret};
use turnkv_transfer::fabric::{Engine, RailAddress, RailOffer};
use turnkv_transfer::limits::FRAMED_STALL;

/// One exchange with a server.
pub(super) struct Asking<'a> {
    pub(super) lent: &'a mut Lent,
    pub(super) deadline: Deadline,
    /// Rails that are open here.
    pub(super) held: Vec<u64>,
}

/// What came of offers over NICs.
pub(super) struct NicOpened {
    /// The one whose rail is open.
    pub(super) nic: Arc<Nic>,
    pub(super) rail: HeldRail,
    /// Faster ones that the server passed over.
    pub(super) passed: Vec<Arc<Nic>>,
    /// Of the rails that are held, those that the server has not.
    pub(super) lost: Vec<u64>,
}

/// A framed rail that is open.
#[derive(Debug)]
pub(super) struct FramedRail {
    /// The server's number of it; servers of earlier builds gave none.
    pub(super) number: Option<u64>,
    pub(super) target: FramedTarget,
}

/// A NIC by which nothing can be offered: it is of no use as it is open.
pub(super) struct NotOffered {
    pub(super) nic: Arc<Nic>,
    pub(super) why: String,
}

impl Asking<'_> {
    /// Says which rails are open here; gives those that the server has not.
    pub(super) async fn compare(self) -> Result<Vec<u64>> {
        Ok(self.ask(Vec::new()).await?.lost)
    }

    /// Opens a rail over the first of these NICs that the server can reach. `unfit`: takes those by which none can be offered.
    pub(super) async fn over_nics(
        self,
        nics: Vec<Arc<Nic>>,
        unfit: &mut Vec<NotOffered>,
    ) -> Result<NicOpened> {
        let deadline = self.deadline;
        // A library makes an endpoint, which may take it some milliseconds.
        let offered = on_a_thread(deadline, move || offer_all(nics)).await?;
        let (made, mut failed) = offered;
        unfit.append(&mut failed);
        if made.is_empty() {
            return Err(Error::unavailable("no NIC of this host could offer a rail"));
        }
        let offer = |(nic, offer): &(Arc<Nic>, Box<dyn RailOffer>)| wire::RailOffer {
            fabric: fabric(nic.engine).into(),
            domain: nic.number,
            address: offer.address().as_bytes().to_vec().into(),
        };
        let reply = self.ask(made.iter().map(offer).collect()).await?;
        let address = RailAddress::new(reply.address.to_vec());
        let address = address.ok_or_else(|| Error::protocol("the address of a rail is too long"))?;
        let at = (reply.taken as usize).checked_sub(1).filter(|at| *at < made.len());
        let at = at.ok_or_else(|| Error::protocol("a rail was opened that was not offered"))?;
        let mut made = made.into_iter();
        let passed = made.by_ref().take(at).map(|(nic, _)| nic).collect();
        let (nic, offer) = made.next().ok_or_else(|| Error::protocol("no rail was opened"))?;
        let connected = on_a_thread(deadline, move || offer.connect(&address)).await?;
        let target = connected.map_err(|error| Error::unavailable(error.to_string()))?;
        let rail = HeldRail { number: reply.rail, target };
        Ok(NicOpened { nic, rail, passed, lost: reply.lost })
    }

    /// Opens another connection to the port, and joins it to this one by the secret. Gives what the server has lost as well.
    pub(super) async fn framed(
        self,
        port: &Port,
        number: u32,
        domain: &Arc<FramedDomain>,
    ) -> Result<(FramedRail, Vec<u64>)> {
        let deadline = self.deadline;
        let offer = wire::RailOffer { fabric: Fabric::Framed.into(), domain: number, ..Default::default() };
        let reply = self.ask(vec![offer]).await?;
        let secret = reply.secret[..].try_into().map_err(Error::protocol)?;
        let join = Join { version: VERSION, secret: RailSecret::new(secret) };
        let mut stream = port.open(deadline).await?;
        // A rail more must not cost the call all its time.
        let deadline = deadline.within(port.connect);
        // The stream is made for a thread of its own.
        let joined = on_a_thread(deadline, move || {
            let mut answer = [0; HEADER_BYTES];
            stream.write_all_by(&join.encode(), deadline.at())?;
            stream.read_exact_by(&mut answer, deadline.at())?;
            Ok((stream, answer))
        });
        let failed = |error| Error::from_io("opening a data rail", &error);
        let (stream, answer) = joined.await?.map_err(failed)?;
        match JoinAnswer::decode(&answer).map_err(Error::protocol)? {
            JoinAnswer::Joined => {}
            refused => return Err(Error::new(ErrorKind::Limit, format!("opening a data rail: {refused}"))),
        }
        let target = FramedTarget::open(stream, domain, FRAMED_STALL).map_err(failed)?;
        Ok((FramedRail { number: Some(reply.rail).filter(|number| *number != 0), target }, reply.lost))
    }

    async fn ask(self, offers: Vec<wire::RailOffer>) -> Result<wire::OpenRailReply> {
        let ask =
            wire::OpenRailRequest { client: self.lent.client(), offers, held: self.held, names_framed: true };
        self.lent.call(Verb::OpenRail, &ask, self.deadline).await
    }
}

type Offered = (Vec<(Arc<Nic>, Box<dyn RailOffer>)>, Vec<NotOffered>);

fn offer_all(nics: Vec<Arc<Nic>>) -> Offered {
    let (mut made, mut failed) = (Vec::new(), Vec::new());
    for nic in nics {
        match nic.domain.offer() {
            Ok(offer) => made.push((nic, offer)),
            Err(error) => failed.push(NotOffered { nic, why: error.to_string() }),
        }
    }
    (made, failed)
}

async fn on_a_thread<T: Send + 'static>(
    deadline: Deadline,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let done = deadline.bound(tokio::task::spawn_blocking(work)).await?;
    done.map_err(|error| Error::unavailable(error.to_string()))
}

fn fabric(engine: Engine) -> Fabric {
    match engine {
        Engine::Framed => Fabric::Framed,
        Engine::Libfabric => Fabric::Libfabric,
        Engine::Verbs => Fabric::Verbs,
    }
}

#[cfg(test)]
mod tests;
