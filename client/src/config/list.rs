//! The addresses that a client is given. Owns: what is one address, and what a list of members. Must not know: connections.

use super::{Address, ConfigError, in_range};
use crate::limits::MEMBERS_LISTED_MAX;

/// What an address begins with.
const SCHEMES: [&str; 4] = ["unix", "tls", "tcp", "http"];

impl Address {
    /// Those of a list, each once, in its order; or the one address that there is.
    pub(crate) fn parse_list(text: &str) -> Result<Vec<Address>, ConfigError> {
        // A path may have a comma in it, and no other address behind that.
        if text.starts_with("unix:") || !text.contains(',') {
            let is_scheme =
                |part: &str| part.split_once(':').is_some_and(|(scheme, _)| SCHEMES.contains(&scheme));
            if text.split(',').skip(1).any(|part| is_scheme(part.trim())) {
                return Err(ConfigError::MixedList(text.to_owned()));
            }
            return Ok(vec![Address::parse(text)?]);
        }
        let mut list: Vec<Address> = Vec::new();
        for part in text.split(',').map(str::trim) {
            if part.is_empty() {
                return Err(ConfigError::LooseComma(text.to_owned()));
            }
            let address = Address::parse(part)?;
            if !address.is_member_like(list.first().unwrap_or(&address)) {
                return Err(ConfigError::MixedList(text.to_owned()));
            }
            if !list.contains(&address) {
                list.push(address);
            }
        }
        in_range("addresses", list.len() as u64, 1, MEMBERS_LISTED_MAX as u64)?;
        Ok(list)
    }

    /// Whether both are where a member may be, and reached in the same way: nobody who asks for TLS is led away from it.
    pub(crate) fn is_member_like(&self, other: &Address) -> bool {
        matches!((self, other), (Address::Tcp(..), Address::Tcp(..)) | (Address::Tls(..), Address::Tls(..)))
    }
}

#[cfg(test)]
mod tests {
    use super::{Address, ConfigError};

    fn parsed(text: &str) -> Result<Vec<String>, ConfigError> {
        Ok(Address::parse_list(text)?.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_list_is_of_members_that_are_reached_in_the_same_way() {
        assert_eq!(parsed("tcp://a:1, tcp://b:2,tcp://a:1").unwrap(), ["tcp://a:1", "tcp://b:2"]);
        assert_eq!(parsed("tls://a:1,tls://[::1]:2").unwrap(), ["tls://a:1", "tls://[::1]:2"]);
        assert_eq!(parsed("unix:/run/a,b.sock").unwrap(), ["unix:/run/a,b.sock"]);
        assert_eq!(parsed("unix:/run/a, b:c.sock").unwrap(), ["unix:/run/a, b:c.sock"]);
        for mixed in [
            "tls://a:1,tcp://b:2",
            "tcp://a:1,http://b:2",
            "http://a:1,http://b:2",
            "unix:/run/a.sock,tls://b:2",
            "unix:/run/a.sock, unix:/run/b.sock",
        ] {
            assert!(matches!(parsed(mixed), Err(ConfigError::MixedList(_))), "{mixed}");
        }
        assert!(matches!(parsed("tcp://a:1,b:2"), Err(ConfigError::BadAddress(_))));
        for loose in ["tcp://a:1,", ",", "tcp://a:1, ,tcp://b:2", ",tls://a:1"] {
            assert!(matches!(parsed(loose), Err(ConfigError::LooseComma(_))), "{loose}");
        }
        let many: Vec<String> = (0..41).map(|port| format!("tcp://a:{}", port + 1)).collect();
        assert!(matches!(parsed(&many.join(",")), Err(ConfigError::OutOfRange { got: 41, max: 16, .. })));
        let twice = [&many[..16], &many[..16]].concat().join(",");
        assert_eq!(parsed(&twice).unwrap().len(), 16);
    }
}
