//! Bytes of msgpack, as far as events need it. Owns: its forms. Must not know: what they say.

/// Writes values one after another.
#[derive(Default)]
pub(super) struct Pack(Vec<u8>);

impl Pack {
    /// An array of so many values, which follow.
    pub(super) fn array(&mut self, values: usize) -> &mut Pack {
        match values {
            0..16 => self.0.push(0x90 | values as u8),
            _ => self.sized(0xdc, 0xdd, values),
        }
        self
    }

    /// A map of so many pairs, which follow: few.
    pub(super) fn map(&mut self, pairs: usize) -> &mut Pack {
        debug_assert!(pairs < 16, "larger maps have another form");
        self.0.push(0x80 | pairs as u8);
        self
    }

    /// Text of less than 256 bytes.
    pub(super) fn text(&mut self, text: &str) -> &mut Pack {
        debug_assert!(text.len() < 256, "longer texts have another form");
        match text.len() {
            0..32 => self.0.push(0xa0 | text.len() as u8),
            length => self.0.extend([0xd9, length as u8]),
        }
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    /// Bytes: less than 256.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Pack {
        debug_assert!(bytes.len() < 256, "more bytes have another form");
        self.0.extend([0xc4, bytes.len() as u8]);
        self.0.extend_from_slice(bytes);
        self
    }

    /// A number.
    pub(super) fn number(&mut self, number: u32) -> &mut Pack {
        match number {
            0..128 => self.0.push(number as u8),
            _ => {
                self.0.push(0xce);
                self.0.extend(number.to_be_bytes());
            }
        }
        self
    }

    /// A number of 64 bits.
    pub(super) fn wide(&mut self, number: u64) -> &mut Pack {
        self.0.push(0xcf);
        self.0.extend(number.to_be_bytes());
        self
    }

    /// A number with a fraction.
    pub(super) fn fraction(&mut self, number: f64) -> &mut Pack {
        self.0.push(0xcb);
        self.0.extend(number.to_be_bytes());
        self
    }

    /// Nothing.
    pub(super) fn nothing(&mut self) -> &mut Pack {
        self.0.push(0xc0);
        self
    }

    /// What was written.
    pub(super) fn done(self) -> Vec<u8> {
        self.0
    }

    fn sized(&mut self, short: u8, long: u8, size: usize) {
        if let Ok(size) = u16::try_from(size) {
            self.0.push(short);
            self.0.extend(size.to_be_bytes());
        } else {
            self.0.push(long);
            self.0.extend((size as u32).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_forms_of_msgpack() {
        let mut pack = Pack::default();
        pack.array(2).map(1).text("a").number(7).array(0);
        assert_eq!(pack.done(), [0x92, 0x81, 0xa1, b'a', 7, 0x90]);
        let mut pack = Pack::default();
        pack.array(16).number(128).nothing().bytes(&[1, 2]).fraction(1.5).text(&"b".repeat(40));
        let head = [
            0xdc, 0, 16, 0xce, 0, 0, 0, 128, 0xc0, 0xc4, 2, 1, 2, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0xd9,
            40,
        ];
        assert_eq!(pack.done()[..head.len()], head);
        let mut pack = Pack::default();
        pack.wide(258);
        assert_eq!(pack.done(), [0xcf, 0, 0, 0, 0, 0, 0, 1, 2]);
        let mut pack = Pack::default();
        pack.array(70_000);
        assert_eq!(pack.done(), [0xdd, 0, 1, 0x11, 0x70]);
    }
}
