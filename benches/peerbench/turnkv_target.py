"""TurnKV in peerbench, by the wheel: `turnkv` (shared memory), `turnkv-tcp` (data rails), `turnkv-inline` (gRPC over TCP).

Owns: how peerbench's keys and batches become TurnKV's pages. Must not know: peerbench's phases, or how other targets work.

    python turnkv_target.py PEERBENCH_FOLDER [bench.py's own arguments]      see README.md beside this file
"""

from __future__ import annotations

import os
import pathlib
import socket
import sys
import time

START_SECONDS_MAX = 60
WAIT_MS = 30_000
"""How long an offload may wait for slots: peerbench's other lossless targets block in put too."""
CALL_MS = 60_000
SPARE_BYTES = 1 << 30
"""Beyond the pages of the plan: its warm-up and single-page phases, and pages that another round left."""

CONFIG = """listen = "unix:{folder}/s.sock"
tcp = "127.0.0.1:{port}"
[keep]
dram = "off"
[dram]
bytes = {dram}
"""
NVME = """[nvme]
path = "{folder}/nvme"
bytes = {disk}
"""


def server_binary() -> str:
    """The release build of this tree, or what TURNKV_SERVER names."""
    tree = pathlib.Path(__file__).resolve().parents[2]
    binary = pathlib.Path(os.environ.get("TURNKV_SERVER", tree / "target/release/turnkv"))
    if not binary.is_file():
        sys.exit(f"no server at {binary}: cargo build --release --package turnkv, or set TURNKV_SERVER")
    return str(binary.resolve())


def turnkv_targets(targets):
    """The targets, as subclasses of peerbench's `Target` from its module `targets`."""

    class TurnKV(targets.Target):
        """A server process and one client a peerbench client. Every batch of a put is one chain of pages."""

        name, data_plane = "turnkv", "shm"

        def start(self):
            folder, self.port, self.parent = self.tmp(), targets.freeport(), None
            text = CONFIG.format(folder=folder, port=self.port, dram=self.dram or self.total * 5 // 4 + SPARE_BYTES)
            if self.disk:
                text += NVME.format(folder=folder, disk=self.disk)
            config = os.path.join(folder, "turnkv.toml")
            with open(config, "w") as file:
                file.write(text)
            self.spawn(server_binary(), "serve", "--config", config)
            self._wait_for(os.path.join(folder, "s.sock.local"))

        def connect(self, cid, clients):
            self.pool, self.pages = self._open()

        def put_batch(self, keys, buffers):
            report = self.pages.offload(_hashes(keys), self._memory(buffers), wait_ms=WAIT_MS)
            if report.declined:
                raise RuntimeError(f"{report.declined} of {len(keys)} pages declined: {report.first_decline}")

        def get_batch(self, keys, out_buffers):
            codes, memory = [], self._memory(out_buffers)
            while len(codes) < len(keys):
                at = len(codes)
                report = self.pages.reload(_hashes(keys[at:]), memory[at:])
                # The report counts tiers; which page came from which is known for single pages only.
                codes += [1] * report.from_dram + [2] * report.from_nvme
                if len(codes) < len(keys):
                    codes.append(0)
            return codes

        def clear(self):
            self.pool.evict()

        def flush(self):
            if not self.disk:
                return
            self.parent = self.parent or self._open()[0]
            while self.parent.stats()["dirty_bytes"]:
                time.sleep(0.01)

        def _open(self):
            import turnkv  # in the process that uses it: peerbench forks its clients

            port = f"127.0.0.1:{self.port}"
            addresses = {"shm": f"unix:{self.dir}/s.sock", "framed": f"tcp://{port}", "inline": f"http://{port}"}
            address = addresses[self.data_plane]
            pool = turnkv.Pool(address, data_plane=self.data_plane, connect_ms=5_000, call_ms=CALL_MS)
            return pool, pool.open_namespace("peerbench", dtype="u8", layout="opaque", opaque_shard_bytes=self.page)

        def _memory(self, buffers):
            return [(targets.addr(buffer), self.page) for buffer in buffers]

        def _wait_for(self, path):
            end = time.monotonic() + START_SECONDS_MAX
            while time.monotonic() < end:
                if self.procs[0].poll() is not None:
                    raise RuntimeError(f"the server left at its start: see {targets.WORK}/{self.name}.log")
                with socket.socket(socket.AF_UNIX) as probe:
                    if probe.connect_ex(path) == 0:
                        return
                time.sleep(0.02)
            raise RuntimeError(f"the server did not answer in {START_SECONDS_MAX} s")

    class TurnKVTcp(TurnKV):
        """The same server, reached as from another host."""

        name, data_plane = "turnkv-tcp", "framed"

    class TurnKVInline(TurnKV):
        """The same, by gRPC alone."""

        name, data_plane = "turnkv-inline", "inline"

    return TurnKV, TurnKVTcp, TurnKVInline


def _hashes(keys):
    return b"".join(bytes.fromhex(key.decode()) for key in keys)


def main() -> None:
    """Runs peerbench's own main with these targets added."""
    if len(sys.argv) < 2 or not os.path.isfile(os.path.join(sys.argv[1], "bench.py")):
        sys.exit("usage: turnkv_target.py PEERBENCH_FOLDER [bench.py's arguments]")
    sys.path.insert(0, os.path.abspath(sys.argv.pop(1)))
    import bench
    import targets

    for target in turnkv_targets(targets):
        targets.TARGETS[target.name] = targets.TIERED[target.name] = target
    bench.main()


if __name__ == "__main__":
    main()
