//! The door to a TurnKV pool: connect, offload, reload, sessions. Works inside any tokio runtime with io and
//! time enabled.
//!
//! - [`Client`] (`client`): one pool or several, lazily connected; [`ClientConfig`] (`config`): what its owner decides
//! - [`Namespace`] (`namespace`): everything that needs a page's shape
//!   - `lookup`, `offload`, `reload`, `lease`, `begin_turn`, `session`, `pin`, `prefill`, `route`: one verb, one file
//!   - `tell`: how the verbs of sessions are asked
//!   - `pages`: what a page is copied from and to; `device`: GPU memory as the other end of offloads and reloads
//!   - `span`: pages mapped where the caller wants them: no copy at either end of a turn
//! - [`GpuPagePool`] (`gpu_pool`): pages kept in device memory
//! - `members`: which pool a call goes to, where there are several; `tries`: one call, at one after the other
//! - `link`: what all verbs share, for one pool: deadlines, the breaker, which data plane
//!   - `breaker`, `deadline`, `backoff`: when to stop calling a sick pool, and when to try again
//!   - `local`: the hot verbs on the local socket, the slabs mapped from it, the leases of mapped pages
//!   - `grpc`, `inline`: everything else, and pages in gRPC streams
//! - `embedded`: a private pool when no address is given
//! - [`Error`] (`error`): every one means "recompute, go on"; [`limits`]: every bound

#![forbid(unsafe_code)]

mod backoff;
mod begin_turn;
mod breaker;
mod client;
mod config;
mod deadline;
mod device;
mod embedded;
mod error;
mod framed;
mod gpu_pool;
mod grpc;
mod inline;
mod lease;
pub mod limits;
mod link;
mod local;
mod lookup;
mod members;
mod namespace;
mod offload;
mod pages;
mod pin;
mod prefill;
mod reload;
mod route;
mod session;
mod span;
mod tell;
mod tries;

pub use begin_turn::TurnBegun;
pub use breaker::BreakerState;
pub use client::{Client, ClientState, StatsReply, TierKind, TierStats};
pub use config::{
    BreakerConfig, ClientConfig, ConfigError, DataPlane, DeviceMemoryChoice, EmbeddedConfig, FabricChoice,
    FabricConfig, Plane, UnknownWord,
};
pub use device::DeviceOrder;
pub use error::{Error, ErrorKind, Result};
pub use framed::DeviceWay;
pub use gpu_pool::{GpuHit, GpuPagePool, GpuPoolStats, PageView};
pub use lease::{LeaseExpired, LeasedPage, ReadLease};
pub use namespace::Namespace;
pub use offload::{Decline, NotDurable, OffloadOptions, OffloadReport};
pub use pages::{PageSource, PageTarget, SlotTarget};
pub use pin::{PinFor, Pinned, SessionDetail};
pub use reload::device::DeviceReload;
pub use reload::{MissCause, ReloadOptions, ReloadReport};
pub use route::{EngineChoice, EngineState, Route};
pub use session::{EndTurn, Prefetched, SessionInfo, SessionList, TurnEnded};
pub use span::{CommitOptions, PageSpan, SpanCounts, Standing};
pub use turnkv_proto::{
    Attention, BlockHash, Dtype, Group, Layout, LayoutError, NamespaceId, Spec as NamespaceSpec,
};
pub use turnkv_transfer::device::{
    CopyChoice, Device, DeviceAddress, DeviceBuffer, DeviceError, DeviceErrorKind, DeviceMemory,
    DeviceOptions, DevicePlan, DeviceStats, DeviceView, HostControl, HostOptions, Mark as DeviceMark,
    Priority as DevicePriority, Stream,
};
pub use turnkv_transfer::fabric::{Engine as Fabric, HostMemory};
pub use turnkv_transfer::tls::TlsConfig;
pub use turnkv_transfer::{
    CopyPlan, PageLayout, PageMemory, PlanError, Span as SpanMemory, TensorShape, TensorView,
};
