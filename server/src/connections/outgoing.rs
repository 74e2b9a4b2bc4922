//! HTTP/2 as it leaves: where frames begin, and why the connection ends. Owns: finding a GOAWAY. Must not know: any other frame,
//! who makes them.
//!
//! The library that speaks HTTP/2 ends a connection by itself: for floods, for what is no HTTP/2, for a peer that is silent when
//! it is asked whether it is there. It tells nobody but the peer, in its last frame.

use super::cause::Cause;

const FRAME_HEADER_BYTES: usize = 9;
const KIND_AT: usize = 3;
const GOAWAY: u8 = 7;
/// The last stream, and the reason.
const GOAWAY_BYTES: usize = 8;
const NO_ERROR: u32 = 0;
const ENHANCE_YOUR_CALM: u32 = 11;
/// The last stream of a server that leaves and lets its calls end.
const EVERY_STREAM: u32 = u32::MAX >> 1;

/// Follows the frames that one connection sends.
#[derive(Default)]
pub(super) struct Outgoing {
    header: [u8; FRAME_HEADER_BYTES],
    header_len: usize,
    /// Of the payload, not sent yet.
    left: usize,
    goaway: [u8; GOAWAY_BYTES],
    /// Of these, sent; `None`: it is another frame.
    goaway_len: Option<usize>,
    told: bool,
}

impl Outgoing {
    /// Bytes were sent. Says why the connection ends, once.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) -> Option<Cause> {
        let mut cause = None;
        while !bytes.is_empty() {
            if self.left == 0 {
                let taken = (FRAME_HEADER_BYTES - self.header_len).min(bytes.len());
                self.header[self.header_len..self.header_len + taken].copy_from_slice(&bytes[..taken]);
                self.header_len += taken;
                bytes = &bytes[taken..];
                if self.header_len == FRAME_HEADER_BYTES {
                    let [a, b, c, ..] = self.header;
                    self.header_len = 0;
                    self.left = u32::from_be_bytes([0, a, b, c]) as usize;
                    self.goaway_len = (self.header[KIND_AT] == GOAWAY).then_some(0);
                }
                continue;
            }
            let (payload, rest) = bytes.split_at(self.left.min(bytes.len()));
            self.left -= payload.len();
            bytes = rest;
            cause = cause.or(self.goaway(payload));
        }
        cause
    }

    /// Whether it has said why the connection ends.
    #[cfg(test)]
    pub(super) fn is_told(&self) -> bool {
        self.told
    }

    fn goaway(&mut self, payload: &[u8]) -> Option<Cause> {
        let len = self.goaway_len.filter(|len| *len < GOAWAY_BYTES && !self.told)?;
        let taken = (GOAWAY_BYTES - len).min(payload.len());
        self.goaway[len..len + taken].copy_from_slice(&payload[..taken]);
        self.goaway_len = Some(len + taken);
        if len + taken < GOAWAY_BYTES {
            return None;
        }
        self.told = true;
        let [a, b, c, d, e, f, g, h] = self.goaway;
        match (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])) {
            (EVERY_STREAM, NO_ERROR) => None,
            (_, NO_ERROR) => Some(Cause::Gone),
            (_, ENHANCE_YOUR_CALM) => Some(Cause::Flood),
            _ => Some(Cause::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cause, ENHANCE_YOUR_CALM, EVERY_STREAM, GOAWAY, NO_ERROR, Outgoing};

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, 0], payload].concat()
    }

    fn goaway(last: u32, reason: u32) -> Vec<u8> {
        frame(GOAWAY, &[&last.to_be_bytes()[..], &reason.to_be_bytes(), b"why"].concat())
    }

    fn cause(frames: &[Vec<u8>], piece: usize) -> Vec<Cause> {
        let mut outgoing = Outgoing::default();
        frames.concat().chunks(piece).filter_map(|piece| outgoing.pass(piece)).collect()
    }

    #[test]
    fn the_first_goaway_says_why() {
        let data = frame(0, &[7; 300]);
        let flood = goaway(5, ENHANCE_YOUR_CALM);
        for piece in [1, 2, 3, 9, 17, 64, 1_000] {
            let all = [frame(4, &[]), data.clone(), flood.clone(), data.clone(), goaway(5, 1)];
            assert_eq!(cause(&all, piece), [Cause::Flood], "in pieces of {piece}");
            assert_eq!(cause(&[data.clone(), goaway(1, 1)], piece), [Cause::Malformed]);
            assert_eq!(cause(&[goaway(9, NO_ERROR)], piece), [Cause::Gone]);
            assert_eq!(cause(&[goaway(EVERY_STREAM, NO_ERROR), goaway(9, NO_ERROR)], piece), []);
        }
    }
}
