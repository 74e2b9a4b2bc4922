//! `[cluster]`: the pools that share what they have. Owns: the section's keys, defaults and bounds. Must not know: who is there.

use super::bounds::{bad, within};
use super::error::ConfigError;
use super::reach::{MemberPlace, reached};
use super::tls::Tls;
use crate::limits::{CLUSTER_NAME_BYTES_MAX, CLUSTER_WEIGHT_MAX, ETCD_ENDPOINTS_MAX};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use turnkv_cluster::limits::MEMBERS_MAX;
use turnkv_transfer::tls::{Dial, TlsConfig};

/// Part of the directory that a member has where nothing is said of it.
const WEIGHT_USUAL: u32 = 100;

/// `[cluster]`
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ClusterFile {
    /// Name of the cluster; default `turnkv`. Members of another one are refused; keys in etcd begin with it.
    name: Option<String>,
    /// Name of this member, which stays with its host; needed.
    id: Option<String>,
    /// How other members, and clients without a pool on their host, reach this one: `tcp://host:port` or `tls://host:port`; needed,
    /// but where `members` says it.
    endpoint: Option<String>,
    /// Where it stands, for people and routers; default: nothing.
    zone: Option<String>,
    /// Its part of the directory against that of others; default 100, 0 to 10000. 0: it answers for no sessions but its own.
    weight: Option<u32>,
    /// The authorities of members' certificates, and what this one shows to them, as `TURNKV_TLS_CA`, `TURNKV_TLS_CERT` and
    /// `TURNKV_TLS_KEY` for clients; default: what these say.
    ca: Option<PathBuf>,
    /// See `ca`; its certificate names `turnkv://member`, and `turnkv://engine/*` to read pages.
    cert: Option<PathBuf>,
    /// See `ca`.
    key: Option<PathBuf>,
    /// Where etcd is, `http://host:port` or `https://host:port`; this or `members`.
    etcd: Option<Vec<String>>,
    /// The authorities of etcd's certificates (PEM).
    etcd_ca: Option<PathBuf>,
    /// What is shown to etcd (PEM).
    etcd_cert: Option<PathBuf>,
    /// Its key (PEM).
    etcd_key: Option<PathBuf>,
    /// All members, this one included: a list that stays as it is; this or `etcd`.
    members: Option<Vec<MemberFile>>,
}

/// One of `members`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct MemberFile {
    id: String,
    endpoint: String,
    zone: Option<String>,
    weight: Option<u32>,
}

/// Checked `[cluster]`.
#[derive(Debug, Clone)]
pub(crate) struct ClusterSettings {
    /// The cluster's name.
    pub(crate) name: String,
    /// This member.
    pub(crate) own: ListedMember,
    /// What is shown to other members.
    pub(crate) tls: TlsConfig,
    /// How members are known.
    pub(crate) members: ClusterMembers,
}

/// A member as it is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedMember {
    /// Its name.
    pub(crate) id: String,
    /// How it is reached.
    pub(crate) endpoint: String,
    /// Where it stands; empty: nothing is said.
    pub(crate) zone: String,
    /// Its part of the directory.
    pub(crate) weight: u32,
}

/// How members are known.
#[derive(Debug, Clone)]
pub(crate) enum ClusterMembers {
    /// All of them, this one included.
    Listed(Vec<ListedMember>),
    /// etcd says.
    Etcd {
        /// Where it is.
        endpoints: Vec<String>,
        /// What is shown to it.
        tls: TlsConfig,
    },
}

impl ClusterSettings {
    /// Checks the section. `tcp`: where this server listens for others, and how that is protected.
    pub(super) fn check(
        file: ClusterFile,
        (tcp, tls): (Option<SocketAddr>, &Tls),
    ) -> Result<ClusterSettings, ConfigError> {
        let Some(tcp) = tcp else {
            return Err(bad("tcp", "a member of a cluster is reached over TCP: say where".to_owned()));
        };
        let settings = ClusterSettings::read(file)?;
        settings.speaks(tcp, tls)?;
        Ok(settings)
    }

