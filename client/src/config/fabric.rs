//! What moves pages over a network. Owns: settings as written, and those of the environment. Must not know: what this host has.

use turnkv_transfer::fabric::Engine;

/// By what pages travel to a server on another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FabricChoice {
    /// Verbs where an RDMA port is up, libfabric where there is EFA or Slingshot, and frames over TCP or TLS where neither is, or
    /// while they fail.
    #[default]
    Auto,
    /// Frames over TCP or TLS only: no library is loaded.
    Framed,
    /// libfabric only.
    Libfabric,
    /// RDMA verbs only.
    Verbs,
}

/// Whose memory the NICs of this host read and write for calls of a device (`offload_device`, `reload_device`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceMemoryChoice {
    /// The device's, where it, its driver and all NICs that are used have dma-bufs; else this host's.
    #[default]
    Auto,
    /// This host's, which the device fills and drains: none of the device's memory is taken for it.
    Host,
}

/// By what pages travel over a network, and which NICs are used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FabricConfig {
    /// Default: `TURNKV_FABRIC`, else [`FabricChoice::Auto`].
    pub choice: FabricChoice,
    /// NICs, as `mlx5_0`, `mlx5_0:2` or what libfabric calls them, at most 8. Default: `TURNKV_NICS` (names with commas between
    /// them), else of each fabric the first.
    pub nics: Vec<String>,
    /// Provider of libfabric. Default: `TURNKV_LIBFABRIC_PROVIDER`, else the first of `efa`, `cxi`.
    pub libfabric_provider: String,
    /// Default: `TURNKV_DEVICE_MEMORY`, else [`DeviceMemoryChoice::Auto`], which takes up to 256 MiB of a device's memory for as long as
    /// this client uses it.
    pub device_memory: DeviceMemoryChoice,
}

/// A word that means nothing for its setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} must be {words}, got {said:?}")]
pub struct UnknownWord {
    setting: &'static str,
    words: &'static str,
    said: String,
}

impl DeviceMemoryChoice {
    /// The choice of this name: `auto` or `host`.
    pub fn by_name(name: &str) -> Option<DeviceMemoryChoice> {
        match name {
            "auto" => Some(DeviceMemoryChoice::Auto),
            "host" => Some(DeviceMemoryChoice::Host),
            _ => None,
        }
    }
}

impl FabricChoice {
    /// The choice of this name: `auto`, `framed`, `libfabric` or `verbs`.
    pub fn by_name(name: &str) -> Option<FabricChoice> {
        match name {
            "auto" => Some(FabricChoice::Auto),
            "framed" => Some(FabricChoice::Framed),
            "libfabric" => Some(FabricChoice::Libfabric),
            "verbs" => Some(FabricChoice::Verbs),
            _ => None,
        }
    }

    /// Whether rails of this engine may be used.
    pub(crate) fn allows(self, engine: Engine) -> bool {
        match self {
            FabricChoice::Auto => true,
            FabricChoice::Framed => engine == Engine::Framed,
            FabricChoice::Libfabric => engine == Engine::Libfabric,
            FabricChoice::Verbs => engine == Engine::Verbs,
        }
    }
}

impl FabricConfig {
    /// What is not said here, as the environment says it.
    pub(crate) fn or_environment(
        &self,
        said: impl Fn(&str) -> Option<String>,
    ) -> Result<FabricConfig, UnknownWord> {
        let named = |name: &str| said(name).filter(|value| !value.is_empty());
        let mut config = self.clone();
        if config.choice == FabricChoice::Auto
            && let Some(name) = named("TURNKV_FABRIC")
        {
            config.choice = FabricChoice::by_name(&name).ok_or(UnknownWord {
                setting: "fabric",
                words: "auto, framed, libfabric or verbs",
                said: name,
            })?;
        }
        if config.device_memory == DeviceMemoryChoice::Auto
            && let Some(name) = named("TURNKV_DEVICE_MEMORY")
        {
            config.device_memory = DeviceMemoryChoice::by_name(&name).ok_or(UnknownWord {
                setting: "device_memory",
                words: "auto or host",
                said: name,
            })?;
        }
        if config.nics.is_empty() {
            let names = named("TURNKV_NICS").unwrap_or_default();
            config.nics =
                names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
        }
        if config.libfabric_provider.is_empty() {
            config.libfabric_provider = named("TURNKV_LIBFABRIC_PROVIDER").unwrap_or_default();
        }
        Ok(config)
    }
}
