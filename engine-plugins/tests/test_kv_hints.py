"""What an orchestrator's envelope comes to: its published shape, as an object and as JSON, and what is no such thing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from turnkv.connector import Hints, kv_hints


@dataclass(frozen=True)
class KvHintAction:
    """With the fields that vLLM, SGLang, TensorRT-LLM and Dynamo have published."""

    action_id: str
    action_type: str
    action_version: str
    payload: dict[str, Any]


@dataclass(frozen=True)
class KvHintsEnvelope:
    """With the fields that vLLM, SGLang, TensorRT-LLM and Dynamo have published."""

    protocol_version: str
    message_id: str
    actions: list[KvHintAction] = field(default_factory=list)


def envelope(*actions: tuple[str, dict[str, Any]], version: str = "1.0") -> KvHintsEnvelope:
    return KvHintsEnvelope(version, "m", [KvHintAction(str(at), *(kind, "1.0", said)) for at, (kind, said) in enumerate(actions)])


def as_json(said: KvHintsEnvelope) -> dict[str, Any]:
    return {**vars(said), "actions": [vars(action) for action in said.actions]}


RETAIN = ("kv.retain", {"priority": 3, "ttl_seconds": 2.5, "execute_at": "request_completion", "block_hashes": ["11"]})
DIRECTIVES = (
    "kv.retain",
    {
        "scope": "a",
        "directives": [
            {"start": 0, "end": 32, "priority": 80, "duration": 60.0},
            {"start": 32, "end": None, "priority": 40},
        ],
    },
)


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (
            [("turnkv.session", {"session": "a", "expected_return_ms": 9, "priority": 2})],
            Hints(session="a", expected_return_ms=9, priority=2),
        ),
        ([RETAIN], Hints(session="own", priority=3, ttl_ms=2500)),
        ([DIRECTIVES], Hints(session="own", priority=80, ttl_ms=60_000)),
        ([("kv.pin", {"session": "b", "ttl_seconds": 1})], Hints(session="b", priority=1, ttl_ms=1000)),
        ([("kv.evict", {"execute_at": "request_completion", "include_current_request": True})], Hints(session="own", final=True)),
        ([("kv.evict", {"session_id": "other"})], Hints(session="own", close=("other",))),
        ([("kv.evict", {"session_id": "own"})], Hints(session="own", final=True)),
        ([("kv.prefetch", {"sessions": ["a", "b"]})], Hints(session="own", prefetch=("a", "b"))),
        ([("kv.fetch", {"source_control_endpoint": "h:1", "block_hashes": [1]}), ("kv.made_up", {})], Hints(session="own")),
    ],
)
def test_actions_become_words_about_sessions(actions: list[tuple[str, dict[str, Any]]], expected: Hints) -> None:
    said = envelope(*actions)
    assert Hints.parse(envelope=said, session="own") == (expected, [])
    assert Hints.parse(envelope=as_json(said), session="own") == (expected, [])
    # As the bridges of engines hand it on that have no field for it.
    assert Hints.parse({"kv_hint": as_json(said)}, session="own") == (expected, [])
    assert Hints.parse(None, {"kv_hints": as_json(said)}, session="own") == (expected, [])


def test_the_orchestrator_has_the_last_word_and_without_one_all_is_as_it_was() -> None:
    said = {"turnkv": {"session": "a", "priority": 1, "ttl_ms": 5}}
    assert Hints.parse(said) == (Hints(session="a", priority=1, ttl_ms=5), [])
    assert Hints.parse(said, session="own")[0].session == "a"
    both, wrong = Hints.parse(said, envelope=envelope(("kv.retain", {"session_id": "b", "priority": 7})))
    assert (both, wrong) == (Hints(session="b", priority=7, ttl_ms=5), [])


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        7,
        [],
        {"actions": []},
        KvHintsEnvelope("2.0", "m", []),
        {"protocol_version": "1.0", "actions": {}},
        envelope(("kv.retain", {"priority": True})),
        envelope(("kv.retain", {"priority": 101})),
        envelope(("kv.retain", {"ttl_seconds": float("nan")})),
        envelope(("kv.retain", {"ttl_seconds": 1e18})),
        envelope(("kv.retain", {"directives": {}})),
        envelope(("kv.retain", {"directives": ["x"]})),
        envelope(("turnkv.session", {"session": 3})),
        envelope(("turnkv.session", {"hue": 3})),
        KvHintsEnvelope("1.0", "m", [KvHintAction("1", "kv.evict", "2.0", {})]),
        KvHintsEnvelope("1.0", "m", [KvHintAction("1", "kv.evict", "1.0", "x")]),
        KvHintsEnvelope("1.0", "m", [KvHintAction("1", "kv.none", "1.0", {})] * (kv_hints.ACTIONS_MAX + 1)),
    ],
)
def test_what_is_wrong_is_left_out_and_told(wrong: Any) -> None:
    hints, told = Hints.parse({"turnkv": {"session": "a"}}, envelope=wrong)
    assert hints == Hints(session="a")
    assert len(told) == (0 if wrong == [] else 1)


def test_a_flood_is_bounded() -> None:
    many = envelope(*[("kv.prefetch", {"sessions": [f"{at}-{number}" for number in range(100)]}) for at in range(10)])
    assert len(Hints.parse(envelope=many)[0].prefetch) == kv_hints.SESSIONS_MAX
    assert Hints.parse(envelope=envelope(("kv.prefetch", {"session": "x" * 129})))[0].prefetch == ()
