//! A server that somebody misuses, and a user beside it. Owns: watching its memory and the user's calls meanwhile. Must not know:
//! how it is misused.

use crate::http::{free_address, get, value};
use crate::pages::chain;
use crate::server::{Server, Setup};
use crate::user::User;
use anyhow::{Result, ensure};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, MissCause, OffloadOptions};

const MIB: u64 = 1 << 20;
/// Pages that the user reads again and again.
const PAGES: usize = 16;
/// Pause between two of its calls.
const PAUSE: Duration = Duration::from_millis(20);

/// The server, the user, and how much memory there was before.
pub struct Beside {
    /// The server.
    pub server: Server,
    /// Where its metrics are.
    pub http: SocketAddr,
    /// Where it serves gRPC besides its socket.
    pub tcp: SocketAddr,
    /// The user, of inline calls.
    pub user: User,
    start_bytes: u64,
}

/// What was seen meanwhile.
#[derive(Debug, Default)]
pub struct Seen {
    /// The most memory above the start, bytes.
    pub most_bytes: u64,
    calls: Vec<Duration>,
}

impl Beside {
    /// A server with some pages in it.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start(page_bytes: u64) -> Result<Beside> {
        let (http, tcp) = (free_address()?, free_address()?);
        let setup = Setup { metrics: Some(http.to_string()), tcp: Some(tcp.to_string()), ..Setup::default() };
        let server = Server::start(setup)?;
        let user = User::connect(&server.address(), DataPlane::Inline, page_bytes).await?;
        user.offload(&OffloadOptions::default(), &chain(1, PAGES)).await?;
        user.settle().await?;
        let mut beside = Beside { server, http, tcp, user, start_bytes: 0 };
        beside.call().await?;
        beside.start_bytes = beside.server.rss_anon_bytes()?;
        Ok(beside)
    }

    /// The value of a series.
    ///
    /// # Errors
    /// There is none.
    pub fn series(&self, name: &str) -> Result<f64> {
        value(&get(self.http, "/metrics")?.1, name)
    }

    /// Memory above the start, bytes.
    ///
    /// # Errors
    /// The server is gone.
    pub fn taken_bytes(&self) -> Result<u64> {
        Ok(self.server.rss_anon_bytes()?.saturating_sub(self.start_bytes))
    }

    /// One call of the user, checked.
    async fn call(&self) -> Result<Duration> {
        let began = Instant::now();
        let report = self.user.reload(&chain(1, PAGES)).await?;
        // A machine that has much else to do may be slower than a lease: that is told by the time it took.
        let late =
            matches!(report.miss, Some(MissCause::Busy | MissCause::LeaseExpired | MissCause::Deadline));
        ensure!(report.pages == PAGES || late, "others are not served: {report:?}");
        Ok(began.elapsed())
    }

    /// Watches until it is over.
    ///
    /// # Errors
    /// The user is not served, or it is not over after so long.
    pub async fn watch(&self, most: Duration, mut over: impl FnMut() -> Result<bool>) -> Result<Seen> {
        let (began, mut seen) = (Instant::now(), Seen::default());
        while !over()? {
            ensure!(began.elapsed() < most, "it is not over after {most:?}\n{}", self.server.log());
            seen.most_bytes = seen.most_bytes.max(self.taken_bytes()?);
            seen.calls.push(self.call().await?);
            tokio::time::sleep(PAUSE).await;
        }
        Ok(seen)
    }

    /// Waits until all but so much memory is back; what stays.
    ///
    /// # Errors
    /// More stays for so long.
    pub async fn given_back(&self, most_bytes: u64, wait: Duration) -> Result<u64> {
        let began = Instant::now();
        loop {
            let kept = self.taken_bytes()?;
            if kept <= most_bytes {
                return Ok(kept);
            }
            ensure!(began.elapsed() < wait, "{} MiB stay", kept / MIB);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Seen {
    /// All but one in a hundred of the user's calls took less.
    #[must_use]
    pub fn p99(&mut self) -> Duration {
        self.calls.sort();
        let at = (self.calls.len() * 99 / 100).min(self.calls.len().saturating_sub(1));
        self.calls.get(at).copied().unwrap_or_default()
    }
}
