"""The ranks of one engine as rank 0's scheduler sees them: pages are promised only when every rank has its shard here.

TensorRT-LLM lets the scheduler talk to workers only after it has promised, so there is a line of our own to each rank.
Owns: those lines, the vote, turns that wait for their pages. Must not know: requests, blocks, tensors.

    rank 0    lookup; ask all (FETCH ticket, names) ... fetch its own ... gather answers until the deadline; least wins
    others    one thread each: FETCH -> fetch, answer (ticket, pages); DROP -> drop
"""

from __future__ import annotations

import pathlib
import shutil
import struct
import tempfile
import threading
import time
import weakref
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from secrets import token_bytes
from typing import Any

import turnkv
from turnkv.connector import Door, Hints, SessionDesk
from turnkv.connector.names import NAME_BYTES

from .compat import logger
from .fetcher import Fetcher
from .identity import GROUP

JOIN_SECONDS_MAX = 120.0
"""How long rank 0 waits for the others when the engine starts."""
ANSWER_SECONDS_EXTRA = 0.1
"""Beyond a fetch's own deadline, for its answer to arrive."""
TURNS_MAX = 4096
"""Requests with sessions that are remembered; the one that began longest ago makes room."""
_FETCH, _DROP = 1, 2
_HEAD = struct.Struct("<BQ")
_ANSWER = struct.Struct("<QQ")

_crews: weakref.WeakValueDictionary[int, Crew] = weakref.WeakValueDictionary()
_crews_lock = threading.Lock()


@dataclass(frozen=True)
class Found:
    """What can be loaded of a prompt."""

    present: int
    """Leading pages in the pool."""
    pages: int
    """Pages that every rank holds, from the one on that was asked for."""
    ticket: int
    cause: str | None
    """Why not more: an error, a deadline. None: the pool has no more."""


@dataclass
class _Turn:
    """A request with a session, until its pages are told."""

    hints: Hints
    names: list[bytes] = field(default_factory=list)
    present: int = 0


class Crew:
    """Rank 0's, shared by its scheduler and its worker, which TensorRT-LLM makes from the same arguments."""

    def __init__(self) -> None:
        self._joined = threading.Event()
        self._door: Door | None = None
        self._fetcher: Fetcher | None = None
        self._others: list[Connection] = []
        self._deadline_seconds = 0.0
        self._ticket = 0
        self._desk: SessionDesk | None = None
        self._turns: dict[int, _Turn] = {}

    @staticmethod
    def of(llm_args: Any) -> Crew:
        """The crew of the engine with these arguments, in this process."""
        with _crews_lock:
            crew = _crews.get(id(llm_args))
            if crew is None:
                crew = _crews[id(llm_args)] = Crew()
            return crew

    def join(self, others: list[Connection]) -> None:
        """The lines to the other ranks."""
        self._others = others

    def set_out(self, door: Door, fetcher: Fetcher, deadline_ms: int) -> None:
        """Rank 0's memory exists: from now on pages can be found."""
        self._door, self._fetcher = door, fetcher
        self._deadline_seconds = deadline_ms / 1000
        self._joined.set()

    def begin_turn(self, request_id: int, hints: Hints) -> None:
        """An orchestrator told about a request's session, or about others."""
        if self._desk is None and self._door is not None:
            self._desk = SessionDesk(self._door, GROUP, "")
        if self._desk is None:
            return
        self._desk.begin(hints)
        if hints.session is not None:
            self._turns[request_id] = _Turn(hints)
            while len(self._turns) > TURNS_MAX:
                del self._turns[next(iter(self._turns))]

    def name_turn(self, request_id: int, names: list[bytes], present: int, saved: bool) -> None:
        """The request is over: its session's pages, of which the leading `present` were there before. Told to the pool at
        once, or when the rest is `saved`."""
        turn = self._turns.get(request_id)
        if turn is None:
            return
        turn.names, turn.present = names, present
        if not saved:
            self.end_turn(request_id, 0)

    def end_turn(self, request_id: int, stored: int) -> None:
        """Rank 0 has stored what it could: the pool has the leading `stored` pages, or those that were there."""
        turn = self._turns.pop(request_id, None)
        if turn is not None and self._desk is not None:
            self._desk.end(turn.hints, turn.names[: max(stored, turn.present)])

    def find(self, names: list[bytes], first: int, *, loads: bool = True) -> Found:
        """Brings the pages from `first` on to all ranks, or only looks for them. Blocks, no longer than the load's deadline.
        Never raises."""
        if not self._joined.is_set() or self._door is None or self._fetcher is None:
            return Found(0, 0, 0, None)
        if self._door.is_shut:
            return Found(0, 0, 0, "breaker_open")
        try:
            present = self._door.namespace(GROUP).lookup(names) if names else 0
        except turnkv.Error as error:
            return Found(0, 0, 0, error.kind)
        wanted = names[first : min(present, first + self._fetcher.pages_max)]
        if not wanted or not loads:
            return Found(present, 0, 0, None)
        self._ticket += 1
        ticket, until = self._ticket, time.monotonic() + self._deadline_seconds + ANSWER_SECONDS_EXTRA
        asked = self._tell(_HEAD.pack(_FETCH, ticket) + b"".join(wanted))
        pages, cause = self._fetcher.fetch(ticket, wanted)
        for line in self._others:
            pages = min(pages, _answer(line, ticket, until) if asked else 0)
        if pages == 0:
            self.drop(ticket)
        return Found(present, pages, ticket, cause or ("rank" if pages < len(wanted) else None))

    def drop(self, ticket: int) -> None:
        """Nobody waits for these pages any more, on any rank."""
        if self._fetcher is not None:
            self._fetcher.drop(ticket)
        self._tell(_HEAD.pack(_DROP, ticket))

    def _tell(self, message: bytes) -> bool:
        """Whether all ranks were told."""
        try:
            for line in self._others:
                line.send_bytes(message)
        except OSError as error:
            logger.warning("TurnKV: a rank is gone: %s", error)
            return False
        return True


