"""Hooks by which a model's forwards are seen, while a cache of it lives.

Owns: putting them on a model and taking them off. Must not know: what is looked at (`witness`).

The hooks know no cache: they find it among the forward's arguments. So one pair serves all caches of a model, and nothing
keeps a cache alive. They sit on every `PreTrainedModel` within a model: whichever of them is called, the first one sees what
the caller gave. A copy of a model takes the hooks along, but is none of those that a cache looks at.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from transformers import Cache, PreTrainedModel

_lock = threading.RLock()  # a collection may end a cache while this thread has it
_hooked: weakref.WeakKeyDictionary[torch.nn.Module, list[Any]] = weakref.WeakKeyDictionary()
"""Module -> [how many caches look at it, its hooks]."""


def watched(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The parts of a model whose forwards are seen."""
    parts: list[torch.nn.Module] = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    return parts if model in parts else [model, *parts]


def watch(cache: Any, parts: list[torch.nn.Module]) -> None:
    """Tells `cache.witness` of these modules' forwards with `cache`, while `cache` lives."""
    with _lock:
        for part in parts:
            entry = _hooked.setdefault(part, [0, ()])
            if entry[0] == 0:
                entry[1] = (
                    part.register_forward_pre_hook(_before, with_kwargs=True),
                    part.register_forward_hook(_after, with_kwargs=True),
                )
            entry[0] += 1
    weakref.finalize(cache, _leave, [weakref.ref(part) for part in parts]).atexit = False


def _leave(parts: list[weakref.ref[torch.nn.Module]]) -> None:
    with _lock:
        for reference in parts:
            part = reference()
            if part is None or (entry := _hooked.get(part)) is None:
                continue
            entry[0] -= 1
            if entry[0] == 0:
                del _hooked[part]
                for hook in entry[1]:
                    hook.remove()


def _before(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if args:
        kwargs = {**dict(zip(_names(type(module).forward), args, strict=False)), **kwargs}
    cache: Any = kwargs.get("past_key_values")
    witness = getattr(cache, "witness", None)
    if witness is not None:
        witness.enter(module, kwargs, cache.get_seq_length(), cache.is_even)


def _after(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    cache = kwargs.get("past_key_values")
    if cache is None:
        cache = next((given for given in args if isinstance(given, Cache)), None)
    witness = getattr(cache, "witness", None)
    if witness is not None:
        witness.leave(module)


@functools.lru_cache(maxsize=64)
def _names(forward: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a forward's arguments, in their order."""
    return tuple(inspect.signature(forward).parameters)[1:]
