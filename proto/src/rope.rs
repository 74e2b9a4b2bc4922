//! Received bytes in the pieces they came in. Owns: taking them out again without a copy. Must not know: what the bytes mean.

use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;

/// Pieces below this are copied together, so that a peer who sends bytes one by one costs no more memory than others.
const SMALL_BYTES: usize = 4 << 10;

/// Bytes in pieces, first in, first out.
#[derive(Debug, Default)]
pub(crate) struct Rope {
    pieces: VecDeque<Bytes>,
    /// What comes after the pieces: small ones, copied together.
    tail: BytesMut,
    bytes: usize,
}

impl Rope {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(crate) fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        if piece.len() < SMALL_BYTES {
            self.tail.extend_from_slice(&piece);
            return;
        }
        self.seal();
        self.pieces.push_back(piece);
    }

    /// The next `N` bytes, if they are there.
    pub(crate) fn take_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut array = [0; N];
        self.take(N)?.copy_to_slice(&mut array);
        Some(array)
    }

    /// The next `bytes` bytes, if they are there. What is not read of them is dropped.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<Taken<'_>> {
        if self.bytes < bytes {
            return None;
        }
        self.seal();
        Some(Taken { rope: self, bytes })
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
    }
}

/// A front part of a rope.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    rope: &'a mut Rope,
    bytes: usize,
}

impl Buf for Taken<'_> {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        let piece = self.rope.pieces.front().map_or(&[][..], Bytes::as_ref);
        &piece[..piece.len().min(self.bytes)]
    }

    fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes, "as with every Buf: no further than its end");
        self.bytes -= bytes;
        self.rope.bytes -= bytes;
        let mut left = bytes;
        while let Some(piece) = self.rope.pieces.front_mut() {
            if piece.len() > left {
                piece.advance(left);
                return;
            }
            left -= piece.len();
            self.rope.pieces.pop_front();
        }
    }
}

impl Taken<'_> {
    /// The next `bytes` bytes without a copy, in the pieces they came in; `None` if there are not as many.
    pub(crate) fn split(&mut self, bytes: usize) -> Option<Vec<Bytes>> {
        if bytes > self.bytes {
            return None;
        }
        let mut parts = Vec::new();
        let mut left = bytes;
        while left > 0
            && let Some(piece) = self.rope.pieces.front()
        {
            let part = piece.slice(..piece.len().min(left));
            left -= part.len();
            self.advance(part.len());
            parts.push(part);
        }
        Some(parts)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.advance(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::{Rope, SMALL_BYTES};
    use bytes::{Buf, Bytes};

    #[test]
    fn bytes_one_by_one_cost_no_piece_each() {
        let mut rope = Rope::default();
        (0..100_000).for_each(|_| rope.push(Bytes::from_static(b"x")));
        assert!(rope.take(100_001).is_none());
        assert_eq!(rope.take(100_000).map(|taken| taken.remaining()), Some(100_000));
        assert!(rope.is_empty() && rope.pieces.is_empty());
    }

    /// Bytes that tell where they were.
    fn numbered(from: usize, len: usize) -> Bytes {
        (from..from + len).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn bytes_come_out_in_the_order_they_came_in_however_they_are_cut_and_taken() {
        turnkv_mutate::each_seed(80, |random| {
            let mut rope = Rope::default();
            let (mut pushed, mut taken) = (0, 0);
            for _ in 0..40 {
                let sizes = [0, 1, 100, SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1, 3 * SMALL_BYTES];
                let len = sizes[random.below(sizes.len())];
                if random.one_in(2) {
                    rope.push(numbered(pushed, len));
                    pushed += len;
                    continue;
                }
                let there = pushed - taken;
                let wanted = len + random.below(3);
                let Some(mut part) = rope.take(wanted) else {
                    assert!(wanted > there, "{wanted} of {there} bytes are there");
                    continue;
                };
                assert!(wanted <= there && part.remaining() == wanted);
                assert!(part.split(wanted + 1).is_none(), "no further than the part goes");
                // Some of it is read, some split off, and what is left goes with the part.
                let read = random.below(wanted + 1);
                assert_eq!(part.copy_to_bytes(read), numbered(taken, read));
                let split = random.below(wanted - read + 1);
                let pieces = part.split(split).unwrap();
                assert!(pieces.iter().all(|piece| !piece.is_empty()));
                assert_eq!(pieces.concat(), numbered(taken + read, split));
                assert_eq!(part.remaining(), wanted - read - split);
                drop(part);
                taken += wanted;
                assert_eq!(rope.is_empty(), taken == pushed);
            }
            let rest = rope.take(pushed - taken).unwrap().copy_to_bytes(pushed - taken);
            assert_eq!(rest, numbered(taken, pushed - taken));
        });
    }
}
