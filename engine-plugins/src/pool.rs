//! `turnkv.Pool`. Owns: one client a process, the namespaces opened through it, closing them. Must not know: pages, buffers.

use crate::namespace::Namespace;
use crate::{error, runtime};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::runtime::Runtime;
use turnkv_client::{
    Attention, BreakerConfig, BreakerState, Client, ClientConfig, ClientState, DataPlane, Dtype,
    EmbeddedConfig, Group, Layout, NamespaceId, NamespaceSpec, StatsReply, TierKind,
};

/// Pools that exist, so that their embedded servers can be told at exit. Locked with the GIL held only.
static POOLS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// A door to one pool.
#[pyclass(frozen, module = "turnkv")]
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

/// What a pool and its namespaces share.
pub(crate) struct Shared {
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

impl Shared {
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

    /// The open namespace of `spec`: asks the server only when this process has not yet.
    pub(crate) fn namespace(
        &self,
        py: Python<'_>,
        spec: &NamespaceSpec,
    ) -> PyResult<(turnkv_client::Namespace, &'static Runtime)> {
        let (client, runtime) = self.client(py)?;
        if let Some(namespace) = self.connected(py).namespaces.get(spec) {
            return Ok((namespace.clone(), runtime));
        }
        let opened = runtime::run(py, runtime, client.open_namespace(spec.clone()));
        let namespace = opened.map_err(|failed| error::from_client(py, failed))?;
        self.connected(py).namespaces.insert(spec.clone(), namespace.clone());
        Ok((namespace, runtime))
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

    fn close(&self, py: Python<'_>) -> PyResult<()> {
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
}

/// Lets go of every pool's connections; runs when the interpreter exits.
#[pyfunction]
pub(crate) fn close_all(py: Python<'_>) -> PyResult<()> {
    let pools = std::mem::take(&mut *POOLS.lock().unwrap_or_else(PoisonError::into_inner));
    pools.iter().filter_map(Weak::upgrade).try_for_each(|pool| pool.close(py))
}

#[pymethods]
impl Pool {
    #[new]
    #[pyo3(signature = (address = None, *, data_plane = "auto", connect_ms = None, call_ms = None, verify = true,
        breaker_failures = None, breaker_cooldown_ms = None, dram_bytes = None, nvme_bytes = None, dir = None, server = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python, one a setting")]
    fn new(
        py: Python<'_>,
        address: Option<&str>,
        data_plane: &str,
        connect_ms: Option<u64>,
        call_ms: Option<u64>,
        verify: bool,
        breaker_failures: Option<u32>,
        breaker_cooldown_ms: Option<u64>,
        dram_bytes: Option<u64>,
        nvme_bytes: Option<u64>,
        dir: Option<PathBuf>,
        server: Option<PathBuf>,
    ) -> PyResult<Pool> {
        let usual = ClientConfig::default();
        let config = ClientConfig {
            address: address.map(absolute).transpose()?,
            data_plane: parse_data_plane(data_plane)?,
            connect_ms: connect_ms.unwrap_or(usual.connect_ms),
            call_ms: call_ms.unwrap_or(usual.call_ms),
            verify,
            breaker: BreakerConfig {
                failures: breaker_failures.unwrap_or(usual.breaker.failures),
                cooldown_ms: breaker_cooldown_ms.unwrap_or(usual.breaker.cooldown_ms),
            },
            embedded: EmbeddedConfig {
                dram_bytes: dram_bytes.unwrap_or(usual.embedded.dram_bytes),
                nvme_bytes: nvme_bytes.unwrap_or(usual.embedded.nvme_bytes),
                dir,
                server,
                bundled: bundled_server(py),
            },
        };
        let shared = Arc::new(Shared { config, connected: Mutex::new(Connected::default()) });
        shared.client(py)?;
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(&shared));
        Ok(Pool { shared })
    }

    /// Where the server is; None: the embedded pool.
    #[getter]
    fn address(&self) -> Option<&str> {
        self.shared.config.address.as_deref()
    }

    /// idle, connected or breaker_open, without asking the server.
    #[getter]
    fn state(&self, py: Python<'_>) -> PyResult<&'static str> {
        let (client, _) = self.shared.client(py)?;
        Ok(state_name(&client.state()))
    }

    #[pyo3(signature = (model, *, dtype, layers = 0, kv_heads = 0, head_dim = 0, page_tokens = 16,
        layout = "layer_kv_head_token", tp_size = 1, opaque_shard_bytes = 0, tenant = "", salt = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python, one a field")]
    fn open_namespace(
        &self,
        py: Python<'_>,
        model: &str,
        dtype: &str,
        layers: u32,
        kv_heads: u32,
        head_dim: u32,
        page_tokens: u32,
        layout: &str,
        tp_size: u32,
        opaque_shard_bytes: u64,
        tenant: &str,
        salt: Option<&[u8]>,
    ) -> PyResult<Namespace> {
        let group = Group { kind: Attention::Full, layers, kv_heads, head_dim, window_tokens: 0 };
        let layout = parse_layout(layout)?;
        let groups = if layout == Layout::Opaque && layers == 0 { Vec::new() } else { vec![group] };
        let spec = NamespaceSpec {
            model: model.to_owned(),
            dtype: parse_dtype(dtype)?,
            page_tokens,
            tp_size,
            layout,
            groups,
            opaque_shard_bytes,
            tenant: tenant.to_owned(),
            salt: salt.map(<[u8]>::to_vec).unwrap_or_default(),
        };
        Namespace::open(py, Arc::clone(&self.shared), spec)
    }

    /// The server's counters and gauges.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (client, runtime) = self.shared.client(py)?;
        let stats =
            runtime::run(py, runtime, client.stats()).map_err(|failed| error::from_client(py, failed))?;
        stats_dict(py, &stats)
    }

    /// Demotes from DRAM what is on NVMe too (tier = "dram"), or drops everything.
    #[pyo3(signature = (tier = None))]
    fn evict(&self, py: Python<'_>, tier: Option<&str>) -> PyResult<u64> {
        self.shared.evict(py, None, tier)
    }

    /// Asks the server to take no more offloads; the bytes not yet on NVMe.
    fn drain(&self, py: Python<'_>) -> PyResult<u64> {
        let (client, runtime) = self.shared.client(py)?;
        runtime::run(py, runtime, client.drain()).map_err(|failed| error::from_client(py, failed))
    }

    /// Takes a drain back; whether there was one.
    fn resume(&self, py: Python<'_>) -> PyResult<bool> {
        let (client, runtime) = self.shared.client(py)?;
        runtime::run(py, runtime, client.resume()).map_err(|failed| error::from_client(py, failed))
    }

    /// Lets go of the connections; a later call connects again.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.close(py)
    }

