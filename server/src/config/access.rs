//! `[access]`: what users of this host, and whoever comes over plain TCP, may do. Owns: its keys and their check. Must not know:
//! which number a user's name stands for.

use super::error::ConfigError;
use crate::access::Grants;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `[access]`
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AccessFile {
    /// Who comes over TCP without TLS; default `operator` on the loopback, `engine/*` off it.
    plain: Option<Words>,
    /// Users of this host that neither table names; default: nothing.
    others: Option<Words>,
    /// By user, name or number; default: the server's own user and root are operators.
    users: Option<BTreeMap<String, Words>>,
    /// By group, name or number; default: members of the server's own group are engines of all tenants.
    groups: Option<BTreeMap<String, Words>>,
}

/// `operator`, `member`, `engine/<tenant>` or `engine/*`, or several of these.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(untagged)]
enum Words {
    One(String),
    Several(Vec<String>),
}

/// Checked `[access]`; by default nothing is granted to anybody.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access {
    /// Who comes over TCP without TLS.
    pub(crate) plain: Grants,
    /// Users of this host that neither table names.
    pub(crate) others: Grants,
    /// By user.
    pub(crate) users: BTreeMap<String, Grants>,
    /// By group.
    pub(crate) groups: BTreeMap<String, Grants>,
}

impl Access {
    /// Checks the keys. `exposed`: TCP is open off the loopback.
    pub(super) fn check(file: AccessFile, exposed: bool) -> Result<Access, ConfigError> {
        let usual = if exposed { Grants::every_engine() } else { Grants::operator() };
        let table = |key: &'static str, table: Option<BTreeMap<String, Words>>| {
            let entries = table.unwrap_or_default().into_iter();
            entries.map(|(name, words)| Ok((name, words.grants(key)?))).collect::<Result<_, ConfigError>>()
        };
        Ok(Access {
            plain: file.plain.map_or(Ok(usual), |words| words.grants("access.plain"))?,
            others: file.others.map_or(Ok(Grants::default()), |words| words.grants("access.others"))?,
            users: table("access.users", file.users)?,
            groups: table("access.groups", file.groups)?,
        })
    }

    /// The keys that say as much.
    pub(super) fn as_file(&self) -> AccessFile {
        let words = |grants: &Grants| Words::Several(grants.words());
        let table = |table: &BTreeMap<String, Grants>| {
            let entries = table.iter().map(|(name, grants)| (name.clone(), words(grants)));
            (!table.is_empty()).then(|| entries.collect())
        };
        AccessFile {
            plain: Some(words(&self.plain)),
            others: Some(words(&self.others)),
            users: table(&self.users),
            groups: table(&self.groups),
        }
    }
}

impl Words {
    fn grants(&self, key: &'static str) -> Result<Grants, ConfigError> {
        let words = match self {
            Words::One(word) => std::slice::from_ref(word),
            Words::Several(words) => words,
        };
        Grants::of_words(words.iter().map(String::as_str))
            .map_err(|error| ConfigError::Value { key, why: error.to_string() })
    }
}
