"""The whole turn loop: more sessions than an artificial budget of device memory holds, in four ways to keep their caches.

Owns: the workload, the ways, a budget of bytes. Must not know: how servers and models are made.

    turnkv             pages in DRAM, the latest in a GPU tier of the budget's size
    turnkv, no tier    pages in DRAM only
    nothing            caches stay on the device until the budget is used up, the one unused for longest goes first
    offloaded          transformers' own: every cache in host memory, brought layer by layer at every step
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from stage import GIB, OutOfTime, Served, Stage, memory_bytes, percentile, sizes, table

SESSIONS, TURNS = 20, 3
FIRST_TOKENS, MESSAGE_TOKENS, REPLY_TOKENS = 4096, 128, 2
SHARED_TOKENS = 1024
"""A system prompt that all sessions begin with."""
OVERSUBSCRIBED = 4
DRAM_BYTES = 28 * GIB


@dataclass
class _Way:
    """What one way of keeping caches came to."""

    first: list[float] = field(default_factory=list)
    """Seconds to the first token of first turns."""
    later: list[float] = field(default_factory=list)
    """The same of the turns after them."""
    seconds: float = 0.0
    """From begin to the end of the last reply's turn, all turns: the device is busy or waits for a cache."""
    said: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass
class _Turn:
    session: int
    number: int
    message: torch.Tensor


def run(stage: Stage) -> None:
    """Prints the table."""
    tokens = FIRST_TOKENS + TURNS * (MESSAGE_TOKENS + REPLY_TOKENS) if not stage.tiny else 300
    sessions = SESSIONS
    if not stage.tiny:  # all of them fit the pool, or it is the pool's size that is measured
        sessions = min(SESSIONS, int(0.6 * sizes(DRAM_BYTES, 0, memory_bytes(), 0)[0] / stage.kv_bytes(tokens)))
    turns = _workload(stage, sessions)
    budget = sessions * stage.kv_bytes(tokens) // OVERSUBSCRIBED
    stage.note(sessions=sessions, turns=TURNS, budget_bytes=budget, oversubscribed=OVERSUBSCRIBED)
    ways: dict[str, Callable[[], _Way]] = {
        "turnkv": lambda: _with_pool(stage, turns, budget),
        "nothing": lambda: _with_budget(stage, turns, budget),
        "turnkv, no tier": lambda: _with_pool(stage, turns, 0),
    }
    if stage.place.type == "cuda":  # its prefetching needs streams
        ways["offloaded"] = lambda: _offloaded(stage, turns)
    done: dict[str, _Way] = {}
    for name, way in ways.items():
        try:
            stage.need(max((w.seconds for w in done.values()), default=20.0))
            done[name] = way()
        except OutOfTime as error:
            stage.note(cut_short=str(error))
            print(f"cut short: {error}")
            break
        _report(stage, name, done[name])
    # Not a check: a prompt computed in one piece may be rounded otherwise than in two. `exact` compares like with like.
    agree = sum(all(torch.equal(way.said[at], done["turnkv"].said[at]) for way in done.values()) for at in range(sessions))
    stage.note(sessions_that_all_ways_answer_alike=agree)
    table(
        f"{sessions} sessions, {TURNS} turns, K and V are {OVERSUBSCRIBED} times the budget of {budget / GIB:.2f} GiB",
        ["way", "first turns p50, ms", "turn 2+ TTFT p50, ms", "p99, ms", "all turns, s"],
        [
            [name, percentile(way.first, 50) * 1e3, percentile(way.later, 50) * 1e3, percentile(way.later, 99) * 1e3, way.seconds]
            for name, way in done.items()
        ],
    )


