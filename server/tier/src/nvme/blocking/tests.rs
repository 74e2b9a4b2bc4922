//! Resuming short transfers.

use super::*;

#[test]
fn a_short_transfer_goes_on_from_a_whole_block() {
    let mut starts = Vec::new();
    let mut answers = vec![Ok(5000), Err(Errno::INTR), Ok(100), Ok(8192)].into_iter();
    resume("read", 12_288, |done| {
        starts.push(done);
        answers.next().unwrap()
    })
    .unwrap();
    assert_eq!(starts, [0, 4096, 4096, 4096]);
}

#[test]
fn no_progress_ends() {
    assert!(matches!(resume("read", 4096, |_| Ok(1)), Err(Failure::Io(_))));
    assert!(matches!(resume("read", 4096, |_| Err(Errno::AGAIN)), Err(Failure::Io(_))));
    assert!(matches!(resume("read", 4096, |_| Ok(0)), Err(Failure::Io(why)) if why.contains("ends")));
    assert!(
        matches!(resume("write", 4096, |_| Err(Errno::IO)), Err(Failure::Io(why)) if why.starts_with("write"))
    );
}
