//! HTTP/2 as it arrives, byte by byte: where frames begin, and the value of `:authority`. Owns: making that value one that h2
//! takes. Must not know: any other header, streams, what is asked.
//!
//! gRPC's C core (so Python, Ruby, PHP) names a server on a Unix socket by its path, percent-encoded: `run%2Fturnkv.sock`. The
//! RFC allows that in a host; h2 resets the stream for it. Nothing here looks at the authority, so its `%` becomes `-`: a byte
//! for a byte, in place, so no length of HPACK or of a frame changes, and neither does the size that both sides' dynamic
//! tables account for it. A value in Huffman code is left alone: no such client sends one.
//!
//! ```text
//! preface(24) | header(9) payload | header(9) payload ...    HEADERS: [pad length] [priority] block [padding]
//!                                                            CONTINUATION: block
//! block: one field after another; only literal ones have text: [flags + name index] [name] value
//! ```

const PREFACE_BYTES: u64 = 24;
const FRAME_HEADER_BYTES: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const FLAG_PADDED: u8 = 0x8;
const FLAG_PRIORITY: u8 = 0x20;
const PRIORITY_BYTES: u32 = 5;
/// The index of `:authority` in HPACK's static table.
const AUTHORITY_INDEX: u32 = 1;
const AUTHORITY: &[u8] = b":authority";
/// Longer integers than this many following bytes are nobody's header.
const INTEGER_BYTES_MAX: u32 = 4;

/// Follows the frames of one connection.
#[derive(Default)]
pub(super) struct Frames {
    /// Bytes of the preface that came.
    preface: u64,
    header: [u8; FRAME_HEADER_BYTES],
    header_len: usize,
    /// Of the payload, not here yet.
    left: u32,
    /// All of it.
    payload_bytes: u32,
    /// Of the payload's end, that are padding.
    padding: u32,
    /// The pad length is still to come.
    pad_due: bool,
    /// Bytes of priority still to come.
    priority_due: u32,
    is_block: bool,
    block: Block,
}

impl Frames {
    /// Bytes have arrived. True: a frame ended in them.
    pub(super) fn pass(&mut self, mut bytes: &mut [u8]) -> bool {
        let mut ended = false;
        let preface = usize::try_from(PREFACE_BYTES - self.preface).unwrap_or(0).min(bytes.len());
        self.preface += preface as u64;
        bytes = &mut bytes[preface..];
        while !bytes.is_empty() {
            if self.left == 0 {
                let taken = (FRAME_HEADER_BYTES - self.header_len).min(bytes.len());
                self.header[self.header_len..self.header_len + taken].copy_from_slice(&bytes[..taken]);
                self.header_len += taken;
                bytes = &mut bytes[taken..];
                if self.header_len == FRAME_HEADER_BYTES {
                    self.header_len = 0;
                    self.begin_payload();
                    ended |= self.left == 0;
                }
                continue;
            }
            let taken = (self.left as usize).min(bytes.len());
            let (payload, rest) = bytes.split_at_mut(taken);
            self.payload(payload);
            ended |= self.left == 0;
            bytes = rest;
        }
        ended
    }

    /// A frame has begun and is not whole; the preface counts as one.
    pub(super) fn is_within_frame(&self) -> bool {
        self.preface < PREFACE_BYTES || self.header_len > 0 || self.left > 0
    }

    /// Bytes of the payload that has begun and is not whole; 0: there is none.
    pub(super) fn payload_bytes(&self) -> usize {
        if self.left > 0 { self.payload_bytes as usize } else { 0 }
    }

    fn begin_payload(&mut self) {
        let [a, b, c, kind, flags, ..] = self.header;
        self.left = u32::from_be_bytes([0, a, b, c]);
        self.payload_bytes = self.left;
        self.is_block = matches!(kind, HEADERS | CONTINUATION);
        let headers = kind == HEADERS;
        self.padding = 0;
        self.pad_due = headers && flags & FLAG_PADDED != 0;
        self.priority_due = if headers && flags & FLAG_PRIORITY != 0 { PRIORITY_BYTES } else { 0 };
        if headers {
            self.block = Block::default();
        }
    }

