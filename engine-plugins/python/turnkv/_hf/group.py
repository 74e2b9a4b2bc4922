"""Layers whose pages lie side by side in one span: places, tokens, what is kept of a long sequence.

Owns: which tokens are at which place, reserving and trimming, private memory where the pool gives none. Must not know: token
ids, hashes, sessions.

A row's places, in units of pages: the sink pages, then the window's, always next to each other, so that K of a layer is one
strided view. Trimming drops the window's first page and maps the sink pages one place further; no byte moves.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from typing import Any

import torch

import turnkv

from .common import MappingLost

AHEAD_TOKENS = 128
"""Slots reserved ahead of need, so that decoding asks the pool seldom."""
MAP_NORESERVE = 0x4000
"""Of Linux; Python has no name for it. Memory that costs nothing until it is written."""
RESERVE_MS = 500
"""How long decoding may wait for slots, once a turn: after that the turn goes on in private memory."""


@dataclass(frozen=True)
class GroupShape:
    """What a page of these layers is made of, and what is kept."""

    layers: tuple[int, ...]
    kv_heads: int
    head_dim: int
    page_tokens: int
    dtype: torch.dtype
    window: int | None = None
    """Tokens at the end that are kept; None: all."""
    sink_pages: int = 0
    exact: bool = False
    """The model itself sees a window only (sliding attention): older tokens that share a page with it stay hidden."""

    @property
    def token_bytes(self) -> int:
        return self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def by_head(self) -> bool:
        """Each head's part of K in a page is whole memory pages, and is mapped by itself. Then the tokens of a head lie one
        after another, which attention reads faster than rows of all heads (4,000 tokens, 64 wide: 1.2 to 1.8 times)."""
        return self.page_tokens * self.head_dim * self.dtype.itemsize % mmap.PAGESIZE == 0

    @property
    def pieces(self) -> int:
        """Into how many parts a page is cut to be mapped."""
        return len(self.layers) * 2 * (self.kv_heads if self.by_head else 1)

    @property
    def needed(self) -> int:
        """Tokens before the next one that the window must have."""
        return max((self.window or 1) - self.exact, 0)

    @property
    def pages_max(self) -> int:
        """Pages that are kept at most; only with a window."""
        return self.sink_pages + -(-self.needed // self.page_tokens) + 1

    def first(self, length: int) -> int:
        """The first page after the sinks that is kept when `length` tokens were seen."""
        if self.window is None:
            return self.sink_pages
        return max(self.sink_pages, (length - self.needed) // self.page_tokens)

    def kept(self, length: int) -> int:
        """Tokens that are kept, in whole pages, when `length` were seen."""
        return length - (self.first(length) - self.sink_pages) * self.page_tokens

    def visible(self, length: int) -> int:
        """Tokens that the next one sees, when `length` were seen."""
        return min(length, self.needed) if self.exact else self.kept(length)


class Group:
    """The rows of one span."""

    def __init__(self, shape: GroupShape, namespace: turnkv.Namespace | None, rows: int, capacity: int) -> None:
        self.shape, self.rows = shape, rows
        size = shape.page_tokens
        self.places = -(-capacity // size) + 1 if shape.window is None else 2 * shape.pages_max + 64
        layers = len(shape.layers)
        self.span: turnkv.Span | None = None
        memory: Any
        if namespace is not None:
            self.span = turnkv.Span(namespace, rows, self.places, shape.pieces)
            memory = (ctypes.c_char * self.span.bytes).from_address(self.span.address)
            memory._owner = self.span.memory()  # views keep the address range
            flat = torch.frombuffer(memory, dtype=shape.dtype)
        else:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
            memory = mmap.mmap(-1, layers * 2 * rows * self.places * size * shape.token_bytes, flags=flags)
            flat = torch.frombuffer(memory, dtype=shape.dtype)
        tokens = self.places * size
        if shape.by_head:
            self.kv = flat.view(layers * 2, shape.kv_heads, rows, tokens, shape.head_dim).transpose(1, 2)
        else:
            self.kv = flat.view(layers * 2, rows, tokens, shape.kv_heads, shape.head_dim).transpose(2, 3)
        """K of layer 0, V of layer 0, K of layer 1, ...: each [rows, kv heads, tokens, head dim]."""
        self.start = 0  # place of the first kept page
        self.first = shape.sink_pages  # page number of the first one after the sinks
        self.ready = 0  # pages, from `start` on, that can be written or read
        self.ours = 0  # page number from which on pages are this turn's own
        self.length = 0  # tokens that room was made for
        self.spilled = self.span is None
        self.why: str | None = None
        self.owned = 0
        self.fits = True
        self.members: list[Any] = []  # weak references to the layers
        self.torn = False  # places are being changed; true for good if that was interrupted, until `release`
        self._process = os.getpid()

    def place_of(self, page: int) -> int:
        """Where a kept page is."""
        return self.start + (page if page < self.shape.sink_pages else page - self.first + self.shape.sink_pages)

    def token_at(self, length: int) -> int:
        """Where, in the views' tokens, the token with number `length` is or goes."""
        page, rest = divmod(length, self.shape.page_tokens)
        return self.place_of(page) * self.shape.page_tokens + rest

    def check(self) -> None:
        """Raises if what is mapped is not this process's, or not to be trusted."""
        if os.getpid() != self._process:
            raise RuntimeError("this cache belongs to the process that made it: a forked child makes its own")
        if self.span is not None and self.span.is_lost():
            raise MappingLost("the pool took back pages that this turn reads: start the turn again with begin()")

    def prepare(self, length: int, count: int) -> bool:
        """Makes room for `count` tokens after `length`. False: more than is ever kept; they are stored by `settle`."""
        self.check()
        self.torn = True
        self.length = length + count
        self.trim(self.shape.first(length))
        fits = self.shape.window is None or self.shape.kept(length) + count <= self.shape.pages_max * self.shape.page_tokens
        if fits:
            self._own(length)
            self._room(length + count)
        self.torn = False
        return fits

    def settle(self, length: int) -> None:
        """Makes room for what is kept of `length` tokens."""
        before = self.length
        self.torn = True
        self.trim(self.shape.first(length))
        if not self.shape.sink_pages <= before // self.shape.page_tokens < self.first:
            self._own(before)  # its page is kept
        self._room(length)
        self.torn = False

    def trim(self, first: int) -> None:
        """Drops the pages after the sinks up to page `first`."""
        sinks = self.shape.sink_pages
        dropped, window = first - self.first, self.ready - sinks
        if dropped <= 0:
            return
        self.first = first
        gone = max(min(dropped, window), 0)
        if gone == 0:
            return
        for row in range(self.rows):
            self._vacate(row, self.start + sinks, gone)
            if gone < window and sinks:
                self._move(row, self.start, self.start + gone, sinks)
        self.start += gone if gone < window else 0
        self.ready -= gone

    def drop_after(self, length: int) -> None:
        """Gives up what comes after `length` tokens."""
        self.torn = True
        pages = -(-length // self.shape.page_tokens)
        keep = max(self.place_of(pages) - self.start, 0) if pages else 0
        for row in range(self.rows):
            self._vacate(row, self.start + keep, self.ready - keep)
        self.ready = min(self.ready, keep)
        self.length = length
        self.ours = min(self.ours, pages)
        self.torn = False

    def release(self) -> None:
        """Gives everything back to the pool."""
        if self.span is not None and os.getpid() == self._process:
            self.span.release()
        self.start, self.first, self.ready, self.ours, self.length = 0, self.shape.sink_pages, 0, 0, 0
        self.spilled, self.why, self.owned, self.torn = self.span is None, None, 0, False

    # ---- places ---------------------------------------------------------------------------------------------------

    def _room(self, length: int) -> None:
        """Every place that `length` tokens need can be written."""
        size, tokens = self.shape.page_tokens, self.token_at(length)
        missing = -(-tokens // size) - self.start - self.ready
        if missing <= 0:
            return
        if self.start + self.ready + missing > self.places:
            if self.shape.window is None:
                raise ValueError(
                    f"a sequence of {length} tokens does not fit: this cache was made for {(self.places - 1) * size}; "
                    "give TurnKVCache a larger capacity_tokens"
                )
            for row in range(self.rows):
                self._move(row, self.start, 0, self.ready)
            self.start = 0
        ahead = min(-(-AHEAD_TOKENS // size), self.places - self.start - self.ready - missing)
        wanted = missing + (max(ahead, 0) if self.shape.window is None else 0)
        at = self.start + self.ready
        got = wanted if self.spilled else min(self._reserve(row, at, wanted) for row in range(self.rows))
        if got < wanted and not self.spilled:
            for row in range(self.rows):
                self._vacate(row, at + got, wanted - got)  # rows keep in step
        if got < missing:
            self.spill("declined:no_space")
        self.ready += max(got, missing)

    def spill(self, why: str) -> None:
        """The rest of this turn is in private memory, and is copied at its end."""
        self.why = self.why or why
        self.spilled = True

    def _reserve(self, row: int, place: int, count: int) -> int:
        assert self.span is not None
        try:
            return self.span.reserve(row, place, count, RESERVE_MS)
        except turnkv.Error as error:
            self.spill(f"error:{error.kind}")
            return 0

    def _own(self, length: int) -> None:
        """The page that the next token goes to may be written: what others may read is copied first."""
        page = length // self.shape.page_tokens
        if page >= self.ours or length % self.shape.page_tokens == 0 or self.span is None:
            self.ours = min(self.ours, page)
            return
        place = self.place_of(page)
        for row in range(self.rows):
            try:
                done = not self.spilled and self.span.own(row, place, RESERVE_MS)
            except turnkv.Error as error:
                self.spill(f"error:{error.kind}")
                done = False
            if not done:
                kept = self._at(row, place, 1).clone()
                self.span.vacate(row, place, 1)
                self._at(row, place, 1).copy_(kept)
                self.spill("declined:no_space")
            self.owned += 1
        self.ours = page

    def _at(self, row: int, place: int, count: int) -> torch.Tensor:
        size = self.shape.page_tokens
        return self.kv[:, row, :, place * size : (place + count) * size]

    def _vacate(self, row: int, place: int, count: int) -> None:
        if self.span is not None and count > 0:
            self.span.vacate(row, place, count)

    def _move(self, row: int, source: int, target: int, count: int) -> None:
        """Maps pages elsewhere; private ones, which lie in no slot, are copied."""
        if source == target or count == 0:
            return
        if self.span is None:
            self._at(row, target, count).copy_(self._at(row, source, count).clone())
            return
        private = [at for at in range(count) if self.span.run(row, source + at, 1)[1] == "empty"]
        kept = [self._at(row, source + at, 1).clone() for at in private]
        self.span.shift(row, source, target, count)
        for at, pages in zip(private, kept, strict=True):
            self._at(row, target + at, 1).copy_(pages)
