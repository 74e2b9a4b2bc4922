//! The address of an end of a rail, in bytes. Owns: their layout. Must not know: what a provider's own
//! address means.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `TKLF`, then the version of this layout: 1 |
//! | 1 | length of the provider's name |
//! | 4 | format of the address (`FI_SOCKADDR_IN` and so on), little endian |
//! | n | the provider's name |
//! | rest | the address, as `fi_getname` gave it |

use crate::fabric::contract::{OpenError, RailAddress};

const MAGIC: &[u8; 5] = b"TKLF\x01";
const HEAD_BYTES: usize = MAGIC.len() + 1 + 4;

/// One end of a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LibfabricAddress {
    pub(super) provider: String,
    pub(super) format: u32,
    pub(super) address: Vec<u8>,
}

impl LibfabricAddress {
    pub(super) fn encode(&self) -> Result<RailAddress, OpenError> {
        let too_long = || OpenError::Unavailable("the provider's address is too long".to_owned());
        let mut bytes = MAGIC.to_vec();
        bytes.push(u8::try_from(self.provider.len()).map_err(|_| too_long())?);
        bytes.extend_from_slice(&self.format.to_le_bytes());
        bytes.extend_from_slice(self.provider.as_bytes());
        bytes.extend_from_slice(&self.address);
        RailAddress::new(bytes).ok_or_else(too_long)
    }

    /// Decodes a peer's address. What the provider makes of its own bytes is the provider's business: they
    /// have the length of its own addresses, see `like`.
    pub(super) fn decode(address: &RailAddress) -> Result<Self, OpenError> {
        let bad = |why: &str| OpenError::BadAddress(why.to_owned());
        let bytes = address.as_bytes();
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| bad("it is not libfabric's"))?;
        if bytes.len() < HEAD_BYTES {
            return Err(bad("it is too short"));
        }
        let (head, rest) = rest.split_at(HEAD_BYTES - MAGIC.len());
        let format = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
        let (provider, address) =
            rest.split_at_checked(usize::from(head[0])).ok_or_else(|| bad("it is too short"))?;
        let provider = std::str::from_utf8(provider).map_err(|_| bad("its provider has no name"))?;
        Ok(Self { provider: provider.to_owned(), format, address: address.to_vec() })
    }

    /// That a peer's address is one that this end's provider can read.
    pub(super) fn like(&self, own: &Self) -> Result<(), OpenError> {
        if self.provider != own.provider {
            let message = format!("it is one of provider {:?}, ours is {:?}", self.provider, own.provider);
            return Err(OpenError::BadAddress(message));
        }
        if self.format != own.format || self.address.len() != own.address.len() {
            return Err(OpenError::BadAddress("the provider has addresses of another kind here".to_owned()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::LibfabricAddress;
    use crate::fabric::contract::{OpenError, RailAddress};

    fn address() -> LibfabricAddress {
        LibfabricAddress {
            provider: "tcp;ofi_rxm".to_owned(),
            format: 2,
            address: vec![2, 0, 1, 2, 127, 0, 0, 1],
        }
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let bytes = address().encode().expect("it is short");
        assert_eq!(LibfabricAddress::decode(&bytes), Ok(address()));
    }

    #[test]
    fn whatever_is_cut_or_foreign_is_refused_and_never_panics() {
        let good = address().encode().expect("it is short").as_bytes().to_vec();
        for length in 0..good.len() {
            let cut = RailAddress::new(good[..length].to_vec()).expect("it is short");
            match LibfabricAddress::decode(&cut) {
                Ok(cut) => assert!(matches!(cut.like(&address()), Err(OpenError::BadAddress(_)))),
                Err(why) => assert!(matches!(why, OpenError::BadAddress(_)), "{why}"),
            }
        }
        let foreign = RailAddress::new(b"TKVB\x01whatever".to_vec()).expect("it is short");
        assert!(LibfabricAddress::decode(&foreign).is_err());
    }

    #[test]
    fn only_a_peer_with_the_same_provider_can_be_reached() {
        let other = LibfabricAddress { provider: "efa".to_owned(), ..address() };
        assert!(matches!(other.like(&address()), Err(OpenError::BadAddress(_))));
        let other = LibfabricAddress { format: 3, ..address() };
        assert!(matches!(other.like(&address()), Err(OpenError::BadAddress(_))));
        assert_eq!(address().like(&address()), Ok(()));
    }
}
