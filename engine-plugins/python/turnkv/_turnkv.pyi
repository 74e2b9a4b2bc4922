"""The compiled part of turnkv. Every call that talks to the pool releases the GIL, and raises `Error` when it cannot serve."""

from collections.abc import Sequence
from typing import Any, Literal, final, overload

from typing_extensions import Self

__all__ = [
    "Device",
    "DeviceReload",
    "DeviceStream",
    "Error",
    "GpuHit",
    "GpuPagePool",
    "Lease",
    "Namespace",
    "OffloadReport",
    "OnDevice",
    "Pool",
    "Prefetched",
    "ReloadReport",
    "Runs",
    "Span",
    "Strided",
    "TurnBegun",
    "__version__",
    "chain_hashes",
]
__version__: str

_Kind = Literal[
    "invalid",
    "unavailable",
    "deadline",
    "breaker_open",
    "busy",
    "draining",
    "lease_expired",
    "namespace_unknown",
    "session_unknown",
    "limit",
    "device",
    "internal",
    "permission_denied",
    "unnamed",
]
_Dtype = Literal["bf16", "f16", "f32", "f8_e4m3", "f8_e5m2", "u8"]
_Layout = Literal["layer_kv_head_token", "layer_kv_token_head", "opaque"]
_Hashes = bytes | Sequence[bytes]
"""Block hashes in prefix order: packed, 32 bytes each, or a sequence of 32-byte strings."""
_Buffer = tuple[int, int] | Any
"""Contiguous CPU memory of one page: (address, bytes), a torch tensor, a numpy array or a buffer object."""
_Bytes = bytes
"""Where a class has a property of that name."""
_View = tuple[int, int, int, int, int]
"""K or V of one layer: (address of its first token, heads, head stride in bytes, token stride in bytes, bytes of a row)."""

class Error(Exception):
    """The pool could not serve a call. Nothing is lost but time: recompute and go on."""

    kind: _Kind
    """What went wrong."""
    advice: str
    """What to do about it, one sentence."""
    retry_after_ms: int
    """When the pool may do better; 0 when it did not say."""

@final
class OffloadReport:
    """What became of an offload's pages, counted from the first one: stored and present ones are in the pool."""

    stored: int
    present: int
    """Pages that were in the pool already."""
    declined: int
    """Pages the pool did not take; once one is declined so are all after it."""
    first_decline: str | None
    """Why: no_space, in_flight, no_parent (the page before it is not there, this one is there behind another one, or did not
    arrive whole), outranked (what would make way is likelier to be used again), draining, lease_limit, lease_expired, deadline,
    unavailable."""
    durable: bool
    """It was asked for, and what this call stored is on NVMe and flushed."""
    not_durable: str | None
    """Why it is not, where it was asked for and the server said: no_tier (it keeps nothing on NVMe: do not ask), timeout (the
    writes go on: offload the same again to ask), changed (somebody wrote to a page after its checksum: it is dropped), lost (a
    page left the pool meanwhile: offload it again), device (it failed: its operator must look)."""
    plane: str | None
    """How the pages travelled: shm, framed or inline; None: nothing was offered."""

@final
class ReloadReport:
    """What a reload brought: the first `pages` targets hold verified bytes, the rest are unspecified."""

    pages: int
    from_dram: int
    from_nvme: int
    miss: str | None
    """Why the run ended before the last hash: None when it did not; else absent, checksum, io, busy, incomplete,
    lease_expired, deadline, unavailable."""
    plane: str | None
    """How the pages travelled: shm, framed or inline; None: nothing was asked for."""

@final
class TurnBegun:
    """What the pool holds of a session."""

    turn: int
    """1 for a new session."""
    pages: int
    """Leading pages of the session still in the pool, a partial tail among them."""
    dram: int
    """Of these, in DRAM."""
    tail: bytes | None
    """Hash of the partial tail, the last of them."""
    tail_tokens: int
    archived: int
    """Pages after those in the pool that only the archive has: they are on their way."""
    afar: int
    """Pages after those in the pool that another pool of the cluster has: they are on their way."""

