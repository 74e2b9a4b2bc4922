"""The connector in vLLM's scheduler: which pages to load, which to save, when a turn begins and ends.

Owns: one record per request that lives in the engine. Must not know: tensors, threads, how bytes move.

    new -> lookup under way -> (load ->) computing, pages saved as they fill -> finished, blocks held -> saved -> gone
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

import turnkv
from turnkv.connector import (
    Answer,
    Door,
    FinishJob,
    GroupPages,
    Hints,
    LoadJob,
    LoadOutcome,
    LoadPause,
    Lookups,
    Outcomes,
    PageRun,
    PrefillClock,
    SaveJob,
    SaveOutcome,
    SessionDesk,
    names_of,
)

from . import compat
from .adapters import Adapters, mixed
from .events import Announcer
from .meta import StepMeta, WorkerMeta
from .metrics import TurnKVStats
from .options import Options

logger = compat.logger
HANDOVER_ASK_SECONDS = 0.005
"""Between two lookups of a request whose pages another instance is storing."""


@dataclass
class _Tracked:
    """A request that is in the engine."""

    request: Any
    hints: Hints
    sent: dict[int, int]
    """Of each group: leading blocks that need no saving any more."""
    known: int = 0
    """Leading pages of the first group that the pool is known to have."""
    offered: tuple[int, int] = (0, 0)
    """(locally computed tokens, tokens that can be loaded) as last told to vLLM."""
    loading: LoadJob | None = None
    load_from: int = 0
    """Tokens before the load."""
    held_off: bool = False
    """It could have loaded, but loads come too late just now."""
    no_load: bool = False
    """A load of this request failed: it is computed, however the pool feels by now."""
    no_save: bool = False
    """It began before everything stored was declared worthless: so may be its blocks."""
    saved: bool = False
    """Workers were asked to save something of it."""
    root: bytes | None = None
    """What the names of its pages are mixed with: its adapter's weights."""
    handover_until: float = 0.0
    ask_again: float = 0.0


@dataclass
class _Ending:
    """A finished request whose blocks are held until it is saved."""

    request: Any
    hints: Hints
    hashes: list[bytes]
    known: int
    root: bytes | None


