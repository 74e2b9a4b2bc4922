"""`HiCacheBackend`: TurnKV as the storage tier under SGLang's HiCache.

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "turnkv",
      "module_path": "turnkv.sglang", "class_name": "HiCacheBackend", "interface_v1": 1,
      "hicache_storage_pass_prefix_keys": true, "pool": "unix:/run/turnkv/turnkv.sock"}'

Owns: SGLang's storage calls -> offloads and reloads of whole batches. Must not know: sockets, slots, tiers.
SGLang's storage threads call in: one query, one load and one store at a time. No error of the pool reaches them.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

import turnkv
from turnkv.checkpoint import WeightsName

from . import identity, options
from .chain import ROOT, Chain, block_hash, block_hashes, cut, pages_in
from .door import Counts, Door, count_offload
from .hints import Advice, envelope_of
from .restorable import restorable
from .runs import HostRuns

logger = logging.getLogger("turnkv.sglang")
PIECE_BYTES_MIN = 4 << 20
"""A load is split between threads only into pieces of at least this size: less is copied sooner than handed over."""
TRANSFERS_MAX = 1024
"""Transfers whose speed is kept for SGLang's metrics until it asks."""


class HostPages:
    """One host pool of SGLang and its pages in the pool."""

    def __init__(self, host_pool: Any, door: Door, runs: HostRuns, shard: int) -> None:
        self.host_pool, self.door, self.runs, self.shard = host_pool, door, runs, shard
        self.shard_bytes = sum(runs.lengths)