@final
class Prefetched:
    """What a prefetch began."""

    started: int
    """Promotions from NVMe begun."""
    ready: int
    """Pages already in DRAM."""

def chain_hashes(tokens: bytes, page_tokens: int, parent: bytes | None = None) -> bytes:
    """Packed block hashes of whole pages: SHA-256(parent or nothing, tokens as u32 LE), each the next one's parent.

    `tokens` are u32 little-endian. Tokens after the last whole page are left out. Raises ValueError for ragged input.
    """

@final
class Pool:
    """A door to one pool. Threads may share it; a forked child gets connections of its own. Connects at the first call.

    `address`: "unix:/path", "tls://host:port"; without encryption "tcp://host:port", or "http://host:port" (gRPC only); or
    None for the embedded pool: a private server process of this user that is started when needed (the one that the wheel
    carries, unless $TURNKV_SERVER or `server` names another) and stopped when its last client leaves; `dram_bytes`,
    `nvme_bytes`, `dir` (of its NVMe files) and `server` (path of the turnkv binary) are for that one only. `data_plane`:
    "auto" (shared memory with a server of this host; over data rails to a tls:// or tcp:// address; else inline), "shm",
    "framed" or "inline". `tls_ca` (who signed the server's certificate), `tls_cert` and `tls_key` (this process's own) are
    PEM files, for "tls://" only, and read anew for every connection; `tls_server_name`: the name of the server's certificate,
    where that is not the address's host. What is not given is taken from TURNKV_TLS_CA, TURNKV_TLS_CERT, TURNKV_TLS_KEY and
    TURNKV_TLS_SERVER_NAME. `fabric`: by what pages travel to a tls:// or tcp:// address: "verbs" (RDMA), "libfabric" (EFA,
    Slingshot), "framed" (TCP), or "auto": the fastest that both ends have. `nics`: names of the NICs to use; None: of each
    fabric the first. `libfabric_provider`: None: efa or cxi. `device_memory`: "auto": NICs read and write memory of a GPU where
    it, its driver and all of them have dma-bufs; "host": its pages go through host memory. What is not given is taken from
    TURNKV_FABRIC, TURNKV_NICS (names with commas), TURNKV_LIBFABRIC_PROVIDER and TURNKV_DEVICE_MEMORY. For a host without a
    pool `address` may name several members of a cluster, all tls:// or all tcp://, with commas between: the first that is well
    is used, and those that they tell of after it. `follow_homes`: a turn goes to the member that its session is at home at, and
    what names the session with it; False: it stays where the other calls go, which pulls the session's pages. `call_ms`: the
    deadline of every call that sets none; Ctrl-C takes effect when a call has ended. Raises ValueError for an address or value
    that cannot be meant.
    """

    def __new__(
        cls,
        address: str | None = None,
        *,
        data_plane: Literal["auto", "shm", "framed", "inline"] = "auto",
        connect_ms: int | None = None,
        call_ms: int | None = None,
        verify: bool = True,
        breaker_failures: int | None = None,
        breaker_cooldown_ms: int | None = None,
        dram_bytes: int | None = None,
        nvme_bytes: int | None = None,
        dir: str | None = None,
        server: str | None = None,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        tls_server_name: str | None = None,
        fabric: Literal["auto", "framed", "libfabric", "verbs"] = "auto",
        nics: list[str] | None = None,
        libfabric_provider: str | None = None,
        device_memory: Literal["auto", "host"] = "auto",
        follow_homes: bool = True,
    ) -> Self: ...
    @property
    def address(self) -> str | None: ...
    @property
    def state(self) -> str:
        """idle, connected, or breaker_open; without asking the server."""
    @property
    def fabric(self) -> str | None:
        """The fastest fabric by which pages travel over a network just now: framed, libfabric or verbs; None: by none."""
    @property
    def device_way(self) -> str | None:
        """How a GPU's pages crossed the network in the last call with one: "direct" (NICs reach its memory), or "host: " and why
        they went through host memory; None: there was no such call."""
    def open_namespace(
        self,
        model: str,
        *,
        dtype: _Dtype,
        layers: int = 0,
        kv_heads: int = 0,
        head_dim: int = 0,
        page_tokens: int = 16,
        layout: _Layout = "layer_kv_head_token",
        tp_size: int = 1,
        opaque_shard_bytes: int = 0,
        tenant: str = "",
        salt: bytes | None = None,
    ) -> Namespace:
        """The pages of one model: everything that must agree for bytes to be exchangeable. Full attention.

        A page is [layer, K/V, head, token, dim] ("layer_kv_head_token"), [layer, K/V, token, head, dim], or the engine's
        own order of `opaque_shard_bytes`. `tp_size`: shards of a page: tensor-parallel ranks, or the canonical parts of its
        KV heads. Raises Error (kind "invalid" for sizes that cannot be).
        """
    def stats(self) -> dict[str, Any]:
        """Counters and gauges of the server; "tiers" is a list of dicts."""
    def evict(self, tier: Literal["dram"] | None = None) -> int:
        """Pages demoted from DRAM (those on NVMe too), or with None dropped everywhere."""
    def drain(self) -> int:
        """Asks the server to stop taking offloads; bytes not yet on NVMe."""
    def resume(self) -> bool:
        """Takes a drain back; whether there was one."""
    def close(self) -> None:
        """Lets go of the connections; the embedded pool stops when its last client did. Later calls connect again."""

