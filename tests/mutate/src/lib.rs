//! Seeded damage, for the fuzzers of every parser. Owns: numbers that a seed replays, how many seeds a run tries, what can happen
//! to bytes. Must not know: what the bytes are.
//!
//! `TURNKV_FUZZ_RUNS` multiplies how many seeds each fuzzer tries; `TURNKV_FUZZ_SEED` has it try that one alone. A seed that
//! fails is printed.

#![forbid(unsafe_code)]

mod message;

pub use message::mutate_message;

/// Numbers that follow from a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

/// Numbers at which parsers go wrong.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    31,
    32,
    33,
    127,
    128,
    255,
    256,
    65_535,
    65_536,
    i32::MAX as u64,
    u32::MAX as u64,
    i64::MAX as u64,
    u64::MAX,
];

impl Random {
    /// The numbers of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below an end; 0 for an end of 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end.max(1) as u64) as usize
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of these; none of none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len()))
    }

    /// A number that is about as likely to be at an edge as anywhere.
    pub fn extreme(&mut self) -> u64 {
        let edge = EDGES[self.below(EDGES.len())];
        match self.below(4) {
            0 => edge.wrapping_add(1),
            1 => edge.wrapping_sub(1),
            2 => self.number() >> self.below(64),
            _ => edge,
        }
    }
}

/// Prints its seed if the test fails under it.
struct Told(u64);

impl Drop for Told {
    #[allow(clippy::print_stderr, reason = "whoever sees a fuzzer fail wants the seed")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed at seed {0}: TURNKV_FUZZ_SEED={0} replays it", self.0);
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs a test under so many seeds, or under more, or one, if the environment says so.
pub fn each_seed(runs: u64, mut test: impl FnMut(&mut Random)) {
    let seeds = match setting("TURNKV_FUZZ_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..runs * setting("TURNKV_FUZZ_RUNS").unwrap_or(1),
    };
    for seed in seeds {
        let told = Told(seed);
        test(&mut Random::new(seed));
        drop(told);
    }
}

/// Does some of what happens to bytes: bits flip, parts are lost, doubled, overwritten, moved.
#[must_use]
pub fn mutate_bytes(random: &mut Random, whole: &[u8]) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for _ in 0..1 + random.below(3) {
        mutate_once(random, &mut bytes);
    }
    bytes
}

fn mutate_once(random: &mut Random, bytes: &mut Vec<u8>) {
    let (from, to) = part(random, bytes.len());
    match random.below(9) {
        0 | 1 if !bytes.is_empty() => bytes[from.min(to.saturating_sub(1))] ^= 1 << random.below(8),
        2 => bytes[from..to].iter_mut().for_each(|byte| *byte = random.number() as u8),
        3 => bytes[from..to].fill(if random.one_in(2) { 0 } else { 0xff }),
        4 => bytes.truncate(from),
        5 => drop(bytes.drain(from..to)),
        6 => {
            let copy = bytes[from..to].to_vec();
            let at = random.below(bytes.len() + 1);
            bytes.splice(at..at, copy);
        }
        7 => {
            let number = random.extreme().to_le_bytes();
            let len = [1, 2, 4, 8][random.below(4)].min(bytes.len() - from);
            bytes[from..from + len].copy_from_slice(&number[..len]);
        }
        _ => {
            let at = random.below(bytes.len() + 1);
            let more: Vec<u8> = (0..random.below(40)).map(|_| random.number() as u8).collect();
            bytes.splice(at..at, more);
        }
    }
}

/// A part of so many bytes, short more often than long.
fn part(random: &mut Random, len: usize) -> (usize, usize) {
    let from = random.below(len + 1);
    let longest = (len - from).min(1 << random.below(16));
    (from, from + random.below(longest + 1))
}

/// Does the same to a text by its words: they are lost, doubled, replaced by others of these, or by numbers at the edge.
#[must_use]
pub fn mutate_text(random: &mut Random, whole: &str, others: &[&str]) -> String {
    let mut words: Vec<String> = Vec::new();
    for letter in whole.chars() {
        let kind = |letter: char| (letter.is_alphanumeric() || letter == '_', letter);
        match words.last_mut().filter(|word| word.chars().all(|last| kind(last).0) && kind(letter).0) {
            Some(word) => word.push(letter),
            None => words.push(letter.to_string()),
        }
    }
    for _ in 0..1 + random.below(4) {
        let at = random.below(words.len());
        if at >= words.len() {
            return random.pick(others).map_or(String::new(), |other| (*other).to_owned());
        }
        match random.below(6) {
            0 => drop(words.remove(at)),
            1 => words.insert(at, words[at].clone()),
            2 => words[at] = random.extreme().to_string(),
            3 => words[at] = random.pick(others).map_or(String::new(), |other| (*other).to_owned()),
            4 => {
                let other = random.below(words.len());
                words.swap(at, other);
            }
            _ => words[at] = format!("-{}", words[at]),
        }
    }
    words.concat()
}
