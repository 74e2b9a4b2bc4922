//! The secrets by which a connection becomes a framed rail. Owns: that each is good once, and for a short while, and that a client
//! which asks for many takes none from others. Must not know: connections, rails.

use super::lent::Domain;
use crate::limits::{FIRST_REQUEST_MS_MAX, REMOTE_SECRETS_MAX, RETRY_AFTER_MS};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use turnkv_pool::ClientId;
use turnkv_proto::limits::RAILS_MAX;
use turnkv_proto::{Error, ErrorKind};
use turnkv_transfer::fabric::framed::RailSecret;

/// Those of rails that may be joined, the oldest first.
#[derive(Default)]
pub(super) struct Secrets(VecDeque<OpenSecret>);

struct OpenSecret {
    secret: RailSecret,
    client: ClientId,
    domain: Domain,
    until: Instant,
}

impl Secrets {
    /// One more, for a rail of this client and domain. Of a client that joins none of its secrets the oldest is good no more.
    ///
    /// # Errors
    /// As many rails as may be are being opened, or the system has no random bytes.
    pub(super) fn draw(
        &mut self,
        client: ClientId,
        domain: Domain,
        now: Instant,
    ) -> Result<RailSecret, Error> {
        self.forget(now);
        let of_client = |open: &OpenSecret| open.client == client;
        let many = self.0.iter().filter(|open| of_client(open)).count() >= RAILS_MAX;
        if let Some(oldest) = self.0.iter().position(of_client).filter(|_| many) {
            self.0.remove(oldest);
        }
        if self.0.len() >= REMOTE_SECRETS_MAX {
            return Err(Error::busy(RETRY_AFTER_MS, "too many rails are being opened: try again"));
        }
        let secret = RailSecret::draw();
        let secret =
            secret.map_err(|error| Error::new(ErrorKind::Internal, format!("random bytes: {error}")))?;
        let until = now + Duration::from_millis(FIRST_REQUEST_MS_MAX);
        self.0.push_back(OpenSecret { secret, client, domain, until });
        Ok(secret)
    }

    /// Whose rail, and of which domain, a connection becomes that knows this secret. Good once.
    pub(super) fn take(&mut self, secret: RailSecret, now: Instant) -> Option<(ClientId, Domain)> {
        self.forget(now);
        let at = self.0.iter().position(|open| open.secret == secret)?;
        let OpenSecret { client, domain, .. } = self.0.remove(at)?;
        Some((client, domain))
    }

    fn forget(&mut self, now: Instant) {
        while self.0.front().is_some_and(|open| open.until < now) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{REMOTE_SECRETS_MAX, Secrets};
    use crate::engine::remotes::lent::Domain;
    use crate::limits::FIRST_REQUEST_MS_MAX;
    use std::time::{Duration, Instant};
    use turnkv_pool::ClientId;
    use turnkv_proto::limits::RAILS_MAX;

    #[test]
    fn a_client_that_asks_again_and_again_takes_no_secret_from_others() {
        let (mut secrets, now) = (Secrets::default(), Instant::now());
        let mut draw = |client: u64| secrets.draw(ClientId(client), Domain(client as u32), now);
        let other = draw(1).unwrap();
        let drawn: Vec<_> = (0..=REMOTE_SECRETS_MAX).map(|_| draw(2).unwrap()).collect();
        let latest = drawn.len() - RAILS_MAX;
        assert_eq!(secrets.take(drawn[latest - 1], now), None, "as many as it may have rails");
        for secret in &drawn[latest..] {
            assert_eq!(secrets.take(*secret, now), Some((ClientId(2), Domain(2))));
        }
        assert_eq!(secrets.take(other, now), Some((ClientId(1), Domain(1))));
        assert_eq!(secrets.take(other, now), None, "good once");
    }

    #[test]
    fn all_together_have_a_bound_and_time_makes_room() {
        let (mut secrets, now) = (Secrets::default(), Instant::now());
        let mut drawn = (0..REMOTE_SECRETS_MAX as u64).map(|at| secrets.draw(ClientId(at), Domain(0), now));
        let first = drawn.next().unwrap().unwrap();
        assert!(drawn.all(|drawn| drawn.is_ok()));
        assert!(secrets.draw(ClientId(u64::MAX), Domain(0), now).is_err());
        let later = now + Duration::from_millis(FIRST_REQUEST_MS_MAX + 1);
        assert_eq!(secrets.take(first, later), None);
        assert!(secrets.draw(ClientId(u64::MAX), Domain(0), later).is_ok());
    }
}
