"""Which layers of a model share a span, what their pages are made of, and their namespace.

Owns: looking at what a model's layers keep. Must not know: the pool, memory.
"""

from __future__ import annotations

import hashlib
import mmap
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from .common import DTYPES, Unsupported, config_of
from .group import GroupShape

PIECE_BYTES = 32 << 10
"""K of one head in one page should have so many bytes: larger pieces need fewer mappings, smaller ones waste less."""
PAGE_TOKENS_USUAL_MAX = 128
"""Pages are not made larger than this for the sake of `PIECE_BYTES`."""
KEPT_KINDS = frozenset({"DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer"})
"""transformers' layers that can be kept, and those that have nothing to keep."""
WAY_OUT = "use transformers' own DynamicCache for it"


_looked: weakref.WeakKeyDictionary[torch.nn.Module, tuple[torch.dtype, list[LayerShape | None]]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class LayerShape:
    """What a layer keeps of a token."""

    kv_heads: int
    head_dim: int
    dtype: torch.dtype


def layer_shapes(model: torch.nn.Module) -> list[LayerShape | None]:
    """What each layer of a model keeps, as one forward of one token shows; None for layers that use another one's K and V.

    Configurations name this in many ways, and some models keep more or less than they say. Done once a model.
    """
    dtype = next(model.parameters()).dtype
    if model not in _looked or _looked[model][0] != dtype:
        config = config_of(model).get_text_config(decoder=True)
        if getattr(config_of(model), "is_encoder_decoder", False):
            raise Unsupported("encoder-decoder models are not supported: their cache depends on more than the token prefix")
        cache = DynamicCache(config=config_of(model))
        others = sorted({type(layer).__name__ for layer in cache.layers} - KEPT_KINDS)
        if others:
            raise Unsupported(
                f"only full and sliding-window attention is supported, this model's cache has {', '.join(others)}: {WAY_OUT}"
            )
        token = torch.zeros((1, 1), dtype=torch.long, device=next(model.parameters()).device)
        with torch.no_grad():
            model(input_ids=token, attention_mask=torch.ones_like(token), past_key_values=cache, use_cache=True)
        shapes = [_layer_shape(layer) for layer in cache.layers]
        if shapes[:1] in ([], [None]):
            raise Unsupported(f"this model keeps nothing in its first layer: {WAY_OUT}")
        _looked[model] = dtype, shapes + [None] * (config.num_hidden_layers - len(shapes))
    return _looked[model][1]


def _layer_shape(layer: Any) -> LayerShape | None:
    if layer.keys is None:
        return None
    (_, heads, _, head_dim), values = layer.keys.shape, layer.values.shape
    if tuple(values) != tuple(layer.keys.shape):
        raise Unsupported(
            f"K of {heads} heads of {head_dim} and V of {values[1]} heads of {values[3]} have different sizes, as in "
            f"multi-head latent attention, and a page here has one: {WAY_OUT}"
        )
    if layer.keys.dtype not in DTYPES:
        raise Unsupported(f"K and V of {layer.keys.dtype} are not supported: load the model as bfloat16, float16 or float32")
    return LayerShape(heads, head_dim, layer.keys.dtype)


def group_shapes(model: torch.nn.Module, page_tokens: int | None, sink: int, window: int | None) -> list[GroupShape]:
    """The groups of a model's layers, the one that knows how long a session is first."""
    found = layer_shapes(model)
    layers = DynamicCache(config=config_of(model)).layers
    if (window is None) != (sink == 0) and window is None:
        raise ValueError("sink goes with window: what is kept are the first `sink` and the last `window` tokens")
    if window is not None and (window < 1 or sink < 0):
        raise ValueError("window is at least 1 token, sink at least 0")
    members: dict[tuple[int | None, LayerShape], list[int]] = {}
    for at, shape in enumerate(found):
        if shape is not None:
            members.setdefault((getattr(layers[at], "sliding_window", None), shape), []).append(at)
    if window is not None and (len(members) > 1 or next(iter(members))[0] is not None):
        raise Unsupported(
            "sink and window trim models whose layers are all of full attention and of one size: this one's are not"
        )
    size = _page_tokens(page_tokens, {shape for _, shape in members})
    shapes = []
    for (own, shape), numbers in sorted(members.items(), key=lambda item: item[0][0] is not None):
        kept = window if own is None else own
        shapes.append(
            GroupShape(
                tuple(numbers),
                shape.kv_heads,
                shape.head_dim,
                size,
                shape.dtype,
                window=kept,
                exact=own is not None,
                sink_pages=-(-sink // size) if own is None and window is not None else 0,
            )
        )
    return shapes


def specification(shape: GroupShape, model: str, tenant: str, salt: bytes) -> dict[str, Any]:
    """The namespace of a group's pages: also which layers they are of, and what was forgotten when they were made."""
    kept = ("layers", shape.layers, "window", shape.window, "sinks", shape.sink_pages, "exact", shape.exact)
    digest = hashlib.sha256(repr(kept).encode() + b"\0" + salt).digest()
    return {
        "model": model,
        "dtype": DTYPES[shape.dtype],
        "layers": len(shape.layers),
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "page_tokens": shape.page_tokens,
        "tenant": tenant,
        "salt": digest,
        "layout": "layer_kv_head_token" if shape.by_head else "layer_kv_token_head",
    }


def _page_tokens(asked: int | None, shapes: set[LayerShape]) -> int:
    """Tokens of a page: K of one layer in it must be whole memory pages, or it could not be mapped by itself."""
    heads = [shape.head_dim * shape.dtype.itemsize for shape in shapes]
    tokens = sorted({shape.kv_heads * shape.head_dim * shape.dtype.itemsize for shape in shapes})
    if asked is not None:
        if not isinstance(asked, int) or not 1 <= asked <= 4096:
            raise ValueError(f"page_tokens must be 1 to 4096, not {asked!r}")
        if not _are_whole(asked, tokens):
            fit = next((n for n in range(asked, 4097) if _are_whole(n, tokens)), 4096)
            raise ValueError(
                f"{asked} tokens of {' and '.join(map(str, tokens))} bytes (K of one layer) are not whole memory pages of "
                f"{mmap.PAGESIZE}: page_tokens={fit} are; or use legacy=True"
            )
        return asked
    size = 16
    while size < PAGE_TOKENS_USUAL_MAX and size * min(heads) < PIECE_BYTES:
        size *= 2
    while size < 4096 and not _are_whole(size, tokens):
        size *= 2
    if not _are_whole(size, tokens):
        raise Unsupported(f"K and V of {tokens} bytes a token do not make whole memory pages: use legacy=True")
    return size


def _are_whole(size: int, token_bytes: list[int]) -> bool:
    return all(size * each % mmap.PAGESIZE == 0 for each in token_bytes)
