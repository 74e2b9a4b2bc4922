"""Runs the GPU benches one after another, most wanted first, each within its share of the time.

    benches/gpu/run.sh --help

Owns: the order, the time, what happens when a part fails. Must not know: what is measured.
A part that fails or runs out of time leaves what it has measured so far, and the next one runs.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time
import traceback

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before torch: deterministic matrix products
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import torch

import turnkv

PARTS = {"ttft": 0.45, "exact": 0.12, "turns": 0.28, "interference": 0.15}
"""In order of importance, with their shares of the time. What one leaves over goes to those after it."""


def main() -> int:
    """Exit status: 0 when every part held what it checks, or there is no GPU; 1 when one did not."""
    arguments = _arguments()
    if not arguments.tiny and not (torch.cuda.is_available() and turnkv.Device.cuda_count() > 0):
        print("GPU benches skipped: no CUDA device is usable here (--tiny runs them small, on the CPU, for correctness only)")
        return 0
    import importlib

    from stage import Stage

    stage = Stage(pathlib.Path(arguments.out), tiny=arguments.tiny)
    begun, failed = time.monotonic(), []
    names = [name for name in PARTS if name in arguments.parts]
    for at, name in enumerate(names):
        left = arguments.seconds - (time.monotonic() - begun)
        share = PARTS[name] / sum(PARTS[later] for later in names[at:])
        stage.begin(name, left * share)
        try:
            importlib.import_module(name).run(stage)
        except Exception as error:
            failed.append(name)
            stage.failed(error)
            traceback.print_exc()
        stage.end()
    if stage.wrong or failed:
        print(f"\nNOT as it must be: {', '.join([*stage.wrong, *(f'{name} failed' for name in failed)])}")
        return 1
    print(f"\nall checks held; results in {stage.out}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small model, CPU, host device: correctness only")
    parser.add_argument("--out", default="target/gpu-results", help="folder for results.json and plots")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=540.0, help="for all parts together")
    arguments = parser.parse_args()
    arguments.parts = arguments.parts.split(",")
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
