//! The catalog's rows of pins. Owns: their form: which prefixes are pinned, and until when; and which of them are to be
//! written. Must not know: budgets; how lists are shared (`lists`).

use super::lists::ListSource;
use super::rows::{Kind, Row, Value, Written};
use super::tables::PINS;
use super::{Catalog, CatalogError, SavedRows};
use crate::limits::CATALOG_PINS_WAITING_MAX;
use prost::Message;
use turnkv_pool::{NamespaceIndex, PinRecord};
use turnkv_proto::{BlockHash, NamespaceId, pack_hashes, unpack_hashes};

const KIND: Kind = Kind { table: PINS, base_of };

/// A pin as saved.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PinRow {
    /// The pages after the base; of a row without one, all: so older servers wrote every row.
    #[prost(bytes = "vec", tag = "1")]
    pub(super) hashes: Vec<u8>,
    /// Of the system's clock: a pin ends while the server is down as well.
    #[prost(uint64, tag = "2")]
    pub(super) ends_unix_ms: u64,
    /// The last page of its last full chunk; empty: it has none.
    #[prost(bytes = "vec", tag = "3")]
    pub(super) base: Vec<u8>,
}

/// A pin as it was saved, not yet checked against the pages that are there.
pub(crate) struct SavedPin {
    /// Its namespace.
    pub(crate) namespace: NamespaceId,
    /// The page that names it.
    pub(crate) pin: BlockHash,
    /// The last page of its last full chunk.
    pub(crate) base: Option<BlockHash>,
    /// The pages after it.
    pub(crate) hashes: Vec<BlockHash>,
    /// How much longer it holds; 0: it has ended.
    pub(crate) for_ms: u64,
}

/// A pin to write (or, with no record, to remove).
pub(crate) type PinChange = (NamespaceId, BlockHash, Option<PinRecord>);

impl Catalog {
    /// A pin changed: it is to be written. False: too many wait already.
    pub(crate) fn mark_pin(&self, ns: NamespaceIndex, pin: BlockHash) -> bool {
        let mut marked = self.marked_pins.lock();
        let room = marked.len() < CATALOG_PINS_WAITING_MAX || marked.contains(&(ns, pin));
        if room {
            marked.insert((ns, pin));
        }
        room
    }

    /// Takes one pin to write, if it is still to be written.
    pub(crate) fn take_marked_pin(
        &self,
        ns: NamespaceIndex,
        pin: BlockHash,
    ) -> Vec<(NamespaceIndex, BlockHash)> {
        self.marked_pins.lock().take(&(ns, pin)).into_iter().collect()
    }

    /// Takes some of the pins to write.
    pub(crate) fn take_marked_pins(&self, max: usize) -> Vec<(NamespaceIndex, BlockHash)> {
        let mut marked = self.marked_pins.lock();
        std::iter::from_fn(|| marked.pop_first()).take(max).collect()
    }

    /// Writes leading changes in one transaction, as many as its bounds allow; a record of `None` removes a row.
    pub(crate) fn put_pins(
        &self,
        changes: &[PinChange],
        source: &ListSource<'_>,
    ) -> Result<Written, CatalogError> {
        let now = self.clock.unix_ms();
        let rows = changes.iter().map(|(namespace, pin, record)| Row {
            namespace: *namespace,
            name: pin.0.to_vec(),
            value: record.as_ref().map(|record| Value {
                base: record.base,
                bytes: save(record, now),
                unlisted: None,
            }),
        });
        self.put_rows(&KIND, &rows.collect::<Vec<Row>>(), source)
    }
}

impl SavedRows {
    /// Hands over one pin of a namespace after the other; rows that do not check are skipped and said.
    pub(crate) fn for_each_pin_of(
        &self,
        ns: &NamespaceId,
        mut each: impl FnMut(SavedPin) -> Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        let now = self.unix_ms;
        for row in self.pins.range(ns.0.as_slice()..)? {
            let (key, saved) = row?;
            if !key.value().starts_with(&ns.0) {
                break;
            }
            match saved_pin(key.value(), saved.value(), now) {
                Some(pin) => each(pin)?,
                None => tracing::warn!("a saved pin does not check: it is forgotten"),
            }
        }
        Ok(())
    }
}

fn save(record: &PinRecord, now: u64) -> Vec<u8> {
    PinRow {
        hashes: pack_hashes(&record.hashes),
        ends_unix_ms: now.saturating_add(record.ends_in_ms),
        base: record.base.map_or(Vec::new(), |base| base.0.to_vec()),
    }
    .encode_to_vec()
}

fn saved_pin(key: &[u8], value: &[u8], now: u64) -> Option<SavedPin> {
    let (namespace, pin) = key.split_at_checked(32)?;
    let saved = PinRow::decode(value).ok()?;
    Some(SavedPin {
        namespace: NamespaceId::parse(namespace).ok()?,
        pin: BlockHash::parse(pin).ok()?,
        base: BlockHash::parse_optional(&saved.base).ok()?,
        hashes: unpack_hashes(&saved.hashes).ok()?,
        for_ms: saved.ends_unix_ms.saturating_sub(now),
    })
}

fn base_of(row: &[u8]) -> Option<BlockHash> {
    BlockHash::parse_optional(&PinRow::decode(row).ok()?.base).ok()?
}
