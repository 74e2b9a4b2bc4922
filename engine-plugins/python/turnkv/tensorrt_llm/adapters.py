"""LoRA adapters as part of a page's name: a request has an adapter's task id, which is whatever its server calls it.

Owns: what identifies an adapter's weights, saying so where nothing does. Must not know: pools, requests' lives.

    TURNKV_LORA_NAMES names it -> that name
    the request says where its files lie (`py_lora_path`) -> their digest, if they are as they were before the engine began
    neither -> nobody knows which weights these are: the request's pages are neither stored nor looked for

The executor reads an adapter's files when a request is enqueued, long before its connector hears of that request. So only
files that did not change since the engine began are sure to be those that it read.
"""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import turnkv
from turnkv.checkpoint import WeightsName, last_change_ns, weights_identities, weights_path

from . import compat

logger = compat.logger
ADAPTERS_MAX = 4096
"""Adapters remembered for as long as the engine lives; more of them have no name."""
WAIT_SECONDS = 0.05
"""How long an adapter's first request may wait for its digest; if it takes longer that request moves no pages."""
_CHANGED = "its files are not those that were there when the engine began, so that it may run with either"


class UnknownAdapter(Exception):
    """Nobody knows which weights a request runs with."""


class _Pending(UnknownAdapter):
    """Nobody knows it yet."""


@dataclass
class _Seen:
    """An adapter as its first request found it: the engine goes on with what it read."""

    said: str
    """Where the request said that its files lie."""
    path: pathlib.Path
    identities: list[str]
    """Of every file that its digest is made of."""
    name: WeightsName
    refused: str | None = None
    """Why it has no name, for as long as the engine lives."""


class Adapters:
    """The adapters of one engine. Not thread-safe."""

    def __init__(self, llm_args: Any, named: Mapping[int, str]) -> None:
        """`named`: what the operator calls the weights behind a task id."""
        config = getattr(llm_args, "lora_config", None)
        self._applied = json.dumps(
            [str(getattr(config, part, None)) for part in ("lora_target_modules", "trtllm_modules_to_hf_modules")]
        )
        self._named = dict(named)
        self._begun_ns = time.time_ns()
        self._seen: dict[int, _Seen] = {}
        self._told: set[int] = set()

    def identity_of(self, request: Any) -> str | None:
        """Names the weights, and what of them the engine applies; None: no adapter. Raises UnknownAdapter."""
        task = getattr(request, "lora_task_id", None)
        if task is None:
            return None
        try:
            name = self._named.get(task)
            return f"{self._applied} {name if name is not None else self._digest_of(task, request)}"
        except _Pending:
            raise
        except UnknownAdapter as unknown:
            if task not in self._told and len(self._told) < ADAPTERS_MAX:
                self._told.add(task)
                logger.warning(
                    "TurnKV: requests with LoRA adapter %s are neither stored nor loaded: %s. TURNKV_LORA_NAMES="
                    "%s=NAME names its weights",
                    task,
                    unknown,
                    task,
                )
            raise

    def _digest_of(self, task: int, request: Any) -> str:
        said = getattr(request, "py_lora_path", None)
        if not said:
            raise UnknownAdapter("its id alone does not say which weights it has, and no files of it are known here")
        seen = self._seen.get(task) or self._first_seen(task, str(said))
        if seen.refused is None and seen.said != str(said):
            seen.refused = "its files do not lie where those of its first request did"
        if seen.refused is not None:
            raise UnknownAdapter(seen.refused)
        if seen.name.is_pending():
            raise _Pending("its files are still being digested")
        try:
            digest = seen.name.get()
        except turnkv.Error as error:
            seen.refused = str(error)
            raise UnknownAdapter(seen.refused) from error
        # Looked at after the digest is complete: it is that of what lay there from the first look to this one.
        if seen.identities != weights_identities(seen.path):
            seen.refused = _CHANGED
            raise UnknownAdapter(seen.refused)
        return f"digest {digest}"

    def _first_seen(self, task: int, said: str) -> _Seen:
        path = weights_path(said, None)
        if path is None:
            raise UnknownAdapter("its id alone does not say which weights it has, and no files of it are known here")
        if len(self._seen) >= ADAPTERS_MAX:
            raise UnknownAdapter(f"{ADAPTERS_MAX} others came before it")
        identities = weights_identities(path)
        seen = _Seen(said, path, identities, WeightsName.of("adapter:", [path], logger))
        try:
            seen.refused = _CHANGED if last_change_ns(path) >= self._begun_ns else None
        except OSError as error:
            seen.refused = f"its files cannot be looked at: {error}"
        self._seen[task] = seen
        if seen.refused is None:
            seen.name.wait(WAIT_SECONDS)
        return seen
