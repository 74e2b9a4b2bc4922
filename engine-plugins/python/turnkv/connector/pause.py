"""Whether to load at all: a pool whose loads come too late costs each request its deadline before it is computed.

Owns: when loads stop for a while, and who tries again. Must not know: engines, pools, clocks. (The client's breaker stops calls
to a pool that does not answer; this one answers, but not in time.)

    loading  --a load came too late-->  paused  --time is over-->  one tries  --whole, or failed for another reason-->  loading
                                           ^                           |
                                           +-- late again: twice as long
"""

from __future__ import annotations

LATE = frozenset({"deadline", "busy", "lease_expired"})
"""Causes of a failed load that are a matter of time."""
PAUSE_PER_LOST = 10
"""Seconds without loads for each one that a late load took: what waiting costs stays a small part of all time."""
PAUSE_SECONDS_MAX = 60.0


class LoadPause:
    """Of one scheduler, whose thread alone calls it. Seconds of any one clock."""

    def __init__(self) -> None:
        self._pause = 0.0
        """The last one's length; 0: loads come in time."""
        self._since = self._until = float("-inf")
        self._trying: str | None = None

    def allows(self, request: str, now: float) -> bool:
        """Whether this request may load."""
        return self._pause == 0 or (now >= self._until and self._trying in (None, request))

    def begun(self, request: str) -> None:
        """It loads."""
        if self._pause:
            self._trying = request

    def ended(self, request: str, cause: str | None, seconds: float, now: float) -> float:
        """What came of it after so long; None: all of it. Returns the length of the pause that begins, 0 if none does."""
        if cause in LATE:
            if now - seconds < self._since:
                return 0.0  # it began before the last pause did: that was for it, too
            self._pause = min(PAUSE_SECONDS_MAX, max(PAUSE_PER_LOST * seconds, 2 * self._pause))
            self._since, self._until, self._trying = now, now + self._pause, None
            return self._pause
        if request == self._trying:
            self._pause, self._trying = 0.0, None
        return 0.0

    def forget(self, request: str) -> None:
        """The request is gone: somebody else may try."""
        if request == self._trying:
            self._trying = None
