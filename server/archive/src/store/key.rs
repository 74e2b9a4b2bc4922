//! What objects are called. Owns: their paths below a tenant's prefix.

use crate::id::{ObjectId, SessionName};
use object_store::path::Path;
use std::fmt;

/// An object of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// What was settled when the archive was made.
    Settled,
    /// One of many of its kind.
    Of(Kind, ObjectId),
    /// Says of the manifest of this id that it has a session.
    Bookmark(SessionName, ObjectId),
}

/// Objects that there are many of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// A snapshot.
    Manifest,
    /// Blobs.
    Pack,
    /// What a capture under way reuses.
    Intent,
    /// Says of the pack of the same id that it will go.
    Condemned,
    /// A collection under way; tells it the store's time.
    Collection,
}

/// The folder of bookmarks, and what their names end with.
pub(crate) const BOOKMARKS: (&str, &str) = ("sessions", ".json");

impl Kind {
    /// The folder, and what names end with.
    pub(crate) fn form(self) -> (&'static str, &'static str) {
        match self {
            Kind::Manifest => ("manifests", ".json"),
            Kind::Pack => ("packs", ".pack"),
            Kind::Intent => ("intents", ".json"),
            Kind::Condemned => ("condemned", ".json"),
            Kind::Collection => ("collections", ".json"),
        }
    }

    /// The id of an object in this kind's folder; none if it is not one of ours.
    pub(crate) fn id_of(self, file: &str) -> Option<ObjectId> {
        ObjectId::parse(file.strip_suffix(self.form().1)?)
    }
}

impl Key {
    /// Where it is.
    pub(crate) fn path(self, prefix: &Path) -> Path {
        match self {
            Key::Settled => prefix.clone().join("archive.json"),
            Key::Of(kind, id) => {
                let (folder, ending) = kind.form();
                prefix.clone().join(folder).join(format!("{id}{ending}"))
            }
            Key::Bookmark(name, id) => {
                let (folder, ending) = BOOKMARKS;
                prefix.clone().join(folder).join(name.to_string()).join(format!("{id}{ending}"))
            }
        }
    }
}

/// As messages name it.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Settled => f.write_str("archive.json"),
            Key::Of(Kind::Manifest, id) => write!(f, "manifest {id}"),
            Key::Of(Kind::Pack, id) => write!(f, "pack {id}"),
            Key::Of(Kind::Intent, id) => write!(f, "intent {id}"),
            Key::Of(Kind::Condemned, id) => write!(f, "condemnation of pack {id}"),
            Key::Of(Kind::Collection, id) => write!(f, "collection {id}"),
            Key::Bookmark(_, id) => write!(f, "bookmark of snapshot {id}"),
        }
    }
}
