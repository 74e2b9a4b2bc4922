"""`TurnKVCache`: what every form of it is and does, and which one a model and its settings get.

Owns: the form that fits, what all forms say alike. Must not know: a form, pages, tensors.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from transformers import Cache

import turnkv

from .common import TurnReport
from .guard import Guard
from .witness import Witness


class TurnKVCache(Cache):
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

    layers: list[Any]
    """Of the form; those of transformers have no common type."""
    _guard: Guard
    _forms: ClassVar[dict[str, type[TurnKVCache]]] = {}

    def __init_subclass__(cls, *, form: str | None = None, **others: Any) -> None:
        """A form says which one it is."""
        super().__init_subclass__(**others)
        if form is not None:
            cls._forms[form] = cls

    def __new__(
        cls,
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
    ) -> TurnKVCache:
        """The form that fits, as `pathlib.Path` makes the path that fits. It is initialized with what was given here: what is
        not of its kind it refuses."""
        if cls is not TurnKVCache:
            return super().__new__(cls)
        if device is not None or next(model.parameters()).device.type != "cpu":
            return super().__new__(cls._forms["device"])
        return super().__new__(cls._forms["copying" if legacy else "slab"])

    # ---- the turn -------------------------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, input_ids: Any, attention_mask: torch.Tensor | None = None) -> int:
        """Starts a turn: empties this cache, then fills it with the leading pages of `input_ids` that the pool has.

        `input_ids`: the whole conversation so far. Returns how many tokens are in the cache now, never all of them. Give the
        model the rest, or give `generate` everything. `attention_mask`: give the one that `generate` gets, if any: padding is
        refused. Raises ValueError for input that cannot be served; a failing pool only shows in the report.
        """

    @abstractmethod
    def end_turn(
        self,
        token_ids: Any,
        *,
        expected_return_ms: int = 0,
        ttl_ms: int = 0,
        priority: int = 0,
        last: bool = False,
        durable: bool | None = None,
        keep: bool = False,
    ) -> TurnReport:
        """Ends a turn: every page becomes the pool's, and the partial tail too; then the memory is let go, unless `keep`.

        `token_ids`: prompt and reply, as `generate` returns them. The rest tells the pool about the wait. Raises ValueError for
        tokens that are not this cache's; a failing pool only shows in the report.
        """

    @abstractmethod
    def drop(self) -> None:
        """Empties this cache and gives its memory back; what the pool has stays there."""

    # ---- the session ----------------------------------------------------------------------------------------------

    @abstractmethod
    def fork(self, session: str) -> bool:
        """Makes `session` a new session that shares all this one's pages. False: the pool could not (counted)."""

    @abstractmethod
    def supersede(self, keep_tokens: int) -> bool:
        """Says that the conversation was edited after `keep_tokens`: the pages of the old branch go first."""

    @abstractmethod
    def close(self) -> bool:
        """Says that the session will not return."""

    @abstractmethod
    def prefetch(self) -> bool:  # type: ignore[override]  # transformers' own is of layers that are offloaded: never these
        """Brings the session's pages into DRAM ahead of its turn."""

    # ---- the model ------------------------------------------------------------------------------------------------

    def weights_changed(self, model_id: str | None = None) -> None:
        """Says that the model's weights are others now: the next turn finds pages of these only.

        What changes much of a tensor is noticed without this, at each `begin` and `end_turn`; a few edited elements may not
        be. A cache that was made with a `model_id` needs another one, and notices nothing by itself. Other caches of this
        model look again too, but for those that were given names.
        """
        self._guard.weights_changed(model_id)

    @property
    def witness(self) -> Witness:
        """What the model was given; asked by the hooks on it."""
        return self._guard.witness
