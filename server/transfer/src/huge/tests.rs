//! The check that a mapping shows its own file.

use super::*;
use rustix::fs::MemfdFlags;

fn mapped(bytes: usize) -> (OwnedFd, NonNull<u8>) {
    let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
    let base = map_shared(&fd, bytes).unwrap();
    (fd, base)
}

#[test]
fn a_mapping_of_other_memory_is_noticed() {
    let bytes = 2 * HUGE_PAGE_BYTES;
    let ((own, base), (other, _)) = (mapped(bytes), mapped(bytes));
    // SAFETY: both mappings were made here, nobody else knows of them, and they stay.
    unsafe {
        assert_eq!(check_coherent(&own, base, bytes), Ok(()));
        assert!(check_coherent(&other, base, bytes).is_err());
        assert_eq!(std::slice::from_raw_parts(base.as_ptr(), bytes).iter().position(|byte| *byte != 0), None);
    }
}