def _workload(stage: Stage, count: int) -> list[_Turn]:
    """Every session's turns, in an order that returns to each after others."""
    order = random.Random(5)
    first = 256 if stage.tiny else FIRST_TOKENS
    message = 20 if stage.tiny else MESSAGE_TOKENS
    system = stage.tokens(first // 4 if stage.tiny else SHARED_TOKENS, seed=99)
    turns = []
    for number in range(TURNS):
        sessions = list(range(count))
        order.shuffle(sessions)
        for session in sessions:
            own = stage.tokens(message if number else first - system.shape[1], seed=1000 * session + number)
            turns.append(_Turn(session, number, own if number else torch.cat([system, own], dim=1)))
    return turns


def _play(stage: Stage, turns: list[_Turn], begin: Callable[[int, torch.Tensor], Any], end: Callable[..., None]) -> _Way:
    """Plays all turns; `begin` gives a session's cache for a conversation, `end` takes it back."""
    way = _Way()
    conversations: dict[int, torch.Tensor] = {}
    for turn in turns:
        past = conversations.get(turn.session)
        ids = turn.message if past is None else torch.cat([past, turn.message], dim=1)

        def to_first_token(ids: torch.Tensor = ids, session: int = turn.session) -> tuple[Any, torch.Tensor]:
            cache = begin(session, ids)
            return cache, stage.reply(ids, cache, 1)

        first_seconds, (cache, said) = stage.timed(to_first_token)

        def rest(cache: Any = cache, said: torch.Tensor = said, session: int = turn.session) -> torch.Tensor:
            all_said = stage.reply(said, cache, REPLY_TOKENS - 1)
            end(session, cache, all_said)
            return all_said

        rest_seconds, conversations[turn.session] = stage.timed(rest)
        del cache
        (way.later if turn.number else way.first).append(first_seconds)
        way.seconds += first_seconds + rest_seconds
    way.said = conversations
    return way


def _with_pool(stage: Stage, turns: list[_Turn], gpu_bytes: int) -> _Way:
    settings = {"gpu_bytes": gpu_bytes} if gpu_bytes else {}
    with stage.pool(DRAM_BYTES) as served:
        _warm(stage, served)
        sessions = {turn.session for turn in turns}
        caches = {at: stage.cache(f"turns-{at}", served.door, **settings) for at in sessions}

        def begin(session: int, ids: torch.Tensor) -> Any:
            caches[session].begin(ids)
            return caches[session]

        way = _play(stage, turns, begin, lambda session, cache, ids: cache.end_turn(ids))
        totals = [cache.totals for cache in caches.values()]
        loaded = {
            name: sum(getattr(total, name) for total in totals)
            for name in ("tokens_loaded", "tokens_from_gpu", "tokens_from_dram", "pages_declined")
        }
        stage.note(**{f"turnkv_{'tier' if gpu_bytes else 'no_tier'}": loaded})
        stage.check(loaded["tokens_loaded"] > 0 and not loaded["pages_declined"], f"pages are kept and come back: {loaded}")
        return way


def _warm(stage: Stage, served: Served) -> None:
    ids = stage.tokens(200, seed=3)
    for _ in range(2):
        cache = stage.cache("warm", served.door)
        cache.begin(ids)
        stage.first_token(ids, cache)
        cache.end_turn(ids)
    stage.registered(20)


def _with_budget(stage: Stage, turns: list[_Turn], budget: int) -> _Way:
    """Plain caches on the device, least recently used ones dropped: what an engine does that has nowhere to put them."""
    kept: OrderedDict[int, Any] = OrderedDict()

    def begin(session: int, ids: torch.Tensor) -> Any:
        return kept.pop(session, None) or stage.plain_cache()

    def end(session: int, cache: Any, ids: torch.Tensor) -> None:
        kept[session] = cache
        while sum(stage.kv_bytes(other.get_seq_length()) for other in kept.values()) > budget:
            kept.popitem(last=False)

    return _play(stage, turns, begin, end)


def _offloaded(stage: Stage, turns: list[_Turn]) -> _Way:
    """transformers' own offloaded cache, one a session for good; host memory is all theirs."""
    kept: dict[int, Any] = {}

    def begin(session: int, ids: torch.Tensor) -> Any:
        return kept.get(session) or kept.setdefault(session, stage.plain_cache(offloading=True))

    return _play(stage, turns, begin, lambda session, cache, ids: None)


def _report(stage: Stage, name: str, way: _Way) -> None:
    stage.row(way=name, first_turns=way.first, later_turns=way.later, seconds=way.seconds)
    print(f"{name}: turn 2+ p50 {percentile(way.later, 50) * 1e3:.1f} ms, all turns {way.seconds:.1f} s", flush=True)
