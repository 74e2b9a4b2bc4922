//! The kernels of `kernels.cu` without a GPU: compiled as C++ for this machine, run over random pieces, and compared with
//! `memcpy`, `checksum` and `sha2`. And what must hold of the PTX that is checked in. Skipped, loudly, where there is no C++
//! compiler; what a GPU makes of the PTX only a GPU shows (`make bench-gpu` compares there).
#![allow(clippy::expect_used, clippy::print_stderr, reason = "a test says what it expected by failing")]

use std::ffi::{CString, c_void};
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock};

use sha2::{Digest, Sha256};
use turnkv_transfer::checksum;
use turnkv_transfer::device::{PagePieces, Piece};

type RunCopy = unsafe extern "C" fn(*const Piece, u32, u32, u64);
type RunChecksum =
    unsafe extern "C" fn(*const Piece, u32, *const PagePieces, u32, *mut u64, *mut u64, u32, u32, u64);
type RunSha256 = unsafe extern "C" fn(*const Piece, u32, *mut u8, u32, u64);

/// The kernels as functions of this process.
#[derive(Clone, Copy)]
struct Kernels {
    copy: RunCopy,
    checksum: RunChecksum,
    sha256: RunSha256,
}

/// The kernels, and the right to run them: their threads and shared memory exist once. None without a compiler.
fn kernels() -> Option<(MutexGuard<'static, ()>, Kernels)> {
    static KERNELS: OnceLock<Option<Kernels>> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let kernels = (*KERNELS.get_or_init(load))?;
    Some((TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner), kernels))
}

fn load() -> Option<Kernels> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let folder = tempfile::tempdir().expect("a directory can be made");
    let target = folder.path().join("kernels.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/host.cpp");
    let built = Command::new(&compiler)
        .args(["-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wno-unknown-pragmas", "-U_FORTIFY_SOURCE"])
        .arg(&source)
        .arg("-o")
        .arg(&target)
        .output();
    let Ok(built) = built else {
        eprintln!("SKIPPED: no C++ compiler ({compiler}): the kernels' arithmetic is NOT tested here");
        return None;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let path = CString::new(target.to_str().expect("a path of ASCII")).expect("no zero byte");
    // SAFETY: loads what was compiled just now; it has no constructors beyond C++'s own.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "what was compiled can be loaded");
    let find = |name: &std::ffi::CStr| {
        // SAFETY: the library is loaded for good.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?} is in it");
        found
    };
    // SAFETY: host.cpp declares these functions with these arguments.
    Some(unsafe {
        Kernels {
            copy: std::mem::transmute::<*mut c_void, RunCopy>(find(c"run_copy")),
            checksum: std::mem::transmute::<*mut c_void, RunChecksum>(find(c"run_checksum")),
            sha256: std::mem::transmute::<*mut c_void, RunSha256>(find(c"run_sha256")),
        }
    })
}

/// xorshift: cases that are the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    /// A length that a kernel may trip over.
    fn length(&mut self) -> usize {
        match self.below(8) {
            0 => 1 + self.below(16),
            1 => 16 * (1 + self.below(8)),
            2 => 4096,
            3 => 4095 + self.below(3),
            4 => 8192 + self.below(64),
            5 => 32 << 10,
            _ => 1 + self.below(3000),
        }
    }
}

/// Memory between two pages that must not be touched: a kernel that reads or writes a byte too many ends the test.
struct Guarded {
    base: *mut u8,
    bytes: usize,
}

const PAGE: usize = 4096;

