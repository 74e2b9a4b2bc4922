//! The catalog's rows of segments: what the tier notes of extents that their bytes do not tell. Owns: their form. Must not
//! know: what a note means.

use super::tables::SEGMENTS;
use super::{Catalog, CatalogError};
use prost::Message;
use redb::ReadableTable;
use turnkv_tier::nvme::SegmentNote;

/// A segment's note as saved.
#[derive(Clone, PartialEq, Message)]
struct SegmentRow {
    /// Of the use of the segment that the note is about.
    #[prost(bytes = "vec", tag = "1")]
    nonce: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    dead: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    leaving: Vec<u8>,
    #[prost(uint64, tag = "4")]
    upto: u64,
}

impl Catalog {
    /// Saves notes in one transaction, each in place of an earlier one of its segment. Blocking.
    pub(crate) fn put_segment_notes(&self, notes: &[SegmentNote]) -> Result<(), CatalogError> {
        if notes.is_empty() {
            return Ok(());
        }
        self.write(|write| {
            let mut table = write.open_table(SEGMENTS)?;
            for note in notes {
                let SegmentNote { segment, nonce, upto, dead, leaving } = note.clone();
                let row = SegmentRow { nonce: nonce.to_vec(), dead, leaving, upto }.encode_to_vec();
                table.insert(segment.to_be_bytes().as_slice(), row.as_slice())?;
            }
            Ok(())
        })
    }

    /// All that is saved of segments; rows that do not check are left out. Blocking.
    pub(crate) fn segment_notes(&self) -> Result<Vec<SegmentNote>, CatalogError> {
        self.read(|read| {
            let mut notes = Vec::new();
            for row in read.open_table(SEGMENTS)?.iter()? {
                let (key, row) = row?;
                notes.extend(saved_note(key.value(), row.value()));
            }
            Ok(notes)
        })
    }
}

fn saved_note(key: &[u8], row: &[u8]) -> Option<SegmentNote> {
    let SegmentRow { nonce, dead, leaving, upto } = SegmentRow::decode(row).ok()?;
    let segment = u16::from_be_bytes(key.try_into().ok()?);
    Some(SegmentNote { segment, nonce: nonce.try_into().ok()?, upto, dead, leaving })
}
