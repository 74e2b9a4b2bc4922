"""The connector in a vLLM worker: pages leave and enter the blocks of this rank.

Owns: this rank's memory, its saver and loaders, which requests must not be saved for now. Must not know: which pages to
move (the scheduler's side says), sessions, prompts.
"""

from __future__ import annotations

from turnkv.connector import BlockRuns, Door, LayerLoader, Loader, LoadOutcome, SaveOutcome, Saver
from turnkv.connector.device_layers import DeviceLayerLoader
from turnkv.connector.devices import DeviceRuns
from turnkv.connector.loader import Loaded

from . import compat
from .meta import PageBytes, StepMeta, WorkerMeta
from .options import Options

logger = compat.logger
ALL_PAGES = 1 << 40
"""What a rank says that stores nothing because another has the same bytes: it is never the one that lacks a page."""


class Worker:
    """One per rank. vLLM's worker thread alone calls it."""

    def __init__(
        self,
        options: Options,
        door: Door,
        runs: dict[int, BlockRuns],
        *,
        stores: bool,
        uncut: frozenset[int] = frozenset(),
        unfit: str | None = None,
    ) -> None:
        """For the scheduler's side to know: `uncut`, groups whose heads this memory does not tell apart; `unfit`, why pages
        must be neither stored nor loaded."""
        self.options, self.door, self.runs = options, door, runs
        self._uncut, self._unfit = uncut, unfit
        self._stores = stores
        self._several_groups = len(runs) > 1
        self.saver = Saver(
            door,
            runs,
            deadline_ms=options.save_ms,
            durable=options.durable,
            threads=options.save_threads,
        )
        self.loader = Loader(door, runs, deadline_ms=options.load_ms, threads=options.load_threads)
        self.layers = self._layer_loader() if options.load == "layerwise" else None
        self._forwards_ended = 0
        self._blocks_known = True
        """False once a forward pass did not end: the engine itself may go on with whatever its blocks hold since."""
        self._distrusted: set[str] = set()
        """Requests that ran on a failed load: what they computed must not be stored before the scheduler knows."""
        self._report = WorkerMeta()
        self._received: set[str] = set()
        self._failed_requests: set[str] = set()
        self._failed_blocks: set[int] = set()
        self.settled_seconds = 0.0

    def page_bytes(self) -> PageBytes:
        """For the scheduler's side."""
        return PageBytes({group: runs.shard_bytes for group, runs in self.runs.items()}, self._uncut, self._unfit)

    def before_step(self, step: StepMeta) -> None:
        """Blocks change hands in this step: saves that read them end first."""
        if step.epoch != self.door.epoch:
            self.saver.abandon()
            self.door.begin_epoch(step.epoch)
            self._blocks_known = True  # the engine's own prefix cache was emptied, too
        if step.forwards != self._forwards_ended:
            self._forward_lost()
            self._forwards_ended = step.forwards
        self._distrusted.difference_update(step.trusted)
        if step.reused:
            self.settled_seconds += self.saver.settle(step.reused)

    def start_loads(self, step: StepMeta) -> None:
        """Begins what is to be loaded; within the forward pass if so configured."""
        if not step.loads:
            return
        if self.layers is not None:
            self.layers.begin(step.loads)
            return
        self._mark()
        for job in step.loads:
            self.loader.start(job)

    def wait_for_layer(self, layer: str) -> None:
        """Attention of this layer is about to read."""
        if self.layers is not None:
            self.layers.wait(layer)

    def end_step(self, step: StepMeta, whole: bool = True) -> None:
        """The forward pass is over. If it came to its end (`whole`), its full blocks are final: begins to save them."""
        if self.layers is not None:
            for request, loaded in self.layers.end().items():
                self._load_ended(request, loaded)
        self._forwards_ended = step.forwards + step.forward
        if not whole:
            self._forward_lost()
        if not self._stores:
            for job in step.finishes:
                self._report.saves[job.request] = SaveOutcome(ALL_PAGES, ALL_PAGES, ALL_PAGES, 0, None)
            return
        if step.saves or step.finishes:
            self._mark()
        for save in step.saves:
            if self._blocks_known and save.request not in self._distrusted:
                self.saver.add(save)
        for finish in step.finishes:
            if not self._blocks_known or finish.request in self._distrusted:
                self._distrusted.discard(finish.request)
                finish.runs = []
            self.saver.finish(finish)

    def results(self) -> tuple[set[str], set[str], set[str]]:
        """Requests saved, loaded, and of the loaded ones those that failed, since the last call."""
        for request, loaded in self.loader.take_finished().items():
            self._load_ended(request, loaded)
            self._received.add(request)
        self._report.saves.update(self.saver.take_finished())
        received, self._received = self._received, set()
        failed, self._failed_requests = self._failed_requests, set()
        return set(self._report.saves), received, failed & received

    def take_failed_blocks(self) -> set[int]:
        """Blocks that do not hold what they should, since the last call."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_report(self) -> WorkerMeta | None:
        """For the scheduler's side, since the last call."""
        if not self._report.loads and not self._report.saves:
            return None
        report, self._report = self._report, WorkerMeta()
        return report

    def close(self) -> None:
        """Lets saves under way end, for a while."""
        seconds = self.options.shutdown_ms / 1000
        self.saver.close(seconds)
        self.loader.close(seconds)
        if self.layers is not None:
            self.layers.close()
        self.door.close()

    def _layer_loader(self) -> LayerLoader | DeviceLayerLoader:
        patience = {"deadline_ms": self.options.load_ms, "threads": self.options.load_threads}
        on_device = {group: memory for group, memory in self.runs.items() if isinstance(memory, DeviceRuns)}
        if len(on_device) == len(self.runs):
            return DeviceLayerLoader(self.door, on_device, **patience)
        if on_device:
            raise ValueError('load="layerwise" needs all KV caches in one kind of memory; use load="async"')
        return LayerLoader(self.door, self.runs, **patience)

    def _forward_lost(self) -> None:
        """A forward pass ended half-way. Its blocks hold anything, and whoever shares them in the engine's prefix cache, or
        goes on with its requests, computes on that: from here on nothing that this engine computes is stored."""
        if self._blocks_known and self._stores:
            logger.warning(
                "TurnKV: a forward pass did not come to its end, so nobody knows what this engine's KV blocks "
                "hold: nothing more is stored until it starts anew, or reset_prefix_cache("
                "reset_connector=True) is called"
            )
        self._blocks_known = False

    def _mark(self) -> None:
        """Copies on a device's own streams wait for what the engine has enqueued so far."""
        for memory in self.runs.values():
            memory.mark()

    def _load_ended(self, request: str, loaded: Loaded) -> None:
        outcome: LoadOutcome = loaded.outcome
        self._report.loads[request] = outcome
        if not loaded.failed:
            return
        logger.warning(
            "TurnKV: %d of %d blocks of request %s did not come (%s): they are computed",
            outcome.failed,
            outcome.failed + outcome.pages,
            request,
            outcome.cause,
        )
        if self.layers is not None:
            self._distrusted.add(request)
        if self._several_groups:
            # A load of several groups is taken back whole, so vLLM wants the request named.
            self._failed_requests.add(request)
        else:
            self._failed_blocks.update(block for _, block in loaded.failed)
