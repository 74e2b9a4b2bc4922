"""`TurnKVCache`: a KV cache for Hugging Face transformers that comes back at the next turn.

    cache = TurnKVCache(model, session="chat-1")           # embedded pool; or pool="unix:/run/turnkv/turnkv.sock"
    cache.begin(input_ids)                                 # the leading pages that the pool has are there now
    out = model.generate(input_ids, past_key_values=cache)
    cache.end_turn(out[0])                                 # the pages are the pool's, the memory is free

Owns: which form of the cache a model and a pool get. Must not know: pages, tensors.
No error of the pool leaves this module: the model recomputes what did not come, and `cache.turn` says why.
"""

from __future__ import annotations

from typing import Any

import torch

import turnkv

from ._hf.common import MappingLost, TurnReport, Unsupported
from ._hf.copying import CopyingCache
from ._hf.device import DeviceCache
from ._hf.slab import SlabCache

__all__ = ["MappingLost", "TurnKVCache", "TurnReport", "Unsupported"]


class _Chooser(type):
    """`TurnKVCache(...)` makes a cache of the form that fits; `isinstance(cache, TurnKVCache)` holds for both."""

    def __call__(cls, model: torch.nn.Module, *args: Any, legacy: bool = False, **settings: Any) -> Any:
        if settings.get("device") is not None or next(model.parameters()).device.type != "cpu":
            return DeviceCache(model, *args, **settings)
        settings.pop("device", None)
        return (CopyingCache if legacy else SlabCache)(model, *args, **settings)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, (CopyingCache, DeviceCache, SlabCache))


class TurnKVCache(metaclass=_Chooser):
    """A `transformers.Cache` whose pages outlive the turn in a TurnKV pool.

    The slab form (default, models on the CPU): K and V are views of the pool's own memory. What a turn computes is written
    where it will be kept, and what an earlier turn computed is read where it lies: nothing is copied at either end of a
    turn. `legacy=True`: a `DynamicCache`, copied from and to the pool; also for beam search and parallel samples.

    The device form (models on a GPU): pages move between the pool's memory and the model's device on streams of their own,
    layer by layer: the model computes with layer 0 while layer 1 comes, and no thread waits. `overlap=False`: `begin` returns
    when all is there. `gpu_bytes`: device memory that keeps the latest pages, shared by all caches of a model on a device.
    `device`: the `turnkv.Device`, by default the one that the model is on.

    `session`: the conversation's name, 1 to 128 bytes; None keeps pages by their tokens alone (no partial tail, no hints);
    a list of names (slab form): a batch, one row each, all of the same length.
    `pool`: a `turnkv.Pool`, an address, or None for the embedded pool. `page_tokens`: tokens of a page; by default such that
    K of one head is 32 KiB, 128 at most (16 in the copying form); sessions share whole pages only, so a common prompt that is
    shorter is not shared. `capacity_tokens`: the longest sequence; default: the model's own.
    `sink`, `window` (slab form): keep only the first `sink` tokens and at least the last `window`, in whole pages; what is in
    between is forgotten. Positions stay those of the whole sequence. Needs a session, full attention, and no padding.
    `model_id`: names the weights; by default a fingerprint of configuration, weights and active adapters, looked at again at
    each `begin` and `end_turn`. With a name nothing is looked at: see `weights_changed`. `salt`: what else K and V depend on.
    `tenant`: pages are never shared between tenants. `durable`: every `end_turn` waits until its pages are on NVMe.
    `deadline_ms`: of each call to the pool in `begin` and `end_turn`; `wait_ms` (copying form): for free slots within it.

    While a cache lives, hooks on the model see what its forwards are given. A turn is stored only if all of them ended, their
    tokens are those that `end_turn` is told, and nothing but tokens went in: `turn.misses` says skipped:<why> otherwise.

    Raises `Unsupported` for models whose cache it cannot keep. One cache serves one turn at a time, from one thread.
    """

    turn: TurnReport
    """What the pool did for this turn."""
    totals: TurnReport
    """The same for all turns that ended."""

    def __init__(
        self,
        model: torch.nn.Module,
        session: str | list[str] | None,
        pool: turnkv.Pool | str | None = None,
        *,
        legacy: bool = False,
        device: turnkv.Device | None = None,
        overlap: bool = True,
        gpu_bytes: int = 0,
        page_tokens: int | None = None,
        capacity_tokens: int | None = None,
        sink: int = 0,
        window: int | None = None,
        model_id: str | None = None,
        tenant: str = "",
        salt: bytes = b"",
        durable: bool = False,
        deadline_ms: int | None = None,
        wait_ms: int = 0,
    ) -> None:
        raise TypeError("made by the class itself")  # the signature is documentation: see _Chooser