@final
class Device:
    """A GPU whose memory pages are copied from and to: straight with a pool on this host (its Unix socket), through memory
    that is lent to its server with one on another host (tls://, tcp://). Not over gRPC alone (http://, `data_plane` "inline").

    Copies run on streams of the device's own, in the primary context: what they wait for, and what waits for them, is said
    with each call. The pool's memory is registered with the device in the background when it is first used, piece by piece; until
    then, and where that is refused, copies go through `staging_bytes` of pinned memory. A call's `deadline_ms` bounds what it
    begins: copies that have begun by then are waited for, so that memory of which an error was raised is the caller's again. One
    a process and GPU is enough: threads may share it. A forked child cannot use its parent's (RuntimeError).

    `kind`: "cuda", or "host": memory and threads of this process, under the same rules; any memory of this process counts as
    device memory then. `pinned_bytes_max`: how much of the pool's memory is registered (None: all that the host has
    memory for). `copy`: who copies: the planner decides
    ("auto"), copy engines one call a piece or one for many, a kernel of `kernel_blocks` blocks (1 to 1,024; 8 unless told) and
    at most `chunk_bytes` a launch (64 KiB or more; 16 MiB), or a 32nd of what comes layer by layer. `staging_bytes`: 1 MiB or
    more; 64 MiB. `checksum`: the device takes the pages' checksums, else the CPU. `delay_ms_max`, `seed`, `fail_after` (host
    only, for tests): calls take up to so long, by chance; they fail after so many. Raises Error (kind "device") without such a
    GPU, or without the memory it needs.
    """

    def __new__(
        cls,
        ordinal: int = 0,
        kind: Literal["cuda", "host"] = "cuda",
        *,
        staging_bytes: int | None = None,
        pinned_bytes_max: int | None = None,
        copy: Literal["auto", "engine", "batch", "kernel"] = "auto",
        kernel_blocks: int | None = None,
        chunk_bytes: int | None = None,
        checksum: bool = True,
        delay_ms_max: int = 0,
        seed: int = 0,
        fail_after: int | None = None,
    ) -> Self: ...
    @staticmethod
    def cuda_count() -> int:
        """How many CUDA devices there are; 0 without a driver."""
    @property
    def kind(self) -> Literal["cuda", "host"]: ...
    @property
    def name(self) -> str: ...
    def memory(self) -> tuple[int, int]:
        """Bytes of device memory: free now, and all."""
    def stats(self) -> dict[str, int]:
        """registered_bytes, of these far_bytes (on another NUMA node than the device), quarantined_bytes and flights now; refused
        registrations, direct_bytes, staged_bytes, device_bytes, of these lent_bytes (in memory that NICs reach), engine_calls and
        launches so far."""

