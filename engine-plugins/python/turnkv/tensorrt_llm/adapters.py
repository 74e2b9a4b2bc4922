"""LoRA adapters as part of a page's name: a request has an adapter's task id, which is whatever its server calls it.

Owns: what identifies an adapter's weights, saying so where nothing does. Must not know: pools, requests' lives.

    TURNKV_LORA_NAMES names it -> that name
    the request says where its files lie (`py_lora_path`) -> their digest, as long as they stay as they were
    neither -> nobody knows which weights these are: the request's pages are neither stored nor looked for
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import turnkv
from turnkv.checkpoint import WeightsName, weights_path

from . import compat

logger = compat.logger
ADAPTERS_MAX = 1024
"""Adapters remembered; the one asked for longest ago makes room."""
WAIT_SECONDS = 0.05
"""How long an adapter's first request may wait for its digest; if it takes longer that request moves no pages."""


class UnknownAdapter(Exception):
    """Nobody knows which weights a request runs with."""


class Adapters:
    """The adapters of one engine. Not thread-safe."""

    def __init__(self, llm_args: Any, named: Mapping[int, str]) -> None:
        """`named`: what the operator calls the weights behind a task id."""
        config = getattr(llm_args, "lora_config", None)
        self._applied = json.dumps(
            [str(getattr(config, part, None)) for part in ("lora_target_modules", "trtllm_modules_to_hf_modules")]
        )
        self._named = dict(named)
        self._seen: OrderedDict[int, tuple[str, str]] = OrderedDict()
        """Path and digest of each adapter when its first request came: the engine goes on with what it read then."""
        self._told: set[int] = set()

    def identity_of(self, request: Any) -> str | None:
        """Names the weights, and what of them the engine applies; None: no adapter. Raises UnknownAdapter."""
        task = getattr(request, "lora_task_id", None)
        if task is None:
            return None
        try:
            name = self._named.get(task)
            return f"{self._applied} {name if name is not None else self._digest_of(task, request)}"
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
        path = weights_path(str(said), None) if said else None
        if path is None:
            raise UnknownAdapter("its id alone does not say which weights it has, and no files of it are known here")
        name = WeightsName.of("adapter:", [path], logger)
        if task not in self._seen:
            name.wait(WAIT_SECONDS)
        try:
            digest = name.get()
        except turnkv.Error as error:
            raise UnknownAdapter(str(error)) from error
        seen = self._seen.setdefault(task, (str(said), digest))
        self._seen.move_to_end(task)
        while len(self._seen) > ADAPTERS_MAX:
            self._seen.popitem(last=False)
        if seen != (str(said), digest):
            # The engine may still run with what it read first.
            raise UnknownAdapter("its files are not those that its first request came with")
        return f"digest {digest}"
