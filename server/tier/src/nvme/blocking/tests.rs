//! Resuming short transfers.

use super::*;
use crate::limits::REREADS_MAX;

#[test]
fn a_short_transfer_goes_on_from_a_whole_block() {
    let mut starts = Vec::new();
    let mut answers = vec![Ok(5000), Err(Errno::INTR), Ok(100), Ok(8192)].into_iter();
    resume(true, 12_288, |done| {
        starts.push(done);
        answers.next().unwrap()
    })
    .unwrap();
    assert_eq!(starts, [0, 4096, 4096, 4096]);
}

#[test]
fn no_progress_ends() {
    assert!(matches!(resume(true, 4096, |_| Ok(1)), Err(Failure::Unreadable(_))));
    assert!(matches!(resume(false, 4096, |_| Ok(1)), Err(Failure::Io(_))));
}

#[test]
fn only_a_failed_write_says_that_the_device_is_lost() {
    let error = |is_read| resume(is_read, 4096, |_| Err(Errno::IO));
    assert!(matches!(error(true), Err(Failure::Unreadable(why)) if why.starts_with("read")));
    assert!(matches!(error(false), Err(Failure::Io(why)) if why.starts_with("write")));
    assert!(matches!(resume(true, 4096, |_| Ok(0)), Err(Failure::Unreadable(why)) if why.contains("ends")));
}

#[test]
fn a_read_that_the_device_failed_is_made_again_so_often() {
    let tries = |is_read, failures: u32| {
        let mut tries = 0;
        let done = resume(is_read, 4096, |_| {
            tries += 1;
            if tries <= failures { Err(Errno::IO) } else { Ok(4096) }
        });
        (tries, done.is_ok())
    };
    assert_eq!(tries(true, REREADS_MAX), (REREADS_MAX + 1, true));
    assert_eq!(tries(true, u32::MAX), (REREADS_MAX + 1, false));
    assert_eq!(tries(false, 1), (1, false), "what a write left behind is not known");
}

#[test]
fn what_the_system_is_short_of_is_not_the_devices_fault() {
    for errno in [Errno::AGAIN, Errno::BUSY, Errno::NOMEM, Errno::NOBUFS, Errno::MFILE, Errno::NFILE] {
        let mut tries = 0;
        let failure = resume(false, 4096, |_| {
            tries += 1;
            Err(errno)
        });
        assert!(matches!(failure, Err(Failure::Short(why)) if why.starts_with("write")));
        assert_eq!(tries, RETRIES_MAX + 1, "it is tried again, so many times");
    }
    for errno in [Errno::NOSPC, Errno::DQUOT, Errno::FBIG] {
        assert!(matches!(resume(false, 4096, |_| Err(errno)), Err(Failure::Full)));
    }
}
