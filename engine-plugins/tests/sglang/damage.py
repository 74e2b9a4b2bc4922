"""Damage to a pool's files. Owns: which bits to flip. Must not know: engines."""

from __future__ import annotations

import os
import pathlib

FIRST_BYTE = 4096 + 100
STEP_BYTES = 8192
Bits = list[tuple[pathlib.Path, int]]


def some_bits(folder: pathlib.Path, step_bytes: int = STEP_BYTES) -> Bits:
    """A bit every `step_bytes` of what is stored under `folder`, empty stretches left out."""
    bits = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with open(path, "rb") as file:
            for at in range(FIRST_BYTE, path.stat().st_size, step_bytes):
                file.seek(at)
                if any(file.read(16)):
                    bits.append((path, at))
    return bits


def flip(bits: Bits) -> None:
    """Flips them; once more, and all is as before."""
    for path, at in bits:
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 0x10]))
            file.flush()
    for path in {path for path, _ in bits}:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