    fn read(file: ClusterFile) -> Result<ClusterSettings, ConfigError> {
        let name = named("cluster.name", file.name.unwrap_or_else(|| "turnkv".to_owned()))?;
        let id = file.id.ok_or_else(|| bad("cluster.id", "name this member".to_owned()))?;
        let id = named("cluster.id", id)?;
        let files = |ca, cert, key| TlsConfig { ca, cert, key, server_name: None };
        let tls = files(file.ca, file.cert, file.key);
        let own = |endpoint| {
            Ok(ListedMember {
                id: id.clone(),
                endpoint: reached("cluster.endpoint", endpoint)?,
                zone: file.zone.clone().unwrap_or_default(),
                weight: weight("cluster.weight", file.weight)?,
            })
        };
        match (file.etcd, file.members) {
            (Some(endpoints), None) => {
                let endpoint = file
                    .endpoint
                    .ok_or_else(|| bad("cluster.endpoint", "say how others reach it".to_owned()))?;
                let tls_of_etcd = files(file.etcd_ca, file.etcd_cert, file.etcd_key);
                let members = ClusterMembers::Etcd { endpoints: of_etcd(endpoints)?, tls: tls_of_etcd };
                Ok(ClusterSettings { name, own: own(endpoint)?, tls, members })
            }
            (None, Some(members)) => {
                let listed = listed(members)?;
                let found = listed.iter().find(|member| member.id == id);
                let Some(found) = found.cloned() else {
                    return Err(bad("cluster.members", format!("`{id}`, this member, is not among them")));
                };
                if file.endpoint.is_some() || file.zone.is_some() || file.weight.is_some() {
                    let why = "endpoint, zone and weight stand in `members`, the same for all".to_owned();
                    return Err(bad("cluster.members", why));
                }
                Ok(ClusterSettings { name, own: found, tls, members: ClusterMembers::Listed(listed) })
            }
            _ => Err(bad("cluster.members", "say either `members` or `etcd`".to_owned())),
        }
    }

    /// The section that says what is in force.
    pub(super) fn as_file(&self) -> ClusterFile {
        let mut file = ClusterFile {
            name: Some(self.name.clone()),
            id: Some(self.own.id.clone()),
            ca: self.tls.ca.clone(),
            cert: self.tls.cert.clone(),
            key: self.tls.key.clone(),
            ..ClusterFile::default()
        };
        match &self.members {
            ClusterMembers::Listed(members) => {
                file.members = Some(members.iter().map(ListedMember::as_file).collect());
            }
            ClusterMembers::Etcd { endpoints, tls } => {
                file.endpoint = Some(self.own.endpoint.clone());
                file.zone = Some(self.own.zone.clone()).filter(|zone| !zone.is_empty());
                file.weight = Some(self.own.weight);
                file.etcd = Some(endpoints.clone());
                (file.etcd_ca, file.etcd_cert, file.etcd_key) =
                    (tls.ca.clone(), tls.cert.clone(), tls.key.clone());
            }
        }
        file
    }

    /// The keys that have no value.
    pub(super) fn unset(&self) -> Vec<(&'static str, bool)> {
        let file = self.as_file();
        vec![
            ("cluster.zone", file.zone.is_none()),
            ("cluster.ca", file.ca.is_none()),
            ("cluster.cert", file.cert.is_none()),
            ("cluster.key", file.key.is_none()),
            ("cluster.etcd", file.etcd.is_none()),
            ("cluster.etcd_ca", file.etcd_ca.is_none()),
            ("cluster.etcd_cert", file.etcd_cert.is_none()),
            ("cluster.etcd_key", file.etcd_key.is_none()),
            ("cluster.members", file.members.is_none()),
        ]
    }
}

impl ListedMember {
    fn as_file(&self) -> MemberFile {
        MemberFile {
            id: self.id.clone(),
            endpoint: self.endpoint.clone(),
            zone: Some(self.zone.clone()).filter(|zone| !zone.is_empty()),
            weight: Some(self.weight),
        }
    }
}

fn named(key: &'static str, name: String) -> Result<String, ConfigError> {
    check_name(&name).map_err(|why| bad(key, why))?;
    Ok(name)
}

/// A member's or a cluster's name is of letters, digits, `-`, `_` and `.`: it is part of keys. An error says what it is instead.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if (1..=CLUSTER_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(());
    }
    Err(format!("`{name}` is not 1 to {CLUSTER_NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`"))
}

fn weight(key: &'static str, weight: Option<u32>) -> Result<u32, ConfigError> {
    within(key, weight, WEIGHT_USUAL, 0, CLUSTER_WEIGHT_MAX)
}

fn of_etcd(endpoints: Vec<String>) -> Result<Vec<String>, ConfigError> {
    let place = |text: &String| {
        text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")).map(str::to_owned)
    };
    let right = |text: &String| place(text).is_some_and(|place| Dial::place(&place).is_some());
    if endpoints.is_empty() || endpoints.len() > ETCD_ENDPOINTS_MAX || !endpoints.iter().all(right) {
        let why = format!("name 1 to {ETCD_ENDPOINTS_MAX}, each http://host:port or https://host:port");
        return Err(bad("cluster.etcd", why));
    }
    Ok(endpoints)
}

