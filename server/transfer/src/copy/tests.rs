//! Every kernel copies exactly, whatever the alignment and length, and the checksum is that of one pass.

use super::*;
use crate::checksum::checksum;

const SIZES: [usize; 12] =
    [0, 1, 63, 64, 65, 255, 4095, 4097, STREAMING_BYTES_MIN - 1, STREAMING_BYTES_MIN, 70_001, 300_000];

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Every kernel that runs on this processor.
fn kernels() -> Vec<Kernel> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let mut kernels = vec![Kernel::Sse2];
        if std::arch::is_x86_feature_detected!("avx2") {
            kernels.push(Kernel::Avx2);
        }
        if std::arch::is_x86_feature_detected!("avx512f") {
            kernels.push(Kernel::Avx512);
        }
        kernels
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    vec![Kernel::Plain]
}

#[test]
fn every_kernel_copies_exactly_its_bytes_at_any_alignment() {
    for kernel in kernels() {
        for bytes in [0, 1, 63, 64, 65, 127, 128, 1000, 4096, 5000] {
            for (source_skew, target_skew) in [(0, 0), (1, 0), (0, 1), (17, 63), (63, 2)] {
                let source = pattern(bytes + source_skew);
                let mut target = vec![0xEE; bytes + target_skew + 64];
                let stream = Stream { kernel };
                // SAFETY: both vectors are longer than the skew and the bytes; they are different allocations.
                unsafe {
                    let target = target.as_mut_ptr().add(target_skew);
                    stream.copy(source.as_ptr().add(source_skew), target, bytes);
                }
                stream.finish();
                assert_eq!(
                    target[target_skew..target_skew + bytes],
                    source[source_skew..],
                    "{kernel:?} {bytes}"
                );
                assert!(target[..target_skew].iter().all(|&byte| byte == 0xEE), "nothing before the target");
                assert!(target[target_skew + bytes..].iter().all(|&byte| byte == 0xEE), "nothing behind it");
            }
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
