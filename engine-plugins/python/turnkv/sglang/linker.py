"""`Linker`: TurnKV right behind SGLang's device pages, without a host tier of SGLang's between them.

    --enable-unified-cache-external-linker --unified-cache-external-linker-backend dynamic
    --unified-cache-external-linker-config '{"linker": "Linker", "linker_module_path": "turnkv.sglang",
      "linker_extra_config": {"pool": "unix:/run/turnkv/turnkv.sock"}}'

Owns: SGLang's linker calls -> lookups, loads, offloads, sessions. Must not know: sockets, slots, tiers.
The scheduler thread asks and queues; one thread loads, one offloads. No error of the pool reaches the scheduler.
"""

from __future__ import annotations

import functools
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter, UnifiedCacheLinker

from turnkv.checkpoint import WeightsName
from turnkv.connector import devices

from . import engine, identity, options
from .callers import Callers
from .chain import ROOT, Chain, block_hashes, cut, pages_in
from .door import Counts, Door, count_offload
from .hints import Advice
from .loading import DevicePages, Load, Wanted, hold
from .restorable import restorable
from .runs import KV_LAYER_TOKEN, DeviceRuns

logger = logging.getLogger("turnkv.sglang")
SESSION_BYTES_MAX = 128
OPEN_TRIES = 3
"""A lookup's deadline is short for a first connection."""


@dataclass
class _Offload:
    """Pages to be stored once `ready` has passed. `transfers` is None for one that was declined when it came."""

    transfers: list[PoolTransfer] | None
    ready: list[Any]
    parent: bytes | None
    session: str | None


