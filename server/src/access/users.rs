//! Callers of this host: what a process's user and groups were granted. Owns: the table of `[access]` with its names as numbers,
//! and what holds for those it does not name. Must not know: sockets.

use super::caller::Caller;
use super::grants::Grants;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A process of this host, as the kernel saw it when it connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostUser {
    /// Its user.
    pub(crate) user: u32,
    /// Its groups, the first one included.
    pub(crate) groups: Vec<u32>,
}

impl HostUser {
    /// A process that the kernel does not name: it has left. It is not as if it came by TCP.
    pub(crate) fn nobody() -> HostUser {
        HostUser { user: u32::MAX, groups: Vec::new() }
    }

    /// A user with its first group and, as far as the kernel says, the others.
    pub(crate) fn new(user: u32, group: u32, others: std::io::Result<Vec<u32>>) -> HostUser {
        let mut groups = vec![group];
        match others {
            Ok(others) => groups.extend(others),
            Err(error) => tracing::debug!(%error, user, "only the first group of a peer is known"),
        }
        HostUser { user, groups }
    }
}

/// What users and groups of this host may do.
#[derive(Debug)]
pub(crate) struct UserTable {
    users: BTreeMap<u32, Grants>,
    groups: BTreeMap<u32, Grants>,
    others: Grants,
}

/// Who comes to doors that ask for no certificate.
pub(crate) struct Callers {
    users: UserTable,
    plain: Arc<Caller>,
}

/// A name that this host does not know.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UserTableError {
    /// It is no user or group of this host.
    #[error("access.{table}: `{name}` is neither a number nor named in {file}")]
    Unknown {
        /// `users` or `groups`.
        table: &'static str,
        /// The name.
        name: String,
        /// Where it was looked for.
        file: PathBuf,
    },
    /// The list of names cannot be read.
    #[error("access.{table}: cannot read {file}")]
    Read {
        /// `users` or `groups`.
        table: &'static str,
        /// The list.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl UserTable {
    /// Of the entries of `[access]`. Where they say nothing of the server's own user or of root, these are operators, and of the
    /// server's own group, its members are engines of all tenants.
    pub(crate) fn new(
        users: &BTreeMap<String, Grants>,
        groups: &BTreeMap<String, Grants>,
        others: Grants,
        server: &HostUser,
    ) -> Result<UserTable, UserTableError> {
        let mut users = numbered("users", users, Path::new("/etc/passwd"))?;
        let mut groups = numbered("groups", groups, Path::new("/etc/group"))?;
        users.entry(0).or_insert_with(Grants::operator);
        users.entry(server.user).or_insert_with(Grants::operator);
        if let Some(group) = server.groups.first() {
            groups.entry(*group).or_insert_with(Grants::every_engine);
        }
        Ok(UserTable { users, groups, others })
    }

    /// Who a process is. What is said of its user holds; else what is said of its groups, together; else what is said of others.
    pub(crate) fn caller(&self, who: &HostUser) -> Caller {
        let of_groups = || {
            let granted = who.groups.iter().filter_map(|group| self.groups.get(group));
            granted.fold(None, |all: Option<Grants>, one| Some(all.unwrap_or_default().and(one)))
        };
        let grants = self.users.get(&who.user).cloned().or_else(of_groups);
        Caller::new(&format!("user {}", who.user), grants.unwrap_or_else(|| self.others.clone()))
    }
}

impl Callers {
    /// By user, and over TCP without TLS.
    pub(crate) fn new(users: UserTable, plain: Grants) -> Arc<Callers> {
        Arc::new(Callers { users, plain: Arc::new(Caller::new("whoever comes over plain TCP", plain)) })
    }

    /// Of a user of this host, or of nobody in particular.
    pub(crate) fn of(&self, user: Option<&HostUser>) -> Arc<Caller> {
        user.map_or_else(|| Arc::clone(&self.plain), |user| Arc::new(self.users.caller(user)))
    }
}

