//! `[remote]`: by which fabrics pages go to and from other hosts. Owns: its keys and their check. Must not know: whether this host
//! has what is named.

use super::bounds::bad;
use super::error::ConfigError;
use crate::limits::NICS_MAX;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use turnkv_transfer::fabric::Engine;
use turnkv_transfer::fabric::nics::NicOptions;

/// `[remote]`
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RemoteFile {
    /// Fabrics that clients of other hosts may use; default: all, as far as the host has them. Of a list that leaves any out, each
    /// must be there.
    fabrics: Option<Vec<FabricName>>,
    /// NICs to use, as `mlx5_0`, `mlx5_0:2` or what libfabric calls them; default: of each fabric the first. One that is named must
    /// be there.
    nics: Option<Vec<String>>,
    /// Provider of libfabric; default the first of `efa`, `cxi`. One that is named must be there.
    libfabric_provider: Option<String>,
}

/// What moves bytes between hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum FabricName {
    Verbs,
    Libfabric,
    Framed,
}

/// Checked `[remote]`; by default there is no fabric.
#[derive(Debug, Clone, Default)]
pub(crate) struct Remote {
    /// The fastest first.
    pub(crate) fabrics: Vec<Engine>,
    /// None: of each fabric the first.
    pub(crate) nics: Vec<String>,
    /// Empty: the usual ones.
    pub(crate) libfabric_provider: String,
    /// The address that clients connect to, where it is one.
    source: Option<IpAddr>,
}

impl Remote {
    /// Checks the keys. `tcp`: where clients of other hosts connect.
    pub(super) fn check(file: RemoteFile, tcp: Option<SocketAddr>) -> Result<Remote, ConfigError> {
        let names = file.fabrics.unwrap_or_else(|| Engine::ALL.map(FabricName::of).to_vec());
        let named = |engine: &Engine| names.contains(&FabricName::of(*engine));
        let fabrics: Vec<Engine> = Engine::ALL.into_iter().filter(named).collect();
        if fabrics.is_empty() || fabrics.len() < names.len() {
            return Err(bad("remote.fabrics", "name at least one, each once".to_owned()));
        }
        let nics = file.nics.unwrap_or_default();
        let mut known = std::collections::BTreeSet::new();
        if nics.len() > NICS_MAX || nics.iter().any(|nic| nic.is_empty() || !known.insert(nic)) {
            return Err(bad("remote.nics", format!("name at most {NICS_MAX}, each once")));
        }
        let source = tcp.map(|address| address.ip()).filter(|ip| !ip.is_unspecified());
        let remote =
            Remote { fabrics, nics, libfabric_provider: file.libfabric_provider.unwrap_or_default(), source };
        if !remote.nics.is_empty() && remote.fabrics == [Engine::Framed] {
            return Err(bad("remote.nics", "framed rails use no NIC of their own".to_owned()));
        }
        if !remote.libfabric_provider.is_empty() && !remote.fabrics.contains(&Engine::Libfabric) {
            return Err(bad("remote.libfabric_provider", "remote.fabrics leaves libfabric out".to_owned()));
        }
        Ok(remote)
    }

    /// The keys that say as much.
    pub(super) fn as_file(&self) -> RemoteFile {
        RemoteFile {
            fabrics: Some(self.fabrics.iter().map(|engine| FabricName::of(*engine)).collect()),
            nics: Some(self.nics.clone()).filter(|nics| !nics.is_empty()),
            libfabric_provider: Some(self.libfabric_provider.clone()).filter(|name| !name.is_empty()),
        }
    }

    /// Which NICs to open.
    pub(crate) fn nic_options(&self) -> NicOptions {
        let provider = Some(self.libfabric_provider.clone()).filter(|provider| !provider.is_empty());
        NicOptions {
            engines: self.fabrics.clone(),
            names: self.nics.clone(),
            providers: provider.into_iter().collect(),
            source: self.source,
        }
    }

    /// Whether a fabric that is not there is an error: it was named.
    pub(crate) fn is_named(&self, engine: Engine) -> bool {
        let provider = engine == Engine::Libfabric && !self.libfabric_provider.is_empty();
        provider || self.fabrics.len() < Engine::ALL.len()
    }
}

impl FabricName {
    fn of(engine: Engine) -> FabricName {
        match engine {
            Engine::Verbs => FabricName::Verbs,
            Engine::Libfabric => FabricName::Libfabric,
            Engine::Framed => FabricName::Framed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use std::path::Path;
    use turnkv_transfer::fabric::Engine;

    #[test]
    fn all_fabrics_are_tried_and_what_is_named_must_be_there() {
        let of = |text: &str| parse(Path::new("t"), text).map(|settings| settings.remote);
        let usual = of("").unwrap();
        assert_eq!(usual.fabrics, Engine::ALL);
        assert!(Engine::ALL.iter().all(|engine| !usual.is_named(*engine)));
        assert_eq!(usual.nic_options().source, None);
        let some = of("tcp = \"127.0.0.1:1\"\n[remote]\nfabrics = [\"framed\", \"verbs\"]\n").unwrap();
        assert_eq!(some.fabrics, [Engine::Verbs, Engine::Framed]);
        assert!(some.is_named(Engine::Verbs) && some.nic_options().source.is_some());
        let provider = of("[remote]\nlibfabric_provider = \"efa\"\n").unwrap();
        assert!(provider.is_named(Engine::Libfabric) && !provider.is_named(Engine::Verbs));
        for bad in [
            "fabrics = []",
            "fabrics = [\"framed\", \"framed\"]",
            "fabrics = [\"framed\"]\nnics = [\"a\"]",
            "fabrics = [\"verbs\"]\nlibfabric_provider = \"efa\"",
            "nics = [\"a\", \"a\"]",
            "nics = [\"\"]",
        ] {
            assert!(of(&format!("[remote]\n{bad}\n")).is_err(), "{bad}");
        }
    }
}
