"""A model's fingerprint: what must agree for its KV pages to be exchangeable.

Owns: naming a torch model by its configuration, its weights and its active adapters; noticing that they changed. Must not
know: pools, caches, sessions.

    name       every byte of every tensor, once a model; again when the check says that something changed
    check      every 4,104th byte's word of large tensors, all of small ones, on the device where they are; at each turn
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

WORD_BYTES = 8
CHUNK_WORDS = 32 << 10
"""Words that are summed at once: they stay in a core's cache."""
CHECK_STRIDE_WORDS = 513
"""Of which the check takes one. Just more than a memory page, so that no column of a matrix is passed over."""
CHECK_WHOLE_WORDS = 8 << 10
"""Tensors up to this size are checked whole."""
THREADS_MAX = 8
"""That name a model on the CPU."""
VOLATILE_CONFIG_KEYS = frozenset({"_name_or_path", "transformers_version", "use_cache", "architectures"})
"""Configuration that says nothing about K and V."""
ADAPTER_STATE = ("_active_adapter", "_disable_adapters", "merged_adapters", "scaling")
"""What a PEFT layer computes with beside its weights."""

Tensors = list[tuple[str, torch.Tensor]]

_known: weakref.WeakKeyDictionary[Any, tuple[bytes, str]] = weakref.WeakKeyDictionary()
_factors: dict[torch.device, torch.Tensor] = {}


def model_fingerprint(model: torch.nn.Module) -> str:
    """SHA-256 (hex) of the configuration, of every tensor's name, shape, dtype and bytes, and of the active adapters.

    A fine-tune, a merged or switched adapter or another quantization changes it. All bytes are read once a model, and again
    when `model_check` differs or after `forget`. Raises ValueError for weights that cannot be read (on the meta device, or
    of a kind without plain bytes): such models need a `model_id`.
    """
    return model_names(model)[0]


def model_names(model: torch.nn.Module) -> tuple[str, bytes]:
    """The fingerprint, and the check that goes with it."""
    check = model_check(model)
    known = _known.get(model)
    if known is None or known[0] != check:
        known = _known[model] = (check, _digest(model, b"turnkv-model-2", _name_sums).hex())
    return known[1], check


def model_check(model: torch.nn.Module) -> bytes:
    """The same of some of the bytes, in a moment: whatever changes a stretch of 4 KiB or more of a tensor changes it."""
    return _digest(model, b"turnkv-check-1", _check_sums)


def forget(model: torch.nn.Module) -> None:
    """The next `model_fingerprint` reads everything again."""
    _known.pop(model, None)