    fn __repr__(&self) -> String {
        match &self.shared.config.address {
            Some(address) => format!("Pool('{address}')"),
            None => "Pool()".to_owned(),
        }
    }
}

/// The server that the wheel carries; a source tree has none.
fn bundled_server(py: Python<'_>) -> Option<PathBuf> {
    let package: PathBuf = py.import("turnkv").ok()?.getattr("__file__").ok()?.extract().ok()?;
    let server = package.parent()?.join("_bin").join("turnkv");
    server.is_file().then_some(server)
}

/// `unix:relative/path` as seen from the current directory; the rest is the client's to judge.
fn absolute(address: &str) -> PyResult<String> {
    let Some(path) = address.strip_prefix("unix:").filter(|path| !path.is_empty() && !path.starts_with('/'))
    else {
        return Ok(address.to_owned());
    };
    Ok(format!("unix:{}", std::path::absolute(path)?.display()))
}

fn parse_data_plane(name: &str) -> PyResult<DataPlane> {
    match name {
        "auto" => Ok(DataPlane::Auto),
        "shm" => Ok(DataPlane::Shm),
        "inline" => Ok(DataPlane::Inline),
        other => Err(PyValueError::new_err(format!("data_plane is auto, shm or inline, not {other:?}"))),
    }
}

fn parse_layout(name: &str) -> PyResult<Layout> {
    match name {
        "layer_kv_head_token" => Ok(Layout::LayerKvHeadToken),
        "layer_kv_token_head" => Ok(Layout::LayerKvTokenHead),
        "opaque" => Ok(Layout::Opaque),
        other => {
            let text = format!("layout is layer_kv_head_token, layer_kv_token_head or opaque, not {other:?}");
            Err(PyValueError::new_err(text))
        }
    }
}

fn parse_dtype(name: &str) -> PyResult<Dtype> {
    match name {
        "bf16" => Ok(Dtype::Bf16),
        "f16" => Ok(Dtype::F16),
        "f32" => Ok(Dtype::F32),
        "f8_e4m3" => Ok(Dtype::F8E4m3),
        "f8_e5m2" => Ok(Dtype::F8E5m2),
        "u8" => Ok(Dtype::U8),
        other => Err(PyValueError::new_err(format!(
            "dtype is bf16, f16, f32, f8_e4m3, f8_e5m2 or u8, not {other:?}"
        ))),
    }
}

fn state_name(state: &ClientState) -> &'static str {
    match state.breaker {
        BreakerState::Open | BreakerState::HalfOpen => "breaker_open",
        BreakerState::Closed if state.instance == 0 => "idle",
        BreakerState::Closed => "connected",
    }
}

