//! Bookmarks: which snapshot has an archived session, and which pages. Owns: their form. Must not know: who looks them up.
//!
//! A bookmark is JSON: `{"version":1,"namespace":id,"session":name,"pages":marks}`. It is written before the manifest that it is for,
//! so that each manifest that archiving made has one. One without a manifest is of a capture that is under way, or was never
//! finished.

use crate::error::Error;
use crate::id::SessionName;
use crate::limits::{MANIFEST_PAGES_MAX, SEQUENCE_ID_BYTES_MAX};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_transfer::checksum;

const VERSION: u64 = 1;
/// Hexadecimal digits of a mark.
const MARK_DIGITS: usize = 16;

/// An archived session, as the directory tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bookmark {
    /// Its namespace.
    pub namespace: NamespaceId,
    /// Its name; 1 to 128 bytes.
    pub session: String,
    /// The marks of its pages, from the first one on; at least one.
    pub pages: Vec<PageMark>,
}

/// Tells pages apart where a mistake costs a look at a manifest: CRC-64/NVME of a block hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageMark(pub u64);

impl PageMark {
    /// Of a page.
    #[must_use]
    pub fn of(hash: &BlockHash) -> PageMark {
        PageMark(checksum(&hash.0))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBookmark {
    version: u64,
    namespace: String,
    session: String,
    /// Sixteen digits a page.
    pages: String,
}

impl Bookmark {
    /// What its session is called in a store.
    #[must_use]
    pub fn name(&self) -> SessionName {
        SessionName::of(&self.namespace, &self.session)
    }

    /// Its text.
    pub(crate) fn to_json(&self) -> Result<Vec<u8>, Error> {
        self.check().map_err(|fault| Error::invalid("bookmark", fault))?;
        let mut pages = String::with_capacity(self.pages.len() * MARK_DIGITS);
        for page in &self.pages {
            write!(pages, "{:016x}", page.0)
                .map_err(|fault| Error::invalid("bookmark", fault.to_string()))?;
        }
        let namespace = self.namespace.to_string();
        let raw = RawBookmark { version: VERSION, namespace, session: self.session.clone(), pages };
        serde_json::to_vec(&raw).map_err(|fault| Error::invalid("bookmark", fault.to_string()))
    }

    /// From its text; or what is wrong with it.
    pub(crate) fn parse(text: &[u8]) -> Result<Bookmark, String> {
        let raw: RawBookmark = serde_json::from_slice(text).map_err(|fault| fault.to_string())?;
        if raw.version != VERSION {
            return Err(format!("its version is {}; this program knows {VERSION}", raw.version));
        }
        let (marks, rest) = raw.pages.as_bytes().as_chunks::<MARK_DIGITS>();
        let mark = |digits: &[u8; MARK_DIGITS]| {
            let digits = std::str::from_utf8(digits).ok()?;
            crate::id::unhex(digits).map(|bytes| PageMark(u64::from_be_bytes(bytes)))
        };
        let pages: Option<Vec<PageMark>> = marks.iter().map(mark).collect();
        let pages = pages.filter(|_| rest.is_empty()).ok_or("its pages are not marks of sixteen digits")?;
        let namespace = crate::id::unhex(&raw.namespace).map(NamespaceId);
        let namespace = namespace.ok_or("its namespace is no id")?;
        let bookmark = Bookmark { namespace, session: raw.session, pages };
        bookmark.check().map(|()| bookmark)
    }

    fn check(&self) -> Result<(), String> {
        if self.pages.is_empty() || self.pages.len() > MANIFEST_PAGES_MAX {
            return Err(format!("it has {} pages, not 1 to {MANIFEST_PAGES_MAX}", self.pages.len()));
        }
        if self.session.is_empty() || self.session.len() > SEQUENCE_ID_BYTES_MAX {
            return Err(format!("its session's name must have 1 to {SEQUENCE_ID_BYTES_MAX} bytes"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bookmark_comes_back_as_it_was_and_nothing_else_is_one() {
        let pages = (0..3).map(|at| PageMark::of(&BlockHash([at; 32]))).collect();
        let bookmark = Bookmark { namespace: NamespaceId([9; 32]), session: "a \"talk\"".to_owned(), pages };
        let text = bookmark.to_json().unwrap();
        assert_eq!(Bookmark::parse(&text).unwrap(), bookmark);
        let text = String::from_utf8(text).unwrap();
        for (from, to) in [
            ("\"version\":1", "\"version\":2"),
            ("\"pages\":\"", "\"pages\":\"0"),
            ("\"pages\":\"", "\"pages\":\"zzzzzzzzzzzzzzzz"),
            ("\"pages\":\"", "\"pages\":\"+00000000000000f"),
            ("\"pages\":\"", "\"pages\":\"00000000000000AB"),
            ("0909", "09g9"),
            ("a \\\"talk\\\"", ""),
            ("{", "{\"more\":1,"),
        ] {
            let other = text.replacen(from, to, 1);
            assert!(other != text && Bookmark::parse(other.as_bytes()).is_err(), "{other}");
        }
        assert!(Bookmark { pages: Vec::new(), ..bookmark }.to_json().is_err());
    }
}
