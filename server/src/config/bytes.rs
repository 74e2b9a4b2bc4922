//! Sizes as an operator writes them. Owns: their text, both ways. Must not know: what has the size.

use serde::{Deserialize, Serialize};

/// A size as text with a binary unit (`64MiB`), or a plain number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotASize {
    /// It is no number with a unit.
    #[error("`{0}` is not a size such as 512MiB, 64GiB or a number of bytes")]
    Unreadable(String),
    /// No number of bytes is so large.
    #[error("`{0}` is too large")]
    TooLarge(String),
}

pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: u64 = 1 << 30;

const UNITS: [(&str, u32); 5] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("B", 0)];

impl std::str::FromStr for Bytes {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Bytes, NotASize> {
        let text = text.trim();
        let (number, shift) = UNITS
            .iter()
            .find_map(|(unit, shift)| text.strip_suffix(unit).map(|number| (number, *shift)))
            .unwrap_or((text, 0));
        let number: u64 = number.trim().parse().map_err(|_| NotASize::Unreadable(text.to_owned()))?;
        number.checked_mul(1 << shift).map(Bytes).ok_or_else(|| NotASize::TooLarge(text.to_owned()))
    }
}

impl std::fmt::Display for Bytes {
    /// The largest unit that divides the size: what is printed reads back exactly.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let whole = units.iter().find(|(_, shift)| self.0 > 0 && self.0.is_multiple_of(1 << shift));
        let (unit, shift) = whole.unwrap_or(&("B", 0));
        write!(f, "{}{unit}", self.0 >> shift)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Number(u64),
            Text(String),
            Other(toml::Value),
        }
        match Raw::deserialize(from)? {
            Raw::Number(number) => Ok(Bytes(number)),
            Raw::Text(text) => text.parse().map_err(serde::de::Error::custom),
            Raw::Other(value) => Err(serde::de::Error::custom(format!(
                "`{value}` is not a size such as \"512MiB\", \"64GiB\" or a whole number of bytes"
            ))),
        }
    }
}

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}