class Linker(UnifiedCacheLinker):
    """See the head of this file; options: `options.Options`. Raises ValueError for a configuration that cannot work."""

    def __init__(
        self,
        server_args: Any,
        params: Any,
        *,
        components: Any,
        extra_config: dict[str, Any] | None = None,
        forward_stream: Any = None,
    ) -> None:
        if params.pp_size > 1:
            raise ValueError("turnkv.sglang.Linker does not work with pipeline parallelism: use HiCacheBackend")
        self.forward_stream = forward_stream
        self._options = options.parse(extra_config)
        self._group = engine.device_pool_group(params.token_to_kv_pool_allocator.get_kvcache(), params, components)
        self.pools = self._group.entry_map
        self.layer_done_counter = LayerWiseLoadCounter(self._group.num_layers)
        if PoolName.MAMBA in self.pools:
            params.req_to_token_pool.register_layer_transfer_counter(self.layer_done_counter)
        self.counts, self._chain, self._agreement = Counts(), Chain(), engine.Agreement(params)
        self._callers = Callers(self.counts)
        self._pool = self._options.open_pool(self._options.deadline_ms)
        self._lookup_pool = self._options.open_pool(self._options.lookup_ms)
        self._rank = identity.rank_of(
            engine.tensor_rank(params), (0, 1), (params.attn_cp_rank, params.attn_cp_size), self._group.rank_replicated
        )
        self._pages = self._open_pages()
        self._advice = Advice(self.counts)
        self._pending: dict[str, Load] = {}
        self._loads: SimpleQueue[tuple[int, list[Load]] | None] = SimpleQueue()
        self._offloads: SimpleQueue[_Offload | None] = SimpleQueue()
        self._results: SimpleQueue[bool] = SimpleQueue()
        self._busy, self._waiting = 0, 0
        self._idle = threading.Condition()
        self._threads = ThreadPoolExecutor(self._options.threads, thread_name_prefix="turnkv-linker")
        for work in (self._run_loads, self._run_offloads):
            threading.Thread(target=work, daemon=True, name=f"turnkv-{work.__name__[5:]}").start()

    def _open_pages(self) -> dict[str, DevicePages]:
        model, settings = self._options.model_id or identity.engine_weights(), identity.engine_settings()
        if isinstance(model, WeightsName):
            model.wait()
        pages = {}
        for name, entry in self.pools.items():
            layout = KV_LAYER_TOKEN if name == PoolName.KV and not self._group.rank_replicated else f"device:{name}"
            runs = DeviceRuns(entry, layout)
            spec = identity.namespace(
                self._rank,
                model=model,
                settings=settings,
                tenant=self._options.tenant,
                pool_name=str(name),
                layout=layout,
                dtype=str(entry.kv_buffer[0].dtype),
                page_tokens=runs.page_slots,
                lengths=runs.lengths,
            )
            door, lookups = Door(self._pool, spec, self.counts), Door(self._lookup_pool, spec, self.counts)
            if door.open():
                lookups.open(OPEN_TRIES)
            memory = entry.kv_buffer[0]
            pages[str(name)] = DevicePages(
                str(name),
                door,
                lookups,
                runs,
                self._rank.shard,
                devices.device_of(memory),
                functools.partial(self._computing, memory.device),
            )
            logger.info(
                "turnkv: %s pages of %d bytes in %d runs, shard %d of %d",
                name,
                sum(runs.lengths),
                len(runs.lengths),
                self._rank.shard,
                self._rank.shards,
            )
        return pages

    def _computing(self, place: torch.device) -> int | None:
        """The stream of the engine's forward passes."""
        if place.type != "cpu" and self.forward_stream is not None:
            return int(self.forward_stream.cuda_stream)
        return devices.current(place)

    # ---- scheduler thread: is it there? ---------------------------------------------------------------------------

    def lookup(self, rid: str, transfers: list[PoolTransfer]) -> list[int]:
        """Prefix lengths, in pages, that can be loaded; none when the pool does not answer within `lookup_ms`."""
        self._hear(self._callers.request_of_lookup(rid))
        expanded = self._group.resolve_transfers(transfers)
        keys = next((transfer.keys for transfer in transfers if transfer.name == PoolName.KV), None)
        if not expanded or not keys:
            return []
        lengths, _ = restorable(self._found, block_hashes(keys), expanded)
        self.counts.add("pages_asked", len(keys))
        self.counts.add("pages_found", max(lengths, default=0))
        # SGLang intersects the ranks' answers, one by one. A lone rank's longest one says the same.
        return list(lengths if self._agreement.needed else lengths[-1:])

    def _hear(self, request: Any) -> None:
        """What an orchestrator says with a request that is being looked up."""
        envelope = getattr(request, "kv_hints", None)
        if envelope and self._rank.shard == 0:
            session = getattr(request, "session_id", None)
            self._advice.hear(self._pages[str(PoolName.KV)].door, envelope, session if self._fit(session) else None)

    def _found(self, name: str, hashes: bytes) -> int:
        return self._pages[name].lookups.call(lambda space: space.lookup(hashes), 0)

    # ---- scheduler thread: loads ----------------------------------------------------------------------------------

    def load(self, rid: str, transfers: list[PoolTransfer]) -> bool:
        """Takes hold of a request's pages and verifies them. False on any rank: all of them recompute.

        This waits for pages that come from NVMe, as the forward's first layer would have to.
        """
        wanted = [
            Wanted(self._pages[str(transfer.name)], block_hashes(transfer.keys), transfer.host_indices)
            for transfer in self._group.resolve_transfers(transfers, allow_partial=True, allow_missing_kv=True)
        ]
        if not wanted:
            return False
        load = hold(wanted, self._options.load_ms, self._threads, self.counts)
        if not self._agreement.all(load is not None) or load is None:
            if load is not None:
                load.cancel()
            self.counts.add("loads_refused")
            return False
        self.counts.add("pages_loaded", sum(pages_in(want.hashes) for want in wanted))
        self.cancel_queued_load(rid)  # of an earlier attempt that was never started
        self._pending[rid] = load
        return True

    def cancel_queued_load(self, rid: str) -> bool:
        """Lets go of a load that was not started."""
        load = self._pending.pop(rid, None)
        if load is not None:
            load.cancel()
        return load is not None

    def start_layer_wise_loading(self) -> int:
        """Starts what `load` has taken hold of; -1 when there is nothing."""
        if not self._pending:
            return -1
        loads, self._pending = list(self._pending.values()), {}
        index = self.layer_done_counter.update_producer()
        self._begin()
        self._loads.put((index, loads))
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        """Waits until a batch of loads is over; whether all of it landed."""
        return self.layer_done_counter.finish(counter_index)

    def _run_loads(self) -> None:
        while (job := self._loads.get()) is not None:
            index, loads = job
            try:
                self._copy(index, loads)
            except Exception as error:
                self.counts.add("loads_failed", len(loads))
                logger.error("turnkv: a load failed while it was copied, its requests are aborted: %s", error)
                self.layer_done_counter.fail(index, error)
                for load in loads:
                    load.cancel()
            finally:
                self._end()

    def _copy(self, index: int, loads: list[Load]) -> None:
        """Copies layer after layer, and says of each when it is there: the forward runs right behind."""
        last = self._group.num_layers - 1
        for layer in range(last + 1):
            for load in loads:
                load.copy_layer(layer, self._threads)
            if layer == last:  # before the forward may use it: the leases held throughout, or the load has failed
                for load in loads:
                    load.finish()
            self.layer_done_counter.complete(index, layer)

    # ---- scheduler thread: offloads -------------------------------------------------------------------------------

    def offload(self, transfers: list[PoolTransfer], session_id: str | None = None) -> bool:
        """Queues a tree node's pages. They come again after a load; the pool knows them and copies nothing."""
        expanded = self._group.resolve_transfers(transfers, allow_partial=True)
        if not expanded:
            return False
        kv = next(transfer for transfer in transfers if transfer.name == PoolName.KV)
        # SGLang takes results in the order of its calls, the same on every rank: a declined one waits its turn too.
        declined = self._waiting >= self._options.offloads_max
        job = _Offload(None, [], None, None)
        if not declined and self._rank.writes:
            parent = self._callers.parent_of_offload(kv.keys[0], kv.device_indices.numel())
            job = _Offload(expanded, self.record_offload_ready(), parent, session_id)
        self.counts.add("offloads_declined", int(declined))
        with self._idle:
            self._waiting += 1
        self._begin()
        self._offloads.put(job)
        return True

    def num_completed_offloads(self) -> int:
        """How many results wait."""
        return self._results.qsize()

    def pop_completed_offload(self) -> bool:
        """The oldest result."""
        return self._results.get_nowait()

    def _run_offloads(self) -> None:
        while (job := self._offloads.get()) is not None:
            stored = not self._rank.writes
            try:
                if job.transfers is not None:
                    for event in job.ready:
                        event.synchronize()
                    stored = self._store(job)
            except Exception:
                logger.exception("turnkv: an offload failed")
            finally:
                with self._idle:
                    self._waiting -= 1
                self._results.put(stored)
                self._end()

    def _store(self, job: _Offload) -> bool:
        """Stores one node's pages in every pool; True when all are there."""
        session = job.session if self._rank.shard == 0 and self._fit(job.session) else None
        complete = True
        for transfer in job.transfers or ():
            pages, hashes = self._pages[str(transfer.name)], block_hashes(transfer.keys)
            if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                slots = pages.runs.page_slots
                for at in range(pages_in(hashes)):
                    indices = transfer.host_indices[at * slots : (at + 1) * slots]
                    complete &= self._store_run(pages, cut(hashes, at, at + 1), indices, ROOT)
                continue
            parent = job.parent if job.parent is not None else self._chain.parent_of(cut(hashes, 0, 1))
            if parent is None:
                self.counts.add("dropped:no_parent", pages_in(hashes))
                complete = False
                continue
            if session is not None and transfer.name == PoolName.KV:
                complete &= self._store_turn(pages, hashes, transfer.host_indices, parent, session)
            else:
                complete &= self._store_run(pages, hashes, transfer.host_indices, parent)
        return complete

    def _fit(self, session: str | None) -> bool:
        """Whether the pool takes this name, which a user may have chosen. The pages are stored in any case."""
        fit = session is None or (session.isprintable() and 1 <= len(session.encode()) <= SESSION_BYTES_MAX)
        self.counts.add("sessions_unfit", int(not fit))
        return fit

    def _store_run(
        self, pages: DevicePages, hashes: bytes, indices: torch.Tensor, parent: bytes, session: str | None = None
    ) -> bool:
        """Offloads pages that follow `parent`; whether all of them are in the pool now."""
        report = pages.door.call(
            lambda space: pages.offload(
                space,
                hashes,
                indices,
                parent=parent or None,
                session=session,
                durable=self._options.durable,
                wait_ms=self._options.wait_ms,
            ),
            None,
        )
        if report is None:
            return False
        count_offload(self.counts, report)
        self._chain.learn(cut(hashes, 0, report.stored + report.present), parent)
        return report.declined == 0

    def _store_turn(self, pages: DevicePages, hashes: bytes, indices: torch.Tensor, parent: bytes, session: str) -> bool:
        """Offloads pages of a session, and tells the pool which pages the session has now.

        SGLang says neither when a turn begins nor when it ends, so each offload counts as one.
        """
        hints = self._advice.of(session)
        name = hints.session or session
        begun = pages.door.call(lambda space: space.begin_turn(name, engine=self._options.engine), None)
        stored = self._store_run(pages, hashes, indices, parent, name if begun is not None else None)
        if begun is not None and stored:
            prefix = self._prefix(parent)
            if prefix is None:
                self.counts.add("sessions_without_prefix")
            else:
                pages.door.call(
                    lambda space: space.end_turn(
                        name,
                        prefix + hashes,
                        expected_return_ms=hints.expected_return_ms,
                        ttl_ms=hints.ttl_ms,
                        priority=hints.priority,
                        last=hints.final,
                    ),
                    None,
                )
        return stored

    def _prefix(self, parent: bytes) -> bytes | None:
        """All pages up to `parent`, from the first one on; None when the memory does not reach back to it."""
        prefix: list[bytes] = []
        at: bytes | None = parent
        while at:
            prefix.append(at)
            at = self._chain.parent_of(at)
        return b"".join(prefix[::-1]) if at == ROOT else None

    # ---- life -----------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Waits until nothing is under way (every call has its deadline), and forgets what is queued."""
        for rid in list(self._pending):
            self.cancel_queued_load(rid)
        with self._idle:
            self._idle.wait_for(lambda: self._busy == 0)
        try:
            while True:
                self._results.get_nowait()
        except Empty:
            pass
        self.layer_done_counter.reset()

    def close(self) -> None:
        """Ends the threads and lets go of the pool; its pages stay."""
        self.reset()
        self._loads.put(None)
        self._offloads.put(None)
        self._threads.shutdown(wait=True)
        self._advice.close()
        self._pool.close()
        self._lookup_pool.close()
        logger.info("turnkv: closed after %s", self.counts.get())

    def _begin(self) -> None:
        with self._idle:
            self._busy += 1

    def _end(self) -> None:
        with self._idle:
            self._busy -= 1
            self._idle.notify_all()
