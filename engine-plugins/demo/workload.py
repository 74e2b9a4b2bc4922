"""What the demo's users say: sessions, turns, their order and their tokens. Pure and seeded; knows no pool and no model."""

from __future__ import annotations

import random
from dataclasses import dataclass

SESSIONS = 14
TURNS = 4
SYSTEM_TOKENS = 512
"""The system prompt that all sessions begin with."""
USER_TOKENS = (250, 330)
"""A user's message is between so many tokens long."""
REPLY_TOKENS = 12
SEED = 7


@dataclass(frozen=True)
class Turn:
    """One message of one session."""

    session: int
    number: int
    """1 for the session's first."""
    message: tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """What a run computes, in tokens."""

    total: int
    """All sessions' tokens at the end: what their KV takes."""
    computed: int
    """Prompt tokens that no cache has yet, each computed once."""
    reused: int
    """Prompt tokens that a cache has, over all turns."""
    sampled: int
    """Tokens of replies."""


def work(order: list[Turn]) -> Work:
    """Counts the turns, as if whole prefixes were reused."""
    lengths = dict.fromkeys((turn.session for turn in order), SYSTEM_TOKENS)
    computed, reused = SYSTEM_TOKENS, -SYSTEM_TOKENS  # the first session finds no system prompt
    for turn in order:
        reused += lengths[turn.session]
        computed += len(turn.message)
        lengths[turn.session] += len(turn.message) + REPLY_TOKENS
    return Work(sum(lengths.values()) - SYSTEM_TOKENS * (len(lengths) - 1), computed, reused, len(order) * REPLY_TOKENS)


def system_prompt(vocabulary: int) -> list[int]:
    """The shared beginning."""
    rng = random.Random(SEED)
    return [rng.randrange(vocabulary) for _ in range(SYSTEM_TOKENS)]


def turns(vocabulary: int) -> list[Turn]:
    """All turns in the order they arrive: every third session is an agent that comes back at once, the others wait a round."""
    rng = random.Random(SEED + 1)
    left = dict.fromkeys(range(SESSIONS), 0)
    order: list[Turn] = []
    while any(done < TURNS for done in left.values()):
        for session in range(SESSIONS):
            for _ in range(2 if session % 3 == 0 else 1):
                if left[session] < TURNS:
                    left[session] += 1
                    message = tuple(rng.randrange(vocabulary) for _ in range(rng.randint(*USER_TOKENS)))
                    order.append(Turn(session, left[session], message))
    return order


def rounds(vocabulary: int, sessions: int, count: int) -> list[list[Turn]]:
    """Turns in rounds: in each, every session has one."""
    rng = random.Random(SEED + 2)

    def message() -> tuple[int, ...]:
        return tuple(rng.randrange(vocabulary) for _ in range(rng.randint(*USER_TOKENS)))

    return [[Turn(session, number, message()) for session in range(sessions)] for number in range(1, count + 1)]
