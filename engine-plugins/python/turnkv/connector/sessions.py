"""Sessions: what a request says about its conversation, and telling the pool, in order, off the scheduler's thread.

Owns: parsing hints, the order of turns, the queue. Must not know: engines' request objects, blocks, bytes.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

import turnkv

from . import kv_hints
from .door import Door

QUEUE_MAX = 4096
"""Calls that wait; beyond them a call is dropped and counted: sessions are advice, pages are found by hash anyway."""


@dataclass(frozen=True)
class Hints:
    """What a request says about its session."""

    session: str | None = None
    ttl_ms: int = 0
    expected_return_ms: int = 0
    priority: int = 0
    fork_from: str | None = None
    final: bool = False
    """No turn will follow."""
    handover_tokens: int = 0
    """Another instance says that it has computed so many tokens and is storing them: worth a short wait."""
    prefetch: tuple[str, ...] = ()
    """Sessions that an orchestrator expects soon."""
    close: tuple[str, ...] = ()
    """Sessions that an orchestrator says will not return."""

    @staticmethod
    def parse(*sources: Mapping[str, Any] | None, envelope: Any = None, session: str | None = None) -> tuple[Hints, list[str]]:
        """The hints in these dictionaries, under "turnkv" or as "turnkv_session", and what was wrong with them.

        An orchestrator's `envelope` (or one among the dictionaries, where bridges put it) has the last word; `session` is
        the engine's own name for it, if nobody says another. A wrong hint is left out: a request must not fail for advice.
        """
        values: dict[str, Any] = {} if session is None else {"session": session}
        wrong: list[str] = []
        for source in sources:
            if not source:
                continue
            envelope = envelope or source.get("kv_hints") or source.get("kv_hint")
            nested = source.get("turnkv")
            if isinstance(nested, Mapping):
                values.update(nested)
            elif nested is not None:
                wrong.append(f"turnkv must be an object, not {type(nested).__name__}")
            if "turnkv_session" in source:
                values["session"] = source["turnkv_session"]
        checked = _checked(values, wrong)
        said = kv_hints.read(envelope)
        wrong.extend(said.wrong)
        checked.update(_checked(said.values, wrong))
        own = checked.get("session")
        if own is not None and own in said.close:
            checked["final"] = True
        others = tuple(name for name in said.close if name != own)
        return Hints(**checked, prefetch=tuple(said.prefetch), close=others), wrong


def _checked(values: Mapping[str, Any], wrong: list[str]) -> dict[str, Any]:
    """The hints among these values that can be meant; adds what cannot to `wrong`."""
    checked: dict[str, Any] = {}
    for key, value in values.items():
        kind = _KINDS.get(key)
        if kind is None:
            wrong.append(f"unknown hint {key!r}; there are {', '.join(_KINDS)}")
        elif value is None:
            continue
        elif not isinstance(value, kind) or (isinstance(value, int) and kind is int and (isinstance(value, bool) or value < 0)):
            wrong.append(f"{key} must be {_SAID[kind]}, not {value!r}")
        else:
            checked[key] = value
    return checked


_KINDS: dict[str, type] = {
    "session": str,
    "ttl_ms": int,
    "expected_return_ms": int,
    "priority": int,
    "fork_from": str,
    "final": bool,
    "handover_tokens": int,
}
_SAID = {str: "a string", int: "a whole number of at least 0", bool: "true or false"}


class SessionDesk:
    """Tells the pool about turns, one call after another. Calls return at once; failures are counted, nothing else."""

    def __init__(self, door: Door, group: int, engine: str) -> None:
        """`engine`: the name by which routers know this one; may be empty."""
        self._door, self._group, self._engine = door, group, engine
        self._calls: deque[Callable[[turnkv.Namespace], object]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._failures: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._work, name="turnkv-sessions", daemon=True)
        self._thread.start()

    def begin(self, hints: Hints) -> None:
        """A turn begins; a fork is made first. What was said about other sessions is told first of all."""
        for name in hints.prefetch:
            self._add(methodcaller("prefetch", name))
        for name in hints.close:
            self._add(methodcaller("close", name))
        session, source = hints.session, hints.fork_from
        if session is None:
            return
        if source is not None and source != session:
            self._add(lambda pages: pages.fork(source, session))
        self._add(lambda pages: pages.begin_turn(session, engine=self._engine))

    def end(self, hints: Hints, names: list[bytes]) -> None:
        """A turn is over and these are the session's pages."""
        session = hints.session
        if session is None:
            return
        self._add(
            lambda pages: pages.end_turn(
                session,
                names,
                ttl_ms=hints.ttl_ms,
                expected_return_ms=hints.expected_return_ms,
                priority=hints.priority,
                last=hints.final,
            )
        )

    def prefilled(self, tokens: int, seconds: float) -> None:
        """So many tokens of prompts took so long."""
        self._add(lambda pages: pages.report_prefill(tokens, seconds))

    def take_failures(self) -> Counter[str]:
        """Calls that failed since the last time, by kind of error."""
        with self._wake:
            failures, self._failures = self._failures, Counter()
        return failures

    def close(self, seconds: float) -> None:
        """Does what is queued, but not longer than this."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join(seconds)

    def _add(self, call: Callable[[turnkv.Namespace], object]) -> None:
        with self._wake:
            if self._closed or len(self._calls) >= QUEUE_MAX:
                self._failures["busy"] += 1
                return
            self._calls.append(call)
            self._wake.notify()

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._calls or self._closed)
                if not self._calls:
                    return
                call = self._calls.popleft()
            try:
                call(self._door.namespace(self._group))
            except turnkv.Error as error:
                self._count(error.kind)
            except ValueError:
                self._count("invalid")

    def _count(self, kind: str) -> None:
        with self._wake:
            self._failures[kind] += 1
