//! The NICs of this machine that an engine can use. Owns: opening them by name, or the first that there is. Must
//! not know: either library, who asks.
//!
//! A machine without NICs or without their libraries has none: why not is said, and is nobody's fault.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::fabric::contract::{Engine, OpenError, RailAnswers, RailOffers};
use crate::fabric::libfabric::{LibfabricClient, LibfabricOptions, LibfabricServer};
use crate::fabric::verbs::{VerbsClient, VerbsOptions, VerbsServer};

/// Which NICs to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicOptions {
    /// By which engines; framed needs none.
    pub engines: Vec<Engine>,
    /// Their names (`mlx5_0`, `mlx5_0:2`, or what a provider of libfabric calls them); none: of each engine the
    /// first that can be used.
    pub names: Vec<String>,
    /// libfabric's providers, the ones to prefer first; none: [`crate::fabric::libfabric::PROVIDERS_USUAL`].
    pub providers: Vec<String>,
    /// The host's own address towards its peers.
    pub source: Option<IpAddr>,
}

/// What was opened, and what was not.
#[derive(Debug)]
pub struct OpenNics<T: ?Sized> {
    /// By engine, the fastest first.
    pub nics: Vec<OpenNic<T>>,
    /// What could not be opened, and why.
    pub missing: Vec<MissingNic>,
}

/// One NIC.
#[derive(Debug)]
pub struct OpenNic<T: ?Sized> {
    /// By which engine.
    pub engine: Engine,
    /// Its end here.
    pub nic: Arc<T>,
}

/// A NIC, or all of an engine's, that could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingNic {
    /// By which engine.
    pub engine: Engine,
    /// Which one was looked for; none: any.
    pub name: Option<String>,
    /// Why not.
    pub why: OpenError,
}

impl fmt::Display for MissingNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{} on {name}: {}", self.engine, self.why),
            None => write!(f, "{}: {}", self.engine, self.why),
        }
    }
}

/// Opens the server's ends. Blocking: loads libraries.
#[must_use]
pub fn open_servers(options: &NicOptions) -> OpenNics<dyn RailAnswers> {
    open(options, |engine, name| {
        let nic: Arc<dyn RailAnswers> = match engine {
            Engine::Framed => return Ok(None),
            Engine::Libfabric => Arc::new(LibfabricServer::open(&options.libfabric(name))?),
            Engine::Verbs => Arc::new(VerbsServer::open(&options.verbs(name))?),
        };
        Ok(Some(nic))
    })
}

/// Opens the client's end of one NIC, for one server; without a name the first of the engine. Blocking: loads a library.
///
/// # Errors
/// See [`OpenError`]. Framed rails use no NIC of their own: `Unavailable`.
pub fn open_client(
    options: &NicOptions,
    engine: Engine,
    name: Option<&str>,
) -> Result<Arc<dyn RailOffers>, OpenError> {
    Ok(match engine {
        Engine::Framed => return Err(OpenError::Unavailable("framed rails use no NIC".to_owned())),
        Engine::Libfabric => Arc::new(LibfabricClient::open(&options.libfabric(name))?),
        Engine::Verbs => Arc::new(VerbsClient::open(&options.verbs(name))?),
    })
}

impl NicOptions {
    fn libfabric(&self, name: Option<&str>) -> LibfabricOptions {
        LibfabricOptions {
            library: None,
            providers: self.providers.clone(),
            domain: name.map(str::to_owned),
            source: self.source,
        }
    }

    fn verbs(&self, name: Option<&str>) -> VerbsOptions {
        VerbsOptions { library: None, device: name.map(str::to_owned), source: self.source }
    }
}

fn open<T: ?Sized>(
    options: &NicOptions,
    open: impl Fn(Engine, Option<&str>) -> Result<Option<Arc<T>>, OpenError>,
) -> OpenNics<T> {
    let mut found = OpenNics { nics: Vec::new(), missing: Vec::new() };
    let names: Vec<Option<&str>> = match options.names.as_slice() {
        [] => vec![None],
        names => names.iter().map(|name| Some(name.as_str())).collect(),
    };
    for engine in Engine::ALL.into_iter().filter(|engine| options.engines.contains(engine)) {
        for name in &names {
            match open(engine, *name) {
                Ok(Some(nic)) => found.nics.push(OpenNic { engine, nic }),
                Ok(None) => {}
                Err(why) => {
                    found.missing.push(MissingNic { engine, name: name.map(str::to_owned), why });
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{NicOptions, open};
    use crate::fabric::contract::{Engine, OpenError};
    use std::sync::Arc;

    #[test]
    fn names_are_looked_for_at_each_engine_and_the_fastest_comes_first() {
        let options = NicOptions {
            engines: vec![Engine::Framed, Engine::Libfabric, Engine::Verbs],
            names: vec!["mlx5_0".to_owned(), "efa0".to_owned()],
            ..NicOptions::default()
        };
        let found = open(&options, |engine, name| match (engine, name) {
            (Engine::Framed, _) => Ok(None),
            (Engine::Verbs, Some("mlx5_0")) | (Engine::Libfabric, Some("efa0")) => Ok(Some(Arc::new(()))),
            _ => Err(OpenError::Unavailable("not here".to_owned())),
        });
        let engines: Vec<Engine> = found.nics.iter().map(|nic| nic.engine).collect();
        assert_eq!(engines, [Engine::Verbs, Engine::Libfabric]);
        let missing: Vec<String> = found.missing.iter().map(ToString::to_string).collect();
        assert_eq!(missing.len(), 2, "{missing:?}");
        assert!(missing[0].contains("verbs on efa0"), "{missing:?}");
    }

    #[test]
    fn without_names_each_engine_is_asked_once_and_framed_alone_opens_nothing() {
        let options = NicOptions { engines: vec![Engine::Framed], ..NicOptions::default() };
        let found = open::<()>(&options, |engine, _| {
            assert_eq!(engine, Engine::Framed, "no library is loaded");
            Ok(None)
        });
        assert!(found.nics.is_empty() && found.missing.is_empty());
    }
}
