"""The demo: a transformer serves chat sessions whose KV cache is four times the pool's DRAM; the server is killed half-way.

    .venv/bin/python engine-plugins/demo         from the root of the tree, after `cargo build --release`; `make demo` does both

Every turn's cache is dropped at its end. The next turn finds its prefix in the pool, and must continue exactly like a run
whose cache was never dropped. The model's size and dtype are what this CPU serves in two minutes. Exit status 0: every check
held.
"""

from __future__ import annotations

import os
import pathlib
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's idle threads leave the cores to the server

import calibrate
import server as servers
import table
import torch
import workload
from engine import Engine
from table import Row, bold, say

import turnkv
from turnkv.transformers import TurnKVCache

KV_PER_DRAM = 4.2
"""The sessions' KV is so many times the pool's DRAM."""
NVME = "2GiB"


class Demo:
    """One run: the engine, its server, what was seen."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        torch.set_grad_enabled(False)
        self.turns = workload.turns(calibrate.VOCABULARY)
        self.system = workload.system_prompt(calibrate.VOCABULARY)
        self.work = workload.work(self.turns)
        binary = servers.find_binary()
        say("timing this CPU in bf16 and fp32, then making a Qwen3-architecture model with random weights ...")
        self.choice = calibrate.choose(self.work)
        self.engine = Engine(self.choice)
        self.total_bytes = self.work.total * self.engine.kv_bytes_per_token
        self.dram_bytes = int(self.total_bytes / KV_PER_DRAM) >> 20 << 20
        self.server = servers.Server(binary, f"{self.dram_bytes >> 20}MiB", NVME)
        self.conversations = {session: list(self.system) for session in range(workload.SESSIONS)}
        self.rows: list[Row] = []
        self.after_restart: list[Row] = []
        self.failures: list[str] = []

    def run(self) -> bool:
        """The whole story; whether every check held."""
        total, dram = self.total_bytes, self.dram_bytes
        say(
            f"{self.engine.parameters / 1e6:.0f} M parameters, {self.choice.name} (the faster here), CPU; "
            f"{workload.SESSIONS} sessions x "
            f"{workload.TURNS} turns, a shared system prompt of {workload.SYSTEM_TOKENS} tokens; "
            f"about {self.choice.estimate:.0f} s, three minutes at most"
        )
        say(
            f"their KV is {total / 2**20:.0f} MiB; the pool has {dram >> 20} MiB of DRAM ({total / dram:.1f}x less) "
            f"and NVMe files in {self.server.folder}/nvme"
        )
        self.check(total >= 4 * dram, "the sessions' KV is less than four times the DRAM tier")
        say(f"server started in {self.server.start():.2f} s: {self.server.binary} serve --config {self.server.config}\n")
        self.pool = turnkv.Pool(self.server.address)
        self.caches = {
            session: TurnKVCache(self.engine.model, f"chat-{session:02}", self.pool) for session in range(workload.SESSIONS)
        }
        half = len(self.turns) // 2
        self.serving = time.monotonic()
        table.header()
        for turn in self.turns[:half]:
            self.rows.append(self.serve(turn))
        self.crash()
        table.header()
        for turn in self.turns[half:]:
            row = self.serve(turn)
            self.rows.append(row)
            self.after_restart.append(row)
        self.judge()
        self.summary()
        return not self.failures

    def serve(self, turn: workload.Turn) -> Row:
        """One turn of one session, twice: from the pool, and uninterrupted."""
        conversation, cache = self.conversations[turn.session], self.caches[turn.session]
        conversation += turn.message
        cut = cache.begin(conversation)
        reply = self.engine.reply(cache, conversation, workload.REPLY_TOKENS)
        cache.end_turn(conversation + reply.tokens, expected_return_ms=2_000)
        expected = self.engine.uninterrupted(turn.session, conversation, cut, workload.REPLY_TOKENS)
        prefill_ms = self.engine.prefill_ms(conversation[:cut]) if cut and self.time_to_prefill() else None
        report = cache.turn
        row = Row(
            turn=turn.number,
            session=f"chat-{turn.session:02}",
            prompt=len(conversation),
            reused=cut,
            shared=min(cut, workload.SYSTEM_TOKENS),
            dram=report.tokens_from_dram,
            nvme=report.tokens_from_nvme,
            reload_ms=report.reload_ms,
            prefill_ms=prefill_ms,
            identical=reply.same_as(expected),
        )
        table.show(row)
        self.check(row.identical, f"{row.session} turn {row.turn}: not the tokens and logits of the uninterrupted run")
        errors = {cause: n for cause, n in report.misses.items() if cause != "absent"}
        self.check(not errors, f"{row.session} turn {row.turn}: {errors}")
        conversation += reply.tokens
        return row

    def time_to_prefill(self) -> bool:
        """Whether prefilling what was reused, only to time it, leaves the other turns their time."""
        now, done = time.monotonic(), len(self.rows)
        ahead = (now - self.serving) / max(1, done) * (len(self.turns) - done)
        return now - self.started + ahead < calibrate.SECONDS_MAX

    def crash(self) -> None:
        """kill -9, and a new server on the same files."""
        stats = self.pool.stats()
        say(bold("\n--- kill -9 ---"))
        self.server.kill()
        say(f"the server is gone, with {stats['dirty_bytes'] / 2**20:.1f} MiB that were not on NVMe yet")
        seconds = self.server.start()
        stats = self.pool_again().stats()
        found = {tier["tier"]: tier["pages"] for tier in stats["tiers"]}
        dram, nvme = found.get("dram", 0), found.get("nvme", 0)
        say(f"a new one answers after {seconds:.2f} s and found {dram} pages in DRAM and {nvme} on NVMe\n")
        self.check(dram > 0, "the restarted server found nothing in DRAM")
        self.check(nvme > 0, "the restarted server found nothing on NVMe")

    def pool_again(self) -> turnkv.Pool:
        """The same pool object: the client reconnects by itself; waits out its breaker."""
        deadline = time.monotonic() + 15
        while True:
            try:
                self.pool.stats()
                return self.pool
            except turnkv.Error:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def judge(self) -> None:
        """What must have happened besides every turn being identical."""
        first = [row for row in self.rows if row.turn == 1]
        self.check(all(row.found == "shared" for row in first[1:]), "a new session did not find the shared system prompt")
        self.check(any(row.dram > row.shared for row in self.rows), "no turn was served from DRAM")
        self.check(any(row.nvme > row.shared for row in self.rows), "no turn was served from NVMe")
        seen: set[str] = set()
        for row in self.after_restart:
            if row.session not in seen and row.turn > 1:
                self.check(row.reused > row.shared, f"{row.session} came back after the restart and found nothing of its own")
            seen.add(row.session)
        self.check(any(row.dram > row.shared for row in self.after_restart), "no session was in DRAM after the restart")

    def summary(self) -> None:
        """Figures, verdict, where to look next."""
        again = [row for row in self.rows if row.prefill_ms]
        reload_ms, prefill_ms = sum(row.reload_ms for row in again), sum(row.prefill_ms or 0 for row in again)
        untimed = sum(row.prefill_ms is None and row.reused > 0 for row in self.rows)
        reused, prompts = sum(row.reused for row in self.rows), sum(row.prompt for row in self.rows)
        say(bold("\nsummary"))
        say(
            f"  {sum(row.identical for row in self.rows)} of {len(self.rows)} turns identical "
            "to the uninterrupted run (tokens and logits), "
            f"{len(self.after_restart)} of them after kill -9"
        )
        say(
            f"  {reused:,} of {prompts:,} prompt tokens not recomputed: {sum(r.dram for r in self.rows):,} from DRAM, "
            f"{sum(r.nvme for r in self.rows):,} from NVMe"
        )
        say(
            f"  reload {reload_ms / max(1, len(again)):.1f} ms a turn, "
            f"prefilling the same tokens {prefill_ms / max(1, len(again)):.0f} ms: "
            f"{prefill_ms / max(reload_ms, 1e-9):.0f}x"
            + (f" ({untimed} turns not timed, to stay within three minutes)" if untimed else "")
        )
        say(f"  {self.total_bytes / 2**20:.0f} MiB of KV through {self.dram_bytes >> 20} MiB of DRAM")
        say(bold("\nturnkv status"))
        say("  " + self.server.status().replace("\n", "\n  "))
        say(bold("\nwhere to look next"))
        say(f"  run this server again:  {self.server.binary} serve --config {self.server.config}")
        say(f"  then, beside it:        {self.server.binary} status --address {self.server.address}")
        say(f"  metrics:                curl {self.server.metrics_url}")
        say("  in your own code:       from turnkv.transformers import TurnKVCache   (engine-plugins/python/turnkv)")
        for failure in self.failures:
            say(table.red(f"FAILED: {failure}"))
        say(bold("\nall checks passed" if not self.failures else f"\n{len(self.failures)} checks failed"))

    def check(self, holds: bool, otherwise: str) -> None:
        """Remembers what did not hold."""
        if not holds:
            self.failures.append(otherwise)


def main() -> None:
    """Runs the demo from the root of the tree, whatever the current directory is."""
    os.chdir(pathlib.Path(__file__).resolve().parents[2])
    demo = Demo()
    try:
        passed = demo.run()
    finally:
        demo.server.stop()
    say(f"{time.monotonic() - demo.started:.0f} s")
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    main()
