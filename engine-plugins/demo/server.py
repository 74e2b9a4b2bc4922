"""The demo's server: written configuration, start, kill -9, stop. Must not know: models, sessions."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

import turnkv

START_SECONDS_MAX = 30
STOP_SECONDS_MAX = 20
METRICS_PORT = 9464
SOCKET_PATH_BYTES_MAX = 96

CONFIG = """# Written by the demo. Run it yourself: {binary} serve --config {config}
listen = "unix:{socket}"
metrics = "{metrics}"
{doors}
[dram]
bytes = "{dram}"

[keep]
without_server_ms = 5000 # DRAM outlives kill -9, for so long without a server

[nvme]
path = "{folder}/nvme"
bytes = "{nvme}"

[limits]
client_slots_percent = 100 # one engine has this pool to itself
{sections}"""


@dataclass(frozen=True)
class Place:
    """Where a server is and what it is besides a pool. What is said here is the only pool's of `make demo`."""

    name: str = "demo"
    """Of its folder in ./data, of its configuration there."""
    host: str = "127.0.0.1"
    doors: str = ""
    """Settings before the first section."""
    sections: str = ""
    """Further sections."""
    prefix: tuple[str, ...] = ()
    """What runs a command on that host."""
    environment: dict[str, str] = field(default_factory=dict)


class Server:
    """One `turnkv serve` process of our own, in ./data."""

    def __init__(self, binary: pathlib.Path, dram: str, nvme: str, place: Place | None = None) -> None:
        data, self.place = pathlib.Path("data").absolute(), place or Place()
        self.folder, self.config = data / self.place.name, data / f"{self.place.name}.toml"
        self.clear()
        # A port of the loopback may be somebody's; a host of its own has all of them.
        port = METRICS_PORT if self.place.prefix else free_port(self.place.host, METRICS_PORT)
        self.binary, self.metrics = binary, f"{self.place.host}:{port}"
        self.socket = _socket_path(self.folder)
        self.address = f"unix:{self.socket}"
        text = CONFIG.format(
            binary=binary,
            config=self.config,
            folder=self.folder,
            socket=self.socket,
            metrics=self.metrics,
            dram=dram,
            nvme=nvme,
            doors=self.place.doors,
            sections=self.place.sections,
        )
        self.config.write_text(text)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def metrics_url(self) -> str:
        """Where Prometheus would look."""
        return f"http://{self.metrics}/metrics"

    def clear(self) -> None:
        """Its folder is there, and empty."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "nvme").mkdir(parents=True)

    def start(self) -> float:
        """Starts it and waits until it answers; how many seconds that took."""
        started = time.monotonic()
        with open(self.folder / "server.log", "ab") as log:
            command = [*self.place.prefix, str(self.binary), "serve", "--config", str(self.config)]
            environment = os.environ | self.place.environment
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        while True:
            try:
                turnkv.Pool(self.address, connect_ms=500, call_ms=2000).stats()
                return time.monotonic() - started
            except turnkv.Error as error:
                if self._process.poll() is not None:
                    raise SystemExit(f"the server ended with status {self._process.returncode}:\n{self.log_tail()}") from None
                if time.monotonic() - started > START_SECONDS_MAX:
                    raise SystemExit(f"no answer after {START_SECONDS_MAX} s: {error}\n{self.log_tail()}") from None
                time.sleep(0.02)

    def kill(self) -> None:
        """kill -9: no goodbye, no flush."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """SIGTERM: it finishes its writes, then leaves."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def status(self) -> str:
        """What `turnkv status` prints."""
        command = [str(self.binary), "status", "--address", self.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        return done.stdout.strip() or done.stderr.strip()

    def log_tail(self) -> str:
        """The end of its log."""
        return "\n".join((self.folder / "server.log").read_text(errors="replace").splitlines()[-15:])


def find_binary() -> pathlib.Path:
    """The server's binary: $TURNKV_SERVER, or what cargo built here."""
    named = os.environ.get("TURNKV_SERVER")
    for path in [pathlib.Path(named)] if named else [pathlib.Path("target/release/turnkv"), pathlib.Path("target/debug/turnkv")]:
        if path.is_file():
            return path
    raise SystemExit("no turnkv binary: run `cargo build --release` first, or set TURNKV_SERVER")


def _socket_path(folder: pathlib.Path) -> pathlib.Path:
    """In the folder, or, where that would be longer than a socket's path may be, beside all others' temporary files."""
    path = folder / "turnkv.sock"
    return path if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX else pathlib.Path(tempfile.mkdtemp()) / "turnkv.sock"


def free_port(host: str, wanted: int = 0) -> int:
    """A port of `host` that nobody listens on, the wanted one where that is so."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
                return int(probe.getsockname()[1])
            except OSError:
                continue
    raise SystemExit(f"no free port on {host}")
