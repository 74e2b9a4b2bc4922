"""Trains a small language model on the text of this tree for some minutes, and writes the KV cache of a long prompt to files.

There is one for each type of value. Codecs are measured on them beside made-up values (`target/release/codec --file ...`).

    .venv/bin/python benches/kv/train.py target/kv --minutes 5

A file is pages one after another, each as an engine has it: of so many tokens all layers, K before V; bytes of a page are printed.

Owns: the model and its training. Must not know: codecs.
"""

import argparse
import pathlib
import time

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

SUFFIXES = {".md", ".rs", ".py", ".toml", ".proto"}
CONTEXT_TOKENS = 512
BATCH = 8
TYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8-e4m3": torch.float8_e4m3fn,
    "fp8-e5m2": torch.float8_e5m2,
}
"""Names of the files, and what is in them."""


def text() -> torch.Tensor:
    """Every byte of the tree's sources is a token."""
    tree = pathlib.Path(__file__).resolve().parents[2]
    folders = [tree / name for name in ("docs", "server", "client", "tests", "engine-plugins", "benches")]
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in SUFFIXES)
    joined = b"\n".join(path.read_bytes() for path in files)
    return torch.frombuffer(bytearray(joined), dtype=torch.uint8).long()


def make_model() -> LlamaForCausalLM:
    """Six layers of grouped heads, as larger models have them."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=8192,
    )
    return LlamaForCausalLM(config)


def train(model: LlamaForCausalLM, tokens: torch.Tensor, minutes: float) -> None:
    """Until the time is over, with a rate that falls to nothing."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    start, step = time.monotonic(), 0
    while (passed := (time.monotonic() - start) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 50) * (1 - passed)
        starts = torch.randint(len(tokens) - CONTEXT_TOKENS - 1, (BATCH,))
        batch = torch.stack([tokens[at : at + CONTEXT_TOKENS] for at in starts])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.2f}, {100 * passed:.0f} % of the time", flush=True)
        step += 1
    print(f"{step} steps, loss {loss.item():.2f}")


def dump(model: LlamaForCausalLM, tokens: torch.Tensor, folder: pathlib.Path, prompt_tokens: int, page_tokens: int) -> None:
    """The pages of a prompt, in every type."""
    cache = DynamicCache()
    with torch.no_grad():
        model(input_ids=tokens[:prompt_tokens][None], past_key_values=cache, use_cache=True)
    halves = [half[0] for layer in cache.layers for half in (layer.keys, layer.values)]
    folder.mkdir(parents=True, exist_ok=True)
    for name, dtype in TYPES.items():
        pages = [
            torch.cat([half[:, start : start + page_tokens].to(dtype).contiguous().view(torch.uint8).flatten() for half in halves])
            for start in range(0, prompt_tokens - page_tokens + 1, page_tokens)
        ]
        path = folder / f"{name}.kv"
        path.write_bytes(torch.cat(pages).numpy().tobytes())
        print(f"{path}: {len(pages)} pages of {len(pages[0]) >> 10} KiB")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="where the files go")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=4096)
    parser.add_argument("--page-tokens", type=int, default=64)
    arguments = parser.parse_args()
    model, tokens = make_model(), text()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, {len(tokens) / 1e6:.1f} MB of text")
    train(model, tokens, arguments.minutes)
    dump(model.eval(), tokens[len(tokens) // 2 :], arguments.folder, arguments.prompt_tokens, arguments.page_tokens)


if __name__ == "__main__":
    main()
