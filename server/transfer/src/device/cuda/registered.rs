//! Which host memory this process has registered. Owns: counting, so that several devices share one registration. Must not know:
//! what the memory is for.
//!
//! A registration is portable: it holds for all devices. The library refuses a second one of the same memory, so a process with
//! two devices (or two handles of one) would stage the copies of whichever came second.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use parking_lot::Mutex;

use crate::device::driver::DeviceError;

/// Memory and its users, by base address.
pub(super) struct Registered {
    users: Mutex<Option<HashMap<usize, Users>>>,
}

struct Users {
    bytes: usize,
    count: usize,
}

/// Of this process.
pub(super) static OF_PROCESS: Registered = Registered::new();

impl Registered {
    pub(super) const fn new() -> Registered {
        Registered { users: Mutex::new(None) }
    }

    /// One more user of a range: the first one registers it. A range that begins alike and is not as long is the library's to
    /// judge.
    pub(super) fn add(
        &self,
        base: usize,
        bytes: usize,
        register: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        // Held while the library works: two at once would both be the first. Nobody but registrations waits for it.
        let mut users = self.users.lock();
        match users.get_or_insert_default().entry(base) {
            Entry::Occupied(mut known) if known.get().bytes == bytes => known.get_mut().count += 1,
            Entry::Occupied(_) => register()?,
            Entry::Vacant(place) => {
                register()?;
                place.insert(Users { bytes, count: 1 });
            }
        }
        Ok(())
    }

    /// One user less: the last one ends the registration. It counts as ended even if the library says otherwise, since nobody
    /// is left to try again.
    pub(super) fn remove(
        &self,
        base: usize,
        unregister: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut users = self.users.lock();
        match users.get_or_insert_default().entry(base) {
            Entry::Occupied(mut known) if known.get().count > 1 => {
                known.get_mut().count -= 1;
                Ok(())
            }
            Entry::Occupied(known) => {
                known.remove();
                unregister()
            }
            Entry::Vacant(_) => unregister(),
        }
    }
}
