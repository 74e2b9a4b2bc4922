"""The connector in a TensorRT-LLM worker: pages leave and enter the blocks of this rank.

Owns: this rank's memory, its saver and fetcher, which requests hold blocks for it. Must not know: prompts, which
pages to move (rank 0's scheduler says).
"""

from __future__ import annotations

import os
import socket
from typing import Any

import torch

from turnkv.connector import BlockRuns, Door, FinishJob, Saver, Shards, devices
from turnkv.connector.door import PoolOptions

from . import compat, identity
from .crew import Crew, Meeting, Post, answer_at
from .fetcher import Fetcher
from .identity import GROUP
from .meta import StepMeta
from .options import Options

logger = compat.logger


class Worker(compat.interface().KvCacheConnectorWorker):  # type: ignore[misc]
    """One per rank; its executor's thread alone calls it."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        identity.check(llm_args)
        self._rank, self._ranks = compat.rank(), int(llm_args.tensor_parallel_size)
        self._crew = Crew.of(llm_args) if self._rank == 0 else None
        self._post: Post | None = None
        self._options = self._meet()
        self._checkpoint = identity.checkpoint(llm_args, self._options.model_id)
        self._cache: torch.Tensor | None = None
        self._runs: BlockRuns | None = None
        self._fetcher: Fetcher | None = None
        self._saver: Saver | None = None
        self._not_durable: str | None = None
        self._stores = True
        self._in_forward = False
        self._blocks_known = True
        """False once a forward pass did not end: the engine goes on, and may reuse blocks that hold anything."""
        self._ending: set[int] = set()
        """Finished requests that the engine keeps blocks of."""

    def register_kv_caches(self, kv_cache_tensor: torch.Tensor) -> None:
        """The blocks' memory exists now: [blocks, layers, K and V, ...]. Raises ValueError for another shape."""
        cache, options = kv_cache_tensor, self._options
        if cache.dim() < 3 or not cache.is_contiguous():
            raise ValueError(
                f"turnkv.tensorrt_llm expects one contiguous tensor of blocks, not {tuple(cache.shape)} "
                f"with strides {cache.stride()}"
            )
        replicated = identity.is_replicated(cache)
        shards = 1 if replicated else self._ranks
        shard = 0 if replicated else self._rank
        self._stores = not replicated or self._rank == 0
        group = identity.group_of(self._llm_args, self._checkpoint, cache, shards)
        runs = devices.memory_of(
            {"blocks": cache}, blocks=cache.shape[0], staging_bytes=options.staging_bytes, shards=Shards(shard)
        )
        pool = PoolOptions(options.pool, self._checkpoint.model, options.tenant, options.load_ms)
        door = Door(pool, [group], {GROUP: runs.shard_bytes})
        self._cache, self._runs = cache, runs
        self._saver = Saver(
            door, {GROUP: runs}, deadline_ms=options.save_ms, durable=options.durable, threads=options.save_threads
        )
        if options.load:
            self._fetcher = Fetcher(
                door,
                cache,
                shards=runs.shards,
                bytes_max=options.load_bytes,
                deadline_ms=options.load_ms,
                threads=options.load_threads,
            )
            if self._crew is not None:
                self._crew.set_out(door, self._fetcher, options.load_ms)
            elif self._post is not None:
                self._post.set_out(self._fetcher)
        logger.info(
            "TurnKV: pool %s, shard %d of %d, blocks of %d tokens and %d bytes",
            options.pool or "embedded",
            shard,
            shards,
            group.block_tokens,
            runs.page_bytes,
        )

    def start_load_kv(self, stream: Any) -> None:
        """Fetched pages go into their blocks, ahead of the forward pass on `stream`.

        Waits for the pool only where a block is being sent just now that has a new owner; no longer than a save.
        """
        step = self._step()
        if step is None or self._saver is None:
            return
        if self._in_forward:
            self._forward_lost()
        self._in_forward = True
        for request in step.gone:
            self._saver.finish(FinishJob(str(request), None, []))
        # The engine does not hold all blocks that are being read: not those of cancelled requests, and of pages that
        # two requests computed side by side only one's.
        self._saver.settle(step.reused)
        for placing in step.placings:
            if self._fetcher is None:
                raise RuntimeError("turnkv: pages were promised, but this rank loads none")
            self._fetcher.place(placing.ticket, placing.blocks, stream)

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        """Nothing to wait for: all layers come with the block, and the stream has waited for the copies already."""

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        """Nothing to begin: a page is all layers, and is sent when the last of them is in place."""

    def wait_for_save(self, stream: Any) -> None:
        """Begins to save what this step fills. Waits for nothing: the copies wait for the stream."""
        step = self._step()
        if step is None or self._saver is None or self._runs is None:
            return
        # The engine may call this twice in a step (a drafter runs too); what was begun must not begin again.
        self._clear_connector_meta()
        self._in_forward = False
        if step.saves and self._stores and self._blocks_known:
            self._runs.mark(stream)
            for job in step.saves:
                self._saver.add(job)

    def get_finished(self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]) -> tuple[list[int], list[int]]:
        """Requests whose blocks nobody reads any more. Loads are never asynchronous."""
        if self._saver is None:
            return list(finished_gen_req_ids), []
        self._ending.update(finished_gen_req_ids)
        for request in finished_gen_req_ids:
            # Nothing is sent again at the end: not all of the blocks are sure to be held. The next turn does that.
            self._saver.finish(FinishJob(str(request), None, []))
        finished = self._saver.take_finished()
        for outcome in finished.values():
            self._tell_durable(outcome.not_durable)
        done = self._ending & {int(request) for request in finished}
        if self._crew is not None:
            for request in done:
                self._crew.end_turn(request, finished[str(request)].pages)
        self._ending -= done
        return list(done), []

    def _forward_lost(self) -> None:
        """The executor catches what a forward pass raises, fails its requests and goes on; it keeps their blocks for reuse."""
        if self._blocks_known and self._stores:
            logger.warning(
                "TurnKV: a forward pass did not come to its end, so nobody knows what this engine's KV blocks "
                "hold: nothing more is stored until it starts anew"
            )
        self._blocks_known = False

    def _tell_durable(self, why: str | None) -> None:
        """Says why what was to be durable is not, whenever that changes."""
        if why is not None and why != self._not_durable:
            logger.warning("TurnKV: pages that were to be on NVMe when their request ended are not (%s)", why)
        self._not_durable = why

    def _step(self) -> StepMeta | None:
        step = self.get_connector_meta()
        return step if isinstance(step, StepMeta) else None

    def _meet(self) -> Options:
        """All ranks of the engine get rank 0's options, and rank 0 a line to each of them."""
        if self._ranks == 1:
            return Options.of(os.environ)
        hosts = set(compat.of_all(socket.gethostname()))
        if len(hosts) > 1:
            raise ValueError(f"turnkv.tensorrt_llm needs all ranks on one host, not on {', '.join(sorted(hosts))}")
        if self._rank == 0:
            assert self._crew is not None
            meeting, options = Meeting(), Options.of(os.environ)
            compat.from_leader((meeting.address, meeting.key, options))
            self._crew.join(meeting.lines(self._ranks - 1))
            return options
        address, key, options = compat.from_leader(None)
        self._post = answer_at(address, key)
        return options
