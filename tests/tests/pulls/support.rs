//! Pools of one cluster, each behind a proxy of its own, and turns of a session. Must not know: what is tested.

use anyhow::{Context, Result, bail, ensure};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use turnkv_client::{BlockHash, DataPlane, EndTurn, OffloadOptions, TurnBegun};
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::proxy::{Fault, Proxy};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

pub(crate) const PAGE: u64 = 64 << 10;
/// What a busy machine may add to a call's deadline.
pub(crate) const SLACK: Duration = Duration::from_millis(2_500);

/// One pool of a cluster.
pub(crate) struct Pool {
    pub(crate) server: Server,
    /// What is wrong with new connections to it, towards it and back.
    faults: Arc<Mutex<(Fault, Fault)>>,
    pub(crate) proxy: Proxy,
    metrics: SocketAddr,
}

/// Pools that know one another.
pub(crate) struct Pools(pub(crate) Vec<Pool>);

impl Pools {
    /// So many, with more of their setup; waits until each sees all.
    pub(crate) async fn start(count: usize, setup: &Setup) -> Result<Pools> {
        let faults: Vec<_> = (0..count).map(|_| Arc::new(Mutex::new((Fault::None, Fault::None)))).collect();
        let mut places = Vec::new();
        for fault in &faults {
            let (tcp, fault) = (free_address()?, Arc::clone(fault));
            let plan = move |_| *fault.lock().unwrap_or_else(PoisonError::into_inner);
            places.push((tcp, Proxy::to(tcp, plan)?));
        }
        let member = |(at, (_, proxy)): (usize, &(SocketAddr, Proxy))| {
            format!("{{ id = \"pool-{at}\", endpoint = \"tcp://{}\" }}", proxy.address())
        };
        let members: Vec<String> = places.iter().enumerate().map(member).collect();
        let mut pools = Vec::new();
        for (at, ((tcp, proxy), faults)) in places.into_iter().zip(faults).enumerate() {
            let cluster = format!("[cluster]\nid = \"pool-{at}\"\nmembers = [{}]\n", members.join(", "));
            let metrics = free_address()?;
            let setup = Setup {
                tcp: Some(tcp.to_string()),
                metrics: Some(metrics.to_string()),
                sections: format!("{}{cluster}", setup.sections),
                ..setup.clone()
            };
            pools.push(Pool { server: Server::start(setup)?, faults, proxy, metrics });
        }
        let pools = Pools(pools);
        pools.agree().await?;
        Ok(pools)
    }

    /// Waits until each sees all.
    pub(crate) async fn agree(&self) -> Result<()> {
        let count = self.0.len() as u64;
        until("all see all", async || {
            Ok(self
                .0
                .iter()
                .all(|pool| pool.counted("turnkv_cluster_view_servers").is_ok_and(|seen| seen == count)))
        })
        .await
    }

    /// A user of each.
    pub(crate) async fn users(&self) -> Result<Vec<User>> {
        let mut users = Vec::new();
        for pool in &self.0 {
            users.push(pool.user().await?);
        }
        Ok(users)
    }
}

impl Pool {
    /// An engine on its host.
    pub(crate) async fn user(&self) -> Result<User> {
        User::connect(&self.server.address(), DataPlane::Shm, PAGE).await
    }

    /// What is wrong with new connections to it from now on, towards it and back.
    pub(crate) fn fail(&self, towards: Fault, back: Fault) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = (towards, back);
    }

    /// What it counts or holds, by the name of the series.
    pub(crate) fn counted(&self, name: &str) -> Result<u64> {
        let (_, page) = get(self.metrics, "/metrics")?;
        Ok(value(&page, name)? as u64)
    }

    /// Pages that came to it from other pools.
    pub(crate) fn pulled(&self) -> Result<u64> {
        self.counted("turnkv_cluster_pull_pages_total")
    }

    /// Waits until nothing is on its way to it.
    pub(crate) async fn settled(&self) -> Result<()> {
        until("nothing is on its way", async || {
            // The gauge is brought up to date now and then.
            tokio::time::sleep(Duration::from_millis(600)).await;
            Ok(self.counted("turnkv_cluster_pull_coming_pages")? == 0)
        })
        .await
    }
}

/// One turn of a session at a pool: what it had is found, all of it, or the turn says how much; new pages follow.
pub(crate) async fn turn(
    user: &User,
    session: &str,
    ended: u32,
    hashes: &[BlockHash],
    had: usize,
) -> Result<usize> {
    let begun = user.namespace.begin_turn_after(session, "", ended).await?;
    let found = if had == 0 { 0 } else { user.reload(&hashes[..had]).await?.pages };
    end(user, session, &begun, hashes).await?;
    Ok(found)
}

/// The end of a turn after which a session has these pages.
pub(crate) async fn end(user: &User, session: &str, begun: &TurnBegun, hashes: &[BlockHash]) -> Result<()> {
    let report = user.offload(&OffloadOptions::default(), hashes).await?;
    ensure!(report.stored + report.present == hashes.len(), "{begun:?}, then {report:?}");
    let ended = EndTurn { hashes: hashes.to_vec(), ..EndTurn::default() };
    ensure!(user.namespace.end_turn(session, &ended).await? == hashes.len());
    Ok(())
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !is_so().await? {
        if began.elapsed() > Duration::from_secs(30) {
            bail!("after 30 s it is not so that {what}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// A number from the environment.
pub(crate) fn number(name: &str, usual: u64) -> Result<u64> {
    std::env::var(name).map_or(Ok(usual), |text| text.parse().with_context(|| format!("{name}={text}")))
}