@final
class DeviceStream:
    """A stream of ours on a device, which nobody else's work shares: torch's own streams come from a pool, and two users of one
    wait for one another."""

    def __new__(cls, device: Device) -> Self: ...
    @property
    def handle(self) -> int:
        """For the calls that come after what it waits for. It ends with this object: keep it until they have returned."""
    def wait(self, stream: int) -> None:
        """Comes after all that another stream was given so far. The calling thread does not wait. Raises Error (kind "invalid")
        where that stream is being captured into a graph."""

@final
class Runs:
    """Pages that lie in runs all over memory: page i is its runs, one after another."""

    def __new__(cls, addresses: Any, lengths: Sequence[int]) -> Self:
        """`addresses`: unsigned 64-bit integers in a contiguous buffer (numpy uint64, array('Q')), the runs of the first page,
        then those of the second, ...; they are read now. `lengths`: bytes of each run of a page, the same for every page,
        `shard_bytes` in all; up to 2,048 runs a page in this process's memory, 65,536 on a device. Where a
        call moves k shards of each page, `lengths` describes one shard still, and there are k rows of addresses a page. Raises
        ValueError for addresses that are not whole pages, TypeError for items of any other type or byte order (int64, float64,
        uint32, bytes), which are never reinterpreted.

        The runs must stay valid while a call uses them.
        """
    @property
    def addresses(self) -> list[int]: ...
    @property
    def lengths(self) -> list[int]: ...

@final
class Strided:
    """Pages that are tokens of tensors: page i has tokens [i * page_tokens, (i + 1) * page_tokens) of each view."""

    def __new__(cls, views: Sequence[_View], tokens: int) -> Self:
        """Views in the order K of layer 0, V of layer 0, K of layer 1, ...; all of them `tokens` long. One hash for every page
        that `tokens` begins: where it is no multiple of page_tokens the last page is a partial tail. Not for "opaque".

        Where a call moves several shards, the views have the heads of all of them, divided evenly: the first heads are those of
        the first shard. ValueError where a view's heads cannot be divided so. The tensors must stay alive while a call uses them.
        """
    @property
    def views(self) -> list[_View]: ...
    @property
    def tokens(self) -> int: ...

@final
class OnDevice:
    """`Runs` or `Strided` in a device's memory, and what their copies come after."""

    def __new__(
        cls,
        device: Device,
        pages: Runs | Strided,
        *,
        stream: int | None = None,
        layers: int = 0,
        keep: Any = None,
    ) -> Self:
        """`stream`: a stream's raw handle (torch.cuda.current_stream().cuda_stream): nothing is read or written before what it
        was given until the call is done; no thread waits for that. `keep`: whatever keeps the memory from being freed (tensors):
        held by this object, and until no copy uses it, also when a call ends earlier, at its deadline.

        `layers`, of a reload: greater than 1: the runs or views of a page are divided evenly into so many layers (two views a
        layer as a rule), which come one after another, each of all pages; else page after page.
        """
    @property
    def device(self) -> Device: ...
    @property
    def pages(self) -> Runs | Strided: ...
    @property
    def stream(self) -> int | None: ...
    @property
    def layers(self) -> int: ...
    @property
    def keep(self) -> Any: ...

_Memory = Sequence[_Buffer] | Runs | Strided | OnDevice
"""Where the pages of a call lie."""

