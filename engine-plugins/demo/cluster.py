"""The cluster demo: sessions hop between three hosts each turn, while one host is killed, one drained and one upgraded.

    .venv/bin/python engine-plugins/demo/cluster.py     from the root of the tree; `make demo-cluster` builds first

Each host has a pool of its own; the pools know one another by etcd and share an archive that speaks S3. A turn's cache is dropped
at its end; the next turn, on another host, must continue exactly like a run that has no pool and never drops a cache. Where each
turn found its pages is what its pool counted meanwhile. Exit status 0: every check held.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's idle threads leave the cores to the servers

import calibrate
import hosts as pools
import surroundings
import table
import torch
import workload
from engine import Engine
from server import find_binary
from table import bold, say

from turnkv.transformers import TurnKVCache

HOSTS = 3
SESSIONS = 6
ROUNDS = 7
SECONDS_WANTED = 40
"""What the estimate of the model's own time may be: hosts that come and go take about as long again."""
PAGE_TOKENS = 16
LOGITS_APART_MAX = 1e-3
"""Against the largest logit: rounding in another order makes a hundredth of it, a wrong page a hundred times it."""
DEADLINE_MS = 20_000
"""Of each reload and offload: generous, so that a busy machine shows as time and not as pages that were computed."""

LIVE: table.Columns = (
    ("turn", 4),
    ("session", 8),
    ("host", 6),
    ("before", 6),
    ("prompt", 6),
    ("here", 6),
    ("another host", 12),
    ("archive", 7),
    ("computed", 8),
    ("reload ms", 9),
    ("identical", 9),
)
TOTALS: table.Columns = (
    ("round", 5),
    ("what happened before it", 52),
    ("prompt", 6),
    ("here", 6),
    ("another host", 12),
    ("archive", 7),
    ("computed", 8),
    ("identical", 9),
)


@dataclass(frozen=True)
class Turn:
    """Where one turn found its prompt's tokens."""

    prompt: int
    here: int
    afar: int
    archive: int
    identical: bool
    """The tokens are those of the run without a pool."""
    exact: bool
    """Its first logits are so, too, bit for bit."""

    @property
    def computed(self) -> int:
        """What no pool had."""
        return self.prompt - self.here - self.afar - self.archive

    def cells(self) -> tuple[int, ...]:
        """As both tables have them."""
        return self.prompt, self.here, self.afar, self.archive, self.computed