fn tier_name(tier: i32) -> &'static str {
    match TierKind::try_from(tier) {
        Ok(TierKind::Dram) => "dram",
        Ok(TierKind::Nvme) => "nvme",
        Ok(TierKind::Unspecified) | Err(_) => "other",
    }
}

fn stats_dict<'py>(py: Python<'py>, stats: &StatsReply) -> PyResult<Bound<'py, PyDict>> {
    let tiers = PyList::empty(py);
    for tier in &stats.tiers {
        let dict = PyDict::new(py);
        dict.set_item("tier", tier_name(tier.tier))?;
        dict.set_item("capacity_bytes", tier.capacity_bytes)?;
        dict.set_item("used_bytes", tier.used_bytes)?;
        dict.set_item("leased_bytes", tier.leased_bytes)?;
        dict.set_item("pages", tier.pages)?;
        dict.set_item("hit_pages", tier.hit_pages)?;
        dict.set_item("read_bytes", tier.read_bytes)?;
        dict.set_item("written_bytes", tier.written_bytes)?;
        dict.set_item("poisoned", tier.poisoned)?;
        dict.set_item("note", &tier.note)?;
        tiers.append(dict)?;
    }
    let dict = PyDict::new(py);
    dict.set_item("tiers", tiers)?;
    let counters = [
        ("lookups", stats.lookups),
        ("miss_pages", stats.miss_pages),
        ("hit_tokens", stats.hit_tokens),
        ("offloaded_pages", stats.offloaded_pages),
        ("present_pages", stats.present_pages),
        ("declined_pages", stats.declined_pages),
        ("evicted_pages", stats.evicted_pages),
        ("corrupt_pages", stats.corrupt_pages),
        ("sessions", stats.sessions),
        ("namespaces", stats.namespaces),
        ("leases", stats.leases),
        ("dirty_bytes", stats.dirty_bytes),
        ("uptime_ms", stats.uptime_ms),
        ("index_bytes", stats.index_bytes),
        ("index_pages", stats.index_pages),
        ("quarantined_bytes", stats.quarantined_bytes),
        ("connections", stats.connections),
    ];
    for (name, value) in counters {
        dict.set_item(name, value)?;
    }
    dict.set_item("version", &stats.version)?;
    Ok(dict)
}
