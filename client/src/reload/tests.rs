//! What windows, arrivals and errors of a reload add up to.

use super::*;
use proptest::prelude::*;

fn busy() -> Error {
    Error::new(ErrorKind::Busy { retry_after_ms: 1 }, "no slot")
}

#[test]
fn what_came_back_before_an_error_counts_and_the_error_is_the_reason_of_the_rest() {
    let table = [
        (Error::deadline(), MissCause::Deadline),
        (Error::new(ErrorKind::LeaseExpired, "over"), MissCause::LeaseExpired),
        (busy(), MissCause::Busy),
        (Error::unavailable("gone"), MissCause::Unavailable),
        (Error::protocol("nonsense"), MissCause::Unavailable),
        (Error::new(ErrorKind::Draining, "leaving"), MissCause::Unavailable),
    ];
    for (error, cause) in table {
        let some = ReloadReport { pages: 2, from_dram: 1, from_nvme: 1, ..ReloadReport::default() };
        let report = some.clone().conclude(5, Err(error.clone())).unwrap();
        assert_eq!(report, ReloadReport { miss: Some(cause), ..some }, "{error:?}");
        let none = ReloadReport::default().conclude(5, Err(error.clone()));
        assert_eq!(none, Err(error), "nothing came back: the call failed");
    }
    let missed = ReloadReport { miss: Some(MissCause::Io), ..ReloadReport::default() };
    assert_eq!(missed.clone().conclude(3, Ok(())).unwrap(), missed, "a miss is no error");
}

#[test]
fn a_window_without_its_first_pages_asks_for_the_rest_and_nothing_else_changes() {
    let moved = Shards::new(1, 3).unwrap();
    let hashes: Vec<BlockHash> = (0..4).map(|at| BlockHash::chain(None, &[at])).collect();
    let begin = wire::BeginReloadRequest {
        hashes: pack_hashes(&hashes).into(),
        shard: 1,
        shards: 3,
        wait_ms: 7,
        session: "session".to_owned(),
        here_only: true,
        ..Default::default()
    };
    let window = ReloadWindow { begin, pages: 4, moved, deadline: Deadline::after(Duration::from_secs(1)) };
    for first in 0..=4 {
        let rest = window.starting_at(first);
        assert_eq!((rest.pages, rest.positions()), (4 - first, 3 * (4 - first)));
        assert_eq!(turnkv_proto::unpack_hashes(&rest.begin.hashes).unwrap(), hashes[first..]);
        let expected = wire::BeginReloadRequest { hashes: rest.begin.hashes.clone(), ..window.begin.clone() };
        assert_eq!((&rest.begin, rest.deadline), (&expected, window.deadline));
    }
}

#[test]
fn every_cause_of_a_miss_is_read_and_one_that_nobody_knows_is_none() {
    let table = [
        (wire::MissCause::Unspecified, None),
        (wire::MissCause::Absent, Some(MissCause::Absent)),
        (wire::MissCause::Checksum, Some(MissCause::Checksum)),
        (wire::MissCause::Io, Some(MissCause::Io)),
        (wire::MissCause::Busy, Some(MissCause::Busy)),
        (wire::MissCause::Incomplete, Some(MissCause::Incomplete)),
    ];
    for (said, cause) in table {
        assert_eq!(MissCause::read(said as i32).unwrap(), cause);
    }
    for unknown in [-1, 6, i32::MAX, i32::MIN] {
        assert_eq!(MissCause::read(unknown).unwrap_err().kind, ErrorKind::Internal, "{unknown}");
        assert_eq!(tier(unknown), TierKind::Unspecified, "a tier that is not known is no error");
    }
}

proptest! {
    /// Shards arrive one after another, and the stream may end anywhere.
    #[test]
    fn pages_are_counted_when_all_their_shards_are_there_and_by_the_slowest_of_them(
        count in 1..5u32, found in prop::collection::vec(any::<bool>(), 0..40)
    ) {
        let moved = Shards::new(0, count).unwrap();
        let (mut arrivals, mut report) = (Arrivals::new(moved), ReloadReport::default());
        for nvme in &found {
            arrivals.count(if *nvme { TierKind::Nvme } else { TierKind::Dram }, &mut report);
        }
        let whole = found.chunks_exact(count as usize);
        let from_nvme = whole.clone().filter(|shards| shards.contains(&true)).count();
        let pages = whole.len();
        prop_assert_eq!((report.pages, report.from_nvme), (pages, from_nvme));
        prop_assert_eq!(report.from_dram, pages - from_nvme);
    }
}

#[test]
fn a_session_of_no_name_is_refused_before_anybody_is_asked() {
    let named = |session: &str| ReloadOptions { session: Some(session.to_owned()), ..Default::default() };
    assert!(named("").check().is_err());
    assert!(named("chat-1").check().is_ok() && ReloadOptions::default().check().is_ok());
}

#[test]
fn a_page_that_comes_with_its_answer_is_whole_or_an_error() {
    use crate::pages::Staging;
    use crate::reload::framed::take_carried;
    let page: Vec<u8> = (0..4096_u32).map(|at| at as u8).collect();
    let mut staging = Staging::default();
    for (bytes, fits) in [(4096, true), (4095, false), (1, false), (4097, false)] {
        let carried: Vec<u8> = page.iter().copied().cycle().take(bytes).collect();
        let mut target = vec![0xEE; 4096];
        let taken = {
            let mut target = PageTarget::Bytes(&mut target);
            take_carried(carried.into(), 4096, &mut target, &mut staging)
        };
        assert_eq!(taken.is_ok(), fits, "{bytes} bytes: {taken:?}");
        if fits {
            assert_eq!((taken.unwrap(), &target), (turnkv_transfer::checksum(&page), &page));
        }
    }
}
