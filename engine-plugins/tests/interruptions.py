"""Forwards that do not end: an exception of any kind at any place of a model. Owns: where and how. Must not know: caches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

KINDS: dict[str, Callable[[], BaseException]] = {
    "ctrl-c": KeyboardInterrupt,
    "out-of-memory": lambda: torch.OutOfMemoryError("out of memory (a test's)"),
    "error": lambda: RuntimeError("a test's"),
}
PLACES = ("before", "first", "middle", "between-k-and-v", "last", "after")
"""Of a forward: before any layer, in the first one, in one in the middle before its K and V are kept, in the middle of keeping
them, in the last layer after its K and V are kept, after all layers."""


def decoder_layers(model: torch.nn.Module) -> torch.nn.ModuleList:
    """The layers that make K and V."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    return next(part for part in model.modules() if isinstance(part, torch.nn.ModuleList) and len(part) == count)


@contextlib.contextmanager
def interrupted(model: torch.nn.Module, cache: Any, place: str, kind: str, forward: int = 0) -> Iterator[None]:
    """The `forward`th forward from now on, counted from 0, ends at `place` with an exception of `kind`, which is swallowed."""
    raised, begun = KINDS[kind](), [0]

    def count(*_: Any) -> None:
        begun[0] += 1

    def strike(*_: Any, **__: Any) -> None:
        if begun[0] == forward + 1:
            raise raised

    layers = decoder_layers(model)
    hooks = [next(model.modules()).register_forward_pre_hook(count)]

    def undo() -> None:
        """Nothing, where the model itself was not touched."""

    if place == "before":
        hooks.append(model.get_input_embeddings().register_forward_hook(strike))
    elif place in ("first", "middle"):
        hooks.append(layers[0 if place == "first" else len(layers) // 2].register_forward_pre_hook(strike))
    elif place == "between-k-and-v":
        kept = [number for number, layer in enumerate(cache.layers) if type(layer).__name__ != "DummyLayer"]
        undo = _values_fail(cache, kept[len(kept) // 2], strike)
    else:
        hooks.append((layers[-1] if place == "last" else model.get_output_embeddings()).register_forward_hook(strike))
    try:
        yield
    except BaseException as error:
        if error is not raised:
            raise
    else:
        raise AssertionError(f"no forward came to {place}")
    finally:
        undo()
        for hook in hooks:
            hook.remove()


class _Striking(torch.Tensor):
    """A tensor that cannot be copied or concatenated."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.Tensor.copy_, torch.cat):
            cls.strike()
        return super().__torch_function__(function, types, args, kwargs or {})


def _values_fail(cache: Any, number: int, strike: Callable[[], None]) -> Callable[[], None]:
    """From now on a layer's K is kept and its V is not, when `strike` raises; returns what undoes it."""
    update = cache.update

    def between(keys: torch.Tensor, values: torch.Tensor, layer: int, *args: Any, **kwargs: Any) -> Any:
        if layer == number:
            _Striking.strike = staticmethod(strike)
            values = values.as_subclass(_Striking)
        keys, values = update(keys, values, layer, *args, **kwargs)
        return keys.as_subclass(torch.Tensor), values.as_subclass(torch.Tensor)

    cache.update = between

    def undo() -> None:
        del cache.update

    return undo
