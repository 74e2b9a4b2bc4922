//! Every kernel copies exactly, whatever the alignment and length, and the checksum is that of one pass.

use super::*;
use crate::checksum::checksum;
use proptest::prelude::*;

const SIZES: [usize; 12] =
    [0, 1, 63, 64, 65, 255, 4095, 4097, STREAMING_BYTES_MIN - 1, STREAMING_BYTES_MIN, 70_001, 300_000];

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Copies with a kernel between skewed places; checks that nothing else was written.
fn copied(
    kernel: &'static CopyKernel,
    source: &[u8],
    target_skew: usize,
    sum: Option<&mut Checksum>,
) -> Vec<u8> {
    let bytes = source.len();
    let mut target = vec![0xEE; bytes + target_skew + 64];
    let stream = StreamingCopy { kernel };
    // SAFETY: the target is longer than the skew and the bytes; they are different allocations.
    unsafe {
        let target = target.as_mut_ptr().add(target_skew);
        match sum {
            Some(sum) => stream.copy_summed(source.as_ptr(), target, bytes, sum),
            None => stream.copy(source.as_ptr(), target, bytes),
        }
    }
    stream.finish();
    assert!(target[..target_skew].iter().all(|&byte| byte == 0xEE), "nothing before the target");
    assert!(target[target_skew + bytes..].iter().all(|&byte| byte == 0xEE), "nothing behind it");
    target[target_skew..target_skew + bytes].to_vec()
}

#[test]
fn every_kernel_copies_exactly_its_bytes_at_any_alignment() {
    for kernel in runnable() {
        for bytes in [0, 1, 63, 64, 65, 127, 128, 1000, 4096, 5000] {
            for (source_skew, target_skew) in [(0, 0), (1, 0), (0, 1), (17, 63), (63, 2)] {
                let source = &pattern(bytes + source_skew)[source_skew..];
                assert_eq!(copied(kernel, source, target_skew, None), source, "{} {bytes}", kernel.name);
            }
        }
    }
}

#[test]
fn every_length_has_the_checksum_of_its_bytes() {
    let source = pattern(3 * 1024 + 200);
    for kernel in runnable() {
        for bytes in 0..=source.len() {
            let mut sum = Checksum::new();
            let copy = copied(kernel, &source[..bytes], bytes % 64, Some(&mut sum));
            assert_eq!(sum.finish(), checksum(&source[..bytes]), "{} {bytes}", kernel.name);
            assert_eq!(copy, &source[..bytes], "{} {bytes}", kernel.name);
        }
    }
}

#[test]
fn bytes_that_are_not_copied_have_the_same_checksum() {
    let source = pattern(3 * 1024 + 200);
    for kernel in runnable() {
        for bytes in 0..=source.len() {
            let (skew, mut sum) = (bytes % 64 % (source.len() - bytes + 1), Checksum::new());
            let part = &source[skew..skew + bytes];
            let (first, rest) = part.split_at(bytes / 3);
            for part in [first, rest] {
                // SAFETY: a slice is readable.
                unsafe { StreamingCopy { kernel }.sum(part.as_ptr(), part.len(), &mut sum) };
            }
            assert_eq!(sum.finish(), checksum(part), "{} {bytes}", kernel.name);
        }
    }
}

proptest! {
    #[test]
    fn parts_of_any_bytes_make_the_checksum_of_all_of_them(
        source in proptest::collection::vec(any::<u8>(), 0..40_000),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..4),
        skew in 0_usize..64,
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(source.len() + 1)).collect();
        cuts.extend([0, source.len()]);
        cuts.sort_unstable();
        for kernel in runnable() {
            let mut sum = Checksum::new();
            for part in cuts.windows(2) {
                let part = &source[part[0]..part[1]];
                prop_assert_eq!(&copied(kernel, part, skew, Some(&mut sum))[..], part, "{}", kernel.name);
            }
            prop_assert_eq!(sum.finish(), checksum(&source), "{}", kernel.name);
        }
    }
}

#[test]
fn the_fused_checksum_is_the_checksum_of_the_bytes() {
    for bytes in SIZES {
        let source = pattern(bytes);
        let mut target = vec![0; bytes];
        let mut sum = Checksum::new();
        copy_streaming(&source, &mut target, &mut sum);
        assert_eq!(sum.finish(), checksum(&source));
        assert_eq!(target, source);
    }
}

#[test]
fn the_checksum_is_crc_64_nvme() {
    assert_eq!(checksum(b"123456789"), 0xae8b_1486_0a79_9888);
    assert_eq!(Checksum::new().finish(), checksum(b""));
    let mut sum = Checksum::default();
    sum.update(b"1234");
    sum.update(b"");
    sum.update(b"56789");
    assert_eq!(sum.finish(), 0xae8b_1486_0a79_9888);
}
