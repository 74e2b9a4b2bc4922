"""The slab form of `TurnKVCache`: K and V lie in the pool's own memory, from the token that made them to turns that read them.

Owns: a turn of a batch of sessions: what is mapped at its begin, what is committed at its end. Must not know: places, slots.
No error of the pool leaves this module, but `MappingLost`: the model recomputes what did not come, and `cache.turn` says why.
"""

from __future__ import annotations

import array
import functools
import time
import warnings
from typing import Any

import torch
from transformers import DynamicCache

import turnkv
from turnkv._door import Door

from .cache import TurnKVCache
from .common import (
    TurnReport,
    Unsupported,
    config_of,
    named,
    one_sequence,
    refuse_gpu_settings,
    refuse_padding,
    say_no_pool,
    say_not_kept,
    say_refused,
)
from .group import GroupShape
from .guard import Guard
from .layers import SlabLayer
from .memory import GroupMemory
from .row import Row
from .shape import group_shapes, specification


class SlabCache(TurnKVCache, form="slab"):
    """See `TurnKVCache`, which looks at `legacy` and `device`."""

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
        refuse_gpu_settings(gpu_bytes)
        if wait_ms:
            raise ValueError("wait_ms is of the copying form: the slab form has its slots before the turn ends")
        sessions = session if isinstance(session, (list, tuple)) else [session]
        if not sessions or (len(sessions) > 1 and None in sessions) or len(set(sessions)) < len(sessions):
            raise ValueError("a batch needs one session a row, each with a name of its own")
        self._config = config_of(model)
        self._shapes = group_shapes(model, page_tokens, sink, window)
        self._pool = pool if isinstance(pool, turnkv.Pool) else turnkv.shared_pool(pool)
        self._tenant, self._salt = tenant, salt
        self._guard = Guard(model, model_id, len(sessions))
        config = config_of(model).get_text_config(decoder=True)
        longest: int = getattr(config, "max_position_embeddings", 32768)
        capacity = capacity_tokens or longest
        self._memory = GroupMemory(self._doors(), len(sessions), capacity)
        self.session = session
        self._rows = [Row(named(name), at, self._memory, self._shapes, deadline_ms) for at, name in enumerate(sessions)]
        self._durable = durable
        self._begun = [array.array("I") for _ in sessions]
        self.turn, self.totals = TurnReport(), TurnReport()
        super().__init__(layers=self._fresh_layers())
        self._guard.watch(self)

    # ---- what transformers asks -----------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> DynamicCache:
        """A plain `DynamicCache` with the same K and V: a copy belongs to no session."""
        if any(shape.window is not None for shape in self._shapes):
            raise ValueError("a cache that trims has no plain copy")
        copy = DynamicCache(config=self._config)
        if self.get_seq_length():
            targets: list[Any] = copy.layers
            for target, source in zip(targets, self.layers, strict=True):
                if isinstance(source, SlabLayer) and source.keys is not None and source.values is not None:
                    target.update(source.keys.clone(), source.values.clone())
        return copy

    def activate_past_recording(self) -> None:
        """What assisted decoding begins with; refused where it would go wrong."""
        self._guard.refuse_assistance()
        if any(shape.exact for shape in self._shapes):
            raise Unsupported("sliding layers keep no past: no assisted decoding or prompt lookup with them, or legacy=True")

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last tokens (a negative number, as in transformers); ValueError when trimmed ones would be needed."""
        tokens_to_remove = int(tokens_to_remove)  # transformers 5.17 gives a tensor
        for layer in self._slabs():
            layer.check_crop(tokens_to_remove)
        super().crop(tokens_to_remove)

    def reset(self) -> None:
        """As `drop`."""
        self.drop()

    # ---- the turn -------------------------------------------------------------------------------------------------

    def begin(self, input_ids: Any, attention_mask: torch.Tensor | None = None) -> int:
        """Starts a turn: empties this cache, then maps the leading pages of `input_ids` that the pool has.

        `input_ids`: the whole conversation so far as [1, tokens], [tokens] or a list of ints; for a batch [rows, tokens] or
        a list of such lists, all equally long. Returns how many tokens are in the cache now: 0 when nothing was found,
        never all of them (the last one's logits are needed). Give the model the rest, or give `generate` everything.
        `attention_mask`: give the one that `generate` gets, if any: padding is refused. Raises ValueError for input that
        cannot be served; a failing pool only shows in the report.
        """
        refuse_padding(attention_mask)
        prompts = self._sequences(input_ids)
        started = time.perf_counter()
        self.witness.reset(at_work=True)
        self._forget()
        self._begun = prompts
        self.turn = TurnReport(prompt_tokens=sum(map(len, prompts)))
        if self._guard.is_renamed():
            self._memory.rename(self._doors())
        known, why = self._guard.loadable(prompts)
        try:
            loaded = min(row.open(prompt, self.turn) for row, prompt in zip(self._rows, known, strict=True))
            loaded = self._load(known, loaded) if loaded else 0
        except turnkv.Error as error:
            self.turn.misses[f"error:{error.kind}"] += 1
            say_no_pool(error, stacklevel=2)
            loaded = 0
        if loaded == 0:
            self._forget()
            self.turn.tokens_from_dram = self.turn.tokens_from_nvme = self.turn.pages_mapped = 0
        self.turn.tokens_loaded = loaded * len(self._rows)
        self.witness.ready([prompt[:loaded] for prompt in prompts], why)
        self.turn.reload_ms = (time.perf_counter() - started) * 1e3
        return loaded

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
        """Ends a turn: every page becomes the pool's where it lies, and the partial tail too; then the memory is let go.

        `token_ids`: prompt and reply, as `generate` returns them; the last sampled token, which has no K and V yet, may be
        among them. The rest tells the pool about the wait: when the session should return, how long it may be kept
        (0: the pool's own rule), its priority, whether it is over. `keep` leaves the cache filled. Returns the turn's
        report. Raises ValueError for tokens that are not this cache's; a failing pool only shows in the report.
        """
        rows = self._sequences(token_ids)
        started = time.perf_counter()
        why = self.witness.broken(self.is_even())
        if why is None:
            rows = self._cached(rows)
            why = self._guard.why_not(rows)
        if why is not None:
            return self._skip(why, keep)
        hints = {"expected_return_ms": expected_return_ms, "ttl_ms": ttl_ms, "priority": priority, "last": last}
        wanted = self._durable if durable is None else durable
        self.turn.durable = wanted and bool(rows[0])
        for row, tokens in zip(self._rows, rows, strict=True):
            if not tokens:
                self.turn.misses["skipped:empty"] += 1
                continue
            try:
                for group in self._memory.groups.values():
                    group.check()
                row.store(tokens, wanted, keep, hints, self.turn)
            except turnkv.Error as error:
                if not self.turn.misses[f"error:{error.kind}"]:
                    say_refused(error, stacklevel=2)  # begin has not
                self.turn.misses[f"error:{error.kind}"] += 1
                self.turn.durable = False
        self._note_groups()
        self.turn.offload_ms = (time.perf_counter() - started) * 1e3
        self.totals.add(self.turn)
        if not keep:
            self.drop()
        for group in self._memory.groups.values():
            group.ours = group.length // group.shape.page_tokens + 1  # what others may read now is copied before it is written
        return self.turn

    def drop(self) -> None:
        """Empties this cache and gives its memory back; what the pool has stays there."""
        self._forget()
        self._begun = [array.array("I") for _ in self._rows]
        self.witness.reset()

    def fork(self, session: str) -> bool:
        """Makes `session` a new session that shares all this one's pages. False: the pool could not (counted)."""
        if self._shapes[0].window is not None:
            raise ValueError("a trimmed session's pages are its own: it cannot be forked")
        return self._tell(lambda pages, own: pages.fork(own, session))

    def supersede(self, keep_tokens: int) -> bool:
        """Says that the conversation was edited after `keep_tokens`: the pages of the old branch go first."""
        if keep_tokens < 0:
            raise ValueError("keep_tokens must not be negative")
        return self._tell(lambda pages, own: pages.supersede(own, keep_tokens // self._shapes[0].page_tokens))

    def close(self) -> bool:
        """Says that the session will not return."""
        return self._tell(lambda pages, own: pages.close(own))

    def prefetch(self) -> bool:  # type: ignore[override]  # as in `TurnKVCache`
        """Brings the session's pages into DRAM ahead of its turn."""
        return self._tell(lambda pages, own: pages.prefetch(session=own))

    def counts(self) -> dict[str, int]:
        """What was mapped, reserved, committed and copied since this cache was made, and what is mapped now."""
        totals: dict[str, int] = {}
        for group in self._memory.groups.values():
            for name, value in (group.span.counts() if group.span is not None else {}).items():
                totals[name] = totals.get(name, 0) + value
        return totals

    # ---- inside ---------------------------------------------------------------------------------------------------

    def is_even(self) -> bool:
        """Whether all layers have K and V of the same tokens, whole."""
        slabs = self._slabs()
        return len({layer.get_seq_length() for layer in slabs}) == 1 and all(layer.is_whole() for layer in slabs)

    def _slabs(self) -> list[SlabLayer]:
        return [layer for layer in self.layers if isinstance(layer, SlabLayer)]

    def _doors(self) -> dict[GroupShape, Door]:
        name = self._guard.name
        return {s: Door(self._pool, specification(s, name, self._tenant, self._salt)) for s in self._shapes}

    def _fresh_layers(self) -> list[Any]:
        layers: list[Any] = DynamicCache(config=self._config).layers  # those that keep nothing stay as they are
        for shape in self._shapes:
            for number, layer in enumerate(shape.layers):
                layers[layer] = SlabLayer(shape, number, self._memory.find)
        return layers

    def _skip(self, why: str, keep: bool) -> TurnReport:
        """Ends a turn of which nothing can be kept."""
        self.turn.misses[f"skipped:{why}"] += 1
        say_not_kept(why, stacklevel=3)
        self.totals.add(self.turn)
        if not keep:
            self.drop()
        return self.turn

    def _load(self, prompts: list[array.array[int]], tokens: int) -> int:
        """Maps `tokens` tokens of every row, or fewer; what a group cannot have, none has."""
        if len(self._rows) > 1 and self._shapes[0].window is not None and len({row.found for row in self._rows}) > 1:
            self.turn.misses["skipped:rows"] += 1
            return 0
        groups = [self._memory.find(shape) for shape in self._shapes]
        for group in groups:
            loaded = min(row.load(group, prompt, tokens, self.turn) for row, prompt in zip(self._rows, prompts, strict=True))
            if loaded < tokens and (group.shape.window is not None or group is not groups[0]):
                return 0
            tokens = loaded
        for group in groups:
            size = group.shape.page_tokens
            group.first, group.ours = group.shape.first(tokens), -(-tokens // size)
            group.ready = -(-group.shape.kept(tokens) // size)
            if group is groups[0]:
                for row in range(group.rows):  # rows keep in step: what one has more is given back
                    group._vacate(row, group.ready, group.places - group.ready)
        for layer in self._slabs():
            layer.attach(self._memory.find(layer.shape))
            layer.load(tokens)
        return tokens

    def _forget(self) -> None:
        """Gives back what is mapped. A group that lost its pool is made anew."""
        for shape, group in list(self._memory.groups.items()):
            group.release()
            group.members.clear()
            if group.span is None:
                del self._memory.groups[shape]
        for at, layer in enumerate(self._fresh_layers()):
            self.layers[at] = layer

    def _sequences(self, ids: Any) -> list[array.array[int]]:
        if len(self._rows) == 1:
            return [one_sequence(ids)]
        rows = [one_sequence(row) for row in ids]
        if len(rows) != len(self._rows):
            raise ValueError(f"{len(rows)} rows of tokens for {len(self._rows)} sessions")
        if len({len(row) for row in rows}) > 1:
            raise ValueError("the rows of a batch must be equally long: pad nothing, and begin shorter rows by themselves")
        return rows

    def _cached(self, rows: list[array.array[int]]) -> list[array.array[int]]:
        """The tokens whose K and V this cache holds; ValueError when they cannot be these."""
        cached = self.get_seq_length()
        for tokens, begun in zip(rows, self._begun, strict=True):
            if len(tokens) < cached:
                raise ValueError(f"end_turn needs all {cached} tokens of this cache (prompt and reply), it got {len(tokens)}")
            same = min(cached, len(begun))
            if tokens[:same] != begun[:same] and not self.witness.same([row[:cached] for row in rows]):
                raise ValueError("end_turn was given tokens that are not those begin() started with")
        return [tokens[:cached] for tokens in rows]

    def _note_groups(self) -> None:
        for group in self._memory.groups.values():
            self.turn.tails_copied += group.owned
            group.owned = 0
            if group.why is not None:
                self.turn.misses[group.why] += 1
                if group.why in ("error:invalid", "error:limit"):
                    warnings.warn(
                        "the pool's memory cannot be mapped here (another data plane, reserved huge pages, or vm.max_map_count "
                        "reached): pages are copied",
                        stacklevel=3,
                    )
                group.why = None

    def _tell(self, work: Any) -> bool:
        done = True
        for row in self._rows:
            if row.session is None:
                raise ValueError("this cache has no session")
            try:
                self._memory.doors[self._shapes[0]].call(functools.partial(work, own=row.session))
            except turnkv.Error as error:
                self.totals.misses[f"error:{error.kind}"] += 1
                done = False
        return done
