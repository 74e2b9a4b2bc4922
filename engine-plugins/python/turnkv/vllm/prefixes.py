"""Whether this engine can go on from a prefix that it did not compute itself: what vLLM says of its own attention.

Owns: vLLM's statements, wherever it makes them. Must not know: pools, pages, requests.

vLLM 0.32 says it in seven places: the CPU's reference MLA (prefills as if nothing came before), RISC-V, layers that are not
causal, pooling over the whole prompt, Unlimited-OCR (what a token wrote depends on when), batch invariance of two back ends,
encoders. Loading a prefix there would give other tokens, and some store what no prefix determines.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import compat

UNFIT_BACKENDS = {"CPU_MLA": "its prefill does not attend to tokens that are there already"}
"""Attention back ends that state that they do prefills without context only, whatever the settings say."""


def unfit_reason(vllm_config: Any, kv_cache_config: Any) -> str | None:
    """Why no page may be stored or loaded here; None: this engine goes on from any prefix.

    Prefix caching that is off alone is no reason: a prefill in chunks goes on from a prefix as well, so a back end that is
    left with it can. `--no-enable-prefix-caching` of the user's therefore changes nothing.
    """
    for name in _backends(vllm_config):
        if name in UNFIT_BACKENDS:
            return f"attention back end {name}: {UNFIT_BACKENDS[name]}"
    for group in kv_cache_config.kv_cache_groups:
        for spec in compat.layer_specs(group.kv_cache_spec):
            if getattr(spec, "non_causal", False):
                return "layers of this model are not causal: K and V depend on tokens that come later"
            if getattr(spec, "rswa_window", None) is not None:
                return "R-SWA layers: K and V of generated tokens depend on more than the tokens before them"
    if not getattr(vllm_config.model_config, "is_prefix_caching_supported", True):
        return "vLLM says that this model does not support prefix caching"
    if vllm_config.cache_config.enable_prefix_caching:
        return None
    if not vllm_config.scheduler_config.enable_chunked_prefill:
        return "vLLM has turned off prefix caching and chunked prefill: its attention cannot go on from a prefix"
    if compat.is_batch_invariant():
        return "prefix caching is off for batch invariance"
    return None


def _backends(vllm_config: Any) -> Iterable[str]:
    """Names of the attention back ends that run in this process; none are known where no worker is."""
    layers = getattr(getattr(vllm_config, "compilation_config", None), "static_forward_context", None) or {}
    for layer in layers.values():
        backend = getattr(layer, "attn_backend", None)
        if backend is not None:
            yield str(backend.get_name())
