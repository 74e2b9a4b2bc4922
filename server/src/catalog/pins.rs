//! The catalog's rows of pins. Owns: which prefixes are pinned, and until when. Must not know: budgets.

use super::namespaces::Table;
use super::{Catalog, CatalogError};
use prost::Message;
use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};
use turnkv_proto::{BlockHash, Error, ErrorKind, NamespaceId, pack_hashes, unpack_hashes};

/// Namespace id + the pin's last page -> [`SavedPin`].
pub(super) const PINS: Table = TableDefinition::new("pins");

/// A pin as saved.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SavedPin {
    #[prost(bytes = "vec", tag = "1")]
    hashes: Vec<u8>,
    /// Of the system's clock: a pin ends while the server is down as well.
    #[prost(uint64, tag = "2")]
    ends_unix_ms: u64,
}

/// A pin that has not ended.
pub(crate) struct LoadedPin {
    /// Its namespace.
    pub(crate) namespace: NamespaceId,
    /// The prefix.
    pub(crate) hashes: Vec<BlockHash>,
    /// How much longer it holds.
    pub(crate) for_ms: u64,
}

impl Catalog {
    /// Saves a pin that holds for so long, or removes it (no time): durably, if the catalog works, else as soon as it does.
    /// Blocking.
    pub(crate) fn put_pin(&self, ns: &NamespaceId, hashes: &[BlockHash], for_ms: u64) -> Result<(), Error> {
        let Some(last) = hashes.last() else { return Ok(()) };
        let ends_unix_ms = unix_ms().saturating_add(for_ms);
        let pin = (for_ms > 0).then(|| SavedPin { hashes: pack_hashes(hashes), ends_unix_ms });
        if !self.waiting.lock().put_pin((*ns, *last), pin) {
            let text = "the catalog cannot be written, and too many pins wait for it: the pin holds until the server restarts";
            return Err(Error::new(ErrorKind::Internal, text.to_owned()));
        }
        self.flush_pins();
        Ok(())
    }

    /// Writes the pins that wait. What cannot be written goes on waiting. Blocking.
    pub(crate) fn flush_pins(&self) {
        let pins = self.waiting.lock().take_pins();
        if pins.is_empty() {
            return;
        }
        let put = self.write(|write| {
            let mut table = write.open_table(PINS)?;
            for ((ns, last), pin) in &pins {
                let key = [ns.0.as_slice(), last.0.as_slice()].concat();
                match pin {
                    Some(pin) => table.insert(key.as_slice(), pin.encode_to_vec().as_slice())?,
                    None => table.remove(key.as_slice())?,
                };
            }
            Ok(())
        });
        if put.is_err() {
            self.waiting.lock().pins_again(pins);
        }
    }
}

impl Catalog {
    /// Removes pins that ended, so that the table stays as small as what is pinned. One that was renewed since stays. Those that
    /// cannot be removed now are passed at the next start. Blocking.
    pub(crate) fn remove_ended_pins(&self, pins: &[(NamespaceId, BlockHash)]) -> Result<(), CatalogError> {
        if pins.is_empty() {
            return Ok(());
        }
        let now = unix_ms();
        self.write(|write| {
            let mut table = write.open_table(PINS)?;
            for (ns, pin) in pins {
                let key = [ns.0.as_slice(), pin.0.as_slice()].concat();
                let ended = table.get(key.as_slice())?.is_some_and(|saved| !holds(saved.value(), now));
                if ended {
                    table.remove(key.as_slice())?;
                }
            }
            Ok(())
        })
    }
}

pub(super) fn create(write: &WriteTransaction) -> Result<(), CatalogError> {
    write.open_table(PINS)?;
    Ok(())
}

/// Pins that check and have not ended.
pub(super) fn load(read: &ReadTransaction) -> Result<Vec<LoadedPin>, CatalogError> {
    let (mut pins, now) = (Vec::new(), unix_ms());
    for row in read.open_table(PINS)?.iter()? {
        let (key, saved) = row?;
        match saved_pin(key.value(), saved.value(), now) {
            Some(pin) => pins.extend(Some(pin).filter(|pin| pin.for_ms > 0)),
            None => tracing::warn!("a saved pin does not check: it is forgotten"),
        }
    }
    Ok(pins)
}

fn saved_pin(key: &[u8], value: &[u8], now: u64) -> Option<LoadedPin> {
    let (namespace, _) = key.split_at_checked(32)?;
    let saved = SavedPin::decode(value).ok()?;
    Some(LoadedPin {
        namespace: NamespaceId::parse(namespace).ok()?,
        hashes: unpack_hashes(&saved.hashes).ok()?,
        for_ms: saved.ends_unix_ms.saturating_sub(now),
    })
}

fn holds(saved: &[u8], now: u64) -> bool {
    SavedPin::decode(saved).is_ok_and(|pin| pin.ends_unix_ms > now)
}

fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
