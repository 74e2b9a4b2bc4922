//! A configuration that is read again while the server runs: what is other in it. Owns: the comparison. Must not know: which
//! settings may change.

use super::text::read_text;
use super::{Bytes, ConfigError, File, Settings, check};
use std::collections::BTreeMap;
use std::path::Path;

/// Reads a file again. What it leaves out and what follows from other settings stays as it is in force.
pub(crate) fn load_again(path: &Path, in_force: &Settings) -> Result<Settings, ConfigError> {
    let text = read_text(path)?;
    let mut file: File = toml::from_str(&text).map_err(|error| ConfigError::parse(path, &text, &error))?;
    file.dram.slab_bytes.get_or_insert(Bytes(in_force.dram.slab_bytes));
    file.limits.pages_max.get_or_insert(in_force.limits.pages_max);
    if let (Some(file), Some(nvme)) = (&mut file.nvme, &in_force.nvme) {
        file.segment_bytes.get_or_insert(Bytes(nvme.segment_bytes));
    }
    check(file)
}

impl Settings {
    /// The keys that have another value there.
    pub(crate) fn differences(&self, there: &Settings) -> Vec<String> {
        let (here, mut there) = (self.keys(), there.keys());
        let other = |(key, value): (String, String)| (there.remove(&key) != Some(value)).then_some(key);
        let mut keys: Vec<String> = here.into_iter().filter_map(other).collect();
        keys.extend(there.into_keys());
        keys
    }

    /// The text of a file that says what is in force, and leaves open what is not settled: another process is to run with the same.
    ///
    /// # Errors
    /// It cannot be written as TOML.
    pub(crate) fn in_force(&self, dram_bytes: u64) -> Result<String, toml::ser::Error> {
        let mut file = self.as_file();
        file.dram.bytes = Some(Bytes(dram_bytes));
        file.limits.connections_max = self.limits.connections_max;
        toml::to_string(&file)
    }

    /// What may change while the server runs is as it is there.
    pub(crate) fn take_over(&mut self, there: &Settings) {
        self.dram.bytes = there.dram.bytes;
        self.limits.client_slots_percent = there.limits.client_slots_percent;
        self.limits.user_slots_percent = there.limits.user_slots_percent;
        self.limits.all_slots_percent = there.limits.all_slots_percent;
        self.limits.free_slots_percent = there.limits.free_slots_percent;
    }

    /// Every key with its value, as text.
    fn keys(&self) -> BTreeMap<String, String> {
        let mut keys = BTreeMap::new();
        if let Ok(toml::Value::Table(table)) = toml::Value::try_from(self.as_file()) {
            flatten("", table, &mut keys);
        }
        keys
    }
}

fn flatten(before: &str, table: toml::Table, keys: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        match value {
            toml::Value::Table(table) => flatten(&format!("{before}{key}."), table, keys),
            value => drop(keys.insert(format!("{before}{key}"), value.to_string())),
        }
    }
}

#[cfg(test)]
mod tests;
