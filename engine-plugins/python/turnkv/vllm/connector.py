"""`TurnKVConnector`: vLLM's connector interface, handed on to the scheduler's or the worker's side.

    vllm serve MODEL --prefix-caching-hash-algo sha256_cbor --kv-transfer-config '{"kv_connector": "TurnKVConnector",
        "kv_connector_module_path": "turnkv.vllm", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"pool": "unix:/run/turnkv/turnkv.sock"}}'

Owns: roles, vLLM's signatures. Must not know: how pages move, what to save.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)

from turnkv.checkpoint import WeightsName
from turnkv.connector import BlockRuns, Door
from turnkv.connector.door import PoolOptions

from . import compat, heads, pages, prefixes
from .events import Announcer
from .meta import PageBytes, StepMeta, WorkerMeta
from .metrics import TurnKVPromMetrics, TurnKVStats
from .options import Options
from .scheduler import Scheduler
from .worker import Worker

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = compat.logger


class TurnKVConnector(KVConnectorBase_V1, SupportsHMA):
    """Keeps sessions' KV in a TurnKV pool. Best effort: without the pool the engine computes as ever."""

    _handled: BaseException | None = None
    """What the program that runs the engine was handling when the step began."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        compat.warn_if_untested()
        options = Options.parse(self._kv_transfer_config.kv_connector_extra_config)
        self._options = loading(fitting(options, kv_cache_config), vllm_config)
        self._cut()
        self._weights = pages.weights_name(vllm_config, self._options.model_id)
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        self._ended: StepMeta | None = None
        self._kv_caches: dict[str, torch.Tensor] = {}
        if self._options.load == "layerwise" and len(self._groups) > 1:
            raise ValueError(
                'load="layerwise" needs a model with one KV cache group: vLLM can take back a failed load '
                'of several groups only when it is asynchronous; use load="async"'
            )
        if role == KVConnectorRole.SCHEDULER:
            self._say_hello()
            if isinstance(self._weights, WeightsName):
                self._weights.wait()
            self._scheduler = self._make_scheduler()
            unfit = prefixes.unfit_reason(vllm_config, kv_cache_config)
            if unfit is not None:
                self._scheduler.stand_aside(unfit)

    def _say_hello(self) -> None:
        transfer = self._kv_transfer_config
        if transfer.kv_load_failure_policy != "recompute":
            logger.warning(
                'TurnKV: set "kv_load_failure_policy": "recompute" in --kv-transfer-config, or a page that '
                "the pool loses between lookup and load fails its request"
            )
        if pages.is_isolated(self._vllm_config):
            logger.warning(
                "TurnKV: block hashes of --prefix-caching-hash-algo %s are random in every process, so "
                "pages are reused by this engine only, until it stops; use sha256_cbor",
                self._vllm_config.cache_config.prefix_caching_hash_algo,
            )
        logger.info(
            "TurnKV: pool %s, %d KV cache group(s) in %s shard(s), blocks of %s tokens",
            self._options.pool or "embedded",
            len(self._groups),
            "/".join(str(group.shards) for group in self._groups),
            "/".join(str(group.block_tokens) for group in self._groups),
        )
        self._say_uncut()

    def _say_uncut(self) -> None:
        for group in self._groups:
            why_not = self._cuts[group.group].why_not
            if why_not is not None:
                logger.info(
                    "TurnKV: KV cache group %d is not cut by KV heads (%s): engines of other tensor-parallel sizes do "
                    "not find its pages",
                    group.group,
                    why_not,
                )

    def _cut(self, uncut: frozenset[int] = frozenset()) -> None:
        """How pages are cut, and so what they are called."""
        config, kv_config = self._vllm_config, self._kv_cache_config
        self._uncut = uncut
        self._cuts = pages.cuts_of(config, kv_config, self._options.canonical_shards, uncut)
        self._groups = pages.groups_of(config, kv_config, self._cuts)

    def _door(self, shard_bytes: dict[int, int], call_ms: int) -> Door:
        options = PoolOptions(
            address=self._options.pool,
            model=self._weights,
            tenant=self._options.tenant,
            call_ms=call_ms,
            fabric=self._options.fabric,
        )
        return Door(options, self._groups, shard_bytes)

    def _make_scheduler(self) -> Scheduler:
        config, transfer = self._kv_cache_config, self._kv_transfer_config
        shard_bytes = {
            group.group: pages.rank_bytes_of(config.kv_cache_groups[group.group]) // self._cuts[group.group].rank_shards
            for group in self._groups
        }
        events = self._vllm_config.kv_events_config
        return Scheduler(
            options=self._options,
            groups=self._groups,
            door=self._door(shard_bytes, self._options.lookup_ms),
            announcer=Announcer(
                events is not None and events.enable_kv_cache_events,
                self._options.events_medium,
                self._groups[0].block_tokens,
            ),
            hash_tokens=compat.hash_block_tokens(config, self._vllm_config.cache_config),
            ranks=self._vllm_config.parallel_config.world_size,
            # A producer's freed blocks may still be written by a step in flight: vLLM fences loads of consumers only.
            loads=transfer.is_kv_consumer and self._options.load != "off",
            saves=transfer.is_kv_producer and self._options.save != "off",
            lag_blocks=int(any(getattr(group, "is_eagle_group", False) for group in config.kv_cache_groups)),
            handover=transfer.kv_role == "kv_producer",
        )

    # ---- both sides

    @property
    def requires_kv_delivery(self) -> bool:
        """A page that is not saved is a miss later on, nothing worse."""
        return False

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """With blocks outermost all layers of a block are one run of memory. CPU attention has one layout only."""
        import vllm.platforms

        return None if vllm.platforms.current_platform.is_cpu() else "BLHNC"

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Waiting for a layer happens in Python, between the pieces."""
        return extra_config.get("load") == "layerwise"

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> TurnKVStats:
        """Stats from what travelled between processes."""
        return TurnKVStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> TurnKVPromMetrics:
        """Prometheus metrics named vllm:turnkv_*."""
        return TurnKVPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Bounded by `shutdown_ms`."""
        if self._scheduler is not None:
            self._scheduler.close()
        if self._worker is not None:
            self._worker.close()

    # ---- the scheduler's side

    def set_xfer_handshake_metadata(self, metadata: dict[Any, KVConnectorHandshakeMetadata]) -> None:
        """Workers say how large a page really is; all must agree, for a page has equal shards."""
        parts = [part for part in metadata.values() if isinstance(part, PageBytes)]
        if not parts or self._scheduler is None:
            return
        unfit = next((part.unfit for part in parts if part.unfit is not None), None)
        if unfit is not None:
            self._scheduler.stand_aside(unfit)
        said = [(part.shard_bytes, part.uncut) for part in parts]
        if any(theirs != said[0] for theirs in said):
            raise ValueError(f"ranks have pages of different sizes, {said}: this parallel layout is not supported")
        shard_bytes, uncut = said[0]
        if uncut != self._uncut:
            self._cut(uncut)
            self._say_uncut()
        self._scheduler.door.know(self._groups, shard_bytes)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]) -> None:
        """The same with pipeline stages."""
        self.set_xfer_handshake_metadata(metadata)

    def on_new_request(self, request: Request) -> None:
        """Begins the lookup and the session's turn."""
        self._of_scheduler.new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """What the pool can bring."""
        return self._of_scheduler.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Blocks to load into."""
        self._of_scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """This step's loads and saves."""
        return self._of_scheduler.build_meta(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """What the workers report."""
        meta = connector_output.kv_connector_worker_meta
        self._of_scheduler.worker_output(meta if isinstance(meta, WorkerMeta) else None)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Without the hybrid manager: one group."""
        return self._of_scheduler.finished(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """True: the blocks are held until saved."""
        return self._of_scheduler.finished(request, block_ids)

    def take_events(self) -> Iterable[KVCacheEvent]:
        """For vLLM's event publisher."""
        return self._of_scheduler.announcer.take()

    def reset_cache(self) -> bool:
        """vLLM asks for it with reset_prefix_cache(reset_connector=True), after weights were changed for example."""
        self._of_scheduler.reset()
        return True

    @property
    def _of_scheduler(self) -> Scheduler:
        assert self._scheduler is not None, "called on the worker's side"
        return self._scheduler

    # ---- the worker's side

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The blocks' memory exists now."""
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group

        rank = get_pp_group().rank_in_group * get_tp_group().world_size + get_tp_group().rank_in_group
        runs, stores = self._memory(rank, kv_caches)
        door = self._door({group: run.shard_bytes for group, run in runs.items()}, self._options.load_ms)
        self._kv_caches = dict(kv_caches)  # while these live, the addresses in `runs` are good
        unfit = prefixes.unfit_reason(self._vllm_config, self._kv_cache_config)
        self._worker = Worker(self._options, door, runs, stores=stores, uncut=self._uncut, unfit=unfit)

    def _memory(self, rank: int, kv_caches: dict[str, torch.Tensor]) -> tuple[dict[int, BlockRuns], bool]:
        """Where each group's blocks lie, cut if that can be, and whether this rank is the one of its replicas that stores."""
        runs, stores = {}, True
        for group in [group.group for group in self._groups]:
            memory, stores = self._memory_of(group, rank, kv_caches)
            if memory is None:
                self._cut(self._uncut | {group})
                memory, stores = self._memory_of(group, rank, kv_caches)
            assert memory is not None, "blocks that are not cut are taken as they are"
            runs[group] = memory
        return runs, stores

    def _memory_of(self, group: int, rank: int, kv_caches: dict[str, torch.Tensor]) -> tuple[BlockRuns | None, bool]:
        config, cut = self._kv_cache_config, self._cuts[group]
        shards, stores = heads.held_by(rank, config, cut)
        return pages.memory_of(config, group, kv_caches, self._options.staging_bytes, shards, cut), stores

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """Sizes of pages, for the scheduler's side."""
        return self._worker.page_bytes() if self._worker is not None else None

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Before blocks are overwritten: the first call of a step."""
        self._handled = sys.exc_info()[1]
        if self._worker is not None and isinstance(kv_connector_metadata, StepMeta):
            self._worker.before_step(kv_connector_metadata)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Begins this step's loads."""
        if self._worker is not None:
            self._worker.start_loads(self._step)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Returns when the layer's loaded pages are in place."""
        if self._worker is not None:
            self._worker.wait_for_layer(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing to begin: a page is all layers, and is sent when the last of them is in place."""

    def wait_for_save(self) -> None:
        """Begins to save what this step filled; the blocks stay as they are until that is done."""
        if self._worker is not None:
            self._ended = self._step
            # vLLM calls this in a `finally`: an exception that is new in this step ended its forward pass.
            self._worker.end_step(self._step, whole=sys.exc_info()[1] is self._handled)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Requests whose saves or loads ended."""
        if self._worker is None:
            return KVConnectorTransferResults()
        step = self._connector_metadata
        if isinstance(step, StepMeta) and not step.forward and step is not self._ended:
            self.wait_for_save()  # vLLM 0.30 leaves it out in a step in which nothing runs
        saved, received, failed = self._worker.results()
        return KVConnectorTransferResults(finished_sending=saved, finished_recving=received, failed_recving=failed)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """The same without failures."""
        results = self.get_transfer_results(finished_req_ids)
        return results.finished_sending or None, results.finished_recving or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that vLLM has to compute after all."""
        return self._worker.take_failed_blocks() if self._worker is not None else set()

    def build_connector_worker_meta(self) -> WorkerMeta | None:
        """Outcomes, for the scheduler's side."""
        return self._worker.take_report() if self._worker is not None else None

    def get_kv_connector_stats(self) -> TurnKVStats | None:
        """Counted on the scheduler's side, where all ranks' reports meet."""
        return self._scheduler.take_stats() if self._scheduler is not None else None

    @property
    def _step(self) -> StepMeta:
        step = self._get_connector_metadata()
        assert isinstance(step, StepMeta)
        return step


def fitting(options: Options, kv_cache_config: KVCacheConfig) -> Options:
    """The options, as far as this engine's cache lets them be.

    Where vLLM zeroes new blocks (caches of several precisions), one of its model runners does so before it tells the connector
    that a step begins: a save of a block that its request has let go cannot be ended in time. Blocks are held from the end of a
    request on, so then is when they are saved.
    """
    if options.save != "filled" or not getattr(kv_cache_config, "needs_kv_cache_zeroing", False):
        return options
    logger.info("TurnKV: this engine zeroes its KV blocks, so pages are saved when a request is over, not as they fill")
    return dataclasses.replace(options, save="finished")


def loading(options: Options, vllm_config: VllmConfig) -> Options:
    """The options, with a way to load that this engine can take back.

    A page that does not verify within a forward pass has vLLM take the request's tokens back. Its second model runner does so on
    the CPU only and computes on with the old positions: other tokens. Its first one, with steps scheduled ahead, computes a
    placeholder as if it were a token, which ends the engine. Loads between the steps are taken back rightly by both.
    """
    if options.load != "layerwise":
        return options
    ahead = bool(getattr(vllm_config.scheduler_config, "async_scheduling", False))
    second = bool(getattr(vllm_config, "use_v2_model_runner", False))
    if not ahead and not second:
        return options
    logger.warning(
        'TurnKV: load="async" is used instead of "layerwise": this vLLM cannot take back a page that fails within a forward pass '
        "(%s); layerwise needs VLLM_USE_V2_MODEL_RUNNER=0 and --no-async-scheduling",
        "its second model runner" if second else "asynchronous scheduling",
    )
    return dataclasses.replace(options, load="async")
