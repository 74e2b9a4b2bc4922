"""What the user wrote into the environment, checked. The connector's configuration has no place for options of its own.

Owns: names, defaults, bounds, clear errors. Must not know: TensorRT-LLM, pools.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

PREFIXES = ("TURNKV_", "TRTLLM_TURNKV_")
"""Ranks that TensorRT-LLM spawns over MPI are sure to see variables that begin with TRTLLM only."""


@dataclass(frozen=True)
class Options:
    """Settings of the connector. Field `x_y` is the variable TURNKV_X_Y. Rank 0's count for all ranks."""

    pool: str | None = None
    """Address: "unix:/path", "tls://host:port", "tcp://host:port" or "http://host:port". None: a private pool of this user.
    Several members of a cluster, all "tls://" or all "tcp://", with commas between."""
    tenant: str = ""
    """Pages are shared among engines of one tenant only."""
    model_id: str | None = None
    """Name of the weights. None: derived from their bytes."""
    lora_names: str = ""
    """Names of LoRA adapters' weights by task id, "5=support@3,7=sql@1": the same name means the same bytes everywhere.
    A name has letters, digits and ._/@:- only."""
    load: bool = True
    """Reload pages."""
    save: bool = True
    """Store pages."""
    min_tokens: int = 0
    """Do not load fewer tokens than this."""
    load_ms: int = 500
    """Deadline of a load. The engine waits for it, so it bounds what a slow pool can cost a step."""
    save_ms: int = 2000
    """Deadline of a save. A finished request's blocks are held no longer than this, and one step."""
    durable: bool = False
    """What a finished request still has to store is on NVMe before its blocks are let go."""
    load_threads: int = 4
    save_threads: int = 2
    load_bytes: int = 512 << 20
    """Device memory of a rank for pages on their way to blocks, and so the most that the loads of one step bring."""
    staging_bytes: int = 64 << 20
    """Pinned host memory of a rank, for copies with such of the pool's memory as is not registered with the device."""

    @staticmethod
    def of(environment: Mapping[str, str]) -> Options:
        """Raises ValueError that names the variable, what it may be and what it was."""
        values: dict[str, Any] = {}
        for entry in fields(Options):
            for prefix in PREFIXES:
                text = environment.get(prefix + entry.name.upper())
                if text is not None:
                    values[entry.name] = _parsed(entry.name, prefix + entry.name.upper(), text)
                    break
        return Options(**values)


def slips(environment: Mapping[str, str]) -> list[str]:
    """Variables whose names are nearly those of options, each with the one it is near to: nobody reads them."""
    names = [entry.name.upper() for entry in fields(Options)]
    said = []
    for variable in sorted(environment):
        prefix = next(filter(variable.startswith, PREFIXES), None)
        name = variable.removeprefix(prefix or "")
        if prefix is not None and name not in names:
            said += [f"{variable} (did you mean {prefix}{near}?)" for near in difflib.get_close_matches(name, names, 1, 0.8)]
    return said


_LORA_NAME = re.compile(r"[A-Za-z0-9._/@:-]+")


def lora_names(text: str, variable: str = "lora_names") -> dict[int, str]:
    """The names by task id. Raises ValueError that names the variable."""
    names: dict[int, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        task, equals, name = entry.partition("=")
        if not equals or not task.strip().isdecimal() or not name.strip() or int(task) in names:
            raise ValueError(f'{variable} must be like "5=support@3,7=sql@1", each id once, not {text!r}')
        if not _LORA_NAME.fullmatch(name.strip()):
            raise ValueError(
                f'{variable} must be like "5=support@3,7=sql@1": a name has letters, digits and ._/@:- only, not {name.strip()!r}'
            )
        names[int(task)] = name.strip()
    return names


_BOUNDS = {
    "min_tokens": (0, 1 << 31),
    "load_ms": (1, 60_000),
    "save_ms": (1, 600_000),
    "load_threads": (1, 64),
    "save_threads": (1, 64),
    "load_bytes": (1 << 20, 1 << 40),
    "staging_bytes": (1 << 20, 1 << 40),
}
_SWITCHES = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
_TEXT_BYTES_MAX = {"pool": 4096, "tenant": 128, "model_id": 200, "lora_names": 64 << 10}


def _parsed(name: str, variable: str, text: str) -> Any:
    if name in _BOUNDS:
        least, most = _BOUNDS[name]
        if not text.isdecimal() or not least <= int(text) <= most:
            raise ValueError(f"{variable} must be a whole number from {least} to {most}, not {text!r}")
        return int(text)
    if name in _TEXT_BYTES_MAX:
        if len(text.encode()) > _TEXT_BYTES_MAX[name]:
            raise ValueError(f"{variable} must have at most {_TEXT_BYTES_MAX[name]} bytes, not {len(text.encode())}")
        if name == "pool" and not text.startswith(("unix:/", "tls://", "tcp://", "http://")):
            forms = '"unix:/path", "tls://host:port", "tcp://host:port" or "http://host:port"'
            raise ValueError(f"{variable} must be {forms}, not {text!r}")
        if name == "lora_names":
            lora_names(text, variable)
        return text
    if text.lower() not in _SWITCHES:
        raise ValueError(f"{variable} must be one of {', '.join(_SWITCHES)}, not {text!r}")
    return _SWITCHES[text.lower()]