fn listed(members: Vec<MemberFile>) -> Result<Vec<ListedMember>, ConfigError> {
    let key = "cluster.members";
    if members.len() > MEMBERS_MAX {
        return Err(bad(key, format!("name at most {MEMBERS_MAX}, each once")));
    }
    let mut known = BTreeSet::new();
    if let Some(twice) = members.iter().find(|member| !known.insert(member.id.as_str())) {
        return Err(bad(key, format!("`{}` is named twice: name each member once", twice.id)));
    }
    let checked = |member: MemberFile| {
        Ok(ListedMember {
            id: named(key, member.id)?,
            endpoint: reached(key, member.endpoint)?,
            zone: member.zone.unwrap_or_default(),
            weight: weight(key, member.weight)?,
        })
    };
    let checked = members.into_iter().map(checked).collect::<Result<Vec<_>, _>>()?;
    apart(&checked)?;
    Ok(checked)
}

/// Two members at one place are one server that is told of twice.
fn apart(members: &[ListedMember]) -> Result<(), ConfigError> {
    let mut known = BTreeMap::new();
    for member in members {
        let Some(place) = MemberPlace::of(&member.endpoint) else { continue };
        if let Some(other) = known.insert((place.host, place.port), &member.id) {
            let (one, two, endpoint) = (other, &member.id, &member.endpoint);
            let why = format!("`{one}` and `{two}` have one endpoint, {endpoint}: give each its own");
            return Err(bad("cluster.members", why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::ClusterMembers;
    use std::path::Path;

    const LIST: &str = "tcp = \"127.0.0.1:1\"\n[cluster]\nid = \"a\"\nmembers = [\
        { id = \"a\", endpoint = \"tcp://127.0.0.1:1\" }, { id = \"b\", endpoint = \"tcp://pool-b:7411\", weight = 7, zone = \"z\" }]\n";
    const ETCD: &str = "tcp = \"127.0.0.1:1\"\n[cluster]\nid = \"a\"\nendpoint = \"tcp://[::1]:1\"\netcd = [\"https://e:2379\"]\n";

    #[test]
    fn a_list_or_etcd_is_read_and_prints_as_it_was() {
        for text in [LIST, ETCD] {
            let settings = parse(Path::new("t"), text).unwrap();
            let printed = toml::to_string(&settings.as_file()).unwrap();
            let again = parse(Path::new("t"), &printed).unwrap();
            assert_eq!(printed, toml::to_string(&again.as_file()).unwrap());
        }
        let cluster = parse(Path::new("t"), LIST).unwrap().cluster.unwrap();
        let ClusterMembers::Listed(members) = &cluster.members else { panic!("a list") };
        assert_eq!((cluster.own.weight, cluster.own.endpoint.as_str()), (100, "tcp://127.0.0.1:1"));
        assert_eq!((members[1].weight, members[1].zone.as_str()), (7, "z"));
        assert!(parse(Path::new("t"), "").unwrap().cluster.is_none());
    }

    #[test]
    fn what_is_no_cluster_names_its_key() {
        let member = |id: &str| format!("{{ id = \"{id}\", endpoint = \"tcp://{id}:1\" }}");
        let (a, b) = (member("a"), member("b"));
        for (text, key) in [
            ("id = \"a\"".to_owned(), "cluster.members"),
            (format!("members = [{a}]"), "cluster.id"),
            (format!("id = \"c\"\nmembers = [{a}, {b}]"), "`c`"),
            (format!("id = \"a\"\nmembers = [{a}, {a}]"), "named twice"),
            (format!("id = \"a/b\"\nmembers = [{a}]"), "cluster.id"),
            (format!("id = \"a\"\nweight = 3\nmembers = [{a}]"), "the same for all"),
            ("id = \"a\"\netcd = [\"http://e:1\"]".to_owned(), "cluster.endpoint"),
            ("id = \"a\"\nendpoint = \"h:1\"\netcd = [\"http://e:1\"]".to_owned(), "cluster.endpoint"),
            ("id = \"a\"\nendpoint = \"tcp://h:1\"\netcd = [\"e:1\"]".to_owned(), "cluster.etcd"),
            (
                "id = \"a\"\nendpoint = \"tcp://h:1\"\nweight = 10001\netcd = [\"http://e:1\"]".to_owned(),
                "cluster.weight",
            ),
        ] {
            let error = parse(Path::new("t"), &format!("tcp = \"127.0.0.1:1\"\n[cluster]\n{text}\n"));
            let error = error.unwrap_err().to_string();
            assert!(error.contains(key), "{text}: {error}");
        }
        let alone = parse(Path::new("t"), &LIST.replace("tcp = ", "metrics = ")).unwrap_err().to_string();
        assert!(alone.contains("over TCP"), "{alone}");
    }
}
