//! How much of a manifest may be in words that nobody here knows. Owns: weighing it before anything is made of it. Must not know: what
//! it says.
//!
//! A value takes many times its text in memory: `[{},{},...]` sixty times. So what is free to have any form is weighed first.

use crate::limits::{MANIFEST_FREE_TEXT_BYTES_MAX, MANIFEST_FREE_VALUES_MAX};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// The published fields that have a form.
const FORMED: [&str; 8] =
    ["layout", "page_size_tokens", "n_layers", "n_heads", "head_dim", "dtype", "pages", "logical_seqs"];
/// Ours that have none.
const FREE: [&str; 2] = ["spec", "groups"];

/// Fails if what has no form is more than it may be, or the text is not JSON.
pub(super) fn weigh(text: &[u8]) -> serde_json::Result<()> {
    let mut weight = Weight::default();
    let mut text = serde_json::Deserializer::from_slice(text);
    Fields { weight: &mut weight, is_own: false }.deserialize(&mut text)
}

#[derive(Default)]
struct Weight {
    values: usize,
    text_bytes: usize,
}

impl Weight {
    fn add<E: Error>(&mut self, text_bytes: usize) -> Result<(), E> {
        self.values += 1;
        self.text_bytes += text_bytes;
        if self.values > MANIFEST_FREE_VALUES_MAX || self.text_bytes > MANIFEST_FREE_TEXT_BYTES_MAX {
            let text = format!(
                "its spec, groups and unknown fields are more than {MANIFEST_FREE_VALUES_MAX} values with {MANIFEST_FREE_TEXT_BYTES_MAX} bytes of text"
            );
            return Err(E::custom(text));
        }
        Ok(())
    }
}

/// The fields of the whole, or ours.
struct Fields<'a> {
    weight: &'a mut Weight,
    is_own: bool,
}

impl<'de> DeserializeSeed<'de> for Fields<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            let is_free = if self.is_own { FREE.contains(&&*name) } else { !FORMED.contains(&&*name) };
            if !self.is_own && name == "turnkv" {
                map.next_value_seed(Fields { weight: self.weight, is_own: true })?;
            } else if is_free {
                self.weight.add(name.len())?;
                map.next_value_seed(Free(self.weight))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// A value of any form.
struct Free<'a>(&'a mut Weight);

impl<'de> DeserializeSeed<'de> for Free<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Free<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.0.add(0)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.0.add(0)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.0.add(0)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.0.add(0)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.0.add(0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.0.add(text.len())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        self.0.add(0)?;
        while seq.next_element_seed(Free(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.0.add(0)?;
        while let Some(name) = map.next_key::<String>()? {
            self.0.add(name.len())?;
            map.next_value_seed(Free(self.0))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::weigh;

    #[test]
    fn what_has_no_form_is_bounded_in_values_and_in_text() {
        let many = format!("[{}]", vec!["{}"; 100_000].join(","));
        let long = format!("\"{}\"", "x".repeat(1 << 20));
        for value in [many, long] {
            for text in [
                format!("{{\"mine\":{value}}}"),
                format!("{{\"turnkv\":{{\"spec\":{value}}}}}"),
                format!("{{\"turnkv\":{{\"groups\":[{value}]}}}}"),
            ] {
                assert!(weigh(text.as_bytes()).unwrap_err().to_string().contains("are more than"));
            }
            weigh(format!("{{\"pages\":{value},\"mine\":[1,-1,0.5,null,true,{{\"a\":\"b\"}}]}}").as_bytes())
                .unwrap();
        }
        assert!(weigh(b"[]").is_err() && weigh(b"{").is_err());
    }
}
