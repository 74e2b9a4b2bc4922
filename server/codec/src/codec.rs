//! What a page may be encoded as, and what of: the words that encoded pages carry. Owns: their numbers.

/// How a page is encoded. The numbers are written to devices: they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    /// Exponents by a book of fifteen, four bits each, others after them. The quickest; for bf16 and fp32.
    Codebook = 1,
    /// Exponents by Huffman's codes. Somewhat smaller than the book; for every type of value.
    Huffman = 2,
    /// zstd over whole blocks: for pages whose bytes repeat.
    Zstd = 3,
}

impl Codec {
    /// All of them.
    pub const ALL: [Codec; 3] = [Codec::Codebook, Codec::Huffman, Codec::Zstd];

    /// From its number.
    pub fn from_number(number: u8) -> Option<Codec> {
        Codec::ALL.into_iter().find(|codec| *codec as u8 == number)
    }

    /// Its name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Codec::Codebook => "codebook",
            Codec::Huffman => "huffman",
            Codec::Zstd => "zstd",
        }
    }

    /// Can it encode such values?
    pub fn takes(self, values: Values) -> bool {
        self != Codec::Codebook || matches!(values, Values::Bf16 | Values::F32)
    }
}

/// What a page's bytes are. The numbers are written to devices: they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Values {
    /// Nothing is known of them; also fp8 and int8, where a byte is a value.
    Bytes = 0,
    /// bfloat16.
    Bf16 = 1,
    /// IEEE half precision.
    F16 = 2,
    /// IEEE single precision.
    F32 = 3,
}

impl Values {
    /// All of them.
    pub const ALL: [Values; 4] = [Values::Bytes, Values::Bf16, Values::F16, Values::F32];

    /// From its number.
    pub fn from_number(number: u8) -> Option<Values> {
        Values::ALL.into_iter().find(|values| *values as u8 == number)
    }
}

/// Bytes that no encoder made, or that were changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an encoded page: {0}")]
pub struct Corrupt(pub &'static str);
