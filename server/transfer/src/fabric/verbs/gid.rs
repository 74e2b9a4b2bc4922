//! Which of a port's addresses a queue pair uses. Owns: the choice. Must not know: devices.
//!
//! RoCE has two versions: the first does not pass routers, the second is IP. A port has one entry of either
//! version for each of its IP addresses. Both ends of a queue pair use entries of one version; we use the
//! second alone.

use std::net::{IpAddr, Ipv6Addr};

/// An entry of a port's address table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GidEntry {
    pub(super) index: u8,
    pub(super) gid: [u8; 16],
    /// None: the system does not say.
    pub(super) version: Option<u8>,
}

/// The entry to use on Ethernet: one of the host's own address `source` if there is one, else of any IPv4
/// address, else of a global IPv6 one, else of a local one. None if none can be used.
pub(super) fn choose(entries: &[GidEntry], source: Option<IpAddr>) -> Option<GidEntry> {
    entries
        .iter()
        .copied()
        .filter_map(|entry| Some((rank(&entry, source)?, entry)))
        .min_by_key(best)
        .map(second)
}

fn best((rank, entry): &(u8, GidEntry)) -> (u8, u8) {
    (*rank, entry.index)
}

fn second((_, entry): (u8, GidEntry)) -> GidEntry {
    entry
}

/// The lower the better; none: it cannot be used.
fn rank(entry: &GidEntry, source: Option<IpAddr>) -> Option<u8> {
    let address = Ipv6Addr::from(entry.gid);
    if address.is_unspecified() || entry.version == Some(1) {
        return None;
    }
    let wanted = source.map(|source| match source {
        IpAddr::V4(source) => source.to_ipv6_mapped(),
        IpAddr::V6(source) => source,
    });
    let kind = if wanted == Some(address) {
        0
    } else if address.to_ipv4_mapped().is_some() {
        1
    } else if !address.is_unicast_link_local() {
        2
    } else {
        3
    };
    // Where the system does not say, it may be the wrong version: only if nothing else is there.
    Some(if entry.version.is_some() { kind } else { kind + 4 })
}

/// What the system calls the version of an entry, as a number.
pub(super) fn version(text: &str) -> Option<u8> {
    match text.trim() {
        "RoCE v2" => Some(2),
        "IB/RoCE v1" => Some(1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::{GidEntry, choose, version};

    fn mapped(index: u8, last: u8, version: u8) -> GidEntry {
        let gid = Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped().octets();
        GidEntry { index, gid, version: Some(version) }
    }

    fn six(index: u8, first: u8, version: Option<u8>) -> GidEntry {
        let mut gid = [0; 16];
        (gid[0], gid[1], gid[15]) = (first, 0x80, 1);
        GidEntry { index, gid, version }
    }

    #[test]
    fn the_host_s_own_address_comes_first_and_the_first_version_never() {
        let table =
            [six(0, 0xfe, Some(1)), six(1, 0xfe, Some(2)), mapped(2, 1, 1), mapped(3, 1, 2), mapped(5, 2, 2)];
        let source = |last| Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
        assert_eq!(choose(&table, source(2)).map(|entry| entry.index), Some(5));
        assert_eq!(choose(&table, source(1)).map(|entry| entry.index), Some(3));
        assert_eq!(choose(&table, source(9)).map(|entry| entry.index), Some(3), "another NIC of the host");
        assert_eq!(choose(&table, None).map(|entry| entry.index), Some(3));
        assert_eq!(choose(&table[..1], None), None);
    }

    #[test]
    fn global_before_local_and_unknown_last() {
        let table = [six(0, 0xfe, None), six(1, 0x20, None), six(4, 0xfe, Some(2)), six(6, 0x20, Some(2))];
        assert_eq!(choose(&table, None).map(|entry| entry.index), Some(6));
        assert_eq!(choose(&table[..3], None).map(|entry| entry.index), Some(4));
        assert_eq!(choose(&table[..2], None).map(|entry| entry.index), Some(1));
        assert_eq!(choose(&[GidEntry { index: 0, gid: [0; 16], version: Some(2) }], None), None);
    }

    #[test]
    fn versions_have_the_system_s_names() {
        assert_eq!([version("RoCE v2\n"), version("IB/RoCE v1\n"), version("")], [Some(2), Some(1), None]);
    }
}
