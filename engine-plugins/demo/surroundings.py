"""What the hosts of the cluster demo have around them: a network, etcd, a store that speaks S3.

Owns: making and ending these three. Must not know: pools, sessions.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable

from server import free_port
from table import say

START_SECONDS_MAX = 30
BUCKET = "turnkv-demo"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo", "AWS_REGION": "us-east-1"}
"""Of the store, which takes any."""


class Network:
    """Hosts with a network of their own each, where one may be made (root, `ip netns`); else addresses of the loopback."""

    def __init__(self, count: int) -> None:
        self._names = [f"tkvdemo{os.getpid()}-{at}" for at in range(count)]
        self._bridge = f"tkvd{os.getpid() % 1_000_000}"
        self.apart = os.geteuid() == 0 and shutil.which("ip") is not None and self._make()
        self.outside = "10.77.84.254" if self.apart else "127.0.0.1"
        """Where the hosts reach what is around them."""

    def host(self, at: int) -> str:
        """The address of a host."""
        return f"10.77.84.{at + 1}" if self.apart else f"127.0.0.{at + 1}"

    def prefix(self, at: int) -> tuple[str, ...]:
        """What runs a command on a host."""
        return ("ip", "netns", "exec", self._names[at]) if self.apart else ()

    def end(self) -> None:
        """Takes away what was made."""
        for words in [["netns", "del", name] for name in self._names] + [["link", "del", self._bridge]]:
            subprocess.run(["ip", *words], check=False, capture_output=True)

    def _make(self) -> bool:
        try:
            self._ip("link", "add", self._bridge, "type", "bridge")
            self._ip("addr", "add", "10.77.84.254/24", "dev", self._bridge)
            self._ip("link", "set", self._bridge, "up")
            for at, name in enumerate(self._names):
                ours = f"{self._bridge}h{at}"
                self._ip("netns", "add", name)
                self._ip("link", "add", ours, "type", "veth", "peer", "name", "eth0", "netns", name)
                self._ip("link", "set", ours, "master", self._bridge, "up")
                self._ip("-n", name, "addr", "add", f"10.77.84.{at + 1}/24", "dev", "eth0")
                self._ip("-n", name, "link", "set", "eth0", "up")
                self._ip("-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            why = error.stderr.decode(errors="replace").strip() if isinstance(error, subprocess.CalledProcessError) else error
            say(f"no network namespaces here ({why}): the hosts are addresses of the loopback")
            self.end()
            return False
        return True

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)


class Helper:
    """A process that the hosts use: started, waited for, ended."""

    def __init__(self, name: str, command: list[str], folder: pathlib.Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self._log = name, folder / f"{name}.log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def wait(self, is_there: Callable[[], object]) -> None:
        """Until it answers; SystemExit says why it does not."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                is_there()
                return
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.end()
                    last = "\n".join(self._log.read_text(errors="replace").splitlines()[-8:])
                    raise SystemExit(f"{self.name} does not come up: {error}\n{last}") from None
                time.sleep(0.05)

    def end(self) -> None:
        """kill -9: it keeps nothing that anybody needs afterwards."""
        self._process.kill()
        self._process.wait()


class Store(Helper):
    """moto, which speaks S3: objects are in its memory."""

    def __init__(self, host: str, folder: pathlib.Path) -> None:
        port = free_port(host)
        self.endpoint = f"http://{host}:{port}"
        super().__init__("store", [sys.executable, "-m", "moto.server", "-H", host, "-p", str(port)], folder)
        self.wait(lambda: socket.create_connection((host, port), 1).close())
        request = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT", data=b"")
        urllib.request.urlopen(request, timeout=START_SECONDS_MAX).close()


class Etcd(Helper):
    """etcd of one member."""

    def __init__(self, program: pathlib.Path, host: str, folder: pathlib.Path) -> None:
        self.endpoint = f"http://{host}:{free_port(host)}"
        peers = f"http://127.0.0.1:{free_port('127.0.0.1')}"
        command = [str(program), "--name", "one", "--data-dir", str(folder / "etcd")]
        command += ["--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint]
        command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"one={peers}"]
        super().__init__("etcd", command, folder)
        self.wait(lambda: urllib.request.urlopen(f"{self.endpoint}/health", timeout=1).close())


def find_etcd() -> pathlib.Path | None:
    """Where `tests/setup_etcd.sh` put it, or $TURNKV_ETCD says; None, said aloud: nowhere."""
    program = pathlib.Path(os.environ.get("TURNKV_ETCD", ".tools/etcd")).absolute() / "etcd"
    if program.is_file():
        return program
    say("no etcd here (tests/setup_etcd.sh gets one): the members are a list, the same for all")
    return None
