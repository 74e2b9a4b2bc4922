//! Pages with contents that can be told apart: random bytes with the page's number stamped at both ends.
//! Must not know: where pages are kept.

use anyhow::{Result, ensure};

use crate::kv::{self, Kind};
use crate::memory::Buffer;
use crate::sampling::Random;

/// A ring of page buffers; page `number` uses the buffer `number % count`.
#[derive(Debug)]
pub struct Pages {
    buffer: Buffer,
    page_bytes: usize,
}

impl Pages {
    /// Buffers with `bytes` in all, filled with random bytes that are the same for every ring of one size.
    pub fn filled(bytes: usize, page_bytes: usize) -> Pages {
        let mut random = Random::new(1);
        let pattern: Vec<u8> = (0..(1 << 17) + 9).flat_map(|_| random.bits().to_le_bytes()).collect();
        Pages::repeating(&pattern, bytes, page_bytes)
    }

    /// Buffers with `bytes` in all, filled with bf16 values as caches have them, which can be packed.
    pub fn of_values(bytes: usize, page_bytes: usize) -> Pages {
        Pages::repeating(&kv::page(Kind::Bf16, 1 << 20, 1), bytes, page_bytes)
    }

    fn repeating(pattern: &[u8], bytes: usize, page_bytes: usize) -> Pages {
        let mut pages = Pages::empty(bytes, page_bytes);
        for part in pages.buffer.bytes_mut().chunks_mut(pattern.len()) {
            part.copy_from_slice(&pattern[..part.len()]);
        }
        pages
    }

    /// Buffers with `bytes` in all, for pages to be read into.
    pub fn empty(bytes: usize, page_bytes: usize) -> Pages {
        Pages { buffer: Buffer::new(bytes / page_bytes * page_bytes), page_bytes }
    }

    /// How many pages there is room for.
    pub fn count(&self) -> usize {
        self.buffer.bytes().len() / self.page_bytes
    }

    /// Stamps the pages `numbers` and returns them, in order. Their buffers must be distinct.
    pub fn stamped(&mut self, numbers: std::ops::Range<usize>) -> Vec<&[u8]> {
        let (page_bytes, count) = (self.page_bytes, self.count());
        for number in numbers.clone() {
            let page = &mut self.buffer.bytes_mut()[number % count * page_bytes..][..page_bytes];
            page[..8].copy_from_slice(&stamp(number, false));
            page[page_bytes - 8..].copy_from_slice(&stamp(number, true));
        }
        let bytes = self.buffer.bytes();
        numbers.map(|number| &bytes[number % count * page_bytes..][..page_bytes]).collect()
    }

    /// `count` buffers to read into, from the one of `number` on, wrapping early rather than in the middle.
    pub fn targets(&mut self, number: usize, count: usize) -> Vec<&mut [u8]> {
        let first = number % self.count();
        let first = if first + count > self.count() { 0 } else { first };
        let page_bytes = self.page_bytes;
        self.buffer.bytes_mut()[first * page_bytes..][..count * page_bytes].chunks_mut(page_bytes).collect()
    }
}

/// Whether `pages` carry the stamps of `first`, `first` + 1, ... at both ends.
pub fn check_ends<P: AsRef<[u8]>>(pages: &[P], first: usize) -> Result<()> {
    for (at, page) in pages.iter().enumerate() {
        let page = page.as_ref();
        let (number, tail) = (first + at, page.len() - 8);
        let right = page[..8] == stamp(number, false) && page[tail..] == stamp(number, true);
        ensure!(right, "WRONG BYTES: page {number} came back with another page's stamps");
    }
    Ok(())
}

/// Whether `pages` are `wanted`, byte by byte.
pub fn check_whole<P: AsRef<[u8]>>(pages: &[P], wanted: &[&[u8]]) -> Result<()> {
    ensure!(pages.len() == wanted.len(), "{} pages came back, {} were asked for", pages.len(), wanted.len());
    for (at, (page, wanted)) in pages.iter().zip(wanted).enumerate() {
        ensure!(page.as_ref() == *wanted, "WRONG BYTES: page {at} of the batch came back changed");
    }
    Ok(())
}

pub(crate) fn stamp(number: usize, end: bool) -> [u8; 8] {
    let number = number as u64;
    if end { !number } else { number }.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::{Pages, check_ends, check_whole};

    #[test]
    fn a_changed_page_is_noticed() {
        let mut source = Pages::filled(64 << 10, 4096);
        let mut target = Pages::empty(64 << 10, 4096);
        assert_eq!(source.count(), 16);
        let wanted = source.stamped(3..7);
        let mut got = target.targets(0, 4);
        got.iter_mut().zip(&wanted).for_each(|(to, from)| to.copy_from_slice(from));
        check_ends(&got, 3).expect("these are the pages");
        check_whole(&got, &wanted).expect("these are the pages");
        check_ends(&got, 4).expect_err("these are other pages");
        got[2][100] ^= 1;
        check_ends(&got, 3).expect("the ends are as they were");
        check_whole(&got, &wanted).expect_err("one bit is flipped");
    }

    #[test]
    fn targets_never_wrap_in_the_middle() {
        let mut target = Pages::empty(16 * 4096, 4096);
        assert_eq!(target.targets(14, 4).len(), 4);
    }
}
