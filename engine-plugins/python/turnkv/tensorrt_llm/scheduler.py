"""The connector in TensorRT-LLM's scheduler, on rank 0: what can be loaded, what is full by now.

Owns: one record per request that lives in the engine. Must not know: tensors, streams, how bytes move.

    match (pages fetched on all ranks, then promised) -> blocks allocated -> steps: placed, computed, saved as they fill
      -> finished: blocks held until the workers have sent what they read from them
"""

from __future__ import annotations

import os
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from turnkv.checkpoint import WeightsName
from turnkv.connector import Hints, LoadPause, PageRun, SaveJob

from . import compat, identity
from .adapters import Adapters, UnknownAdapter
from .crew import Crew
from .identity import GROUP
from .keys import Naming, has_foreign_input, root_of
from .meta import Placing, StepMeta
from .options import Options, lora_names, slips

logger = compat.logger
TRACKED_MAX = 4096
"""Requests remembered. TensorRT-LLM tells of no end of a cancelled request: the one that ran longest ago makes room."""


@dataclass
class _Tracked:
    """A request that is in the engine."""

    root: bytes | None
    names: list[bytes]
    """Of its whole pages, so far as tokens are known."""
    computed: int
    """Tokens that the engine had on the device when the request began."""
    present: int = 0
    """Leading pages in the pool that need no saving."""
    ticket: int = 0
    promised: int = 0
    """Pages."""
    placing: list[int] | None = None
    """Blocks for them."""
    rest: list[int] = field(default_factory=list)
    """Tokens after the last named page."""
    blocks: list[int] = field(default_factory=list)
    started: bool = False
    ended: bool = False
    """No page can be named any more."""
    sent: int = 0
    """Leading pages that need no saving any more."""
    saved: bool = False
    """Workers were asked to save something of it."""