class Post:
    """Where another rank answers rank 0."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self._fetcher: Fetcher | None = None
        threading.Thread(target=self._serve, name="turnkv-rank", daemon=True).start()

    def set_out(self, fetcher: Fetcher) -> None:
        """This rank's memory exists."""
        self._fetcher = fetcher

    def _serve(self) -> None:
        try:
            while True:
                message = self._line.recv_bytes()
                kind, ticket = _HEAD.unpack_from(message)
                packed = message[_HEAD.size :]
                if kind == _DROP and self._fetcher is not None:
                    self._fetcher.drop(ticket)
                elif kind == _FETCH:
                    self._line.send_bytes(_ANSWER.pack(ticket, self._fetch(ticket, packed)))
        except (EOFError, OSError):
            return  # rank 0 is gone, and with it the engine

    def _fetch(self, ticket: int, packed: bytes) -> int:
        names = [packed[at : at + NAME_BYTES] for at in range(0, len(packed), NAME_BYTES)]
        return self._fetcher.fetch(ticket, names)[0] if self._fetcher is not None else 0


class Meeting:
    """The place where the lines are made: a Unix socket, so all ranks are on one host. Rank 0 opens it."""

    def __init__(self) -> None:
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="turnkv-"))
        self.key = token_bytes(32)
        self.address = str(self._folder / "ranks")
        self._listener = Listener(self.address, "AF_UNIX", authkey=self.key)

    def lines(self, count: int) -> list[Connection]:
        """Waits for so many ranks. Raises TimeoutError."""
        lines: list[Connection] = []
        thread = threading.Thread(target=self._accept, args=(count, lines), daemon=True)
        thread.start()
        thread.join(JOIN_SECONDS_MAX)
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if len(lines) < count:
            raise TimeoutError(f"turnkv: {count - len(lines)} of {count} ranks did not join")
        return lines

    def _accept(self, count: int, lines: list[Connection]) -> None:
        while len(lines) < count:
            try:
                lines.append(self._listener.accept())
            except AuthenticationError as error:
                logger.warning("TurnKV: a stranger called at the ranks' meeting: %s", error)
            except OSError:
                return  # closed: the wait is over


def answer_at(address: str, key: bytes) -> Post:
    """Another rank's end of its line."""
    return Post(Client(address, "AF_UNIX", authkey=key))


def _answer(line: Connection, ticket: int, until: float) -> int:
    """Pages that a rank has of this fetch; answers to older ones that came too late are skipped."""
    try:
        while line.poll(max(0.0, until - time.monotonic())):
            told, pages = _ANSWER.unpack(line.recv_bytes())
            if told == ticket:
                return int(pages)
    except (EOFError, OSError) as error:
        logger.warning("TurnKV: a rank is gone: %s", error)
    return 0
