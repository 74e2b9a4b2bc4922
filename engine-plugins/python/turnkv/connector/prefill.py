"""How fast the engine computes prompts, told by its steps: it makes hits worth seconds in the pool's metrics and advice.

Owns: which steps count, adding them up. Must not know: engines, the pool.
"""

from __future__ import annotations

from collections import deque

STEP_TOKENS_MIN = 64
"""A step of fewer tokens is mostly decoding: what it takes says little about prompts."""
REPORT_TOKENS = 8192
"""Told after so many tokens, so that telling costs nothing."""
STEPS_AHEAD_MAX = 8
"""An engine schedules a step or two ahead; a longer queue means that it does not say when a step ends."""


class PrefillClock:
    """Adds up prefill steps. One thread. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self._begun: deque[tuple[int, float]] = deque()
        self._ended = 0.0
        self._tokens, self._seconds = 0, 0.0

    def begin(self, tokens: list[int], now: float) -> None:
        """A step is scheduled: tokens of each request in it."""
        if len(self._begun) == STEPS_AHEAD_MAX:
            self._begun.clear()
        prompt = sum(tokens) if sum(tokens) >= max(STEP_TOKENS_MIN, 4 * len(tokens)) else 0
        self._begun.append((prompt, now))

    def end(self, now: float) -> tuple[int, float] | None:
        """The oldest step that was begun is over. Tokens and seconds to tell, now and then."""
        if not self._begun:
            return None
        tokens, begun = self._begun.popleft()
        begun, self._ended = max(begun, self._ended), now  # steps overlap in scheduling, not in computing
        if tokens == 0 or now <= begun:
            return None
        self._tokens, self._seconds = self._tokens + tokens, self._seconds + now - begun
        if self._tokens < REPORT_TOKENS:
            return None
        told = self._tokens, self._seconds
        self._tokens, self._seconds = 0, 0.0
        return told
