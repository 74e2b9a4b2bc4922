"""What the player plays: sequences of steps, and the prompts of turns.

Owns: scripts as data. Must not know: the plugin, pools.
"""

from __future__ import annotations

from player import Request, Step

CHUNKED = [
    Step(arrive=("a",), chunks={"a": 8}),
    Step(chunks={"a": 8}),
    Step(),
]
"""A prompt in three chunks; then the engine decodes until the reply is whole."""
INTERLEAVED = [
    Step(arrive=("a",), chunks={"a": 8}),
    Step(arrive=("b",), chunks={"a": 4, "b": 12}),
    Step(chunks={"b": 4}),
    Step(),
]


def prompt(count: int, seed: int) -> list[int]:
    return [(seed * 7919 + at * 104729) % 50021 for at in range(count)]


def pages(tokens: int, block_tokens: int = 4) -> int:
    """Tokens in whole pages, the last of these tokens having no K and V."""
    return (tokens - 1) // block_tokens * block_tokens


def next_turn(before: Request, request_id: int, more: int = 5, **settings: object) -> Request:
    """What was said so far, and a few more tokens."""
    return Request(request_id, before.tokens + prompt(more, 900 + request_id), reply=3, **settings)
