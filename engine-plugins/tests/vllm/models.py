"""Models for the tests: small, with random weights scaled so that every byte of K and V shows in the tokens.

Weights as most libraries initialise them (or vLLM's load_format="dummy") give nearly uniform logits: corrupt KV would
go unnoticed. Owns: writing model folders. Must not know: engines, pools.
"""

from __future__ import annotations

import json
import pathlib

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

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
    return write(Qwen3ForCausalLM(Qwen3Config(**COMMON, num_hidden_layers=4, num_attention_heads=8)), folder)


def write_grouped(folder: pathlib.Path) -> pathlib.Path:
    """The same with 4 KV heads, which four ranks can share out."""
    torch.manual_seed(0)
    sizes = COMMON | {"num_key_value_heads": 4}
    return write(Qwen3ForCausalLM(Qwen3Config(**sizes, num_hidden_layers=4, num_attention_heads=8)), folder)


def write_wide(folder: pathlib.Path) -> pathlib.Path:
    """Qwen3 with about 40 million parameters: slow enough to prefill that a reload shows."""
    torch.manual_seed(0)
    sizes = COMMON | {"hidden_size": 512, "intermediate_size": 1536, "num_key_value_heads": 4}
    return write(Qwen3ForCausalLM(Qwen3Config(**sizes, num_hidden_layers=10, num_attention_heads=8)), folder)


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
    return write(Gemma3ForCausalLM(config), folder)


def write_mla(folder: pathlib.Path) -> pathlib.Path:
    """DeepSeek V2 with 2 dense layers of multi-head latent attention, of the one size that CPU kernels know."""
    torch.manual_seed(0)
    sizes = {key: value for key, value in COMMON.items() if key not in ("head_dim", "num_key_value_heads")}
    config = DeepseekV2Config(
        **sizes,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=64,
        v_head_dim=64,
        first_k_dense_replace=2,
        n_routed_experts=2,
        n_shared_experts=1,
        num_experts_per_tok=1,
        moe_intermediate_size=64,
    )
    return write(DeepseekV2ForCausalLM(config), folder)


def alter(source: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The same model, but for one key projection: a fine-tune that a few samples of the file would not see."""
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "layers.0.self_attn.k_proj" in name)
    weights[name] = -weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write(model: PreTrainedModel, folder: pathlib.Path) -> pathlib.Path:
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