class Demo:
    """One run: the engine, the hosts, what was seen."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        torch.set_grad_enabled(False)
        self.rounds = workload.rounds(calibrate.VOCABULARY, SESSIONS, ROUNDS)
        self.work = workload.work([turn for turns in self.rounds for turn in turns])
        self.conversations = [workload.system_prompt(calibrate.VOCABULARY) for _ in range(SESSIONS)]
        self.homes: list[int | None] = [None] * SESSIONS
        self.caches: dict[tuple[int, int], Any] = {}
        self.seen: list[tuple[str, list[Turn]]] = []
        self.failures: list[str] = []
        self.ends: list[Callable[[], None]] = []
        """What has to be ended, the last one first."""

    def run(self) -> bool:
        """The whole story; whether every check held."""
        self.prepare()
        one, two, three = self.hosts
        self.round("the first turns; a shared system prompt", self.hosts)
        self.round("nothing: each session goes to the next host", self.hosts)
        self.killed(two)
        self.round(f"{two.name} was killed (server, keeper and disk)", [one, three])
        say(f"\n{two.name} comes back, empty, in {two.server.start():.1f} s: same name, later incarnation")
        pools.wait_agreed(self.hosts)
        self.round(f"{two.name} came back empty", self.hosts)
        drained = self.busiest()
        others = [host for host in self.hosts if host is not drained]
        self.round(self.drained(drained), others)
        self.undrained(drained)
        self.round(self.upgraded(others[0]), self.hosts)
        self.round("nothing", self.hosts)
        self.judge()
        self.summary()
        return not self.failures

    def prepare(self) -> None:
        """The model, what is around the hosts, the hosts."""
        binary, program = find_binary(), surroundings.find_etcd()
        say("timing this CPU, then making a Qwen3-architecture model with random weights ...")
        # A page that is computed once more may differ in its last bits from a copy on another host: in fp32 no token shows that.
        choice = calibrate.choose(self.work, SECONDS_WANTED, dtypes=(torch.float32,), timed=False)
        self.engine = Engine(choice)
        total = self.work.total * self.engine.kv_bytes_per_token
        say(
            f"{self.engine.parameters / 1e6:.0f} M parameters, {choice.name}, CPU; {SESSIONS} sessions x "
            f"{ROUNDS} turns, a shared system prompt of {workload.SYSTEM_TOKENS} tokens; {total >> 20} MiB of KV"
        )
        network = surroundings.Network(HOSTS)
        self.ends.append(network.end)
        folder = pathlib.Path("data/demo-around").absolute()
        shutil.rmtree(folder, ignore_errors=True)  # etcd would remember the hosts of an earlier run
        store = surroundings.Store(network.outside, folder)
        self.ends.append(store.end)
        etcd = surroundings.Etcd(program, network.outside, folder) if program else None
        if etcd:
            self.ends.append(etcd.end)
        # Each host could hold three quarters of all: sessions leave copies behind where they were.
        dram = f"{max(64, (total >> 20) * 3 // 4)}MiB"
        self.hosts = pools.make(HOSTS, binary, dram, network, store, etcd)
        for host in self.hosts:
            self.ends.append(host.end)
            host.server.start()
        pools.wait_agreed(self.hosts)
        how = "in a network namespace each" if network.apart else "on addresses of the loopback"
        places = ", ".join(network.host(at) for at in range(HOSTS))
        say(f"{HOSTS} hosts {how} ({places}), {dram} of DRAM each; {'etcd' if etcd else 'a static list'}; archive in S3\n")

    # ---- turns ----------------------------------------------------------------------------------------------------

    def round(self, why: str, serving: list[pools.Host]) -> None:
        """One turn of every session, each on another host than its last."""
        if "nothing" not in why:
            table.header(LIVE)
        self.seen.append((why, [self.serve(turn, self.next_host(turn, serving)) for turn in self.rounds[len(self.seen)]]))

    def next_host(self, turn: workload.Turn, serving: list[pools.Host]) -> pools.Host:
        """The next one that serves, round and round, never the one of the last turn."""
        host = serving[(turn.session + turn.number) % len(serving)]
        return host if host.at != self.homes[turn.session] else serving[(serving.index(host) + 1) % len(serving)]

    def serve(self, turn: workload.Turn, host: pools.Host) -> Turn:
        """One turn, twice: on a host, and without any pool."""
        name, conversation = f"chat-{turn.session}", self.conversations[turn.session]
        key = (turn.session, host.at)
        if key not in self.caches:
            # The class chooses its form itself; what it makes is none of its abstract self.
            self.caches[key] = TurnKVCache(  # type: ignore[abstract]
                self.engine.model, name, host.pool, page_tokens=PAGE_TOKENS, deadline_ms=DEADLINE_MS
            )
        cache = self.caches[key]
        conversation += turn.message
        before = host.counted()
        cut = cache.begin(conversation)
        reply = self.engine.reply(cache, conversation, workload.REPLY_TOKENS)
        report = cache.end_turn(conversation + reply.tokens)
        came = host.counted().since(before)
        expected = self.engine.uninterrupted(turn.session, conversation, cut, workload.REPLY_TOKENS)
        archive = min(came.fetched * PAGE_TOKENS, cut)
        afar = min(came.pulled * PAGE_TOKENS, cut - archive)
        here, same = cut - archive - afar, reply.tokens == expected.tokens
        seen = Turn(len(conversation), here, afar, archive, same, reply.same_as(expected))
        apart = float((reply.first_logits - expected.first_logits).abs().max() / expected.first_logits.abs().max())
        self.check(apart < LOGITS_APART_MAX, f"{name} turn {turn.number}: logits that are {apart:.1g} apart")
        last = self.homes[turn.session]
        places = (turn.number, name, host.name, "-" if last is None else self.hosts[last].name)
        verdict = "yes" if seen.identical else "NO"
        table.cells_of(LIVE, (*places, *seen.cells(), f"{report.reload_ms:.0f}", verdict), seen.identical)
        self.check(seen.identical, f"{name} turn {turn.number}: not the tokens of the run without a pool")
        errors = {cause: n for cause, n in report.misses.items() if cause != "absent"}
        self.check(not errors, f"{name} turn {turn.number} on {host.name}: {errors}")
        conversation += reply.tokens
        self.homes[turn.session] = host.at
        return seen

    # ---- what happens to hosts ------------------------------------------------------------------------------------

    def killed(self, host: pools.Host) -> None:
        """kill -9 of a host whose sessions the archive has; nobody is told, and nobody waits until it is noticed."""
        say(f"\n{host.name}: its idle sessions go to the archive by themselves ...")
        archived = host.wait_archived()
        say(f"{host.name} archived {archived} sessions so far")
        self.check(archived > 0, f"{host.name} archived nothing within {pools.SETTLE_SECONDS_MAX} s")
        say(bold(f"--- kill -9 of {host.name}, its keeper, and its disk is gone ---\n"))
        host.die()

    def busiest(self) -> pools.Host:
        """The host that most sessions had their last turn at."""
        return max(self.hosts, key=lambda host: self.homes.count(host.at))

    def drained(self, host: pools.Host) -> str:
        """Sessions leave a host for the others."""
        say(bold(f"\n--- turnkv drain of {host.name} ---"))
        said = host.turnkv("drain", "--to-peers")
        say(said)
        say()
        moved = pools.moved_sessions(said)
        self.check(moved > 0, f"{host.name} was home of {self.homes.count(host.at)} sessions, and its drain moved none")
        return f"{host.name} was drained of {moved} sessions"

    def undrained(self, host: pools.Host) -> None:
        """It serves again."""
        say(f"\n{host.name}: {host.turnkv('drain', '--undo')}")

    def upgraded(self, host: pools.Host) -> str:
        """Another program, here a copy of the same, takes the place of a running one."""
        say(bold(f"\n--- turnkv upgrade of {host.name} ---"))
        program = host.server.folder / "turnkv-next"
        program.write_bytes(host.server.binary.read_bytes())
        program.chmod(0o755)
        began = time.monotonic()
        say(host.turnkv("upgrade", "--binary", str(program)))
        seconds = time.monotonic() - began
        pools.wait_agreed(self.hosts)
        say()
        return f"{host.name} was upgraded in {seconds:.1f} s"

    # ---- what is said of it ---------------------------------------------------------------------------------------

    def judge(self) -> None:
        """What must have happened besides every turn being identical."""
        by_round = [turns for _, turns in self.seen]
        self.check(all(turn.afar > 0 for turn in by_round[1]), "a session hopped and nothing came from the host it left")
        self.check(any(turn.archive > 0 for turn in by_round[2]), "nothing of the killed host's sessions came from the archive")
        for at, what in ((3, "a host came back empty"), (4, "a host was drained"), (5, "a host was upgraded")):
            lost = [turn for turn in by_round[at] if turn.computed * 2 > turn.prompt]
            self.check(not lost, f"after {what}, {len(lost)} turns computed more than half of their prompt")

    def summary(self) -> None:
        """The table by rounds, verdict, where to look next."""
        say(bold("\nwhere the tokens of each round's prompts were found"))
        table.header(TOTALS)
        for at, (why, turns) in enumerate(self.seen, 1):
            sums = [sum(column) for column in zip(*(turn.cells() for turn in turns), strict=True)]
            same = sum(turn.identical for turn in turns)
            table.cells_of(TOTALS, (at, why, *sums, f"{same} of {len(turns)}"), same == len(turns))
        every = [turn for _, turns in self.seen for turn in turns]
        prompts, computed = sum(turn.prompt for turn in every), sum(turn.computed for turn in every)
        new, exact = self.work.computed, sum(turn.exact for turn in every)
        say(f"\n  {prompts - computed:,} of {prompts:,} prompt tokens not recomputed; {new:,} were new to any cache")
        say(f"  {exact} of {len(every)} turns to the last bit of their logits, which a page that was computed twice may change")
        say(bold(f"\nturnkv cluster status at {self.hosts[0].name}"))
        say("  " + self.hosts[0].turnkv("cluster", "status").replace("\n", "\n  "))
        say(bold("\nwhere to look next"))
        say("  configuration of a member:  data/demo-host-1.toml")
        say("  its log:                    data/demo-host-1/server.log")
        say("  how to operate a cluster:   docs/operating/cluster.md")
        for failure in self.failures:
            say(table.red(f"FAILED: {failure}"))
        say(bold("\nall checks passed" if not self.failures else f"\n{len(self.failures)} checks failed"))

    def check(self, holds: bool, otherwise: str) -> None:
        """Remembers what did not hold."""
        if not holds:
            self.failures.append(otherwise)

    def end(self) -> None:
        """Ends all that was started, the last one first."""
        while self.ends:
            self.ends.pop()()


def main() -> None:
    """Runs the demo from the root of the tree, whatever the current directory is."""
    os.chdir(pathlib.Path(__file__).resolve().parents[2])
    demo = Demo()
    try:
        passed = demo.run()
    finally:
        demo.end()
    say(f"{time.monotonic() - demo.started:.0f} s")
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    main()