    fn payload(&mut self, payload: &mut [u8]) {
        if !self.is_block {
            self.left -= payload.len() as u32;
            return;
        }
        for byte in payload {
            self.left -= 1;
            if self.pad_due {
                self.pad_due = false;
                self.padding = u32::from(*byte);
            } else if self.priority_due > 0 {
                self.priority_due -= 1;
            } else if self.left >= self.padding {
                self.block.pass(byte);
            }
        }
    }
}

/// Where in a header block the next byte is.
#[derive(Default, Clone, Copy)]
enum At {
    /// The first byte of a field.
    #[default]
    Field,
    /// Within an integer that has a purpose.
    Integer(Purpose),
    /// The first byte of a string's length.
    Length(Text),
    /// A string's bytes.
    Text(Text),
    /// Not HPACK: left alone to the end of the block.
    Lost,
}

#[derive(Clone, Copy)]
enum Purpose {
    /// A field that is all an index, or a size of the table.
    Whole,
    /// The index of a literal field's name.
    Name,
    Length(Text),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Text {
    Name,
    Value,
}

/// One header block, maybe of several frames.
#[derive(Default)]
struct Block {
    at: At,
    integer: u32,
    integer_bytes: u32,
    /// Bytes of the string in hand, and how many came.
    length: u32,
    came: u32,
    huffman: bool,
    /// The name in hand agrees with `:authority` so far.
    is_authority: bool,
}

impl Block {
    fn pass(&mut self, byte: &mut u8) {
        match self.at {
            At::Field => self.field(*byte),
            At::Integer(purpose) => self.more(*byte, purpose),
            At::Length(text) => {
                self.huffman = *byte & 0x80 != 0;
                self.begin(*byte, 7, Purpose::Length(text));
            }
            At::Text(text) => self.text(byte, text),
            At::Lost => {}
        }
    }

    fn field(&mut self, byte: u8) {
        match byte.leading_zeros() {
            0 => self.begin(byte, 7, Purpose::Whole), // indexed
            1 => self.begin(byte, 6, Purpose::Name),  // literal, to be indexed
            2 => self.begin(byte, 5, Purpose::Whole), // size of the table
            _ => self.begin(byte, 4, Purpose::Name),  // literal
        }
    }

    fn begin(&mut self, byte: u8, bits: u32, purpose: Purpose) {
        let most = (1u32 << bits) - 1;
        self.integer = u32::from(byte) & most;
        self.integer_bytes = 0;
        if self.integer == most { self.at = At::Integer(purpose) } else { self.done(purpose) }
    }

    fn more(&mut self, byte: u8, purpose: Purpose) {
        let part = u32::from(byte & 0x7f) << (7 * self.integer_bytes);
        self.integer = self.integer.saturating_add(part);
        self.integer_bytes += 1;
        if byte & 0x80 == 0 {
            self.done(purpose);
        } else if self.integer_bytes == INTEGER_BYTES_MAX {
            self.at = At::Lost;
        }
    }

    fn done(&mut self, purpose: Purpose) {
        self.at = match purpose {
            Purpose::Whole => At::Field,
            Purpose::Name => {
                self.is_authority = self.integer == AUTHORITY_INDEX || self.integer == 0;
                At::Length(if self.integer == 0 { Text::Name } else { Text::Value })
            }
            Purpose::Length(text) => {
                (self.length, self.came) = (self.integer, 0);
                if text == Text::Name {
                    self.is_authority = !self.huffman && self.length as usize == AUTHORITY.len();
                }
                if self.length == 0 { Self::after(text) } else { At::Text(text) }
            }
        };
    }

