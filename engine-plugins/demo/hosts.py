"""The hosts of the cluster demo: a pool each, and what an operator does to one.

Owns: configuration of a member, kill, drain, upgrade, what its metrics count. Must not know: models, sessions, what is done when.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.request
from dataclasses import dataclass

from server import Place, Server, free_port
from surroundings import BUCKET, CREDENTIALS, Etcd, Network, Store

import turnkv

PORT = 7411
COMMAND_SECONDS_MAX = 60
AGREE_SECONDS_MAX = 40
SETTLE_SECONDS_MAX = 20
NVME = "2GiB"

CLUSTER = """
[cluster]
id = "{id}"
{known}
[archive]
place = "s3://{bucket}/pages"
endpoint = "{store}"
sessions = "all"
idle_s = 1
wait_ms = 10000
refresh_ms = 500
"""


@dataclass(frozen=True)
class Counted:
    """What a pool has counted so far, in pages."""

    pulled: int
    fetched: int

    def since(self, before: Counted) -> Counted:
        """What came since then."""
        return Counted(self.pulled - before.pulled, self.fetched - before.fetched)


class Host:
    """One host: its pool, and the door of the engines there."""

    def __init__(self, at: int, binary: pathlib.Path, dram: str, place: Place) -> None:
        self.at, self.name = at, place.name.removeprefix("demo-")
        self.server = Server(binary, dram, NVME, place)
        self.pool = turnkv.Pool(self.server.address)

    def metrics(self) -> dict[str, float]:
        """Its metrics by name, summed over labels."""
        found: dict[str, float] = {}
        with urllib.request.urlopen(self.server.metrics_url, timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                if line and not line.startswith("#"):
                    name, _, value = line.rpartition(" ")
                    name = name.partition("{")[0]
                    found[name] = found.get(name, 0.0) + float(value)
        return found

    def counted(self) -> Counted:
        """Pages that came from other hosts, and from the archive, once nothing is on its way any more."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while True:
            now = self.metrics()
            moving = ("turnkv_cluster_pull_coming_pages", "turnkv_archive_fetching_sessions")
            if not any(now.get(name, 0) for name in moving):
                return Counted(int(now["turnkv_cluster_pull_pages_total"]), int(now["turnkv_archive_fetched_pages_total"]))
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.name}: pages are on their way for {SETTLE_SECONDS_MAX} s\n{self.server.log_tail()}")
            time.sleep(0.05)

    def wait_archived(self) -> int:
        """Waits, for a bounded time, until no session of it waits for the archive; how many it archived in all."""
        deadline, steady, last = time.monotonic() + SETTLE_SECONDS_MAX, 0.0, -1
        while time.monotonic() < deadline:
            now = self.metrics()
            done = int(now["turnkv_archive_archived_sessions_total"])
            if done != last or now["turnkv_archive_waiting_sessions"] or now["turnkv_archive_running_operations"]:
                last, steady = done, time.monotonic()
            elif time.monotonic() - steady > 2.5:  # a session goes one second after its turn
                break
            time.sleep(0.1)
        return last

    def die(self) -> None:
        """The host is gone: server and keeper by kill -9, its disk with them."""
        keepers = self._keepers()
        self.server.kill()
        for keeper in keepers:
            try:
                os.kill(keeper, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it ended with its server
        self.server.clear()

    def end(self) -> None:
        """An orderly end, of the keeper too."""
        keepers = self._keepers()
        self.server.stop()
        for keeper in keepers:
            try:
                os.kill(keeper, signal.SIGTERM)
            except ProcessLookupError:
                continue  # it ended with its server

    def turnkv(self, *words: str) -> str:
        """What `turnkv ...` says of this pool; SystemExit where it fails."""
        command = [str(self.server.binary), *words, "--address", self.server.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout.strip()

    def members(self) -> int:
        """How many it sees, itself included."""
        return int(self.metrics().get("turnkv_cluster_view_servers", 0))

    def _keepers(self) -> list[int]:
        """The keepers of this pool's memory: those that listen at its own socket."""
        own, found = os.fsencode(f"{self.server.socket}.keep"), []
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes().split(b"\0")
            except OSError:
                continue  # it has just ended
            if b"keep" in words and own in words:
                found.append(int(entry.parent.name))
        return found


def moved_sessions(said: str) -> int:
    """How many sessions are with other members, by what `turnkv drain --to-peers` said last."""
    last = said.splitlines()[-1]
    found = re.match(r"done: (\d+) sessions ", last)
    if not found:
        raise SystemExit(f"a drain ended with other words than are known here: {last}")
    return int(found[1])


def make(count: int, binary: pathlib.Path, dram: str, network: Network, store: Store, etcd: Etcd | None) -> list[Host]:
    """So many, none started."""
    doors = [f"{network.host(at)}:{PORT if network.apart else free_port(network.host(at), PORT)}" for at in range(count)]
    names = [f"host-{at + 1}" for at in range(count)]
    listed = ", ".join(f'{{ id = "{name}", endpoint = "tcp://{door}" }}' for name, door in zip(names, doors, strict=True))
    hosts = []
    for at, (name, door) in enumerate(zip(names, doors, strict=True)):
        known = f'endpoint = "tcp://{door}"\netcd = ["{etcd.endpoint}"]' if etcd else f"members = [{listed}]"
        plain = ""
        if network.apart:  # members meet over a network that nobody else is on
            plain = '[tls]\ninsecure = true\n\n[access]\nplain = ["engine/*", "member"]\n'
        place = Place(
            name=f"demo-{name}",
            host=network.host(at),
            doors=f'tcp = "{door}"\n',
            sections=plain + CLUSTER.format(id=name, known=known, bucket=BUCKET, store=store.endpoint),
            prefix=network.prefix(at),
            environment=CREDENTIALS,
        )
        hosts.append(Host(at, binary, dram, place))
    return hosts


def wait_agreed(hosts: list[Host]) -> None:
    """Until each of these sees all of these and nobody else."""
    deadline = time.monotonic() + AGREE_SECONDS_MAX
    while any(host.members() != len(hosts) for host in hosts):
        if time.monotonic() > deadline:
            seen = json.dumps({host.name: host.members() for host in hosts})
            raise SystemExit(f"after {AGREE_SECONDS_MAX} s the members do not see {len(hosts)}: {seen}")
        time.sleep(0.1)
