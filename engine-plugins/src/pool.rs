//! `turnkv.Pool`. Owns: its settings, the words for a namespace, what the server counts. Must not know: pages, buffers, how
//! connections are kept.

use crate::connection::PoolConnection;
use crate::namespace::Namespace;
use crate::{error, runtime};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::path::PathBuf;
use std::sync::Arc;
use turnkv_client::{
    Attention, BreakerConfig, BreakerState, ClientConfig, ClientState, DataPlane, DeviceMemoryChoice,
    DeviceWay, Dtype, EmbeddedConfig, Fabric, FabricChoice, FabricConfig, Group, Layout, NamespaceSpec,
    StatsReply, TierKind, TlsConfig,
};

/// A door to one pool.
#[pyclass(frozen, module = "turnkv")]
pub(crate) struct Pool {
    connection: Arc<PoolConnection>,
}

#[pymethods]
impl Pool {
    #[new]
    #[pyo3(signature = (address = None, *, data_plane = "auto", connect_ms = None, call_ms = None, verify = true,
        breaker_failures = None, breaker_cooldown_ms = None, dram_bytes = None, nvme_bytes = None, dir = None, server = None,
        tls_ca = None, tls_cert = None, tls_key = None, tls_server_name = None, fabric = "auto", nics = None,
        libfabric_provider = None, device_memory = "auto", follow_homes = true))]
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
        tls_ca: Option<PathBuf>,
        tls_cert: Option<PathBuf>,
        tls_key: Option<PathBuf>,
        tls_server_name: Option<String>,
        fabric: &str,
        nics: Option<Vec<String>>,
        libfabric_provider: Option<String>,
        device_memory: &str,
        follow_homes: bool,
    ) -> PyResult<Pool> {
        let usual = ClientConfig::default();
        let config = ClientConfig {
            address: address.map(str::to_owned),
            follow_homes,
            data_plane: parse_data_plane(data_plane)?,
            fabric: FabricConfig {
                choice: parse_fabric(fabric)?,
                nics: nics.unwrap_or_default(),
                libfabric_provider: libfabric_provider.unwrap_or_default(),
                device_memory: parse_device_memory(device_memory)?,
            },
            connect_ms: connect_ms.unwrap_or(usual.connect_ms),
            call_ms: call_ms.unwrap_or(usual.call_ms),
            verify,
            breaker: BreakerConfig {
                failures: breaker_failures.unwrap_or(usual.breaker.failures),
                cooldown_ms: breaker_cooldown_ms.unwrap_or(usual.breaker.cooldown_ms),
            },
            tls: TlsConfig { ca: tls_ca, cert: tls_cert, key: tls_key, server_name: tls_server_name },
            embedded: EmbeddedConfig {
                dram_bytes: dram_bytes.unwrap_or(usual.embedded.dram_bytes),
                nvme_bytes: nvme_bytes.unwrap_or(usual.embedded.nvme_bytes),
                dir,
                server,
                bundled: bundled_server(py),
            },
        };
        Ok(Pool { connection: PoolConnection::new(py, config)? })
    }

    /// Where the server is; None: the embedded pool.
    #[getter]
    fn address(&self) -> Option<&str> {
        self.connection.address()
    }

    /// idle, connected or breaker_open, without asking the server.
    #[getter]
    fn state(&self, py: Python<'_>) -> PyResult<&'static str> {
        let (client, _) = self.connection.client(py)?;
        Ok(state_name(&client.state()))
    }

    /// The fastest fabric by which pages travel over a network just now; None: by none.
    #[getter]
    fn fabric(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        let (client, _) = self.connection.client(py)?;
        Ok(client.state().fabric.map(Fabric::name))
    }

    /// How a device's pages crossed the network last: `direct`, or `host: ` and why; None: there was no such call.
    #[getter]
    fn device_way(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let (client, _) = self.connection.client(py)?;
        Ok(client.state().device_way.map(|way| match way {
            DeviceWay::Direct => "direct".to_owned(),
            DeviceWay::ThroughHost(why) => format!("host: {why}"),
        }))
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
        Namespace::open(py, Arc::clone(&self.connection), spec)
    }

    /// The server's counters and gauges.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (client, runtime) = self.connection.client(py)?;
        let stats =
            runtime::run(py, runtime, client.stats()).map_err(|failed| error::from_client(py, failed))?;
        stats_dict(py, &stats)
    }

    /// Demotes from DRAM what is on NVMe too (tier = "dram"), or drops everything.
    #[pyo3(signature = (tier = None))]
    fn evict(&self, py: Python<'_>, tier: Option<&str>) -> PyResult<u64> {
        self.connection.evict(py, None, tier)
    }

    /// Asks the server to take no more offloads; the bytes not yet on NVMe.
    fn drain(&self, py: Python<'_>) -> PyResult<u64> {
        let (client, runtime) = self.connection.client(py)?;
        runtime::run(py, runtime, client.drain()).map_err(|failed| error::from_client(py, failed))
    }

    /// Takes a drain back; whether there was one.
    fn resume(&self, py: Python<'_>) -> PyResult<bool> {
        let (client, runtime) = self.connection.client(py)?;
        runtime::run(py, runtime, client.resume()).map_err(|failed| error::from_client(py, failed))
    }

    /// Lets go of the connections; a later call connects again.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.connection.close(py)
    }

    fn __repr__(&self) -> String {
        match self.connection.address() {
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

fn parse_data_plane(name: &str) -> PyResult<DataPlane> {
    match name {
        "auto" => Ok(DataPlane::Auto),
        "shm" => Ok(DataPlane::Shm),
        "framed" => Ok(DataPlane::Framed),
        "inline" => Ok(DataPlane::Inline),
        other => {
            Err(PyValueError::new_err(format!("data_plane is auto, shm, framed or inline, not {other:?}")))
        }
    }
}

fn parse_device_memory(name: &str) -> PyResult<DeviceMemoryChoice> {
    let choice = DeviceMemoryChoice::by_name(name);
    choice.ok_or_else(|| PyValueError::new_err(format!("device_memory is auto or host, not {name:?}")))
}

fn parse_fabric(name: &str) -> PyResult<FabricChoice> {
    FabricChoice::by_name(name).ok_or_else(|| {
        PyValueError::new_err(format!("fabric is auto, framed, libfabric or verbs, not {name:?}"))
    })
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
