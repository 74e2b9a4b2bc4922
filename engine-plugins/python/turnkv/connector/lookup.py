"""How many leading tokens of a prompt are in the pool, asked beside the scheduler's thread.

Owns: the question for several groups, its threads, answers not yet used. Must not know: engines' requests, blocks.

    asked ---> answering ---> answered ---> (used, or older than ANSWER_SECONDS_MAX: asked again)
                   |  lookup deadline passed, queue full, breaker open, any error of the pool
                   +--------> answered with nothing
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field

import turnkv

from .door import Door, GroupPages
from .names import names_of

WAITING_MAX = 256
"""Lookups in flight; beyond them the answer is nothing, at once."""
ANSWER_SECONDS_MAX = 1.0
"""How long an answer is believed that the scheduler could not use yet."""
WINDOW_TRIES_MAX = 16
"""Shorter prefixes tried when pages of a sliding window are missing."""


@dataclass
class Answer:
    """What a lookup found."""

    tokens: int
    """That a load can bring: every group has what it needs to go on from there."""
    pages: dict[int, int]
    """Of each full-attention group: leading pages in the pool."""
    cause: str | None
    """Why nothing could be said: deadline, busy, or the kind of a turnkv.Error. None: the pool answered."""
    seconds: float
    at: float = field(default_factory=time.monotonic)


@dataclass
class _Asked:
    answer: Future[Answer]
    since: float
    until: float

    def is_old(self) -> bool:
        """Whether the answer came too long ago to be believed."""
        return self.answer.done() and time.monotonic() - self.answer.result().at > ANSWER_SECONDS_MAX


class Lookups:
    """Questions of one scheduler. Not thread-safe: the scheduler's thread alone calls it."""

    def __init__(self, door: Door, *, wait_ms: float, deadline_ms: float, threads: int) -> None:
        self._door = door
        self._wait_seconds = wait_ms / 1000
        self._deadline_seconds = deadline_ms / 1000
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="turnkv-lookup")
        self._asked: dict[str, _Asked] = {}
        self._probe: Future[Answer] | None = None

    def ask(self, request: str, hashes: Sequence[bytes]) -> None:
        """Starts a lookup of all these block hashes, unless one of this request is on its way."""
        if request in self._asked:
            return
        answer: Future[Answer]
        if self._door.is_shut:
            self._probe_with(hashes)
            answer = _known(Answer(0, {}, "breaker_open", 0.0))
        elif len(self._asked) >= WAITING_MAX:
            answer = _known(Answer(0, {}, "busy", 0.0))
        else:
            answer = self._threads.submit(_look, self._door, list(hashes))
        now = time.monotonic()
        self._asked[request] = _Asked(answer, now, now + self._deadline_seconds)

    def answer(self, request: str, hashes: Callable[[], Sequence[bytes]]) -> Answer | None:
        """The answer, or None: ask later. Waits a few milliseconds at most, and only the first time.

        Repeatable: until `forget` the same answer comes back, unless it has grown old.
        """
        asked = self._asked.get(request)
        if asked is not None and asked.is_old():
            self.forget(request)
            asked = None
        if asked is None:
            self.ask(request, hashes())
            asked = self._asked[request]
        wait = asked.since + self._wait_seconds - time.monotonic()
        try:
            return asked.answer.result(max(0.0, wait))
        except NotYet:
            pass
        if time.monotonic() < asked.until:
            return None
        asked.answer.cancel()
        asked.answer = _known(Answer(0, {}, "deadline", self._deadline_seconds))
        return asked.answer.result()

    def take(self, request: str) -> Answer | None:
        """The answer, if there is one, for the last time."""
        asked = self._asked.pop(request, None)
        return asked.answer.result() if asked is not None and asked.answer.done() else None

    def forget(self, request: str) -> None:
        """The answer is of no use any more, or the request is gone."""
        asked = self._asked.pop(request, None)
        if asked is not None:
            asked.answer.cancel()

    def forget_all(self) -> None:
        """No answer so far is worth anything any more."""
        for request in list(self._asked):
            self.forget(request)

    def _probe_with(self, hashes: Sequence[bytes]) -> None:
        """A call that nobody waits for: the breaker lets one through now and then, and learns that the pool is back."""
        if self._probe is None or self._probe.done():
            self._probe = self._threads.submit(_look, self._door, list(hashes[:1]))

    def close(self) -> None:
        """Ends the threads; what is on its way ends at its own deadline."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _known(answer: Answer) -> Future[Answer]:
    future: Future[Answer] = Future()
    future.set_result(answer)
    return future


def _look(door: Door, hashes: list[bytes]) -> Answer:
    """Asks the pool. Never raises: an error is an answer with nothing."""
    begun = time.monotonic()
    try:
        tokens, pages = _loadable(door, hashes)
        return Answer(tokens, pages, None, time.monotonic() - begun)
    except turnkv.Error as error:
        return Answer(0, {}, error.kind, time.monotonic() - begun)
    except ValueError:
        return Answer(0, {}, "invalid", time.monotonic() - begun)


def _loadable(door: Door, hashes: list[bytes]) -> tuple[int, dict[int, int]]:
    """Tokens of the longest prefix that every group can go on from; leading pages of the full-attention groups."""
    unit = max(spec.block_tokens for spec in door.groups.values())
    pages: dict[int, int] = {}
    tokens: int | None = None
    for group, spec in door.groups.items():
        if spec.window_blocks is None:
            blocks = len(hashes) // spec.hashes_per_block
            names = names_of(hashes, 0, blocks, spec.hashes_per_block)
            pages[group] = door.namespace(group).lookup(names) if names else 0
            covered = pages[group] * spec.block_tokens
            tokens = covered if tokens is None else min(tokens, covered)
    if tokens is None:
        finest = min(door.groups.values(), key=lambda spec: spec.hashes_per_block)
        tokens = len(hashes) // finest.hashes_per_block * finest.block_tokens
    tokens -= tokens % unit
    windows = [spec for spec in door.groups.values() if spec.window_blocks is not None]
    for _ in range(WINDOW_TRIES_MAX if windows else 1):
        shorter = min((_window_reaches(door, spec, hashes, tokens) for spec in windows), default=tokens)
        if shorter == tokens or tokens == 0:
            return tokens, pages
        tokens = shorter - shorter % unit
    return 0, pages


def _window_reaches(door: Door, spec: GroupPages, hashes: list[bytes], tokens: int) -> int:
    """`tokens` if the window that ends there has all its pages, else the tokens before the first missing one."""
    end = tokens // spec.block_tokens
    first = max(0, end - (spec.window_blocks or 0))
    if first == end:
        return tokens
    present = door.namespace(spec.group).lookup(names_of(hashes, first, end, spec.hashes_per_block))
    return tokens if present == end - first else (first + present) * spec.block_tokens