@final
class DeviceReload:
    """A reload whose copies are enqueued. Dropped, its copies end by themselves, and keep what `keep` was until then."""

    @property
    def pages_begun(self) -> int:
        """Leading pages that are on their way, or there. Whether they are good, `result` says."""
    def wait_layer(self, layer: int, stream: int | None) -> None:
        """What `stream` is given from here on comes after this layer of all pages (layer 0 of a reload that is not in layers:
        all of them). The calling thread does not wait, unless `stream` is None."""
    def done(self) -> bool:
        """Whether the device has done all of it."""
    def result(self) -> ReloadReport:
        """Waits until the device has done all of it. Leading pages that verified may be used; the others hold anything."""

@final
class GpuPagePool:
    """Pages of one namespace kept in device memory, the one unused for longest gives way first, leaves before what they
    hang on. Copies in and out stay within the device. Threads may share it."""

    def __new__(cls, device: Device, page_bytes: int, pages: int) -> Self:
        """Takes memory for so many pages, or raises Error (kind "device") that says how much is free."""
    def lookup(self, hashes: _Hashes) -> int:
        """How many leading pages are here."""
    def put(self, namespace: Namespace, hashes: _Hashes, pages: OnDevice, *, parent: bytes | None = None) -> int:
        """Copies pages in from memory of the same device, as `Namespace.offload` reads it; how many leading ones are here."""
    def get(self, namespace: Namespace, hashes: _Hashes, pages: OnDevice) -> GpuHit:
        """Copies the leading pages that are here into memory of the same device; returns when that is enqueued."""
    def write_through(
        self,
        namespace: Namespace,
        hashes: _Hashes,
        *,
        session: str | None = None,
        parent: bytes | None = None,
        tail_tokens: int = 0,
        durable: bool = False,
        deadline_ms: int | None = None,
    ) -> OffloadReport:
        """Offloads the leading pages that are here to the pool; they stay here."""
    def retire(self, hashes: _Hashes) -> None:
        """The conversation of these pages will not go on: they give way first."""
    def stats(self) -> dict[str, int]:
        """capacity_pages, pages and pinned now; hits, misses and evicted so far, in pages."""

@final
class GpuHit:
    """Pages on their way out of a GPU page pool."""

    @property
    def pages(self) -> int:
        """Leading pages that are copied."""
    def wait_layer(self, layer: int, stream: int | None) -> None:
        """As `DeviceReload.wait_layer`."""
    def result(self) -> int:
        """Waits until the copies are done; how many leading pages that are."""

