"""What the forms of `TurnKVCache` that copy have in common: a `DynamicCache` that is filled and stored at the ends of a turn.

Owns: which pages a turn needs, sessions, fail-open. Must not know: how bytes move, devices.
No error of the pool leaves this module: the model recomputes what did not come, and `cache.turn` says why.
"""

from __future__ import annotations

import array
import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

import turnkv
from turnkv._door import Door

from .cache import TurnKVCache
from .common import (
    DTYPES,
    TurnReport,
    Unsupported,
    config_of,
    even,
    named,
    one_sequence,
    packed,
    refuse_padding,
    say_no_pool,
    say_not_kept,
    say_refused,
)
from .guard import Guard
from .shape import layer_shapes


@dataclass(frozen=True)
class Shape:
    """What a page is made of."""

    layers: int
    kv_heads: int
    head_dim: int
    page_tokens: int
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        """K, or V, of one token in one layer."""
        return self.kv_heads * self.head_dim * self.dtype.itemsize


@dataclass(frozen=True)
class Brought:
    """What a reload brought: leading pages, and where they were."""

    pages: int
    from_gpu: int = 0
    from_dram: int = 0
    from_nvme: int = 0
    miss: str | None = None


class TurnCache(TurnKVCache, DynamicCache):
    """A `DynamicCache` of one sequence whose pages outlive the turn in a TurnKV pool.

    `session`: the conversation's name, 1 to 128 bytes; None keeps pages by their tokens alone (no partial tail, no hints).
    `pool`: a `turnkv.Pool`, an address, or None for the embedded pool. `page_tokens`: tokens of a page.
    `model_id`: names the weights; by default a fingerprint of configuration, weights and active adapters, looked at again at
    each `begin` and `end_turn`. `salt`: what else K and V depend on.
    `tenant`: pages are never shared between tenants. `durable`: every `end_turn` waits until its pages are on NVMe.
    `deadline_ms`: of each reload and offload; `wait_ms`: how long an offload may wait for free slots within it.

    This step serves full attention only; other models raise `Unsupported` here. Sequences are not padded: K and V of a
    padded prompt sit at other positions. One cache serves one session, one turn at a time, from one thread at a time.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        session: str | None,
        pool: turnkv.Pool | str | None,
        *,
        shape: Shape,
        layout: str,
        model_id: str | None = None,
        tenant: str = "",
        salt: bytes = b"",
        durable: bool = False,
        deadline_ms: int | None = None,
        wait_ms: int = 0,
    ) -> None:
        super().__init__(config=config_of(model))
        self._config, self._shape = config_of(model), shape
        self._pool = pool if isinstance(pool, turnkv.Pool) else turnkv.shared_pool(pool)
        self._guard = Guard(model, model_id, 1)
        self._spec = {
            "model": self._guard.name,
            "dtype": DTYPES[shape.dtype],
            "layers": shape.layers,
            "kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "page_tokens": shape.page_tokens,
            "layout": layout,
            "tenant": tenant,
            "salt": salt,
        }
        self._door = Door(self._pool, self._spec)
        self._durable, self._deadline_ms, self._wait_ms = durable, deadline_ms, wait_ms
        self._prompt = array.array("I")
        self._known_pages = 0  # leading pages of this turn that the pool is known to have
        self.session = named(session)
        self.turn = TurnReport()
        self.totals = TurnReport()
        self.layers = self._fresh_layers()
        self._guard.watch(self)

    # ---- what a form adds -----------------------------------------------------------------------------------------

    @abstractmethod
    def _bring(self, pages: turnkv.Namespace, hashes: bytes, tokens: int) -> Brought:
        """Fills the layers with the leading pages that are there, of `tokens` tokens in all."""

    @abstractmethod
    def _send(self, pages: turnkv.Namespace, hashes: bytes, first: int, tokens: int, **settings: Any) -> turnkv.OffloadReport:
        """Stores the pages of the tokens from token `first` on."""

    def _held(self, hashes: bytes) -> int:
        """Leading pages that are nearer than the pool."""
        return 0

    def _keep_near(self, pages: turnkv.Namespace, hashes: bytes, tokens: int) -> None:
        """Keeps this turn's pages nearer than the pool, where there is such a place."""

    def _settle(self) -> None:
        """Waits until what was brought is in place."""

    def _fresh_layers(self) -> list[Any]:
        return DynamicCache(config=self._config).layers

    def _rename(self) -> None:
        """Pages are of another namespace from now on."""
        self._spec = {**self._spec, "model": self._guard.name}
        self._door = Door(self._pool, self._spec)

    def is_even(self) -> bool:
        """Whether all layers have K and V of the same tokens."""
        return even(self.layers)

    def __deepcopy__(self, memo: dict[int, Any]) -> DynamicCache:
        """A plain `DynamicCache` with the same K and V: a copy belongs to no session."""
        self._settle()
        copy = DynamicCache(config=self._config)
        targets: list[Any] = copy.layers
        for target, source in zip(targets, self.layers, strict=True):
            if source.is_initialized:
                target.update(source.keys.clone(), source.values.clone())
        return copy

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As in `DynamicCache`; beams and parallel samples all continue the one sequence that was loaded."""
        layer, batch = self.layers[layer_idx], key_states.shape[0]
        if batch > 1 and layer.is_initialized and layer.keys.numel() and layer.keys.shape[0] == 1:
            layer.batch_repeat_interleave(batch)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def activate_past_recording(self) -> None:
        """What assisted decoding begins with; refused where it would go wrong."""
        self._guard.refuse_assistance()
        super().activate_past_recording()

    # ---- the turn -------------------------------------------------------------------------------------------------

    def begin(self, input_ids: Any, attention_mask: torch.Tensor | None = None) -> int:
        """Starts a turn: empties this cache, then fills it with the leading pages of `input_ids` that the pool has.

        `input_ids`: the whole conversation so far as [1, tokens], [tokens] or a list of ints. Returns how many tokens are
        in the cache now: 0 when nothing was found, never all of them (the last one's logits are needed). Give the model
        the rest, or give `generate` everything. `attention_mask`: give the one that `generate` gets, if any: padding is
        refused. Raises ValueError for input that is not one sequence; nothing else.
        """
        refuse_padding(attention_mask)
        tokens = one_sequence(input_ids)
        started = time.perf_counter()
        self.drop()
        self.witness.reset(at_work=True)
        self._prompt = tokens
        self.turn = TurnReport(prompt_tokens=len(tokens))
        known, why = self._guard.loadable([tokens])
        try:
            if self._guard.is_renamed():
                self._rename()
            self._door.call(lambda pages: self._load(pages, known[0]))
        except turnkv.Error as error:
            self.drop()
            self._prompt = tokens
            self.turn.forget_loaded()
            self.turn.misses[f"error:{error.kind}"] += 1
            say_no_pool(error, stacklevel=2)
        self.witness.ready([tokens[: self.turn.tokens_loaded]], why)
        self.turn.reload_ms = (time.perf_counter() - started) * 1e3
        return self.turn.tokens_loaded

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
        """Ends a turn: stores every page that the pool lacks, and the partial tail, then lets the memory go.

        `token_ids`: prompt and reply, as `generate` returns them; the last sampled token, which has no K and V yet, may be
        among them. The rest tells the pool about the wait: when the session should return, how long it may be kept
        (0: the pool's own rule), its priority, whether it is over. `keep` leaves the cache filled. Returns the turn's
        report. Raises ValueError for tokens that are not this cache's; a failing pool only shows in the report.
        """
        tokens = one_sequence(token_ids)
        started = time.perf_counter()
        hints = {"expected_return_ms": expected_return_ms, "ttl_ms": ttl_ms, "priority": priority, "last": last}
        unfit = self.witness.broken(self.is_even())
        if unfit is None:
            tokens = self._cached_tokens(tokens)
            self._settle()
            unfit = self._unfit() or self._guard.why_not([tokens])
        if unfit is not None:
            self.turn.misses[f"skipped:{unfit}"] += 1
            if unfit not in ("empty", "batch"):
                say_not_kept(unfit, stacklevel=2)
        elif tokens:
            try:
                kept = self._durable if durable is None else durable
                self._door.call(lambda pages: self._store(pages, tokens, kept, hints))
            except turnkv.Error as error:
                if not self.turn.misses[f"error:{error.kind}"]:
                    say_refused(error, stacklevel=2)  # begin has not
                self.turn.misses[f"error:{error.kind}"] += 1
        self.turn.offload_ms = (time.perf_counter() - started) * 1e3
        self.totals.add(self.turn)
        if not keep:
            self.drop()
        return self.turn

    def drop(self) -> None:
        """Empties this cache and lets its memory go; what the pool has stays there."""
        self.layers = self._fresh_layers()
        self._known_pages = 0
        self._prompt = array.array("I")
        self.witness.reset()

    def fork(self, session: str) -> bool:
        """Makes `session` a new session that shares all this one's pages. False: the pool could not (counted)."""
        return self._tell(lambda pages: pages.fork(self._named(), session))

    def supersede(self, keep_tokens: int) -> bool:
        """Says that the conversation was edited after `keep_tokens`: the pages of the old branch go first."""
        if keep_tokens < 0:
            raise ValueError("keep_tokens must not be negative")
        return self._tell(lambda pages: pages.supersede(self._named(), keep_tokens // self._shape.page_tokens))

    def close(self) -> bool:
        """Says that the session will not return."""
        return self._tell(lambda pages: pages.close(self._named()))

    def prefetch(self) -> bool:  # type: ignore[override]  # as in `TurnKVCache`
        """Brings the session's pages into DRAM ahead of its turn."""
        return self._tell(lambda pages: pages.prefetch(session=self._named()))

    # ---- reload ---------------------------------------------------------------------------------------------------

    def _load(self, pages: turnkv.Namespace, tokens: array.array[int]) -> None:
        """Names the prompt's pages, asks which are there, and fills this cache with them."""
        size = self._shape.page_tokens
        begun = None
        if self.session is not None:
            begun = pages.begin_turn(self.session)
            self.turn.turn = begun.turn
        hashes = turnkv.chain_hashes(packed(tokens[: (len(tokens) - 1) // size * size]), size)
        found = max(pages.lookup(hashes, session=self.session), self._held(hashes)) if hashes else 0
        hashes = hashes[: found * 32]
        tail = self._tail_of(begun, tokens, hashes) if begun is not None else 0
        if tail and begun is not None and begun.tail is not None:
            hashes += begun.tail
        if not hashes:
            self.turn.misses["absent"] += 1
            return
        brought = self._bring(pages, hashes, found * size + tail)
        if brought.miss is not None:
            self.turn.misses[brought.miss] += 1
        self._known_pages = min(brought.pages, found)
        self.turn.tokens_loaded = min(brought.pages * size, found * size + tail)
        self.turn.pages_copied += brought.pages
        self._count_tiers(brought)

    def _tail_of(self, begun: turnkv.TurnBegun, tokens: array.array[int], hashes: bytes) -> int:
        """Tokens of the session's partial tail if it follows right after `hashes` in this prompt; else 0."""
        at, tail = len(hashes) // 32 * self._shape.page_tokens, begun.tail_tokens
        if begun.tail is None or not 0 < tail < self._shape.page_tokens or at + tail >= len(tokens):
            return 0
        named = turnkv.chain_hashes(packed(tokens[at : at + tail]), tail, hashes[-32:] or None)
        return tail if named == begun.tail else 0

    def _count_tiers(self, brought: Brought) -> None:
        """Where the loaded tokens came from."""
        turn, size = self.turn, self._shape.page_tokens
        turn.tokens_from_gpu = min(brought.from_gpu * size, turn.tokens_loaded)
        below = turn.tokens_loaded - turn.tokens_from_gpu
        turn.tokens_from_dram = min(brought.from_dram * size, below) if brought.from_nvme else below
        turn.tokens_from_nvme = below - turn.tokens_from_dram

    # ---- offload --------------------------------------------------------------------------------------------------

    def _store(self, pages: turnkv.Namespace, tokens: array.array[int], durable: bool, hints: dict[str, Any]) -> None:
        """Offloads what the pool lacks, then tells the session which pages are its own."""
        size = self._shape.page_tokens
        hashes = turnkv.chain_hashes(packed(tokens), size)
        whole = len(hashes) // 32
        tail = len(tokens) - whole * size if self.session is not None else 0  # found again through its session only
        if tail:
            hashes += turnkv.chain_hashes(packed(tokens[whole * size :]), tail, hashes[-32:] or None)
        self._keep_near(pages, hashes, whole * size + tail)
        kept = self._store_pages(pages, hashes, whole * size + tail, min(self._known_pages, whole), durable)
        tail = tail if kept * 32 == len(hashes) else 0
        self.turn.tokens_offloaded = min(kept, whole) * size + tail
        if self.session is not None:
            pages.end_turn(self.session, hashes[: kept * 32], tail_tokens=tail, **hints)

    def _store_pages(self, pages: turnkv.Namespace, hashes: bytes, tokens: int, first: int, durable: bool) -> int:
        """Offloads the pages of the first `tokens` tokens from page `first` on; how many leading ones the pool has then."""
        skipped = first * self._shape.page_tokens
        if skipped == tokens:
            self.turn.pages_present += first
            return first
        report = self._send(
            pages,
            hashes[first * 32 :],
            skipped,
            tokens,
            session=self.session,
            parent=hashes[(first - 1) * 32 : first * 32] if first else None,
            durable=durable,
            wait_ms=self._wait_ms,
            deadline_ms=self._deadline_ms,
        )
        done = report.stored + report.present
        if first and done == 0 and report.first_decline == "no_parent":
            return self._store_pages(pages, hashes, tokens, 0, durable)  # what begin() found is gone since
        self.turn.pages_present += first
        self._count(report)
        return first + done

    def _count(self, report: turnkv.OffloadReport) -> None:
        self.turn.pages_stored += report.stored
        self.turn.pages_copied += report.stored
        self.turn.pages_present += report.present
        self.turn.pages_declined += report.declined
        self.turn.durable = report.durable
        if report.not_durable is not None:
            self.turn.misses[f"not_durable:{report.not_durable}"] += 1
        if report.declined:
            self.turn.misses[f"declined:{report.first_decline}"] += report.declined

    # ---- what is fit to be kept -----------------------------------------------------------------------------------

    def _cached_tokens(self, tokens: array.array[int]) -> array.array[int]:
        """The tokens whose K and V this cache holds; ValueError when they cannot be `tokens`."""
        cached = self.get_seq_length()
        if len(tokens) < cached:
            raise ValueError(f"end_turn needs all {cached} tokens of this cache (prompt and reply), it got {len(tokens)}")
        same = min(cached, len(self._prompt))
        if tokens[:same] != self._prompt[:same] and not self.witness.same([tokens[:cached]]):
            raise ValueError("end_turn was given tokens that are not those begin() started with")
        return tokens[:cached]

    def _unfit(self) -> str | None:
        """Why this cache's content cannot be kept as one sequence's pages; None when it can."""
        shape = self._shape
        expected: tuple[int, ...] | None = None
        for layer in self.layers:
            if not layer.is_initialized or layer.keys is None or layer.keys.numel() == 0:
                return "empty"
            expected = expected or (1, shape.kv_heads, layer.keys.shape[-2], shape.head_dim)
            if layer.keys.shape[0] != 1:
                return "batch"
            if tuple(layer.keys.shape) != expected or tuple(layer.values.shape) != expected:
                return "shape"
            if layer.keys.dtype != shape.dtype or layer.values.dtype != shape.dtype:
                return "dtype"
        return None

    # ---- the pool -------------------------------------------------------------------------------------------------

    def _named(self) -> str:
        if self.session is None:
            raise ValueError("this cache has no session")
        return self.session

    def _tell(self, work: Any) -> bool:
        self._named()
        try:
            self._door.call(work)
            return True
        except turnkv.Error as error:
            self.totals.misses[f"error:{error.kind}"] += 1
            return False


def shape_of(model: torch.nn.Module, page_tokens: int) -> Shape:
    """What a page of `model` is made of; `Unsupported` for what this form cannot keep."""
    if not isinstance(page_tokens, int) or not 1 <= page_tokens <= 4096:
        raise ValueError(f"page_tokens must be 1 to 4096, not {page_tokens!r}")
    shapes = layer_shapes(model)
    cache = DynamicCache(config=config_of(model))
    others = sorted({type(layer).__name__ for layer in cache.layers if type(layer) is not DynamicLayer})
    shape = shapes[0]
    if others or shape is None or None in shapes:
        raise Unsupported(
            f"this form keeps full attention in all layers only, this model's cache has {', '.join(others) or 'shared layers'}: "
            "models on the CPU have another form, without legacy=True and device; else use transformers' own DynamicCache"
        )
    if len(set(shapes)) > 1:
        raise Unsupported(
            "the layers of this model keep K and V of different sizes, and pages of this form have one: models on the CPU have "
            "another form, without legacy=True and device; else use transformers' own DynamicCache"
        )
    return Shape(len(shapes), shape.kv_heads, shape.head_dim, page_tokens, shape.dtype)