@dataclass
class Scheduler:
    """One per engine; vLLM's scheduler thread alone calls it. No call waits longer than `lookup_wait_ms`."""

    options: Options
    groups: list[GroupPages]
    door: Door
    announcer: Announcer
    hash_tokens: int
    ranks: int
    loads: bool
    saves: bool
    lag_blocks: int = 0
    """Trailing blocks that are not final yet: a speculative drafter's layers run behind."""
    handover: bool = False
    """Tell about hand-over in the response whether the request asks for it or not."""
    tracked: dict[str, _Tracked] = field(default_factory=dict)
    ending: dict[str, _Ending] = field(default_factory=dict)
    stats: TurnKVStats = field(default_factory=TurnKVStats)
    step: StepMeta = field(default_factory=StepMeta)
    aside: str | None = None
    """Why this engine neither stores nor loads."""
    forwards: int = 0
    """Steps told so far in which the model runs."""

    def __post_init__(self) -> None:
        options = self.options
        self.unit = max(group.block_tokens for group in self.groups)
        self.primary = self.groups[0]
        self.lookups = Lookups(
            self.door,
            wait_ms=options.lookup_wait_ms,
            deadline_ms=options.lookup_ms,
            threads=options.lookup_threads,
        )
        self.desk = SessionDesk(self.door, self.primary.group, options.engine)
        self.pause = LoadPause()
        self.clock = PrefillClock()
        self.adapters = Adapters()
        self.load_outcomes: Outcomes[LoadOutcome] = Outcomes(self.ranks)
        self.save_outcomes: Outcomes[SaveOutcome] = Outcomes(self.ranks)

    def new_request(self, request: Any) -> None:
        """A request arrived: its lookup begins at once, so that the answer is there when it is scheduled."""
        if request.request_id in self.tracked:
            return
        extra = getattr(getattr(request, "sampling_params", None), "extra_args", None)
        hints, wrong = Hints.parse(
            extra,
            request.kv_transfer_params,
            envelope=getattr(request, "kv_hints", None),  # from 0.31 on
            session=getattr(request, "session_id", None),
        )
        for text in wrong:
            logger.warning("TurnKV: request %s: %s; ignored", request.request_id, text)
        tracked = _Tracked(request, hints, {group.group: 0 for group in self.groups})
        try:
            tracked.root = self.adapters.root_of(request.lora_request)
        except turnkv.Error as error:
            logger.info("TurnKV: request %s moves no pages: of its adapter, %s", request.request_id, error)
            tracked.no_load = tracked.no_save = True
        tracked.handover_until = time.monotonic() + self.options.handover_ms / 1000
        self.tracked[request.request_id] = tracked
        self.desk.begin(hints)
        if self.loads and self._limit(request) >= max(1, self.options.min_tokens):
            self.lookups.ask(request.request_id, self._asked_names(tracked))

    def matched_tokens(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """How many tokens can be loaded beyond the `computed` ones. None: ask again at the next step. No side effects
        but the lookup itself: the same call brings the same answer until blocks are allocated."""
        tracked = self.tracked.get(request.request_id)
        if tracked is None or tracked.no_load or not self.loads or request.skip_reading_prefix_cache:
            return 0, False
        limit = self._limit(request)
        if limit - computed < max(1, self.options.min_tokens):
            return 0, False
        now = time.monotonic()
        if now < tracked.ask_again:
            return None, False
        answer = self.lookups.answer(request.request_id, lambda: self._asked_names(tracked))
        if answer is None:
            return None, False
        if self._await_handover(tracked, answer, limit, now):
            return None, False
        tokens = min(answer.tokens, limit) - computed
        if tokens < max(1, self.options.min_tokens):
            tokens = 0
        tracked.held_off = tokens > 0 and not self.pause.allows(request.request_id, now)
        if tracked.held_off:
            tokens = 0
        tracked.offered = (computed, tokens)
        return tokens, tokens > 0 and self.options.load == "async"

    def allocated(self, request: Any, block_ids: tuple[list[int], ...], external: int) -> None:
        """Blocks are there for what `matched_tokens` offered; with `external` 0 there is nothing to load."""
        tracked = self.tracked.get(request.request_id)
        if tracked is None or tracked.loading is not None:
            return
        answer = self._use_answer(tracked, external)
        if external <= 0:
            return
        computed, _ = tracked.offered
        runs = []
        for group in self.groups:
            first, end = computed // group.block_tokens, (computed + external) // group.block_tokens
            run = self._run(tracked, group, block_ids[group.group], first, end)
            if run.blocks:
                runs.append(run)
                self.step.reused.extend(run.blocks)
            tracked.sent[group.group] = max(tracked.sent[group.group], end)
        tracked.loading = LoadJob(request.request_id, runs, external)
        tracked.load_from = computed
        if answer is not None:
            tracked.known = max(tracked.known, (computed + external) // self.primary.block_tokens)
        self.step.loads.append(tracked.loading)
        self.pause.begun(request.request_id)

    def build_meta(self, output: Any) -> StepMeta:
        """What the workers do in this step."""
        step, self.step = self.step, StepMeta()
        step.epoch, step.forward = self.door.epoch, output.total_num_scheduled_tokens > 0
        step.forwards = self.forwards
        self.forwards += step.forward
        self.clock.begin(list(output.num_scheduled_tokens.values()), time.monotonic())
        if self.saves:
            for request_id in output.preempted_req_ids or ():
                tracked = self.tracked.get(request_id)
                if tracked is not None:
                    tracked.sent = {group.group: 0 for group in self.groups}
            if self.options.save == "filled":
                self._save_filled(output, step)
            self._note_reused(output, step)
        return step

    def finished(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        """A request is over. True: its blocks must stay until the workers report it as saved."""
        request_id = request.request_id
        self.lookups.forget(request_id)
        tracked = self.tracked.pop(request_id, None)
        if tracked is None:
            return False, None
        self.load_outcomes.forget(request_id)
        self.pause.forget(request_id)
        computed = self._final_tokens(request)
        params = self._handover_params(tracked, computed)
        hashes = self._primary_hashes(request, computed)
        if not self.saves or tracked.loading is not None or (tracked.no_save and not tracked.saved):
            # A load that has not ended (the request was aborted) leaves blocks that nobody can vouch for.
            self.desk.end(tracked.hints, mixed(tracked.root, names_of(hashes, 0, min(tracked.known, len(hashes)))))
            return False, None
        rest, whole = [], []
        for group in self.groups:
            end = computed // group.block_tokens - self.lag_blocks
            if tracked.no_save:
                continue  # only what is under way is waited for
            whole.append(self._run(tracked, group, block_ids[group.group], 0, end))
            if end > tracked.sent[group.group]:
                rest.append(self._run(tracked, group, block_ids[group.group], tracked.sent[group.group], end))
        rest = [run for run in rest if run.blocks]
        if not rest and not tracked.saved:
            self.desk.end(tracked.hints, mixed(tracked.root, names_of(hashes, 0, min(tracked.known, len(hashes)))))
            return False, params
        session = tracked.hints.session
        if rest:
            self.step.saves.append(SaveJob(request_id, session, rest))
        self.step.finishes.append(FinishJob(request_id, session, [run for run in whole if run.blocks]))
        self.ending[request_id] = _Ending(request, tracked.hints, hashes, tracked.known, tracked.root)
        return True, params

    def worker_output(self, meta: WorkerMeta | None) -> None:
        """What the workers report after a step."""
        prefilled = self.clock.end(time.monotonic())
        if prefilled is not None:
            self.desk.prefilled(*prefilled)
        if meta is None:
            return
        for request_id, part in meta.loads.items():
            known = request_id in self.tracked
            outcome = self.load_outcomes.add(request_id, part) if known else None
            if outcome is not None:
                self._load_ended(request_id, outcome)
        for request_id, saved in meta.saves.items():
            all_saved = self.save_outcomes.add(request_id, saved)
            if all_saved is not None:
                self._save_ended(request_id, all_saved)

    def reset(self) -> None:
        """What the pool holds of this engine is worthless (its weights were changed): begins anew under other names.

        Other engines go on with what they have; this one shares with nobody until it starts again.
        """
        self.door.begin_epoch(os.urandom(16))
        self.lookups.forget_all()
        self.announcer.clear()
        self.step.loads.clear()
        for tracked in self.tracked.values():
            tracked.sent, tracked.known = dict.fromkeys(tracked.sent, 0), 0
            tracked.no_load = tracked.no_save = True

    def stand_aside(self, reason: str) -> None:
        """This engine can use no page: neither asks for any nor stores any, from now on."""
        if self.aside is None:
            logger.warning("TurnKV neither stores nor loads anything in this engine: %s", reason)
        self.aside, self.loads, self.saves = self.aside or reason, False, False

    def take_stats(self) -> TurnKVStats | None:
        """Since the last call; None when nothing happened."""
        for kind, count in self.desk.take_failures().items():
            self.stats.count("session_failures", count, kind)
        if self.stats.is_empty():
            return None
        stats, self.stats = self.stats, TurnKVStats()
        return stats

    def close(self) -> None:
        """Ends threads; turns that were told are still told to the pool, for a while."""
        self.lookups.close()
        self.desk.close(self.options.shutdown_ms / 1000)
        self.door.close()

    def _limit(self, request: Any) -> int:
        """Tokens that may be loaded: whole blocks, and one token at least is left to compute."""
        return (request.num_tokens - 1) // self.unit * self.unit

    def _asked_names(self, tracked: _Tracked) -> list[bytes]:
        hashes = tracked.request.block_hashes[: self._limit(tracked.request) // self.hash_tokens]
        return hashes if tracked.root is None else mixed(tracked.root, names_of(hashes, 0, len(hashes)))

    def _primary_hashes(self, request: Any, tokens: int) -> list[bytes]:
        """The engine's hashes of the first group's blocks."""
        step, blocks = self.primary.hashes_per_block, tokens // self.primary.block_tokens - self.lag_blocks
        return request.block_hashes[step - 1 : max(0, blocks) * step : step]

    def _run(self, tracked: _Tracked, group: GroupPages, blocks: list[int], first: int, end: int) -> PageRun:
        """Blocks first to end of a request; those that the engine let go (out of the window: block 0) are left out."""
        end = max(first, min(end, len(blocks)))
        while first < end and blocks[first] == 0:
            first += 1
        hashes, step = tracked.request.block_hashes, group.hashes_per_block
        names = mixed(tracked.root, names_of(hashes, first, end, step))
        parent = None
        if first and group.window_blocks is None:
            (parent,) = mixed(tracked.root, names_of(hashes, first - 1, first, step))
        return PageRun(group.group, first, names, list(blocks[first:end]), parent)

    def _await_handover(self, tracked: _Tracked, answer: Answer, limit: int, now: float) -> bool:
        """Whether to ask again a little later: who prefilled this request has not stored all of it yet."""
        wanted = min(tracked.hints.handover_tokens, limit)
        if answer.cause is not None or answer.tokens >= wanted - wanted % self.unit or now > tracked.handover_until:
            return False
        self.lookups.forget(tracked.request.request_id)
        tracked.ask_again = now + HANDOVER_ASK_SECONDS
        return True

    def _use_answer(self, tracked: _Tracked, external: int) -> Answer | None:
        """The lookup's answer has served: counts it, and starts saving where the pool's pages end."""
        request = tracked.request
        answer = self.lookups.take(request.request_id)
        if answer is None:
            return None
        computed = tracked.offered[0]
        self.stats.observe("lookup_seconds", answer.seconds)
        self.stats.count("queried_tokens", request.num_tokens - computed)
        said = "hit" if external > 0 else "local" if 0 < answer.tokens <= computed else "miss"
        if tracked.held_off and external <= 0:
            said = "paused"
        self.stats.count("lookups", 1, answer.cause or said)
        for group, pages in answer.pages.items():
            tracked.sent[group] = max(tracked.sent[group], pages)
        tracked.known = answer.pages.get(self.primary.group, 0)
        if answer.cause is None and self.announcer.enabled:
            self.announcer.missing(self._primary_hashes(request, self._limit(request)), tracked.known)
        return answer

    def _save_filled(self, output: Any, step: StepMeta) -> None:
        """Pages that this step fills. Drafts and tokens not known yet have no hash, so they never count."""
        tables = output.kv_connector_block_state
        for request_id, scheduled in output.num_scheduled_tokens.items():
            tracked = self.tracked.get(request_id)
            if tracked is None or tracked.no_save:
                continue
            request = tracked.request
            filled = min(request.num_computed_tokens + scheduled, len(request.block_hashes) * self.hash_tokens)
            runs, block_ids = [], None
            for group in self.groups:
                end, sent = filled // group.block_tokens - self.lag_blocks, tracked.sent[group.group]
                if end <= sent:
                    continue
                if block_ids is None:
                    block_ids = tables.resolve_block_ids(request_id)
                run = self._run(tracked, group, block_ids[group.group], sent, end)
                if run.blocks:
                    runs.append(run)
                tracked.sent[group.group] = end
            if runs:
                tracked.saved = True
                step.saves.append(SaveJob(request_id, tracked.hints.session, runs))

    def _note_reused(self, output: Any, step: StepMeta) -> None:
        """Blocks that are new to a request, in groups that are not kept, too: somebody else's save may still be reading them,
        and for another group, for all groups take their blocks from one pool."""
        block_tokens = {group.group: group.block_tokens for group in self.groups}
        for new in output.scheduled_new_reqs:
            for group, blocks in enumerate(new.block_ids):
                first = new.num_computed_tokens // block_tokens[group] if group in block_tokens else 0
                step.reused.extend(blocks[first:])
        for block_ids in output.scheduled_cached_reqs.new_block_ids:
            for blocks in block_ids or ():
                step.reused.extend(blocks)

    def _final_tokens(self, request: Any) -> int:
        """Tokens whose KV is in the blocks for sure; the last sampled one has none."""
        computed = request.num_computed_tokens - getattr(request, "num_in_flight_tokens", 0)
        return max(0, min(computed, len(request.block_hashes) * self.hash_tokens))

    def _handover_params(self, tracked: _Tracked, computed: int) -> dict[str, Any] | None:
        """For the response of a prefill: what the instance that goes on should wait for."""
        asked = (tracked.request.kv_transfer_params or {}).get("do_remote_decode", False)
        tokens = (computed // self.primary.block_tokens - self.lag_blocks) * self.primary.block_tokens
        if not self.saves or tokens <= 0 or not (asked or self.handover):
            return None
        said: dict[str, Any] = {"handover_tokens": tokens}
        if tracked.hints.session is not None:
            said["session"] = tracked.hints.session
        return {"turnkv": said}

    def _load_ended(self, request_id: str, outcome: LoadOutcome) -> None:
        tracked = self.tracked.get(request_id)
        if tracked is None or tracked.loading is None:
            return
        job, tracked.loading = tracked.loading, None
        cause = outcome.cause if outcome.failed else None
        paused = self.pause.ended(request_id, cause, outcome.seconds, time.monotonic())
        if paused:
            logger.warning(
                "TurnKV: a load came too late (%s, %.1f s): requests are computed for %.0f s", cause, outcome.seconds, paused
            )
        self.stats.observe("load_seconds", outcome.seconds)
        # With several groups vLLM takes a load whole or not at all.
        whole = outcome.failed == 0
        tokens = job.tokens if whole else outcome.pages * self.unit if len(self.groups) == 1 else 0
        self.stats.count("loaded_tokens", tokens)
        self.stats.count("loaded_blocks", outcome.pages)
        if whole:
            return
        tracked.no_load = True
        self.stats.count("failed_tokens", job.tokens - tokens, outcome.cause or "unavailable")
        self.stats.count("failed_blocks", outcome.failed, outcome.cause or "unavailable")
        good = tracked.load_from + tokens
        tracked.known = min(tracked.known, good // self.primary.block_tokens)
        for group in self.groups:
            tracked.sent[group.group] = min(tracked.sent[group.group], good // group.block_tokens)
        self.step.trusted.append(request_id)
        self.announcer.missing(self._primary_hashes(tracked.request, self._limit(tracked.request)), tracked.known)

    def _save_ended(self, request_id: str, outcome: SaveOutcome) -> None:
        ending = self.ending.pop(request_id, None)
        self.stats.count("saved_blocks", outcome.stored)
        self.stats.count("present_blocks", outcome.present)
        self.stats.count("declined_blocks", outcome.declined, outcome.cause or "declined")
        self.stats.count("not_durable_requests", int(outcome.not_durable is not None), outcome.not_durable or "")
        if ending is None:
            return
        pages = min(max(outcome.pages, ending.known if outcome.declined == 0 else 0), len(ending.hashes))
        self.desk.end(ending.hints, mixed(ending.root, names_of(ending.hashes, 0, pages)))
        self.announcer.stored(ending.request, ending.hashes, pages)
