"""The name of a cache's model: looked at again whenever a turn begins and ends.

Owns: when a model is named, what becomes of a name that was given. Must not know: pages, tensors.
"""

from __future__ import annotations

import weakref

import torch

from turnkv.fingerprint import adapter_layers, forget, model_check, model_names


class Weights:
    """Names the weights of one model, which may be gone before its caches are."""

    def __init__(self, model: torch.nn.Module, model_id: str | None) -> None:
        self._model, self._given = weakref.ref(model), model_id
        self._check: bytes | None = None

    def name(self) -> str | None:
        """The name of what the model computes with now; None: the model is gone. Raises ValueError where it needs a name."""
        model = self._model()
        if self._given is not None or model is None:
            return self._given
        name, self._check = model_names(model)
        return name

    def adapter(self) -> weakref.ref[torch.nn.Module] | None:
        """A layer of the model's adapters, if it has any."""
        model = self._model()
        found = next(adapter_layers(model), None) if model is not None else None
        return weakref.ref(found[1]) if found is not None else None

    def why_not(self) -> str | None:
        """Why what was computed since `name` cannot be kept under that name; None: it can."""
        model = self._model()
        if model is None:
            return "model"
        if self._given is None and self._check is not None and model_check(model) != self._check:
            return "weights"
        return None

    def changed(self, model_id: str | None) -> None:
        """All is read again; a name that was given needs a new one."""
        if (model_id is None) != (self._given is None):
            raise ValueError(
                "this cache was made with a model_id: say the new weights' own"
                if model_id is None
                else "this cache's weights are named by a fingerprint: weights_changed() takes no model_id"
            )
        self._given, self._check = model_id, None
        model = self._model()
        if model is not None and model_id is None:
            forget(model)
