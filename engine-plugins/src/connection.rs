//! One pool as its Python objects share it. Owns: one client a process, the namespaces opened through it, letting go of both.
//! Must not know: pages, buffers, Python's classes.

use crate::{error, runtime};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::Runtime;
use turnkv_client::{Client, ClientConfig, NamespaceId, NamespaceSpec, TierKind};

/// Connections that exist, so that their embedded servers can be told at exit. Locked with the GIL held only.
static CONNECTIONS: Mutex<Vec<Weak<PoolConnection>>> = Mutex::new(Vec::new());

/// What a pool and its namespaces share.
pub(crate) struct PoolConnection {
    config: ClientConfig,
    /// Locked with the GIL held only: a fork, which needs the GIL too, finds it free.
    connected: Mutex<Connected>,
}

/// The client of one process. In a forked child this is the parent's: left alone, never dropped.
#[derive(Default)]
struct Connected {
    process: u32,
    client: Option<Client>,
    namespaces: HashMap<NamespaceSpec, turnkv_client::Namespace>,
}

impl PoolConnection {
    /// A connection that will be made at the first call. Raises ValueError for a configuration that cannot be meant.
    pub(crate) fn new(py: Python<'_>, config: ClientConfig) -> PyResult<Arc<PoolConnection>> {
        let connection = Arc::new(PoolConnection { config, connected: Mutex::default() });
        connection.client(py)?;
        let mut connections = CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|other| other.strong_count() > 0);
        connections.push(Arc::downgrade(&connection));
        Ok(connection)
    }

    /// Where the server is; None: the embedded pool.
    pub(crate) fn address(&self) -> Option<&str> {
        self.config.address.as_deref()
    }

    /// Drops pages, of one namespace or all.
    pub(crate) fn evict(
        &self,
        py: Python<'_>,
        namespace: Option<NamespaceId>,
        tier: Option<&str>,
    ) -> PyResult<u64> {
        let tier = match tier {
            None => None,
            Some("dram") => Some(TierKind::Dram),
            Some(other) => {
                return Err(PyValueError::new_err(format!("tier must be \"dram\" or None, not {other:?}")));
            }
        };
        let (client, runtime) = self.client(py)?;
        runtime::run(py, runtime, client.evict(namespace, tier))
            .map_err(|failed| error::from_client(py, failed))
    }

    /// The client of this process, made at first use and after a fork.
    pub(crate) fn client(&self, py: Python<'_>) -> PyResult<(Client, &'static Runtime)> {
        let runtime = runtime::current(py)?;
        let mut connected = self.connected(py);
        if let Some(client) = &connected.client {
            return Ok((client.clone(), runtime));
        }
        let _inside = runtime.enter();
        let client = Client::new(self.config.clone()).map_err(|error| error::from_config(&error))?;
        connected.client = Some(client.clone());
        Ok((client, runtime))
    }

    /// The open namespace of `spec`: asks the server only when this process has not yet, and takes `within` for that at most (none:
    /// `call_ms`).
    pub(crate) fn namespace(
        &self,
        py: Python<'_>,
        spec: &NamespaceSpec,
        within: Option<Duration>,
    ) -> PyResult<(turnkv_client::Namespace, &'static Runtime)> {
        let (client, runtime) = self.client(py)?;
        if let Some(namespace) = self.connected(py).namespaces.get(spec) {
            return Ok((namespace.clone(), runtime));
        }
        let opened = runtime::run(py, runtime, client.open_namespace_within(spec.clone(), within));
        let namespace = opened.map_err(|failed| error::from_client(py, failed))?;
        self.connected(py).namespaces.insert(spec.clone(), namespace.clone());
        Ok((namespace, runtime))
    }

    /// Lets go of the connections; a later call connects again.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        let taken = std::mem::take(&mut *self.connected(py));
        if taken.client.is_none() {
            return Ok(());
        }
        let runtime = runtime::current(py)?;
        py.detach(|| {
            let _inside = runtime.enter();
            drop(taken);
        });
        Ok(())
    }

    fn connected(&self, _py: Python<'_>) -> MutexGuard<'_, Connected> {
        let mut connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if connected.process != process {
            // The parent's connections and locks: a copy of them is of no use here, and dropping it could wait for threads
            // that this process does not have, or stop the parent's embedded server.
            std::mem::forget(std::mem::replace(
                &mut *connected,
                Connected { process, ..Connected::default() },
            ));
        }
        connected
    }
}

/// Lets go of every pool's connections; runs when the interpreter exits.
#[pyfunction]
pub(crate) fn close_all(py: Python<'_>) -> PyResult<()> {
    let connections = std::mem::take(&mut *CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner));
    connections.iter().filter_map(Weak::upgrade).try_for_each(|connection| connection.close(py))
}