impl Guarded {
    fn new(bytes: usize) -> Guarded {
        let bytes = bytes.next_multiple_of(PAGE);
        // SAFETY: a mapping of its own, readable between its first and last page.
        let base = unsafe {
            let all = libc::mmap(
                std::ptr::null_mut(),
                bytes + 2 * PAGE,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(all, libc::MAP_FAILED);
            let base = all.cast::<u8>().add(PAGE);
            assert_eq!(libc::mprotect(base.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE), 0);
            base
        };
        Guarded { base, bytes }
    }

    fn slice(&mut self) -> &mut [u8] {
        // SAFETY: mapped for as long as this lives; borrowed as long as the answer.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.bytes) }
    }

    fn address(&self, offset: usize) -> u64 {
        assert!(offset < self.bytes);
        self.base.expose_provenance() as u64 + offset as u64
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, with a page on either side.
        unsafe { libc::munmap(self.base.sub(PAGE).cast(), self.bytes + 2 * PAGE) };
    }
}

/// Ranges one behind the other with gaps between them, and the bytes they take in all. The first begins at 0 and the last ends
/// with a memory page, so that guards are next to both; the ranges in between begin anywhere.
fn spread(random: &mut Random, lengths: &[usize], aligned: bool) -> (Vec<Range<usize>>, usize) {
    let mut next = 0;
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for &length in lengths {
        ranges.push(next..next + length);
        next += length + random.below(40);
        if aligned {
            next = next.next_multiple_of(16);
        }
    }
    let last = ranges.len() - 1;
    let end = ranges[last].end.next_multiple_of(PAGE);
    if !aligned || lengths[last].is_multiple_of(16) {
        ranges[last] = end - lengths[last]..end;
    }
    (ranges, end)
}

#[test]
fn copies_move_every_piece_and_nothing_else() {
    let Some((_turn, kernels)) = kernels() else { return };
    for seed in 1..=60 {
        let random = &mut Random(seed * 7919);
        // Above 512 pieces a block reads the table in parts.
        let count = if seed % 12 == 0 { 500 + random.below(600) } else { 1 + random.below(40) };
        let lengths: Vec<usize> =
            (0..count).map(|_| if count > 100 { 1 + random.below(300) } else { random.length() }).collect();
        let aligned = seed % 3 == 0;
        let (from, from_bytes) = spread(random, &lengths, aligned);
        let (to, to_bytes) = spread(random, &lengths, aligned);
        let (mut source, mut target) = (Guarded::new(from_bytes), Guarded::new(to_bytes));
        source.slice().copy_from_slice(&random.bytes(from_bytes.next_multiple_of(PAGE)));
        let mut expected = random.bytes(to_bytes.next_multiple_of(PAGE));
        target.slice().copy_from_slice(&expected);
        let mut pieces = Vec::new();
        for (from, to) in from.iter().zip(&to) {
            expected[to.clone()].copy_from_slice(&source.slice()[from.clone()]);
            pieces.push(Piece {
                target: target.address(to.start),
                source: source.address(from.start),
                bytes: from.len() as u64,
            });
        }
        let blocks = 1 + random.below(9) as u32;
        // SAFETY: the pieces lie in the two mappings, and the table is that long.
        unsafe { (kernels.copy)(pieces.as_ptr(), count as u32, blocks, seed) };
        let wrong = expected.iter().zip(target.slice()).position(|(wanted, found)| wanted != found);
        assert_eq!(wrong, None, "seed {seed}: {count} pieces, {blocks} blocks");
    }
}

/// Pages of random pieces; of every fifth piece zeros are meant.
struct Pages {
    source: Guarded,
    pieces: Vec<Piece>,
    pages: Vec<PagePieces>,
    expected: Vec<u64>,
}

fn pages(random: &mut Random, page_count: usize, pieces_max: usize, alike: Option<usize>) -> Pages {
    let counts: Vec<usize> = (0..page_count).map(|_| 1 + random.below(pieces_max)).collect();
    let all = counts.iter().sum();
    let lengths: Vec<usize> = (0..all).map(|_| alike.unwrap_or_else(|| random.length())).collect();
    let (ranges, bytes) = spread(random, &lengths, random.0.is_multiple_of(2));
    let mut source = Guarded::new(bytes);
    source.slice().copy_from_slice(&random.bytes(bytes.next_multiple_of(PAGE)));
    let (mut pieces, mut pages, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for count in counts {
        pages.push(PagePieces { first: pieces.len() as u32, count: count as u32 });
        let mut content = Vec::new();
        for range in &ranges[pieces.len()..pieces.len() + count] {
            let zeros = random.below(5) == 0;
            let address = if zeros { 0 } else { source.address(range.start) };
            pieces.push(Piece { target: 0, source: address, bytes: range.len() as u64 });
            let bytes = source.slice()[range.clone()].iter();
            content.extend(bytes.map(|byte| if zeros { 0 } else { *byte }));
        }
        expected.push(checksum(&content));
    }
    Pages { source, pieces, pages, expected }
}

fn checksums(kernels: Kernels, pages: &Pages, by_warp: bool, blocks: u32, seed: u64) -> Vec<u64> {
    let mut scratch = vec![0x5a5a; pages.pieces.len()];
    let mut output = vec![0xa5a5; pages.pages.len()];
    assert!(pages.source.bytes > 0, "the pieces' memory is alive");
    // SAFETY: the pieces lie in a mapping that lives, tables and outputs are that long.
    unsafe {
        (kernels.checksum)(
            pages.pieces.as_ptr(),
            pages.pieces.len() as u32,
            pages.pages.as_ptr(),
            pages.pages.len() as u32,
            scratch.as_mut_ptr(),
            output.as_mut_ptr(),
            u32::from(by_warp),
            blocks,
            seed,
        );
    }
    output
}

#[test]
fn checksums_are_those_of_the_cpu() {
    let Some((_turn, kernels)) = kernels() else { return };
    for seed in 1..=40 {
        let random = &mut Random(seed * 104_729);
        let alike = (seed % 4 == 0).then_some(8192);
        // Above 32 pieces a lane takes several.
        let pieces_max = if seed % 5 == 0 { 90 } else { 6 };
        let page_count = 1 + random.below(5);
        let made = pages(random, page_count, pieces_max, alike);
        let blocks = 1 + random.below(4) as u32;
        for by_warp in [true, false] {
            let found = checksums(kernels, &made, by_warp, blocks, seed);
            assert_eq!(found, made.expected, "seed {seed}, by warp: {by_warp}, {blocks} blocks");
        }
    }
}

#[test]
fn a_flipped_bit_changes_the_checksum_wherever_it_is() {
    let Some((_turn, kernels)) = kernels() else { return };
    let random = &mut Random(77);
    let mut made = pages(random, 1, 3, Some(5000));
    made.pieces.iter_mut().zip(0..).for_each(|(piece, at)| piece.source = made.source.address(at * 5000));
    let whole = checksums(kernels, &made, true, 1, 1)[0];
    let bytes = made.pieces.len() * 5000;
    for _ in 0..20 {
        let (at, bit) = (random.below(bytes), random.below(8));
        made.source.slice()[at] ^= 1 << bit;
        assert_ne!(checksums(kernels, &made, true, 1, 2)[0], whole, "byte {at}, bit {bit}");
        made.source.slice()[at] ^= 1 << bit;
    }
    assert_eq!(checksums(kernels, &made, true, 1, 3)[0], whole);
}

#[test]
fn gaps_of_any_length_count_as_zeros() {
    let Some((_turn, kernels)) = kernels() else { return };
    // A gap that no CPU would sum in a test's time is checked against twice its half.
    for bytes in [1_u64, 15, 4096, 1 << 20, (1 << 20) + 12_345] {
        let zeros = Piece { target: 0, source: 0, bytes };
        let made = Pages {
            source: Guarded::new(1),
            pieces: vec![zeros],
            pages: vec![PagePieces { first: 0, count: 1 }],
            expected: vec![checksum(&vec![0; bytes as usize])],
        };
        assert_eq!(checksums(kernels, &made, true, 1, 5), made.expected, "{bytes} zeros");
    }
    let halves = |pieces: Vec<Piece>| {
        let pages = vec![PagePieces { first: 0, count: pieces.len() as u32 }];
        checksums(kernels, &Pages { source: Guarded::new(1), pieces, pages, expected: vec![] }, false, 1, 6)
    };
    for bytes in [1_u64 << 40, (1 << 44) + 999] {
        let one = Piece { target: 0, source: 0, bytes: 2 * bytes };
        let two = [Piece { target: 0, source: 0, bytes }; 2];
        assert_eq!(halves(vec![one]), halves(two.to_vec()), "{bytes} zeros");
    }
}

#[test]
fn digests_are_those_of_the_cpu() {
    let Some((_turn, kernels)) = kernels() else { return };
    for seed in 1..=30 {
        let random = &mut Random(seed * 15_485_863);
        // Lengths around the ends of blocks, of the hash and of what a warp loads; more than a warp of pieces.
        let lengths: Vec<usize> = match seed {
            1 => (1..=200).collect(),
            2 => vec![55, 56, 63, 64, 65, 119, 120, 127, 128, 129, 183, 184, 247, 248, 255, 256, 257],
            _ => (0..1 + random.below(70)).map(|_| random.length()).collect(),
        };
        let (ranges, bytes) = spread(random, &lengths, seed % 2 == 0);
        let mut source = Guarded::new(bytes);
        source.slice().copy_from_slice(&random.bytes(bytes.next_multiple_of(PAGE)));
        let pieces: Vec<Piece> = ranges
            .iter()
            .map(|range| Piece { target: 0, source: source.address(range.start), bytes: range.len() as u64 })
            .collect();
        let mut output = vec![0_u8; 32 * pieces.len()];
        let blocks = 1 + random.below(3) as u32;
        // SAFETY: the pieces lie in the mapping, the table and the output are that long.
        unsafe {
            (kernels.sha256)(pieces.as_ptr(), pieces.len() as u32, output.as_mut_ptr(), blocks, seed);
        }
        for (range, found) in ranges.iter().zip(output.chunks(32)) {
            let wanted = Sha256::digest(&source.slice()[range.clone()]);
            assert_eq!(found, &wanted[..], "seed {seed}: {} bytes", range.len());
        }
    }
}

fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/device").join(name);
    std::fs::read_to_string(path).expect("the file is checked in")
}

#[test]
fn the_ptx_is_made_of_this_source() {
    let hash: String = Sha256::digest(text("kernels.cu")).iter().map(|byte| format!("{byte:02x}")).collect();
    let first = text("kernels.ptx").lines().next().unwrap_or_default().to_owned();
    assert!(first.ends_with(&hash), "kernels.cu was changed since: run `make ptx`");
}

#[test]
fn the_ptx_holds_the_kernels_that_the_driver_launches() {
    let ptx = text("kernels.ptx");
    let kernels = [
        ("turnkv_copy", "u64 u32", 512),
        ("turnkv_checksum_by_warp", "u64 u32 u64", 256),
        ("turnkv_checksum_by_block", "u64 u32 u64", 256),
        ("turnkv_checksum_pages", "u64 u64 u32 u64 u64", 32),
        ("turnkv_sha256", "u64 u32 u64", 32),
    ];
    assert_eq!(ptx.matches(".visible .entry ").count(), kernels.len());
    for (name, arguments, threads) in kernels {
        let (_, rest) = ptx.split_once(&format!(".visible .entry {name}(")).expect(name);
        let (head, _) = rest.split_once('{').expect("a kernel has a body");
        let types: Vec<&str> = head.split(".param .").skip(1).filter_map(|rest| rest.get(..3)).collect();
        assert_eq!(types.join(" "), arguments, "{name}");
        assert!(head.contains(&format!(".maxntid {threads}, 1, 1")), "{name}: {head}");
    }
    assert!(ptx.contains("\n.version 8.2\n"), "drivers from CUDA 12.2 on take it");
    assert!(ptx.contains("\n.target sm_75\n"));
    // Arrays that are indexed by what is known when it is compiled stay in registers.
    assert!(!ptx.contains(".local"), "a register array went to memory");
    assert!(ptx.contains("ld.global.cs.v4.u32") && ptx.contains("st.global.cs.v4.u32"), "16 bytes at a time");
}
