"""What the Python tests share: the real server's binary, servers of our own in short temporary folders, small models.

.venv/bin/python -m pytest engine-plugins/tests            TURNKV_SERVER names the binary; default: what cargo built here
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import turnkv

torch.set_num_threads(1)  # small models; the other core is the server's
ROOT = pathlib.Path(__file__).resolve().parents[2]
START_SECONDS_MAX = 20
STOP_SECONDS_MAX = 10


def server_binary() -> pathlib.Path:
    """The newest of what cargo built, unless TURNKV_SERVER names one."""
    named = os.environ.get("TURNKV_SERVER")
    if named:
        return pathlib.Path(named)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [path for path in (target / "release/turnkv", target / "debug/turnkv") if path.is_file()]
    if not built:
        pytest.exit("no turnkv binary: run `cargo build -p turnkv` first, or set TURNKV_SERVER", returncode=2)
    return max(built, key=lambda path: path.stat().st_mtime)


class Server:
    """One `turnkv serve` process of a test."""

    def __init__(
        self,
        folder: pathlib.Path,
        dram: str = "64MiB",
        nvme: str | None = "512MiB",
        slab: str | None = None,
        archive: pathlib.Path | str | None = None,
        archive_keys: str = "",
        keep: str = "off",
    ) -> None:
        self.folder, self.process = folder, None
        self.prefix: list[str] = []
        """What runs the server's command, for one that is to run elsewhere."""
        self.config = folder / "turnkv.toml"
        text = f'listen = "unix:{folder}/turnkv.sock"\n[dram]\nbytes = "{dram}"\n'
        if slab:
            text += f'slab_bytes = "{slab}"\n'
        if nvme:
            (folder / "nvme").mkdir(exist_ok=True)
            text += f'[nvme]\npath = "{folder}/nvme"\nbytes = "{nvme}"\n'
        if archive:
            if isinstance(archive, pathlib.Path):
                archive.mkdir(exist_ok=True)
            text += f'[archive]\nplace = "{archive}"\n{archive_keys}'
        # Off for the reason that tests/src/server.rs gives.
        text += f'[keep]\ndram = "{keep}"\n'
        self.config.write_text(text)
        self.address = f"unix:{folder}/turnkv.sock"

    def start(self) -> Server:
        """Starts it and waits until it answers."""
        with open(self.folder / "log", "ab") as log:
            command = [*self.prefix, str(server_binary()), "serve", "--config", str(self.config)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                self.pool(call_ms=1000).stats()
                return self
            except turnkv.Error as error:
                assert self.process.poll() is None, f"the server ended: {self.log()}"
                assert time.monotonic() < deadline, f"no answer: {error}: {self.log()}"
                time.sleep(0.02)

    def on_network(self) -> str:
        """Starts it anew with a TCP port of this host; gives that."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.kill()
        self.config.write_text(f'tcp = "{address}"\n{self.config.read_text()}')
        self.start()
        return address

    def pool(self, **settings: object) -> turnkv.Pool:
        """A new door to it."""
        return turnkv.Pool(self.address, **settings)

    def snapshot(self, *arguments: str) -> dict:
        """What `turnkv snapshot` answers."""
        done = self._run_snapshot(arguments)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return json.loads(done.stdout)

    def refused_snapshot(self, *arguments: str) -> str:
        """What `turnkv snapshot` says that fails."""
        done = self._run_snapshot(arguments)
        assert done.returncode != 0, f"{arguments}: {done.stdout}"
        return done.stderr

    def _run_snapshot(self, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        command = [str(server_binary()), "snapshot", *arguments, "--address", self.address, "--json"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def namespaces(self) -> list[str]:
        """The ids of those that are open."""
        done = subprocess.run(
            [str(server_binary()), "size", "--address", self.address, "--json"], capture_output=True, text=True, check=True
        )
        return [one["namespace"] for one in json.loads(done.stdout)]

    def destroy(self) -> None:
        """kill -9, and its disk is gone."""
        self.kill()
        shutil.rmtree(self.folder / "nvme", ignore_errors=True)

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def terminate(self) -> None:
        """SIGTERM, and wait."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)

    def pause(self) -> None:
        """SIGSTOP; returns when no thread of it runs any more."""
        self.process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while not self._stands_still():
            assert time.monotonic() < deadline, "the server does not stop"
            time.sleep(0.001)

    def _stands_still(self) -> bool:
        threads = pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        try:
            return all(thread.read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)
        except OSError:  # one has just ended
            return False

    def go_on(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def log(self) -> str:
        """What it said."""
        return (self.folder / "log").read_text(errors="replace")[-2000:]

    def settle(self, seconds: float = 10) -> None:
        """Waits until everything is on NVMe."""
        pool, deadline = self.pool(), time.monotonic() + seconds
        while pool.stats()["dirty_bytes"]:
            assert time.monotonic() < deadline, "the server does not write what is dirty"
            time.sleep(0.02)

    def to_nvme(self) -> None:
        """Empties DRAM: every page is on NVMe only."""
        self.settle()
        self.pool().evict(tier="dram")


@pytest.fixture
def make_server() -> Iterator[Callable[..., Server]]:
    """Servers that end with the test; each in a folder of its own with a short name (socket paths are short)."""
    servers: list[Server] = []

    def make(**settings: object) -> Server:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="turnkv-"))
        servers.append(Server(folder, **settings))
        return servers[-1].start()

    yield make
    for server in servers:
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One server for the tests of a module that do it no harm."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="turnkv-"))
    server = Server(folder).start()
    yield server
    server.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def roomy_server() -> Iterator[Server]:
    """One server with a slab for each of hundreds of namespaces, and room for all their pages: none waits for a disk."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="turnkv-"))
    server = Server(folder, dram="768MiB", nvme=None, slab="1MiB").start()
    yield server
    server.kill()
    shutil.rmtree(folder, ignore_errors=True)


def tiny_model(dtype: torch.dtype = torch.float32, seed: int = 0) -> Qwen3ForCausalLM:
    """A Qwen3 with random weights: small, but every byte of K and V shows in its logits."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config).to(dtype).eval()


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    """Engines do not train."""
    with torch.no_grad():
        yield
