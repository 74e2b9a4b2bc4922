"""Tiny checkpoints with random weights, scaled so that every byte of K and V shows in the tokens.

SGLang's own dummy weights repeat two tokens whatever the cache holds. Owns: their files. Must not know: engines.
"""

from __future__ import annotations

import json
import pathlib

import torch
from safetensors.torch import save_file

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 4, 256, 8, 2, 64, 2048


def write_qwen3(folder: pathlib.Path, seed: int, layers: int = LAYERS, hidden: int = HIDDEN) -> pathlib.Path:
    """A Qwen3 of `layers` layers."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(seed)

    def weight(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * scale / columns**0.5

    tensors = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, hidden, generator=generator),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": weight(VOCABULARY, hidden, 3.0),
    }
    for layer in range(layers):
        at = f"model.layers.{layer}."
        tensors |= {
            f"{at}self_attn.q_proj.weight": weight(HEADS * HEAD_DIM, hidden),
            f"{at}self_attn.k_proj.weight": weight(KV_HEADS * HEAD_DIM, hidden),
            f"{at}self_attn.v_proj.weight": weight(KV_HEADS * HEAD_DIM, hidden, 4.0),
            f"{at}self_attn.o_proj.weight": weight(hidden, HEADS * HEAD_DIM, 4.0),
            f"{at}self_attn.q_norm.weight": torch.full((HEAD_DIM,), 2.0),
            f"{at}self_attn.k_norm.weight": torch.full((HEAD_DIM,), 2.0),
            f"{at}mlp.gate_proj.weight": weight(2 * hidden, hidden),
            f"{at}mlp.up_proj.weight": weight(2 * hidden, hidden),
            f"{at}mlp.down_proj.weight": weight(hidden, 2 * hidden),
            f"{at}input_layernorm.weight": torch.ones(hidden),
            f"{at}post_attention_layernorm.weight": torch.ones(hidden),
        }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_model(model: torch.nn.Module, folder: pathlib.Path) -> pathlib.Path:
    """A model of transformers, its matrices drawn anew."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                scale = 4.0 if "v_proj" in name or "o_proj" in name else 2.0
                weight.copy_(torch.randn(weight.shape, generator=generator) * scale / weight.shape[1] ** 0.5)
        embedding = model.get_input_embeddings().weight
        embedding.copy_(torch.randn(embedding.shape, generator=generator))
    model.save_pretrained(folder)
    return folder


def prompt(tokens: int, seed: int) -> list[int]:
    """Random tokens, never a special one."""
    return torch.randint(2, VOCABULARY, (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()
