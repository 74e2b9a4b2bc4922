"""Models for the tests: small, with random weights scaled so that every byte of K and V shows in the tokens.

Weights as most libraries initialise them (or vLLM's load_format="dummy") give nearly uniform logits: corrupt KV would
go unnoticed. Owns: writing model folders. Must not know: engines, pools.
"""

from __future__ import annotations

import json
import pathlib

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 4096
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 32768,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
WINDOW = 128


def write_plain(folder: pathlib.Path, seed: int = 0) -> pathlib.Path:
    """Qwen3 with 4 layers of full attention."""
    torch.manual_seed(seed)
    return _write(Qwen3ForCausalLM(Qwen3Config(**COMMON, num_hidden_layers=4, num_attention_heads=8)), folder)


def write_wide(folder: pathlib.Path) -> pathlib.Path:
    """Qwen3 with about 40 million parameters: slow enough to prefill that a reload shows."""
    torch.manual_seed(0)
    sizes = COMMON | {"hidden_size": 512, "intermediate_size": 1536, "num_key_value_heads": 4}
    return _write(Qwen3ForCausalLM(Qwen3Config(**sizes, num_hidden_layers=10, num_attention_heads=8)), folder)


def write_hybrid(folder: pathlib.Path) -> pathlib.Path:
    """Gemma 3 with sliding-window layers and a full one: two kinds of KV cache groups."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        **COMMON,
        num_hidden_layers=6,
        num_attention_heads=4,
        sliding_window=WINDOW,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
        query_pre_attn_scalar=64,
    )
    return _write(Gemma3ForCausalLM(config), folder)


def _write(model: PreTrainedModel, folder: pathlib.Path) -> pathlib.Path:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                gain = 1.0 if "embed" in name else 4.0 if ("v_proj" in name or "o_proj" in name) else 2.0
                weight.normal_(0, gain / weight.shape[1] ** 0.5)
        embedding = model.get_input_embeddings().weight
        embedding.normal_(0, 1.0)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    return folder
