"""KV hints of an orchestrator, in the one envelope that engines carry with a request, as words about sessions.

    {"protocol_version": "1.0", "message_id": "...", "actions": [
        {"action_id": "...", "action_type": "kv.retain", "action_version": "1.0", "payload": {...}}]}

vLLM, SGLang, TensorRT-LLM and Dynamo share this shape; what an action means is agreed between who sends and who acts on it.
Owns: which actions mean something here, checking their payloads. Must not know: engines (an envelope is a dictionary or any
object with these attributes), pools.

    turnkv.session   what `kv_transfer_params` may say under "turnkv", word for word
    kv.retain, kv.pin    priority and ttl_seconds, or directives of token ranges -> the session is protected so long
    kv.evict         the session, named or the request's own, will not return
    kv.prefetch      the sessions named are needed in DRAM soon
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

ACTIONS_MAX = 16
"""Of one envelope; further ones are left out."""
SESSIONS_MAX = 16
"""Named by one envelope for prefetching or closing."""
SESSION_BYTES_MAX = 128
VERSIONS_KNOWN = ("0", "1")
"""Major versions of the envelope and of actions. Another one may have given a field another meaning."""
TTL_MS_MAX = 30 * 24 * 3600 * 1000
PRIORITY_MAX = 100
"""Directives of retention count to 100; more than that says nothing more."""


@dataclass
class Said:
    """What an envelope says."""

    values: dict[str, Any] = field(default_factory=dict)
    """Hints about the request's own session, still to be checked."""
    prefetch: list[str] = field(default_factory=list)
    """Sessions."""
    close: list[str] = field(default_factory=list)
    """Sessions other than the request's own."""
    wrong: list[str] = field(default_factory=list)


def read(envelope: Any) -> Said:
    """Reads an envelope, or None. Nothing in it can fail a request: what is wrong is left out, and told."""
    said = Said()
    if envelope is None:
        return said
    version, actions = _get(envelope, "protocol_version"), _get(envelope, "actions")
    if not _is_known(version) or not isinstance(actions, (list, tuple)):
        said.wrong.append(f"kv_hints: no envelope of a known version ({version!r})")
        return said
    for action in actions[:ACTIONS_MAX]:
        kind, payload = _get(action, "action_type"), _get(action, "payload")
        act = _ACTIONS.get(kind) if isinstance(kind, str) else None
        if act is None:
            continue  # for somebody else
        if not _is_known(_get(action, "action_version")) or not isinstance(payload, Mapping):
            said.wrong.append(f"kv_hints: {kind} of another version, or without a payload")
            continue
        act(said, payload)
    if len(actions) > ACTIONS_MAX:
        said.wrong.append(f"kv_hints: {len(actions)} actions, more than {ACTIONS_MAX}")
    said.prefetch, said.close = said.prefetch[:SESSIONS_MAX], said.close[:SESSIONS_MAX]
    return said


def _session(said: Said, payload: Mapping[str, Any]) -> None:
    said.values.update(payload)


def _retain(said: Said, payload: Mapping[str, Any]) -> None:
    """The strongest of its directives: the pool lets go of a session from its tail on anyway."""
    directives = payload.get("directives", [payload])
    if not isinstance(directives, list) or not all(isinstance(directive, Mapping) for directive in directives):
        said.wrong.append("kv_hints: kv.retain with directives that are no objects")
        return
    priorities = [directive.get("priority", 1) for directive in directives]
    ttls = [directive.get("ttl_seconds", directive.get("duration")) for directive in directives]
    if not all(_is_number(priority) and 0 <= priority <= PRIORITY_MAX for priority in priorities):
        said.wrong.append(f"kv_hints: kv.retain with a priority that is not 0 to {PRIORITY_MAX}")
        return
    if not all(ttl is None or (_is_number(ttl) and 0 <= ttl * 1000 <= TTL_MS_MAX) for ttl in ttls):
        said.wrong.append("kv_hints: kv.retain for a time that is no time")
        return
    if not directives:
        return
    _name(said, payload)
    said.values["priority"] = max(int(priority) for priority in priorities)
    longest = max((math.ceil(ttl * 1000) for ttl in ttls if ttl is not None), default=0)
    if longest:
        said.values["ttl_ms"] = longest


def _evict(said: Said, payload: Mapping[str, Any]) -> None:
    """Blocks named by hash are not given up one by one: other sessions may share them."""
    named = _named(payload)
    if named:
        said.close.extend(named)
    else:
        said.values["final"] = True


def _prefetch(said: Said, payload: Mapping[str, Any]) -> None:
    said.prefetch.extend(_named(payload))


def _name(said: Said, payload: Mapping[str, Any]) -> None:
    for session in _named(payload):
        said.values.setdefault("session", session)


def _named(payload: Mapping[str, Any]) -> list[str]:
    """Sessions that a payload names."""
    names: Iterable[Any] = (payload.get("session"), payload.get("session_id"), *_listed(payload.get("sessions")))
    return [name for name in names if isinstance(name, str) and 0 < len(name.encode()) <= SESSION_BYTES_MAX]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _is_known(version: Any) -> bool:
    return isinstance(version, str) and version.partition(".")[0] in VERSIONS_KNOWN


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


_ACTIONS = {
    "turnkv.session": _session,
    "kv.retain": _retain,
    "kv.pin": _retain,
    "kv.evict": _evict,
    "kv.prefetch": _prefetch,
}
