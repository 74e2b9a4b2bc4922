"""Runs the GPU benches one after another, most wanted first, each within its share of the time.

    benches/gpu/run.sh --help

Owns: the order, the time, what happens when a part fails or never ends. Must not know: what is measured.
A part that fails or runs out of time leaves what it has measured so far, and the next one runs. A device that hangs takes
everything along that waits for it, so the parts run in a process of their own; what did not end within its time and a grace
ends that process, and the parts after it get a new one.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before torch: deterministic matrix products
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

PARTS = {"ttft": 0.42, "exact": 0.12, "turns": 0.26, "stalls": 0.06, "interference": 0.14}
"""In order of importance, with their shares of the time. What one leaves over goes to those after it."""


def main() -> int:
    """Exit status: 0 when every part held what it checks, or there is no GPU; 1 when one did not."""
    arguments = _arguments()
    if arguments.inside:
        return _inside(arguments)
    if not arguments.tiny and not _gpu():
        print("GPU benches skipped: no CUDA device is usable here (--tiny runs them small, on the CPU, for correctness only)")
        return 0
    results = pathlib.Path(arguments.out) / "results.json"
    results.unlink(missing_ok=True)
    until, status = time.monotonic() + arguments.seconds, 0
    names = [name for name in PARTS if name in arguments.parts]
    while names:
        left = until - time.monotonic()
        command = [sys.executable, __file__, "--inside", "--parts", ",".join(names), "--seconds", str(left)]
        command += ["--out", arguments.out, "--grace", str(arguments.grace), *(["--tiny"] if arguments.tiny else [])]
        # Whatever a process leaves when it is ended goes with this folder: an NVMe tier above all.
        with tempfile.TemporaryDirectory(prefix="turnkv-gpu-") as folder:
            ended = subprocess.run(command, env=os.environ | {"TMPDIR": folder}, check=False).returncode
        status = status or ended
        stuck = _note_stuck(results, names) if ended else None
        if stuck is None:
            break
        print(f"{stuck} failed: it did not end in its time", flush=True)
        names = names[names.index(stuck) + 1 :]
    return 1 if status else 0


def _gpu() -> bool:
    import torch

    import turnkv

    return torch.cuda.is_available() and turnkv.Device.cuda_count() > 0


def _note_stuck(results: pathlib.Path, names: list[str]) -> str | None:
    """The part that was begun and not ended, which is noted with its results; None: all ended."""
    if not results.is_file():
        return None
    found = json.loads(results.read_text())
    stuck = next((name for name in names if name in found and "seconds" not in found[name]), None)
    if stuck is not None:
        found[stuck] |= {"error": "it did not end in its time", "seconds": None}
        results.write_text(json.dumps(found, indent=1) + "\n")
    return stuck


def _inside(arguments: argparse.Namespace) -> int:
    """The parts, in this process."""
    import importlib

    from stage import OutOfTime, Stage, die_with_parent

    die_with_parent()
    stage = Stage(pathlib.Path(arguments.out), tiny=arguments.tiny)
    begun, failed = time.monotonic(), []
    names = [name for name in PARTS if name in arguments.parts]
    for at, name in enumerate(names):
        left = arguments.seconds - (time.monotonic() - begun)
        share = left * PARTS[name] / sum(PARTS[later] for later in names[at:])
        stage.begin(name, share)
        faulthandler.dump_traceback_later(max(share, 0) + arguments.grace, exit=True)
        try:
            importlib.import_module(name).run(stage)
        except OutOfTime as error:  # what it had measured counts
            stage.note(cut_short=str(error))
            print(f"cut short: {error}")
        except Exception as error:
            failed.append(name)
            stage.failed(error)
            traceback.print_exc()
        faulthandler.cancel_dump_traceback_later()
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
    parser.add_argument("--seconds", type=float, default=180.0, help="for all parts together")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds after its share that a part is ended")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.parts = arguments.parts.split(",")
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
