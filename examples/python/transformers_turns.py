"""Three turns of a small model with random weights, whose K and V wait in a pool.

    python examples/python/transformers_turns.py                                   a private pool is started
    python examples/python/transformers_turns.py unix:/run/turnkv/turnkv.sock      that one is used

Owns: one conversation. Must not know: pages.
"""

from __future__ import annotations

import sys

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from turnkv.transformers import TurnKVCache


def main(pool: str | None) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = Qwen3ForCausalLM(config).eval()
    chat = torch.randint(0, 512, (1, 300))
    for turn in range(1, 4):
        cache = TurnKVCache(model, session="chat-1", pool=pool)
        found = cache.begin(chat)
        out = model.generate(chat, past_key_values=cache, max_new_tokens=40, attention_mask=torch.ones_like(chat))
        report = cache.end_turn(out)
        print(f"turn {turn}: {found} of {chat.shape[1]} tokens were there; {report.pages_in_place} pages kept in place")
        chat = torch.cat([out, torch.randint(0, 512, (1, 20))], dim=1)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
