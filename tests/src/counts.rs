//! A pool's counts, as they come to be. Owns: asking for them until they hold. Must not know: what changes them.

use crate::server::Server;
use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};
use turnkv_client::{Client, ClientConfig, StatsReply};

/// Waits until a server's counts are so.
///
/// # Errors
/// They are not so within `wait`.
pub async fn eventually(
    server: &Server,
    wait: Duration,
    what: &str,
    holds: impl Fn(&StatsReply) -> bool,
) -> Result<()> {
    let client = Client::new(ClientConfig::at(server.address()))?;
    let began = Instant::now();
    loop {
        let now = client.stats().await.with_context(|| format!("{what}\n{}", server.log()))?;
        if holds(&now) {
            return Ok(());
        }
        ensure!(began.elapsed() < wait, "not within {wait:?}: {what}: {now:?}\n{}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until nothing is leased, so that every slot can be used again.
///
/// # Errors
/// As of [`eventually`].
pub async fn slots_are_back(server: &Server, wait: Duration) -> Result<()> {
    let back = |now: &StatsReply| now.leases == 0 && now.tiers[0].leased_bytes == 0;
    eventually(server, wait, "slots are back", back).await
}
