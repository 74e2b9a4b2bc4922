"""A checkpoint's files as the name of its weights: engines that load the same files share pages, wherever the files lie.

Owns: finding a checkpoint on this host, digesting it. Must not know: engines, pools. (`fingerprint` names a model in memory.)
"""

from __future__ import annotations

import hashlib
import logging
import pathlib

logger = logging.getLogger("turnkv.checkpoint")

SAMPLES = 64
SAMPLE_BYTES = 4096
"""Of each weight file: so many pieces, evenly spread."""
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def checkpoint_folder(model: str, revision: str | None) -> pathlib.Path | None:
    """Where a checkpoint lies on this host: the folder `model`, that of the file `model`, or its place in the hub's cache."""
    here = pathlib.Path(model)
    if here.is_dir():
        return here
    if here.is_file():
        return here.parent
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model, "config.json", revision=revision)
    except Exception as error:  # not a name that the hub knows: whatever it raises
        logger.debug("turnkv: %s is not in the hub's cache: %s", model, error)
        return None
    return pathlib.Path(found).parent if isinstance(found, str) else None


def checkpoint_digest(path: pathlib.Path) -> str:
    """SHA-256 (hex) of the configuration and of every weight file's name, size and sampled bytes; `path`: folder or file.

    A fine-tune or another quantization changes it. Reads at most SAMPLES * SAMPLE_BYTES of a file, so a checkpoint of
    hundreds of gigabytes takes a moment; models that differ in a few elements need names of their own.
    """
    digest = hashlib.sha256(b"turnkv-checkpoint-1")
    config = path / "config.json"
    digest.update(config.read_bytes() if config.is_file() else b"none")
    files = [path] if path.is_file() else sorted(path.iterdir())
    for file in files:
        if file.suffix not in WEIGHT_SUFFIXES or not file.is_file():
            continue
        size = file.stat().st_size
        digest.update(f"\0{file.name}\0{size}\0".encode())
        with file.open("rb") as weights:
            for sample in range(SAMPLES):
                weights.seek(max(0, size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
                digest.update(weights.read(SAMPLE_BYTES))
    return digest.hexdigest()