@final
class Namespace:
    """The pages of one model in one pool."""

    @property
    def id(self) -> bytes: ...
    @property
    def shard_bytes(self) -> int:
        """Bytes of a page (of one shard of it)."""
    @property
    def page_tokens(self) -> int: ...
    def evict(self, tier: Literal["dram"] | None = None) -> int:
        """As `Pool.evict`, of this namespace's pages only."""
    def lookup(self, hashes: _Hashes, *, session: str | None = None) -> int:
        """How many leading pages are in the pool; of several members the one is asked at which the session's turn began."""
    def offload(
        self,
        hashes: _Hashes,
        pages: _Memory,
        *,
        session: str | None = None,
        parent: bytes | None = None,
        shard: int = 0,
        shards: int = 1,
        tail_tokens: int = 0,
        durable: bool = False,
        wait_ms: int = 0,
        deadline_ms: int | None = None,
    ) -> OffloadReport:
        """Stores pages, each `shard_bytes` long, from wherever they lie; returns when they are in the pool.

        `pages`: a sequence of buffers, one a page; or `Runs`, `Strided`, `OnDevice`. The memory must stay alive and unchanged
        during the call. `parent`: hash of the page before the first, None at the root.

        `shards`: how many neighbouring shards of each page, from `shard` on, this call moves. With k of them `pages` has
        len(hashes) * k pieces: page after page, of each page one shard after another; the heads of `Strided` are divided among
        them. The report counts whole pages: stored is one of which this call stored a shard and all k are in the pool. So for
        every verb that has `shards`.

        `session`: whose pages these are; of several members they go to the one at which its turn began, without it to the first
        that is well. So for every verb that has `session`.

        `tail_tokens` > 0: the last page is a partial tail of so many tokens (`Strided` says that itself). `durable`: return
        when they are on NVMe. `wait_ms`: how long to wait for free slots. Raises Error, ValueError, TypeError.
        """
    @overload
    def reload(
        self,
        hashes: _Hashes,
        pages: OnDevice,
        *,
        session: str | None = None,
        shard: int = 0,
        shards: int = 1,
        deadline_ms: int | None = None,
    ) -> DeviceReload: ...
    @overload
    def reload(
        self,
        hashes: _Hashes,
        pages: Sequence[_Buffer] | Runs | Strided,
        *,
        session: str | None = None,
        shard: int = 0,
        shards: int = 1,
        deadline_ms: int | None = None,
    ) -> ReloadReport:
        """Fills memory, given as for `offload` and writable, with the leading pages that are there, each verified.

        Nobody else may use the memory during the call. Of `OnDevice` it returns when all copies are enqueued: what it returns
        says when they are done. With `shards` the report counts pages that came whole.
        """
    def lease(
        self,
        hashes: _Hashes,
        *,
        session: str | None = None,
        shard: int = 0,
        shards: int = 1,
        deadline_ms: int | None = None,
    ) -> Lease:
        """The right to read the leading pages where they lie (shm only): no copy at all.

        With k `shards` the lease has k positions a page, and whole pages only: see `Lease`.
        """
    def begin_turn(self, session: str, *, engine: str = "", ended: int = 0) -> TurnBegun:
        """Opens a session's next turn; a new session is made. `engine`: who runs it, up to 128 bytes: the pool's advice to
        routers knows engines by that name. `ended`: turns of it that are known to have ended, on any host (0: unsaid); a pool
        of a cluster waits, for a bounded time, until it hears where the last of them did. What it has of
        the session from before them is not told as its pages, and found by hash."""
    def end_turn(
        self,
        session: str,
        hashes: _Hashes,
        *,
        keep: int = 0,
        tail_tokens: int = 0,
        expected_return_ms: int = 0,
        ttl_ms: int = 0,
        priority: int = 0,
        last: bool = False,
        archive: bool = False,
    ) -> int:
        """Tells the session's pages: its first `keep` stay, `hashes` follow (a partial tail last). Returns how many it has.

        `archive`: keep the session in the archive, where the pool has one."""
    def report_prefill(self, tokens: int, seconds: float) -> None:
        """What computing so many tokens of prompts took: hits are worth seconds then, in metrics and in size advice."""
    def fork(self, session: str, fork: str, pages: int = 0) -> int:
        """A new session that shares the leading `pages` (0: all, with the tail). One that exists has these instead of
        its own."""
    def supersede(self, session: str, keep: int) -> int:
        """The session's pages after the first `keep` are a dead branch: first victims."""
    def close(self, session: str, *, archive: bool = False) -> bool:
        """The session will not return. `archive`: keep it in the archive first; whether it waits for that."""
    def prefetch(self, session: str | None = None, hashes: _Hashes | None = None) -> Prefetched:
        """Brings a session's pages, or these, into DRAM ahead of the turn."""