def adapter_layers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The layers that PEFT put into a model."""
    for name, module in model.named_modules():
        if "_active_adapter" in module.__dict__ or hasattr(type(module), "_active_adapter"):
            yield name, module


def rope_limit(config: Any) -> int | None:
    """How many tokens a sequence may have so that its K depends on the tokens alone; None: any number.

    Positions of the dynamic kinds are turned another way as soon as one call goes beyond the length of the training.
    """
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [kind for kind in (given, *given.values()) if isinstance(kind, dict)]
    if not any((kind.get("rope_type") or kind.get("type")) in ("dynamic", "longrope") for kind in kinds):
        return None
    trained = [kind.get("original_max_position_embeddings") for kind in kinds]
    trained += [getattr(config, "original_max_position_embeddings", None), getattr(config, "max_position_embeddings", None)]
    return next((int(length) for length in trained if length), 0)


def _digest(model: torch.nn.Module, kind: bytes, sums: Callable[[Tensors], Iterable[torch.Tensor]]) -> bytes:
    digest = hashlib.sha256(kind)
    digest.update(_config_bytes(model.config))
    digest.update(_adapter_bytes(model))
    tensors = list(_tensors(model))
    for name, tensor in tensors:
        digest.update(f"\0{name}\0{tuple(tensor.shape)}\0{tensor.stride()}\0{tensor.dtype}\0{tensor.device.type}".encode())
    with torch.no_grad():
        for some in sums(tensors):
            digest.update(some.cpu().numpy().tobytes())
    return digest.digest()


def _tensors(model: torch.nn.Module) -> Any:
    yield from model.named_parameters()
    config: Any = model.config
    turned = rope_limit(config.get_text_config(decoder=True)) is not None
    for name, buffer in model.named_buffers():
        if not (turned and name.endswith("inv_freq")):  # the model changes it from call to call
            yield name, buffer


def _config_bytes(config: Any) -> bytes:
    """The configuration as canonical JSON, and the attention kernel, whose rounding shows in K and V."""
    values = {key: value for key, value in config.to_dict().items() if key not in VOLATILE_CONFIG_KEYS}
    values["attention kernel"] = getattr(config, "_attn_implementation", None)
    return json.dumps(values, sort_keys=True, default=str).encode()


def _adapter_bytes(model: torch.nn.Module) -> bytes:
    """Which adapters are active in which layer, and how strongly."""
    states = [(name, *(repr(getattr(module, key, None)) for key in ADAPTER_STATE)) for name, module in adapter_layers(model)]
    return repr(states).encode()


def _name_sums(tensors: Tensors) -> Iterable[torch.Tensor]:
    """Sums of all words of each tensor."""

    def sums(item: tuple[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            return torch.cat([_sums(words) for words in _words(*item)])

    if any(tensor.device.type != "cpu" for _, tensor in tensors):
        return [sums(item) for item in tensors]
    with ThreadPoolExecutor(min(THREADS_MAX, os.cpu_count() or 1)) as threads:
        return list(threads.map(sums, tensors))


def _check_sums(tensors: Tensors) -> Iterable[torch.Tensor]:
    """Sums of some words of all tensors on a device together, in few operations."""
    samples: dict[torch.device, list[torch.Tensor]] = {}
    for name, tensor in tensors:
        for words in _words(name, tensor):
            some = words[::CHECK_STRIDE_WORDS] if words.numel() > CHECK_WHOLE_WORDS else words
            samples.setdefault(tensor.device, []).append(some)
    return [_sums(torch.cat(some)) for some in samples.values()]


def _sums(words: torch.Tensor) -> torch.Tensor:
    """Weighted sums of each chunk of words, modulo 2**64.

    The factors are odd, so one changed word always changes its sum; a shift or an exchange does too, but for one in 2**60.
    """
    factors = _factors_on(words.device)
    products = torch.empty(min(words.numel(), CHUNK_WORDS), dtype=torch.int64, device=words.device)
    return torch.stack(
        [torch.mul(chunk, factors[: chunk.numel()], out=products[: chunk.numel()]).sum() for chunk in words.split(CHUNK_WORDS)]
    )


def _words(name: str, tensor: torch.Tensor) -> list[torch.Tensor]:
    """The bytes of a tensor as words, where they are; what is left over at the end as words of their own."""
    if tensor.device.type == "meta":
        raise ValueError(f"the weights of {name} are not loaded (meta device): pass model_id to name this model")
    try:
        flat = tensor.detach()
        if not flat.is_contiguous():
            order = sorted(range(flat.dim()), key=flat.stride, reverse=True)
            flat = flat.permute(order).contiguous()  # a transposed matrix: nothing is copied
        flat = flat.view(-1)
        size, start = flat.numel() * flat.element_size(), flat.storage_offset() * flat.element_size()
        if size % WORD_BYTES == start % WORD_BYTES == 0:
            return [flat.view(torch.int64)]
        raw, whole = flat.view(torch.uint8), size // WORD_BYTES * WORD_BYTES
        return [raw[:whole].clone().view(torch.int64), raw[whole:].to(torch.int64)]
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"the bytes of {name} cannot be read ({error}): pass model_id to name this model") from None


def _factors_on(device: torch.device) -> torch.Tensor:
    """Odd numbers, the same in every process."""
    if device not in _factors:
        maker = torch.Generator().manual_seed(0x7475726E6B76)
        numbers = torch.randint(-(1 << 62), 1 << 62, (CHUNK_WORDS,), generator=maker, dtype=torch.int64)
        _factors[device] = (numbers * 2 + 1).to(device)
    return _factors[device]
