//! Whether the members of a cluster can reach one another as they are configured. Owns: the sentences that say why not. Must not know:
//! who is there, what is in the certificates' files.

use super::bounds::bad;
use super::cluster::{ClusterMembers, ClusterSettings, ListedMember};
use super::error::ConfigError;
use super::reach::MemberPlace;
use super::tls::Tls;
use std::net::SocketAddr;
use turnkv_transfer::tls::TlsConfig;

impl ClusterSettings {
    /// Whether this server and the others speak alike: TLS or not, and with what TLS needs.
    pub(super) fn speaks(&self, tcp: SocketAddr, tls: &Tls) -> Result<(), ConfigError> {
        let key = match self.members {
            ClusterMembers::Listed(_) => "cluster.members",
            ClusterMembers::Etcd { .. } => "cluster.endpoint",
        };
        let direct = MemberPlace::of(&self.own.endpoint).filter(|place| place.between(tcp).is_none());
        let (endpoint, has_tls) = (&self.own.endpoint, matches!(tls, Tls::Files(_)));
        match direct.map(|place| place.is_tls) {
            Some(true) if !has_tls => {
                let why =
                    format!("{endpoint} is TLS, and this server has no certificate: give [tls] a cert,");
                return Err(bad(key, format!("{why} a key and a client_ca, or say tcp://")));
            }
            Some(false) if has_tls => {
                let why = format!("{endpoint} is plain, and [tls] makes the door TLS: say tls://");
                return Err(bad(key, why));
            }
            _ => {}
        }
        let all = match &self.members {
            ClusterMembers::Listed(members) => members.as_slice(),
            ClusterMembers::Etcd { .. } => std::slice::from_ref(&self.own),
        };
        let is_tls = |member: &ListedMember| member.endpoint.starts_with("tls://");
        if all.iter().any(is_tls) { shows(&self.tls.clone().or_environment()) } else { Ok(()) }
    }

    /// What an operator should know of the way to this member; none: others knock at its own door.
    pub(crate) fn between(&self, tcp: Option<SocketAddr>) -> Option<String> {
        let between = MemberPlace::of(&self.own.endpoint)?.between(tcp?)?;
        Some(format!(
            "cluster: {between}: others find this member only if a proxy or a port mapping stands between"
        ))
    }
}

/// What members reached by TLS ask to be shown.
fn shows(files: &TlsConfig) -> Result<(), ConfigError> {
    let needed = [
        ("cluster.ca", "TURNKV_TLS_CA", files.ca.is_none()),
        ("cluster.cert", "TURNKV_TLS_CERT", files.cert.is_none()),
        ("cluster.key", "TURNKV_TLS_KEY", files.key.is_none()),
    ];
    match needed.into_iter().find(|(.., lacks)| *lacks) {
        Some((key, variable, _)) => {
            let why = format!("members are reached by TLS: name a PEM file here, or in {variable}");
            Err(bad(key, why))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use std::path::Path;

    const OWN: &str = "id = \"a\", endpoint = \"tcp://pool-a:1\"";
    const FILES: &str = "ca = \"c\"\ncert = \"c\"\nkey = \"k\"\n";
    const TLS: &str = "[tls]\ncert = \"c\"\nkey = \"k\"\nclient_ca = \"c\"\n";

    fn of(tcp: &str, tls: &str, cluster: &str) -> String {
        let text = format!("tcp = \"{tcp}\"\n{tls}\n[cluster]\nid = \"a\"\n{cluster}\n");
        match parse(Path::new("t"), &text) {
            Ok(settings) => settings.between().unwrap_or_default(),
            Err(error) => error.to_string(),
        }
    }

    fn listed(own: &str, other: &str) -> String {
        format!("members = [{{ {own} }}, {{ {other} }}]")
    }

    #[test]
    fn members_that_cannot_be_told_apart_or_reached_are_refused_in_a_line() {
        let plain = "[tls]\ninsecure = true";
        let refused = |cluster: &str, words: &str| {
            let said = of("0.0.0.0:1", plain, cluster);
            assert!(said.contains(words) && !said.contains('\n'), "{cluster}: {said}");
        };
        for endpoint in ["tcp://0.0.0.0:1", "tcp://[::]:1", "tls://[::ffff:0.0.0.0]:1"] {
            let every = "every address and no place";
            refused(&listed(OWN, &format!("id = \"b\", endpoint = \"{endpoint}\"")), every);
            refused(&format!("endpoint = \"{endpoint}\"\netcd = [\"http://e:1\"]"), every);
        }
        refused(&listed(OWN, "id = \"b\", endpoint = \"tcp://pool-b\""), "tcp://host:port");
        refused(&listed(OWN, "id = \"b\", endpoint = \"tls://POOL-A:1\""), "`a` and `b` have one endpoint");
        refused(&listed(OWN, "id = \"a\", endpoint = \"tcp://pool-b:1\""), "`a` is named twice");
        refused(
            "members = [{ id = \"b\", endpoint = \"tcp://pool-b:1\" }]",
            "`a`, this member, is not among",
        );
        assert_eq!(of("0.0.0.0:1", plain, &listed(OWN, "id = \"b\", endpoint = \"tcp://pool-b:1\"")), "");
    }

    #[test]
    fn members_that_do_not_speak_alike_are_refused_unless_something_may_stand_between() {
        let plain = "[tls]\ninsecure = true";
        let other = "id = \"b\", endpoint = \"tls://pool-b:1\"";
        let own = OWN.replace("tcp:", "tls:");
        assert!(of("0.0.0.0:1", plain, &listed(&own, other)).contains("has no certificate"));
        assert!(of("0.0.0.0:1", TLS, &listed(OWN, other)).contains("say tls://"));
        assert!(of("0.0.0.0:1", TLS, &listed(&own, other)).contains("cluster.ca"));
        let half = format!("{}\nca = \"c\"\ncert = \"c\"", listed(&own, other));
        assert!(of("0.0.0.0:1", TLS, &half).contains("cluster.key"));
        assert_eq!(of("0.0.0.0:1", TLS, &format!("{}\n{FILES}", listed(&own, other))), "");
        // A proxy may speak TLS for it.
        for tcp in ["127.0.0.1:1", "0.0.0.0:2"] {
            let said = of(tcp, plain, &format!("{}\n{FILES}", listed(&own, other)));
            assert!(said.contains("port mapping"), "{tcp}: {said}");
        }
        for host in ["127.0.0.1", "localhost", "[::1]"] {
            let own = OWN.replace("pool-a", host);
            assert_eq!(of("127.0.0.1:1", "", &listed(&own, "id = \"b\", endpoint = \"tcp://h:1\"")), "");
        }
    }
}
