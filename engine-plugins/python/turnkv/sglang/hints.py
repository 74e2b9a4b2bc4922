"""What an orchestrator says with a request (`kv_hints`), told to the pool from threads of the plugin.

SGLang carries the envelope to its scheduler's requests (from 0.5.23 on); a linker sees them, a storage backend once SGLang
hands it on in `extra_info`. Where there is none, nothing here does anything.
Owns: which session was said what, telling without waiting. Must not know: pages, requests' lives.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller
from typing import Any

from turnkv.connector import Hints

from .door import Counts, Door

SESSIONS_MAX = 4096
"""Sessions whose hints are remembered until their next offload; the one heard of longest ago makes room."""
TELLING_MAX = 64
"""Calls about other sessions that wait for a thread; beyond them they are dropped and counted."""
KEY = "kv_hints"
"""Of the envelope in a storage call's `extra_info`: the request's own name for it."""


class Advice:
    """Of one linker or backend. Its scheduler thread hears, its offload thread asks."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._teller = ThreadPoolExecutor(1, thread_name_prefix="turnkv-hints")
        self._hints: OrderedDict[str, Hints] = OrderedDict()
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(TELLING_MAX)

    def hear(self, door: Door, envelope: Any, session: str | None = None) -> None:
        """An envelope that came with a request of this session of SGLang's."""
        if not envelope:
            return
        hints, wrong = Hints.parse(envelope=envelope, session=session)
        self._counts.add("hints_wrong", len(wrong))
        self._counts.add("hints_heard")
        if session is not None:
            with self._lock:
                self._hints[session] = hints
                self._hints.move_to_end(session)
                while len(self._hints) > SESSIONS_MAX:
                    self._hints.popitem(last=False)
        if not hints.prefetch and not hints.close and hints.fork_from is None:
            return
        if self._room.acquire(blocking=False):
            self._teller.submit(self._tell, door, hints)
        else:
            self._counts.add("hints_dropped")

    def of(self, session: str) -> Hints:
        """What was said of a session, by the name that SGLang has for it."""
        with self._lock:
            return self._hints.get(session) or Hints(session=session)

    def close(self) -> None:
        """What was not told by now is not told."""
        self._teller.shutdown(wait=True, cancel_futures=True)

    def _tell(self, door: Door, hints: Hints) -> None:
        source, session = hints.fork_from, hints.session
        try:
            if source is not None and session is not None and source != session:
                door.call(lambda space: space.fork(source, session), None)
            for name in hints.prefetch:
                door.call(methodcaller("prefetch", name), None)
            for name in hints.close:
                door.call(methodcaller("close", name), None)
        finally:
            self._room.release()


def envelope_of(extra_info: Any) -> Any:
    """The envelope that a storage call came with; None where SGLang hands none on."""
    extra = getattr(extra_info, "extra_info", None)
    return extra.get(KEY) if isinstance(extra, dict) else None