class HiCacheBackend(HiCacheStorage):
    """See the head of this file; options: `options.Options`. Raises ValueError for a configuration that cannot work."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None) -> None:
        extra = storage_config.extra_config or {}
        if not extra.get("interface_v1"):
            raise ValueError('turnkv needs "interface_v1": 1 in --hicache-storage-backend-extra-config')
        if storage_config.should_split_heads:
            raise ValueError("turnkv does not split heads between tensor parallel sizes: leave tp_lcm_size out")
        self._config = storage_config
        self._options = options.parse(extra)
        self._pool = self._options.open_pool(self._options.deadline_ms)
        self._model = self._options.model_id or identity.engine_weights()
        if isinstance(self._model, WeightsName):
            self._model.wait()
        self._settings = identity.engine_settings()
        self._threads = ThreadPoolExecutor(self._options.threads, thread_name_prefix="turnkv-hicache")
        self._chain = Chain()
        self._pages: dict[str, HostPages] = {}
        self._loads: deque[tuple[int, float]] = deque(maxlen=TRANSFERS_MAX)
        self._stores: deque[tuple[int, float]] = deque(maxlen=TRANSFERS_MAX)
        self._warned_of_prefix = False
        self.counts = Counts()
        self._advice = Advice(self.counts)

    # ---- host pools -----------------------------------------------------------------------------------------------

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """SGLang's KV host pool; before any transfer."""
        super().register_mem_pool_host(mem_pool_host)
        self._add_pool(PoolName.KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """A side pool (sliding window, state, indexer, draft), or the KV pool again."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        known = self._pages.get(str(host_pool_name))
        if known is None or known.host_pool is not host_pool:
            self._add_pool(host_pool_name, host_pool)

    def _add_pool(self, name: Any, host_pool: Any) -> None:
        config = self._config
        if getattr(host_pool, "kv_buffer", host_pool) is None:
            logger.warning("turnkv: SGLang's %s pool has no memory of its own, nothing of it is stored", name)
            return
        # Recurrent state is split over tensor ranks even where the attention's latent is not.
        replicated = config.is_mla_model and str(name) != PoolName.MAMBA.value
        rank = identity.rank_of(
            (config.tp_rank, config.tp_size),
            (config.pp_rank, config.pp_size),
            (config.attn_cp_rank, config.attn_cp_size),
            replicated,
        )
        runs = HostRuns(host_pool)
        spec = identity.namespace(
            rank,
            model=self._model,
            settings=self._settings,
            tenant=self._options.tenant,
            pool_name=str(name),
            layout=runs.layout,
            dtype=str(getattr(host_pool, "dtype", None)),
            page_tokens=runs.page_slots,
            lengths=runs.lengths,
        )
        door = Door(self._pool, spec, self.counts)
        door.open()
        self._pages[str(name)] = HostPages(host_pool, door, runs, rank.shard)
        logger.info(
            "turnkv: %s pages of %d bytes in %d runs, %s, shard %d of %d",
            name,
            sum(runs.lengths),
            len(runs.lengths),
            runs.layout,
            rank.shard,
            rank.shards,
        )

    # ---- v1: the KV pool, zero copy -------------------------------------------------------------------------------

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        """How many leading keys are stored."""
        hashes = block_hashes(keys)
        self._hear(extra_info)
        # Their order is certain; SGLang's prefix_keys of a query lack the last page before them, so they are not used.
        self._chain.learn(hashes)
        return self._found(PoolName.KV.value, hashes)

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Loads pages straight into the host pool; True for each of the leading ones that came, verified."""
        pages = self._pages.get(PoolName.KV.value)
        return self._load(pages, keys, host_indices) if pages is not None else [False] * len(keys)

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Stores pages straight from the host pool; True for each of the leading ones that the pool has now."""
        pages = self._pages.get(PoolName.KV.value)
        stored = [False] * len(keys)
        return self._store(pages, keys, host_indices, self._prefix(extra_info)) if pages is not None else stored

    # ---- v2: side pools -------------------------------------------------------------------------------------------

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """The prefix lengths at which every pool has what it needs."""
        hashes = self._asked(keys, extra_info)
        found = self._found(PoolName.KV.value, hashes)
        lengths, hits = restorable(self._found, cut(hashes, 0, found), pool_transfers or ())
        if found:
            hits[PoolName.KV] = found
        return PoolTransferResult(max(lengths, default=0), hits, sorted(lengths))

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Loads pages of several pools."""
        return {transfer.name: self._transfer(transfer, self._load) for transfer in transfers}

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Stores pages of several pools. Window and state pages stand alone: only some of a prefix exist at all."""
        prefix = self._prefix(extra_info)

        def store(pages: HostPages, keys: list[str], indices: torch.Tensor) -> list[bool]:
            if alone:
                slots = pages.runs.page_slots
                cuts = [indices[at * slots : (at + 1) * slots] for at in range(len(keys))]
                return [self._store(pages, [key], cut, [])[0] for key, cut in zip(keys, cuts, strict=True)]
            return self._store(pages, keys, indices, prefix)

        results = {}
        for transfer in transfers:
            alone = transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES
            results[transfer.name] = self._transfer(transfer, store)
        return results

    def _transfer(self, transfer: PoolTransfer, move: Any) -> list[bool]:
        """One pool's part of a v2 call; all False when its indices and keys do not fit."""
        keys, indices = list(transfer.keys or ()), transfer.host_indices
        pages = self._pages.get(str(transfer.name))
        if pages is None or indices is None or indices.numel() != len(keys) * pages.runs.page_slots:
            self.counts.add("misfit_transfers")
            return [False] * len(keys)
        return move(pages, keys, indices)

    # ---- one tensor a page ----------------------------------------------------------------------------------------

    def exists(self, key: str) -> bool:
        """Whether a page is stored."""
        return self._found(PoolName.KV.value, block_hash(key)) == 1

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        """Fills a flat page; None if it is not stored."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[torch.Tensor | None]:
        """Fills flat pages, the leading ones that are stored."""
        pages, targets = self._pages[PoolName.KV.value], list(target_locations)
        flat = [target.view(torch.uint8) for target in targets]
        report = pages.door.call(lambda space: space.reload(block_hashes(keys), flat, shard=pages.shard), None)
        loaded = report.pages if report is not None else 0
        return [target if at < loaded else None for at, target in enumerate(targets)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Stores one flat page, whose parent must have been seen."""
        return self.batch_set([key], [value])

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        """Stores flat pages that follow one another; the first one's parent must have been seen."""
        pages, hashes = self._pages[PoolName.KV.value], block_hashes(keys)
        parent = self._chain.parent_of(cut(hashes, 0, 1))
        if parent is None:
            self._drop(len(keys))
            return not keys
        flat = [value.contiguous().view(torch.uint8) for value in values]
        report = pages.door.call(
            lambda space: space.offload(
                hashes,
                flat,
                parent=parent or None,
                shard=pages.shard,
                durable=self._options.durable,
                wait_ms=self._options.wait_ms,
            ),
            None,
        )
        return self._kept(hashes, parent, report) == len(keys)

    # ---- life -----------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Drops every page of this model and layout, those that other engines stored too; other models' pages stay."""
        for pages in self._pages.values():
            pages.door.call(lambda space: space.evict(), 0)
        self._chain.clear()

    def get_stats(self) -> Any:
        """Transfers since the last call, for SGLang's metrics; None when it does not want any."""
        if not self._config.enable_storage_metrics:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        loads = [self._loads.popleft() for _ in range(len(self._loads))]
        stores = [self._stores.popleft() for _ in range(len(self._stores))]
        return StorageMetrics(
            [pages for pages, _ in loads],
            [pages for pages, _ in stores],
            [speed for _, speed in loads],
            [speed for _, speed in stores],
        )

    def close(self) -> None:
        """Lets go of the pool; its pages stay."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._advice.close()
        self._pool.close()
        logger.info("turnkv: closed after %s", self.counts.get())

    # ---- work -----------------------------------------------------------------------------------------------------

    def _asked(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None) -> bytes:
        """The names of pages that a query asks for. Their order is certain, and worth remembering if it is all we get.

        SGLang's prefix_keys of a query lack the page right before them, so nothing is learned from those.
        """
        self._hear(extra_info)
        hashes = block_hashes(keys)
        if self._prefix(extra_info) is None:
            self._chain.learn(hashes)
        return hashes

    def _hear(self, extra_info: HiCacheStorageExtraInfo | None) -> None:
        """What an orchestrator says of other sessions. A storage backend is not told when a request's own turn ends."""
        pages, envelope = self._pages.get(PoolName.KV.value), envelope_of(extra_info)
        if pages is not None and envelope:
            self._advice.hear(pages.door, envelope)

    def _found(self, name: str, hashes: bytes) -> int:
        """How many leading pages of one of SGLang's pools are stored."""
        pages = self._pages.get(name)
        if not hashes or pages is None:
            return 0
        found = pages.door.call(lambda space: space.lookup(hashes), 0)
        self.counts.add("pages_asked", pages_in(hashes))
        self.counts.add("pages_found", found)
        return found

    def _load(self, pages: HostPages, keys: list[str], indices: torch.Tensor) -> list[bool]:
        """Reloads whole pages into host memory, several pieces at once."""
        started = time.perf_counter()
        whole = min(len(keys), indices.numel() // pages.runs.page_slots)
        hashes = block_hashes(keys[:whole])
        addresses = pages.runs.addresses(indices[: whole * pages.runs.page_slots])
        pieces = min(self._options.threads, max(1, whole * pages.shard_bytes // PIECE_BYTES_MIN))
        each = -(-whole // pieces) if whole else 1
        futures = [
            self._threads.submit(self._load_piece, pages, cut(hashes, at, at + each), addresses, at)
            for at in range(each, whole, each)
        ]
        loaded = self._load_piece(pages, cut(hashes, 0, each), addresses, 0) if whole else []
        for future in futures:
            loaded += future.result()
        self._note(self._loads, sum(loaded), pages, started)
        self.counts.add("pages_loaded", sum(loaded))
        return loaded + [False] * (len(keys) - whole)

    def _load_piece(self, pages: HostPages, hashes: bytes, addresses: Any, first: int) -> list[bool]:
        runs, asked = len(pages.runs.lengths), pages_in(hashes)
        target = turnkv.Runs(addresses[first * runs : (first + asked) * runs], pages.runs.lengths)
        report = pages.door.call(lambda space: space.reload(hashes, target, shard=pages.shard), None)
        if report is None:
            return [False] * asked
        if report.miss is not None:
            self.counts.add(f"miss:{report.miss}")
        return [True] * report.pages + [False] * (asked - report.pages)

    def _store(self, pages: HostPages, keys: list[str], indices: torch.Tensor, prefix: list[str] | None) -> list[bool]:
        """Offloads whole pages in one call: each needs the one before it, so they cannot go in parallel."""
        started = time.perf_counter()
        whole = min(len(keys), indices.numel() // pages.runs.page_slots)
        if not whole:
            return [False] * len(keys)
        hashes = block_hashes(keys[:whole])
        parent = self._parent(cut(hashes, 0, 1), prefix)
        if parent is None:
            self._drop(whole)
            return [False] * len(keys)
        source = turnkv.Runs(pages.runs.addresses(indices[: whole * pages.runs.page_slots]), pages.runs.lengths)
        report = pages.door.call(
            lambda space: space.offload(
                hashes,
                source,
                parent=parent or None,
                shard=pages.shard,
                durable=self._options.durable,
                wait_ms=self._options.wait_ms,
            ),
            None,
        )
        kept = self._kept(hashes, parent, report)
        self._note(self._stores, kept, pages, started)
        return [True] * kept + [False] * (len(keys) - kept)

    def _kept(self, hashes: bytes, parent: bytes, report: turnkv.OffloadReport | None) -> int:
        """How many leading pages the pool has after an offload; remembers their order."""
        if report is None:
            return 0
        count_offload(self.counts, report)
        kept = report.stored + report.present
        self._chain.learn(cut(hashes, 0, kept), parent)
        return kept

    def _parent(self, first: bytes, prefix: list[str] | None) -> bytes | None:
        """The page before `first`: as SGLang says, else as remembered; None: not known."""
        if prefix is None:
            return self._chain.parent_of(first)
        return block_hash(prefix[-1]) if prefix else ROOT

    def _prefix(self, extra_info: HiCacheStorageExtraInfo | None) -> list[str] | None:
        return extra_info.prefix_keys if extra_info is not None else None

    def _drop(self, pages: int) -> None:
        """Counts pages that cannot be stored because nobody knows what comes before them; says once what to do."""
        self.counts.add("dropped:no_parent", pages)
        if not self._warned_of_prefix:
            self._warned_of_prefix = True
            logger.error(
                "turnkv: pages are not stored: SGLang does not say what comes before them; set "
                '"hicache_storage_pass_prefix_keys": true in --hicache-storage-backend-extra-config'
            )

    def _note(self, transfers: deque[tuple[int, float]], done: int, pages: HostPages, started: float) -> None:
        if self._config.enable_storage_metrics and done:
            seconds = max(time.perf_counter() - started, 1e-9)
            transfers.append((done, done * pages.shard_bytes / 1e9 / seconds))
