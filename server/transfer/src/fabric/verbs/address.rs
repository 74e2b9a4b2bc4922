//! The address of an end of a rail, in bytes. Owns: their layout, and whether two ends can reach one another.
//! Must not know: queue pairs.
//!
//! | bytes | what |
//! |---|---|
//! | 5 | `TKVB`, then the version of this layout: 1 |
//! | 1 | link: 1 InfiniBand, 2 Ethernet |
//! | 1 | MTU as verbs count it: 1 is 256 bytes, 5 is 4096 |
//! | 4 | number of the queue pair, little endian |
//! | 4 | its first packet's number, little endian |
//! | 2 | local id of the port, little endian; 0 on Ethernet |
//! | 16 | global id of the port |
//! | 1 | reads that it may have on the wire |
//! | 1 | reads that it answers at a time |

use crate::fabric::contract::{OpenError, RailAddress};

const MAGIC: &[u8; 5] = b"TKVB\x01";
const BYTES: usize = 35;
/// Numbers of queue pairs and packets have 24 bits.
const BITS_24: u32 = (1 << 24) - 1;

/// What the other end has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VerbsAddress {
    pub(super) link: u8,
    pub(super) mtu: u8,
    pub(super) queue_pair: u32,
    pub(super) packet: u32,
    pub(super) lid: u16,
    pub(super) gid: [u8; 16],
    pub(super) reads_out: u8,
    pub(super) reads_in: u8,
}

impl VerbsAddress {
    pub(super) fn encode(&self) -> Result<RailAddress, OpenError> {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[self.link, self.mtu]);
        bytes.extend_from_slice(&self.queue_pair.to_le_bytes());
        bytes.extend_from_slice(&self.packet.to_le_bytes());
        bytes.extend_from_slice(&self.lid.to_le_bytes());
        bytes.extend_from_slice(&self.gid);
        bytes.extend_from_slice(&[self.reads_out, self.reads_in]);
        RailAddress::new(bytes).ok_or_else(|| OpenError::Failed("an address has a bound".to_owned()))
    }

    /// Decodes and checks a peer's address.
    pub(super) fn decode(address: &RailAddress) -> Result<Self, OpenError> {
        let bad = |why: &str| OpenError::BadAddress(why.to_owned());
        let rest = address.as_bytes().strip_prefix(MAGIC).ok_or_else(|| bad("it is not one of verbs"))?;
        let mut rest = AddressReader(rest);
        let all = (|| {
            Some(Self {
                link: rest.one()?,
                mtu: rest.one()?,
                queue_pair: u32::from_le_bytes(rest.next()?),
                packet: u32::from_le_bytes(rest.next()?),
                lid: u16::from_le_bytes(rest.next()?),
                gid: rest.next()?,
                reads_out: rest.one()?,
                reads_in: rest.one()?,
            })
        })();
        let address = all.filter(|_| rest.0.is_empty()).ok_or_else(|| bad("its length is wrong"))?;
        let numbers = (1..=BITS_24).contains(&address.queue_pair) && address.packet <= BITS_24;
        let port = (1..=2).contains(&address.link) && (1..=5).contains(&address.mtu);
        let reachable = if address.link == 2 {
            address.gid != [0; 16]
        } else {
            address.lid != 0 || address.gid != [0; 16]
        };
        if numbers && port && reachable { Ok(address) } else { Err(bad("its numbers make no sense")) }
    }

    /// That the other end is on a network of the same kind.
    pub(super) fn like(&self, own: &Self) -> Result<(), OpenError> {
        if self.link == own.link {
            return Ok(());
        }
        let name = |link| if link == 2 { "Ethernet" } else { "InfiniBand" };
        let message = format!("it is on {}, we are on {}", name(self.link), name(own.link));
        Err(OpenError::BadAddress(message))
    }

    /// Whether packets must carry global ids: always on Ethernet; on InfiniBand across subnets.
    pub(super) fn is_global(&self, own: &Self) -> bool {
        self.link == 2 || self.lid == 0 || self.gid[..8] != own.gid[..8]
    }
}

struct AddressReader<'a>(&'a [u8]);

impl AddressReader<'_> {
    fn next<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn one(&mut self) -> Option<u8> {
        self.next::<1>().map(|[byte]| byte)
    }
}

#[cfg(test)]
mod tests {
    use super::{BYTES, VerbsAddress};
    use crate::fabric::contract::{OpenError, RailAddress};

    fn address() -> VerbsAddress {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[255, 255, 10, 0, 0, 1]);
        VerbsAddress {
            link: 2,
            mtu: 3,
            queue_pair: 17,
            packet: 0xab_cdef,
            lid: 0,
            gid,
            reads_out: 16,
            reads_in: 4,
        }
    }

    fn decode(bytes: Vec<u8>) -> Result<VerbsAddress, OpenError> {
        VerbsAddress::decode(&RailAddress::new(bytes).expect("it is short"))
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let bytes = address().encode().expect("it is short");
        assert_eq!(bytes.as_bytes().len(), BYTES);
        assert_eq!(VerbsAddress::decode(&bytes), Ok(address()));
    }

    #[test]
    fn what_is_cut_longer_or_senseless_is_refused() {
        let good = address().encode().expect("it is short").as_bytes().to_vec();
        for length in 0..good.len() {
            assert!(matches!(decode(good[..length].to_vec()), Err(OpenError::BadAddress(_))));
        }
        assert!(decode([good.clone(), vec![0]].concat()).is_err());
        let senseless = [
            VerbsAddress { link: 0, ..address() },
            VerbsAddress { link: 3, ..address() },
            VerbsAddress { mtu: 0, ..address() },
            VerbsAddress { mtu: 6, ..address() },
            VerbsAddress { queue_pair: 0, ..address() },
            VerbsAddress { queue_pair: 1 << 24, ..address() },
            VerbsAddress { packet: 1 << 24, ..address() },
            VerbsAddress { gid: [0; 16], ..address() },
            VerbsAddress { link: 1, gid: [0; 16], ..address() },
        ];
        for address in senseless {
            let bytes = address.encode().expect("it is short");
            assert!(matches!(VerbsAddress::decode(&bytes), Err(OpenError::BadAddress(_))), "{address:?}");
        }
    }

    #[test]
    fn global_ids_are_carried_where_they_must_be() {
        let near = VerbsAddress { link: 1, lid: 7, ..address() };
        assert!(!near.is_global(&near) && address().is_global(&address()));
        let mut far = near;
        far.gid[0] = 0xfe;
        assert!(far.is_global(&near));
        assert!(VerbsAddress { lid: 0, ..near }.is_global(&near));
        assert!(near.like(&address()).is_err() && near.like(&far).is_ok());
    }
}
