"""What the GPU benches share: the model, servers, clocks that wait for the device, tables and results.

Owns: one model and one device for all parts, where results go. Must not know: what is measured.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

import turnkv
from turnkv.transformers import TurnKVCache

GIB = 1 << 30
START_SECONDS_MAX = 120
REGISTER_SECONDS_MAX = 60
NVME_BYTES_MIN = 2 * GIB
LINK_BYTES = 1 << 30
"""Of the plain copies that a link is measured with."""


class OutOfTime(Exception):
    """A part's time is over."""


class Stage:
    """One run of the benches. `tiny`: a small model on the CPU and the host device; figures then mean nothing."""

    def __init__(self, out: pathlib.Path, *, tiny: bool) -> None:
        self.out, self.tiny = out, tiny
        out.mkdir(parents=True, exist_ok=True)
        self.place = torch.device("cpu" if tiny else "cuda:0")
        self.device = turnkv.Device(kind="host") if tiny else turnkv.shared_device(0)
        found = out / "results.json"
        self.results: dict[str, Any] = json.loads(found.read_text()) if found.is_file() else {}
        """What this run has found so far, perhaps in a process before this one."""
        self.wrong: list[str] = self.results.pop("wrong", [])
        """Checks that did not hold."""
        self.results["conditions"] = self._conditions()
        self._part, self._until = "", 0.0
        begun = time.monotonic()
        self.model = _model(self.place, tiny)
        self.sync()
        print(
            f"model of {sum(p.numel() for p in self.model.parameters()) / 1e9:.2f} G parameters in "
            f"{time.monotonic() - begun:.1f} s; {self.kv_bytes(1)} bytes of K and V a token"
        )

    # ---- parts and results ----------------------------------------------------------------------------------------

    def begin(self, part: str, seconds: float) -> None:
        """A part begins, and has so much time."""
        self._part, self._until = part, time.monotonic() + seconds
        self.results[part] = {"seconds_allowed": round(seconds, 1), "rows": []}
        self._write()
        self._begun = time.monotonic()
        gc.collect()
        if self.place.type == "cuda":
            torch.cuda.empty_cache()  # what torch keeps for itself nobody else can have

    def left(self) -> float:
        """Seconds of this part's time."""
        return self._until - time.monotonic()

    def need(self, seconds: float) -> None:
        """Raises OutOfTime when there is not so much left."""
        if not self.tiny and self.left() < seconds:
            raise OutOfTime(f"{self._part}: {self.left():.0f} s left, the next measurement takes about {seconds:.0f} s")

    def row(self, **values: Any) -> None:
        """A result; on disk at once."""
        self.results[self._part]["rows"].append(values)
        self._write()

    def note(self, **values: Any) -> None:
        """Something to know about this part's results."""
        self.results[self._part].update(values)
        self._write()

    def check(self, held: bool, what: str) -> bool:
        """What must hold whatever the speed."""
        if not held:
            self.wrong.append(f"{self._part}: {what}")
            print(f"  WRONG: {what}")
        self._write()
        return held

    def failed(self, error: Exception) -> None:
        """The part ended early."""
        self.note(error=f"{type(error).__name__}: {error}")

    def end(self) -> None:
        """A part is over."""
        self.note(seconds=round(time.monotonic() - self._begun, 1))

    def _write(self) -> None:
        new = self.out / "results.part"
        new.write_text(json.dumps(self.results | {"wrong": self.wrong}, indent=1) + "\n")
        new.replace(self.out / "results.json")  # whole, whenever this process is ended

    # ---- the device -----------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Waits until the device has nothing to do."""
        if self.place.type == "cuda":
            torch.cuda.synchronize(self.place)

    def timed(self, work: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds until the device has done it."""
        self.sync()
        begun = time.perf_counter()
        result = work()
        self.sync()
        return time.perf_counter() - begun, result

    def median(self, work: Callable[[], float], rounds: int, expected: float = 0.0) -> list[float]:
        """Some rounds of something that returns its seconds; fewer when time runs out, but one at least."""
        seconds: list[float] = []
        for _ in range(2 if self.tiny else rounds):
            if seconds and not self.tiny and self.left() < 1.2 * max(seconds[-1], expected):
                break
            seconds.append(work())
        return seconds

    def link_rates(self) -> dict[str, float]:
        """Bytes a second of plain copies: pinned host memory to device and back, and within the device."""
        size = LINK_BYTES if not self.tiny else 1 << 20
        host = torch.empty(size, dtype=torch.uint8, pin_memory=not self.tiny)
        ours, other = (torch.empty(size, dtype=torch.uint8, device=self.place) for _ in range(2))
        copies = {"h2d": (ours, host), "d2h": (host, ours), "d2d": (ours, other)}
        rates = {}
        for name, (target, source) in copies.items():
            target.copy_(source, non_blocking=True)
            seconds = [self.timed(lambda t=target, s=source: t.copy_(s, non_blocking=True))[0] for _ in range(7)]
            rates[name] = size / statistics.median(seconds)
        return rates

    def kv_bytes(self, tokens: int) -> int:
        """K and V of so many tokens."""
        config = self.model.config
        return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2 * tokens

    # ---- the engine -----------------------------------------------------------------------------------------------

    def tokens(self, count: int, seed: int) -> torch.Tensor:
        """A prompt."""
        made = torch.randint(0, self.model.config.vocab_size, (1, count), generator=torch.Generator().manual_seed(seed))
        return made.to(self.place)

    def first_token(self, ids: torch.Tensor, cache: Any) -> int:
        """What follows the whole conversation, of which `cache` has the beginning; waits for it."""
        rest = ids[:, cache.get_seq_length() :]
        logits = self.model(input_ids=rest, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        return int(logits[0, -1].argmax())

    def reply(self, ids: torch.Tensor, cache: Any, count: int) -> torch.Tensor:
        """The conversation with so many more tokens, greedily."""
        for _ in range(count):
            token = self.first_token(ids, cache)
            ids = torch.cat([ids, torch.tensor([[token]], device=self.place)], dim=1)
        return ids

    def plain_cache(self, **settings: Any) -> DynamicCache:
        """A cache that nobody keeps."""
        return DynamicCache(config=self.model.config, **settings)

    def cache(self, session: str | None, pool: turnkv.Pool, **settings: Any) -> Any:
        """A cache that comes back."""
        if self.tiny:
            settings.setdefault("page_tokens", 16)
        return TurnKVCache(self.model, session, pool, device=self.device, model_id="bench", **settings)

    # ---- servers --------------------------------------------------------------------------------------------------

    @contextmanager
    def pool(self, dram_bytes: int, nvme_bytes: int = 0) -> Iterator[Served]:
        """A server of our own and a door to it."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="turnkv-"))
        if self.tiny:
            dram_bytes, nvme_bytes = min(dram_bytes, 256 << 20), min(nvme_bytes, 1 << 30)
        else:
            wanted = dram_bytes, nvme_bytes
            dram_bytes, nvme_bytes = sizes(*wanted, memory_bytes(), shutil.disk_usage(folder).free)
            if wanted != (dram_bytes, nvme_bytes):
                self.note(pool_bytes={"wanted": wanted, "had": (dram_bytes, nvme_bytes)})
        pool = Served(folder, dram_bytes, nvme_bytes)
        try:
            pool.start()
            yield pool
        finally:
            pool.stop()
            shutil.rmtree(folder, ignore_errors=True)

    def registered(self, seconds: float = REGISTER_SECONDS_MAX, device: turnkv.Device | None = None) -> float:
        """Waits until a device (None: the one of this run) has stopped registering the pool's memory; GiB that it has."""
        device = device or self.device
        until, last, still = time.monotonic() + seconds, -1, 0
        while time.monotonic() < until and still < (1 if self.tiny else 6):
            now = device.stats()["registered_bytes"]
            still = still + 1 if now == last else 0
            last = now
            time.sleep(0.02 if self.tiny else 0.5)
        return last / GIB

    def _conditions(self) -> dict[str, Any]:
        return {
            "device": self.device.name,
            "kind": self.device.kind,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "turnkv": turnkv.__version__,
            "python": platform.python_version(),
            "kernel": platform.release(),
            "tiny": self.tiny,
        }


class Served:
    """A server process of our own, in a folder, and a door to it."""

    def __init__(self, folder: pathlib.Path, dram_bytes: int, nvme_bytes: int) -> None:
        self._folder = folder
        self.dram_bytes, self.nvme_bytes = dram_bytes, nvme_bytes
        text = f'listen = "unix:{folder}/turnkv.sock"\n[dram]\nbytes = "{dram_bytes >> 20}MiB"\ncheck_available = false\n'
        if nvme_bytes:
            (folder / "nvme").mkdir()
            text += f'[nvme]\npath = "{folder}/nvme"\nbytes = "{nvme_bytes >> 20}MiB"\n'
        text += '[limits]\nclient_slots_percent = 100\n[keep]\ndram = "off"\n'
        (folder / "turnkv.toml").write_text(text)
        self.door = turnkv.Pool(f"unix:{folder}/turnkv.sock", call_ms=30_000)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and waits until it answers: it touches all its memory first."""
        with open(self._folder / "log", "ab") as log:
            command = [os.environ["TURNKV_SERVER"], "serve", "--config", str(self._folder / "turnkv.toml")]
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent,  # noqa: PLW1509  # one system call, no lock is taken
            )
        until = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                self.door.stats()
                return
            except turnkv.Error as error:
                if self._process.poll() is not None or time.monotonic() > until:
                    said = (self._folder / "log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"the server does not answer ({error}): {said}") from None
                time.sleep(0.05)

    def to_nvme(self, seconds: float) -> bool:
        """Writes all pages to NVMe, then empties DRAM; False when that takes longer. Reads there go past the page cache."""
        until = time.monotonic() + seconds
        while (stats := self.door.stats())["dirty_bytes"] or stats["leases"]:  # leases end behind the reader's back
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        self.door.evict(tier="dram")
        return True

    def stop(self) -> None:
        """kill -9: nothing of it is wanted any more."""
        self.door.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def memory_bytes() -> int:
    """What this machine has; $MEMORY_GIB where its memory grows as it is used, and it says less than it can have."""
    said = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(said, int(os.environ.get("MEMORY_GIB", "0")) * GIB)


def sizes(dram_bytes: int, nvme_bytes: int, memory: int, disk_free: int) -> tuple[int, int]:
    """What a pool gets of what it wants: half of the memory at most, as the model's process needs some; half of what the disk
    has free, and no tier there where that is too little to hold a session."""
    dram_bytes, nvme_bytes = min(dram_bytes, memory // 2), min(nvme_bytes, disk_free // 2)
    return dram_bytes >> 26 << 26, nvme_bytes >> 26 << 26 if nvme_bytes >= NVME_BYTES_MIN else 0


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ends this process when the one that started it ends, however that ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _model(place: torch.device, tiny: bool) -> Qwen3ForCausalLM:
    """Qwen3-8B's shape with random weights in bf16, or a small one."""
    sizes = {
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 140_000,
    }
    if tiny:
        sizes = {
            "vocab_size": 512,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 8192,
        }
    config = Qwen3Config(**sizes, bos_token_id=None, eos_token_id=None)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with place:
        model = Qwen3ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model.to(torch.bfloat16).eval()


def table(title: str, columns: list[str], rows: list[list[Any]]) -> None:
    """Prints a table as benches/results has them."""
    print(f"\n### {title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(_cell(value) for value in row)} |")
    print(flush=True)


def percentile(values: list[float], percent: float) -> float:
    """The nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
    return "-" if value is None else str(value)
