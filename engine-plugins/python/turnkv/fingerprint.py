"""A model's fingerprint: what must agree for its KV pages to be exchangeable.

Owns: hashing a torch model's configuration and weights. Must not know: pools, caches, sessions.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from typing import Any

import torch

SAMPLE_WHOLE_BYTES_MAX = 64 << 10
"""Tensors up to this size are hashed whole."""
SAMPLE_STRIPES = 64
"""Larger ones: so many stripes, evenly spread, the first and the last bytes among them."""
SAMPLE_STRIPE_BYTES = 256
VOLATILE_CONFIG_KEYS = frozenset({"_name_or_path", "transformers_version", "use_cache", "architectures"})
"""Configuration that says nothing about K and V."""

_known: weakref.WeakKeyDictionary[Any, tuple[tuple[tuple[int, int], ...], str]] = weakref.WeakKeyDictionary()


def model_fingerprint(model: torch.nn.Module) -> str:
    """SHA-256 (hex) of the configuration and of every parameter's and buffer's name, shape, dtype and sampled bytes.

    A fine-tune, a merged adapter or another quantization changes it. One edited element of a large tensor may not: give
    such models a name of their own (`model_id`). Computed once per model; again after weights were replaced or updated
    in place. Raises ValueError for weights that cannot be read (on the meta device): such models need a `model_id`.
    """
    tensors = [*model.named_parameters(), *model.named_buffers()]
    identity = tuple((tensor.data_ptr(), _version(tensor)) for _, tensor in tensors)
    known = _known.get(model)
    if known is not None and known[0] == identity:
        return known[1]
    digest = hashlib.sha256(b"turnkv-model-1")
    digest.update(_config_bytes(model.config))
    for name, tensor in tensors:
        digest.update(f"\0{name}\0{tuple(tensor.shape)}\0{tensor.dtype}\0".encode())
        digest.update(_sample(name, tensor))
    fingerprint = digest.hexdigest()
    _known[model] = (identity, fingerprint)
    return fingerprint


def _version(tensor: torch.Tensor) -> int:
    """Counts in-place changes; tensors made in inference mode have no such counter."""
    return 0 if tensor.is_inference() else tensor._version


def _config_bytes(config: Any) -> bytes:
    """The configuration as canonical JSON, and the attention kernel, whose rounding shows in K and V."""
    values = {key: value for key, value in config.to_dict().items() if key not in VOLATILE_CONFIG_KEYS}
    values["attention kernel"] = getattr(config, "_attn_implementation", None)
    return json.dumps(values, sort_keys=True, default=str).encode()


def _sample(name: str, tensor: torch.Tensor) -> bytes:
    """The tensor's bytes, or evenly spread stripes of them."""
    if tensor.device.type == "meta":
        raise ValueError(f"the weights of {name} are not loaded (meta device): pass model_id to name this model")
    flat = tensor.detach()
    flat = (flat if flat.is_contiguous() else flat.contiguous()).reshape(-1)
    if flat.numel() == 0:
        return b""
    raw = flat.view(torch.uint8)
    if raw.numel() > SAMPLE_WHOLE_BYTES_MAX:
        last = raw.numel() - SAMPLE_STRIPE_BYTES
        starts = torch.linspace(0, last, SAMPLE_STRIPES, dtype=torch.float64).long()
        at = starts[:, None] + torch.arange(SAMPLE_STRIPE_BYTES)
        raw = raw[at.reshape(-1).to(raw.device)]
    return raw.cpu().numpy().tobytes()
