//! The secrets by which a connection becomes a framed rail. Owns: that each is good once, and for a short while, and that a client
//! which asks for many takes none from others, nor all clients of one peer. Must not know: connections, rails.

use super::inflight::peer_share;
use super::lent::Domain;
use crate::limits::{FIRST_REQUEST_MS_MAX, REMOTE_SECRETS_MAX, RETRY_AFTER_MS};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use turnkv_pool::{ClientId, UserId};
use turnkv_proto::limits::RAILS_MAX;
use turnkv_proto::{Error, ErrorKind};
use turnkv_transfer::fabric::framed::RailSecret;

/// Those of rails that may be joined, the oldest first.
#[derive(Default)]
pub(super) struct Secrets(VecDeque<OpenSecret>);

/// The rail that a secret is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Awaited {
    pub(super) client: ClientId,
    /// Who shares with the client's neighbours: its address.
    pub(super) peer: UserId,
    pub(super) domain: Domain,
    /// Names it to its client.
    pub(super) number: u64,
}

/// What one peer may have of [`REMOTE_SECRETS_MAX`].
const PEER_SECRETS_MAX: usize = peer_share(REMOTE_SECRETS_MAX as u64) as usize;

struct OpenSecret {
    secret: RailSecret,
    rail: Awaited,
    until: Instant,
}

impl Secrets {
    /// One more, for this rail. Of a client that joins none of its secrets the oldest is good no more.
    ///
    /// # Errors
    /// As many rails as may be are being opened, or the system has no random bytes.
    pub(super) fn draw(&mut self, rail: Awaited, now: Instant) -> Result<RailSecret, Error> {
        self.forget(now);
        let of_client = |open: &OpenSecret| open.rail.client == rail.client;
        let many = self.0.iter().filter(|open| of_client(open)).count() >= RAILS_MAX;
        if let Some(oldest) = self.0.iter().position(of_client).filter(|_| many) {
            self.0.remove(oldest);
        }
        if self.0.len() >= REMOTE_SECRETS_MAX {
            return Err(Error::busy(RETRY_AFTER_MS, "too many rails are being opened: try again"));
        }
        if self.0.iter().filter(|open| open.rail.peer == rail.peer).count() >= PEER_SECRETS_MAX {
            let text = "too many rails of this address are being opened: try again";
            return Err(Error::busy(RETRY_AFTER_MS, text));
        }
        let secret = RailSecret::draw();
        let secret =
            secret.map_err(|error| Error::new(ErrorKind::Internal, format!("random bytes: {error}")))?;
        let until = now + Duration::from_millis(FIRST_REQUEST_MS_MAX);
        self.0.push_back(OpenSecret { secret, rail, until });
        Ok(secret)
    }

    /// The rail that a connection becomes which knows this secret. Good once.
    pub(super) fn take(&mut self, secret: RailSecret, now: Instant) -> Option<Awaited> {
        self.forget(now);
        let at = self.0.iter().position(|open| open.secret == secret)?;
        Some(self.0.remove(at)?.rail)
    }

    fn forget(&mut self, now: Instant) {
        while self.0.front().is_some_and(|open| open.until < now) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Awaited, PEER_SECRETS_MAX, REMOTE_SECRETS_MAX, Secrets};
    use crate::engine::remotes::lent::Domain;
    use crate::limits::FIRST_REQUEST_MS_MAX;
    use std::time::{Duration, Instant};
    use turnkv_pool::{ClientId, UserId};
    use turnkv_proto::limits::RAILS_MAX;

    fn rail(client: u64) -> Awaited {
        rail_of(client, client)
    }

    fn rail_of(client: u64, peer: u64) -> Awaited {
        let (domain, number) = (Domain(client as u32), client + 1);
        Awaited { client: ClientId(client), peer: UserId(peer), domain, number }
    }

    #[test]
    fn a_client_that_asks_again_and_again_takes_no_secret_from_others() {
        let (mut secrets, now) = (Secrets::default(), Instant::now());
        let mut draw = |client: u64| secrets.draw(rail(client), now);
        let other = draw(1).unwrap();
        let drawn: Vec<_> = (0..=REMOTE_SECRETS_MAX).map(|_| draw(2).unwrap()).collect();
        let latest = drawn.len() - RAILS_MAX;
        assert_eq!(secrets.take(drawn[latest - 1], now), None, "as many as it may have rails");
        for secret in &drawn[latest..] {
            assert_eq!(secrets.take(*secret, now), Some(rail(2)));
        }
        assert_eq!(secrets.take(other, now), Some(rail(1)));
        assert_eq!(secrets.take(other, now), None, "good once");
    }

    #[test]
    fn the_clients_of_one_address_leave_some_to_those_of_others() {
        let (mut secrets, now) = (Secrets::default(), Instant::now());
        let mut drawn = (0..REMOTE_SECRETS_MAX as u64).map(|at| secrets.draw(rail_of(at, 7), now));
        assert!(drawn.by_ref().take(PEER_SECRETS_MAX).all(|drawn| drawn.is_ok()));
        assert!(drawn.all(|drawn| drawn.is_err_and(|error| error.to_string().contains("address"))));
        let other = secrets.draw(rail_of(1 << 40, 8), now).unwrap();
        assert_eq!(secrets.take(other, now), Some(rail_of(1 << 40, 8)));
    }

    #[test]
    fn all_together_have_a_bound_and_time_makes_room() {
        let (mut secrets, now) = (Secrets::default(), Instant::now());
        let mut drawn = (0..REMOTE_SECRETS_MAX as u64).map(|at| secrets.draw(rail(at), now));
        let first = drawn.next().unwrap().unwrap();
        assert!(drawn.all(|drawn| drawn.is_ok()));
        assert!(secrets.draw(rail(u64::MAX >> 1), now).is_err());
        let later = now + Duration::from_millis(FIRST_REQUEST_MS_MAX + 1);
        assert_eq!(secrets.take(first, later), None);
        assert!(secrets.draw(rail(u64::MAX >> 1), later).is_ok());
    }
}