@final
class Span:
    """Pages mapped side by side in this process (shm only): slots reserved to be written, and pages read where they lie.

    A span has `rows` rows of `places` places, one page a place. A page is cut into `pieces` equal pieces, each whole memory
    pages (K and V of each layer, with layout "layer_kv_token_head"). The address range is piece-major:
    piece, row, place, bytes of a piece. So K of one layer over many pages is one array, wherever the slots are.

    A place that holds nothing is private memory of this process, zeros until written; no address of the range ever faults.
    What is mapped is held: its slot stays as it is until it is vacated or this process ends, whatever becomes of the server.
    Leases are renewed in the background; a server that does not hear of them counts them as quarantined. A forked child may
    not use its parent's spans (RuntimeError).
    """

    def __new__(cls, namespace: Namespace, rows: int, places: int, pieces: int) -> Self:
        """Reserves addresses only. Raises Error (kind "invalid") for pieces that are not whole memory pages."""
    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def memory(self) -> object:
        """Keeps the address range; whoever keeps a view of it keeps this."""
    def reserve(self, row: int, place: int, count: int, deadline_ms: int | None = None) -> int:
        """Maps slots, to be written, at up to `count` places that hold nothing; at how many (the pool may have no more)."""
    def own(self, row: int, place: int, deadline_ms: int | None = None) -> bool:
        """Makes a place writable: a page that others may read is copied into a slot of its own. False: there was none."""
    def hold(
        self, row: int, place: int, hashes: _Hashes, *, session: str | None = None, deadline_ms: int | None = None
    ) -> ReloadReport:
        """Maps the leading pages that are there, verified, for reading: a write to them would end the process."""
    def commit(
        self,
        row: int,
        place: int,
        hashes: _Hashes,
        *,
        session: str | None = None,
        parent: _Bytes | None = None,
        tail_tokens: int = 0,
        siblings: bool = False,
        keep: bool = False,
        durable: bool = False,
        deadline_ms: int | None = None,
    ) -> OffloadReport:
        """The pages at these places, all writable, are the pool's now; no byte moves. They must not be written any more.

        `keep`: they will be looked at further, and are read-only; else vacate them. `siblings`: every page hangs on
        `parent`, not on the page before it. Behind a partial tail everything is zeroed. Kind "lease_expired": another server
        process answered; the bytes are still good, and can be offloaded by copying.
        """
    def shift(self, row: int, source: int, target: int, count: int) -> None:
        """Maps what is at `count` places elsewhere. Private memory does not move."""
    def vacate(self, row: int, place: int, count: int) -> None:
        """Puts private memory at these places; reserved slots are kept for the next `reserve`."""
    def release(self) -> None:
        """Vacates everything and gives every slot back."""
    def run(self, row: int, place: int, count: int) -> tuple[int, Literal["empty", "writable", "read_only", "orphan"]]:
        """How many places from `place` on stand alike, and how. orphan: its server process is gone, its bytes are good."""
    def is_lost(self) -> bool:
        """The server said that something mapped here is not ours any more: nothing of it is to be trusted."""
    def counts(self) -> dict[str, int]:
        """reserved, held, copied, committed, owned so far; mapped and spare now."""

@final
class Lease:
    """Pages leased for reading in place. A context manager; `finish` at the end says whether what was read was valid.

    It speaks of positions. With one shard a position is a page; with k of them position p * k + s is the s-th of these shards
    of page p, and there are whole pages only: `len(lease) // k` of them.
    """

    def __len__(self) -> int:
        """How many leading positions it covers."""
    def __getitem__(self, index: int, /) -> memoryview:
        """Position `index`, read-only, `shard_bytes` long; numpy.frombuffer takes it. Trust it only if `finish` succeeds.

        Views stay readable memory for as long as they live, and hold the lease's slots until its time is over or they are
        gone: drop them before `finish`.
        """
    def verify(self) -> int:
        """How many leading positions match their checksums, where they lie; the pool drops one that does not.

        With k `shards` that are `verify() // k` whole pages.
        """
    def copy_out(self, first: int, target: Runs, offset: int = 0) -> None:
        """Copies bytes of the positions from `first` on, each from `offset` on, into runs: a page of them for each position.

        So pages can be taken apart, one layer after another: `verify` before, `finish` after. Raises IndexError, ValueError.
        """
    @property
    def miss(self) -> str | None:
        """Why it covers no more pages; it may also cover fewer than asked for, at most 64 MiB."""
    @property
    def left_ms(self) -> float:
        """Milliseconds that the pages may still be read."""
    def finish(self) -> None:
        """Ends the lease. Raises Error (kind "lease_expired"): what was read may have changed underneath, discard it."""
    def __enter__(self) -> Lease: ...
    def __exit__(self, *exc: object) -> None: ...