/// The entries by number: a name stands for that of the first line that has it.
fn numbered(
    table: &'static str,
    entries: &BTreeMap<String, Grants>,
    file: &Path,
) -> Result<BTreeMap<u32, Grants>, UserTableError> {
    let mut list = None;
    let mut numbers: BTreeMap<u32, Grants> = BTreeMap::new();
    for (name, grants) in entries {
        let number = match name.parse() {
            Ok(number) => number,
            Err(_) => {
                if list.is_none() {
                    let read = std::fs::read_to_string(file);
                    list = Some(read.map_err(|source| UserTableError::Read {
                        table,
                        file: file.into(),
                        source,
                    })?);
                }
                let found = number_of(list.as_deref().unwrap_or_default(), name);
                found.ok_or_else(|| UserTableError::Unknown {
                    table,
                    name: name.clone(),
                    file: file.into(),
                })?
            }
        };
        let known = numbers.remove(&number).unwrap_or_default();
        numbers.insert(number, known.and(grants));
    }
    Ok(numbers)
}

/// The third field of the line that begins with a name, in the form of /etc/passwd and /etc/group.
fn number_of(list: &str, name: &str) -> Option<u32> {
    let mut lines = list.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::{HostUser, UserTable, number_of};
    use crate::access::{Caller, Grants};
    use std::collections::BTreeMap;

    fn grants(word: &str) -> Grants {
        Grants::of_words([word]).unwrap()
    }

    fn table(users: &[(&str, &str)], groups: &[(&str, &str)]) -> UserTable {
        let map = |entries: &[(&str, &str)]| -> BTreeMap<String, Grants> {
            entries.iter().map(|(name, word)| ((*name).to_owned(), grants(word))).collect()
        };
        let server = HostUser { user: 50, groups: vec![60, 61] };
        UserTable::new(&map(users), &map(groups), Grants::default(), &server).unwrap()
    }

    fn caller(table: &UserTable, user: u32, groups: &[u32]) -> Grants {
        let who = HostUser { user, groups: groups.to_vec() };
        let caller = table.caller(&who);
        assert_eq!(caller, Caller::new(&format!("user {user}"), caller.grants.clone()));
        caller.grants
    }

    #[test]
    fn without_a_word_the_servers_own_are_what_they_were() {
        let table = table(&[], &[]);
        for user in [0, 50] {
            assert_eq!(caller(&table, user, &[]), Grants::operator());
        }
        assert_eq!(caller(&table, 7, &[9, 60]), Grants::every_engine());
        for groups in [vec![], vec![61], vec![0]] {
            assert!(caller(&table, 7, &groups).is_nothing(), "the server's first group only: {groups:?}");
        }
    }

    #[test]
    fn what_is_said_of_a_user_comes_before_its_groups_and_groups_add_up() {
        let table =
            table(&[("7", "engine/a"), ("50", "engine/own")], &[("60", "engine/b"), ("62", "member")]);
        assert_eq!(caller(&table, 7, &[60]), grants("engine/a"));
        assert_eq!(caller(&table, 50, &[60]), grants("engine/own"), "also of the server's own");
        assert_eq!(caller(&table, 8, &[60, 62]), grants("engine/b").and(&grants("member")));
        assert_eq!(caller(&table, 0, &[]), Grants::operator());
    }

    #[test]
    fn names_are_those_of_the_host_and_others_are_refused() {
        let list = "root:x:0:0::/root:/bin/sh\nvllm:x:995:\nvllm2:x:996:\n";
        assert_eq!((number_of(list, "vllm"), number_of(list, "vll")), (Some(995), None));
        let root = table(&[("root", "engine/a")], &[]);
        assert_eq!(caller(&root, 0, &[]), grants("engine/a"));
        let unknown = BTreeMap::from([("no such user".to_owned(), Grants::operator())]);
        let server = HostUser { user: 1, groups: vec![] };
        let error = UserTable::new(&unknown, &BTreeMap::new(), Grants::default(), &server).unwrap_err();
        assert!(error.to_string().contains("access.users: `no such user`"), "{error}");
    }
}