class Scheduler(compat.interface().KvCacheConnectorScheduler):  # type: ignore[misc]
    """One per engine; its executor's thread alone calls it."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        identity.check(llm_args)
        self._options = Options.of(os.environ)
        for slip in slips(os.environ):
            logger.warning("TurnKV: nobody reads the variable %s", slip)
        self._block_tokens = identity.block_tokens(llm_args)
        checkpoint = identity.checkpoint(llm_args, self._options.model_id)
        if isinstance(checkpoint.model, WeightsName):
            checkpoint.model.wait()
        self._adapters = Adapters(llm_args, lora_names(self._options.lora_names))
        self._naming = Naming(self._block_tokens, checkpoint)
        # A drafter's layers run one token behind, so a page is whole a step later.
        self._lag_pages = int(getattr(llm_args, "speculative_config", None) is not None)
        self._crew = Crew.of(llm_args)
        self._tracked: OrderedDict[int, _Tracked] = OrderedDict()
        self._gone: list[int] = []
        self._last_cause: str | None = None
        # A load keeps the whole executor waiting: a pool that is always late must not cost each request its deadline.
        self._pause = LoadPause()
        self.counts: Counter[str] = Counter()
        """matches, loaded_tokens, missed_<cause>, stored_pages: since the start."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Tokens beyond the computed ones that are here already, verified, on all ranks. Loaded within the step."""
        self._forget(request.request_id)
        if getattr(request, "is_dummy_request", False) or has_foreign_input(request):
            return 0, False
        try:
            root = root_of(request, self._adapters.identity_of(request))
        except UnknownAdapter:
            self.counts["missed_adapter"] += 1
            return 0, False
        tokens = request.get_tokens(0)
        # One token at least must be left to compute.
        limit = (len(tokens) - 1) // self._block_tokens
        names = self._naming.names(tokens[: limit * self._block_tokens], root)
        tracked = _Tracked(root, names, num_computed_tokens, ended=len(names) < limit)
        self._remember(request.request_id, tracked)
        self._hear(request)
        first = num_computed_tokens // self._block_tokens
        least = max(1, self._options.min_tokens)
        if not self._options.load or len(names) * self._block_tokens - num_computed_tokens < least:
            return 0, False
        if num_computed_tokens % self._block_tokens:
            # The engine is about to copy part of a block to where we would load the whole of it.
            self.counts["missed_partial_reuse"] += 1
            return 0, False
        self._find(str(request.request_id), tracked, first)
        if tracked.promised * self._block_tokens < least:
            self._drop(tracked)
            return 0, False
        self.counts["matches"] += 1
        self.counts["loaded_tokens"] += tracked.promised * self._block_tokens
        return tracked.promised * self._block_tokens, False

    def update_state_after_alloc(self, request: Any, block_ids: Sequence[int]) -> None:
        """The blocks of a request, among them those for what was promised."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return
        if has_foreign_input(request):
            # The request that came to match did not show its inputs: its text was matched, no more of it is kept.
            tracked.ended = True
            del tracked.names[tracked.present :]
        if tracked.promised and tracked.placing is None:
            first = tracked.computed // self._block_tokens
            blocks = list(block_ids[first : first + tracked.promised])
            if len(blocks) < tracked.promised or any(block < 0 for block in blocks):
                raise RuntimeError(f"turnkv: {tracked.promised} pages promised, but blocks for {len(blocks)}")
            tracked.placing = blocks

    def build_connector_meta(self, scheduler_output: Any) -> StepMeta:
        """What the workers do in this step."""
        step = StepMeta(gone=self._gone)
        self._gone = []
        for data in (*scheduler_output.new_requests, *scheduler_output.cached_requests):
            tracked = self._tracked.get(data.request_id)
            fresh = 0 if tracked is None or tracked.started else tracked.computed // self._block_tokens
            step.reused.extend(data.new_block_ids[fresh:])
            if tracked is not None:
                self._tracked.move_to_end(data.request_id)
                self._advance(data, tracked, step)
        for tracked in self._tracked.values():
            if tracked.placing and tracked.ticket:
                step.placings.append(Placing(tracked.ticket, tracked.placing))
                tracked.ticket = 0
        return step

    def request_finished(self, request: Any, cache_block_ids: Sequence[int]) -> bool:
        """True: workers may still be reading its blocks. All that can be named was told before, the reply too."""
        tracked = self._forget(request.request_id)
        if tracked is None:
            return False
        self._crew.name_turn(request.request_id, tracked.names[: tracked.sent], tracked.present, tracked.saved)
        return tracked.saved

    def _hear(self, request: Any) -> None:
        """What an orchestrator said with the request, in versions that carry it to here."""
        envelope = getattr(request, "kv_hints", None) or getattr(request, "py_kv_hints", None)
        if not envelope:
            return
        hints, wrong = Hints.parse(envelope=envelope)
        for text in wrong:
            logger.warning("TurnKV: request %s: %s; ignored", request.request_id, text)
        self._crew.begin_turn(request.request_id, hints)

    def _find(self, request: str, tracked: _Tracked, first: int) -> None:
        begun = time.monotonic()
        loads = self._pause.allows(request, begun)
        found = self._crew.find(tracked.names, first, loads=loads)
        if not loads and found.cause is None:
            # The pool has them, late or not: they are computed, and not stored again.
            tracked.present = tracked.sent = found.present
            self.counts["missed_paused"] += found.present > first
            return
        if found.ticket:
            self._load_ended(request, found.cause, begun)
        # Pages that did not come though the pool has them are stored again: they may be damaged there.
        reached = first + found.pages
        tracked.present = tracked.sent = found.present if found.present <= first else min(found.present, reached)
        tracked.ticket, tracked.promised = (found.ticket, found.pages) if found.pages else (0, 0)
        if found.cause is not None:
            self.counts[f"missed_{found.cause}"] += 1
            if found.cause != self._last_cause:
                logger.warning("TurnKV: the pool did not bring all it may have (%s): the rest is computed", found.cause)
        self._last_cause = found.cause

    def _load_ended(self, request: str, cause: str | None, begun: float) -> None:
        now = time.monotonic()
        self._pause.begun(request)
        paused = self._pause.ended(request, cause, now - begun, now)
        if paused:
            logger.warning(
                "TurnKV: a load came too late (%s, %.1f s): requests are computed for %.0f s", cause, now - begun, paused
            )

    def _advance(self, data: Any, tracked: _Tracked, step: StepMeta) -> None:
        """One request in this step: its new tokens, its new blocks, and the pages that it fills."""
        # In a request's first step the engine leaves out what we promised; what we know counts it.
        begun = tracked.computed + tracked.promised * self._block_tokens
        position = data.computed_position if tracked.started else begun
        tracked.blocks.extend(data.new_block_ids)
        named = 0 if tracked.started else len(tracked.names) * self._block_tokens
        self._name(tracked, data.new_tokens[named:])
        tracked.started = True
        if not self._options.save:
            return
        filled = (position + data.num_scheduled_tokens) // self._block_tokens - self._lag_pages
        end = min(filled, len(tracked.names), len(tracked.blocks))
        first = tracked.sent
        if end <= first:
            return
        blocks = tracked.blocks[first:end]
        if any(block < 0 for block in blocks):
            tracked.ended = True
            del tracked.names[first:]
            return
        parent = tracked.names[first - 1] if first else None
        run = PageRun(GROUP, first, tracked.names[first:end], blocks, parent)
        step.saves.append(SaveJob(str(data.request_id), None, [run]))
        self.counts["stored_pages"] += end - first
        tracked.sent, tracked.saved = end, True

    def _name(self, tracked: _Tracked, tokens: Sequence[int]) -> None:
        """Names the pages that these tokens complete."""
        if tracked.ended:
            return
        tracked.rest.extend(tokens)
        pages = len(tracked.rest) // self._block_tokens
        if pages == 0:
            return
        parent = tracked.names[-1] if tracked.names else tracked.root
        names = self._naming.names(tracked.rest[: pages * self._block_tokens], parent)
        tracked.names.extend(names)
        tracked.ended = len(names) < pages
        del tracked.rest[: pages * self._block_tokens]

    def _remember(self, request_id: int, tracked: _Tracked) -> None:
        self._tracked[request_id] = tracked
        if len(self._tracked) > TRACKED_MAX:
            oldest, silent = self._tracked.popitem(last=False)
            self._drop(silent)
            self._gone.append(oldest)

    def _drop(self, tracked: _Tracked) -> None:
        if tracked.ticket:
            self._crew.drop(tracked.ticket)
        tracked.ticket = tracked.promised = 0

    def _forget(self, request_id: int) -> _Tracked | None:
        tracked = self._tracked.pop(request_id, None)
        if tracked is not None:
            self._drop(tracked)
        return tracked