    fn text(&mut self, byte: &mut u8, text: Text) {
        match text {
            Text::Name => self.is_authority &= AUTHORITY.get(self.came as usize) == Some(byte),
            Text::Value if self.is_authority && !self.huffman && *byte == b'%' => *byte = b'-',
            Text::Value => {}
        }
        self.came += 1;
        if self.came == self.length {
            self.at = Self::after(text);
        }
    }

    fn after(text: Text) -> At {
        match text {
            Text::Name => At::Length(Text::Value),
            Text::Value => At::Field,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CONTINUATION, FLAG_PADDED, FLAG_PRIORITY, Frames, HEADERS};

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.extend(payload);
        bytes
    }

    fn text(text: &str) -> Vec<u8> {
        let mut bytes = vec![text.len() as u8];
        bytes.extend(text.as_bytes());
        bytes
    }

    /// As gRPC's C core sends it: names spelled out, no Huffman code.
    fn block(authority: &str) -> Vec<u8> {
        let fields: [(&str, &str); 3] = [(":path", "/a%2Fb"), (":authority", authority), ("te", "trailers%")];
        let mut bytes = vec![0x83, 0x3f, 0xe1, 0x1f]; // an index, a table size of several bytes
        for (name, value) in fields {
            bytes.push(0x40);
            bytes.extend(text(name));
            bytes.extend(text(value));
        }
        bytes.push(0x41); // by its index in the static table
        bytes.extend(text(authority));
        bytes
    }

    /// A connection of these frames, cut into pieces of every size.
    fn pass(frames: &[u8], piece: usize) -> Vec<u8> {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frames);
        let mut follower = Frames::default();
        for piece in bytes.chunks_mut(piece) {
            follower.pass(piece);
        }
        assert!(!follower.is_within_frame());
        bytes.split_off(24)
    }

    #[test]
    fn the_authority_changes_and_nothing_else_does() {
        let mut sent = frame(4, 0, &[0; 6]);
        let mut wanted = sent.clone();
        for (bytes, authority) in [(&mut sent, "tmp%2Ft.sock"), (&mut wanted, "tmp-2Ft.sock")] {
            bytes.extend(frame(HEADERS, 4, &block(authority)));
            bytes.extend(frame(0, 0, b"data with 100 % of :authority"));
            let mut padded = vec![3, 0, 0, 0, 0, 9];
            padded.extend(block(authority));
            padded.extend([b'%'; 3]);
            bytes.extend(frame(HEADERS, FLAG_PADDED | FLAG_PRIORITY | 4, &padded));
            let block = block(authority);
            bytes.extend(frame(HEADERS, 0, &block[..30]));
            bytes.extend(frame(CONTINUATION, 4, &block[30..]));
        }
        for piece in [1, 2, 3, 7, 64, 10_000] {
            assert_eq!(pass(&sent, piece), wanted, "in pieces of {piece}");
        }
    }

    #[test]
    fn what_is_no_hpack_is_left_alone() {
        let nonsense: Vec<u8> = (0..=255).rev().cycle().take(4_000).collect();
        let sent = frame(HEADERS, 4, &nonsense);
        assert_eq!(pass(&sent, 100).len(), sent.len());
        let sent = frame(HEADERS, 4, &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, b'%', b'%']);
        assert_eq!(pass(&sent, 5), sent);
    }

    #[test]
    fn it_says_whether_a_frame_is_whole() {
        let mut frames = Frames::default();
        assert!(frames.is_within_frame(), "the preface is due");
        assert!(!frames.pass(&mut b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()));
        assert!(!frames.is_within_frame());
        let whole = frame(4, 0, &[0; 6]);
        assert!(!frames.pass(&mut whole[..12].to_vec()));
        assert!(frames.is_within_frame() && frames.payload_bytes() == 6);
        let mut rest_and_more = [&whole[12..], &whole[..3]].concat();
        assert!(frames.pass(&mut rest_and_more), "one ended");
        assert!(frames.is_within_frame(), "and another began");
        assert_eq!(frames.payload_bytes(), 0, "whose length is not known yet");
    }
}
