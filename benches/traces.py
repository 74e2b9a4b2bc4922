#!/usr/bin/env python3
"""Public traces in the form that `turnkv simulate` reads, for figures on traffic that nothing was tuned on.

  traces.py mooncake FILE                      a trace of Mooncake's FAST'25 release (one request a line, 512 tokens a block)
  traces.py sessions FOLDER [--sessions 120 --skip 0 --hours 4 --seed 0 --without TRACE ...]
                                               recorded agent sessions of kv-cache-tester (traces/*.json, one session a file)

Prints JSON lines. Sessions are taken in the order of their names, those in the traces `--without` names left out; their starts,
which are not published, are drawn uniformly over the hours. Equal sizes of tools and system prompt are taken for the same
shared head, as in the traces that benches/results/eviction.md compares with."""

import argparse
import gzip
import json
import pathlib
import random
import sys

BLOCK_TOKENS = 512


def mooncake(options):
    yield header(pathlib.Path(options.file).stem, "Mooncake FAST'25 release")
    with open(options.file, encoding="utf-8") as lines:
        for line in lines:
            told = json.loads(line)
            yield request(told["timestamp"] / 1000, None, None, None, told, told["hash_ids"], None)


def sessions(options):
    known = set().union(*map(names_in, options.without))
    files = [file for file in sorted(pathlib.Path(options.folder).glob("*.json")) if file.stem not in known]
    chosen = files[options.skip : options.skip + options.sessions]
    if not chosen:
        raise SystemExit(f"{options.folder}: no session is left of {len(files)}; see --skip and --without")
    starts, ids, requests = random.Random(options.seed), {}, []
    for file in chosen:
        requests += session(json.loads(file.read_text(encoding="utf-8")), starts.uniform(0, options.hours * 3600), ids)
    yield header(f"sessions-{options.skip}", "kv-cache-tester")
    yield from sorted(requests, key=lambda request: request["t"])


def session(told, start, ids):
    """All requests of a session, and of the agents that work for it."""
    sizes = (told["tool_tokens"], told["system_tokens"])
    turn = agents = 0
    for step in told["requests"]:
        at = start + step["t"]
        if step["type"] == "subagent":
            agents += 1
            for number, asked in enumerate(step["requests"], 1):
                blocks = chain(asked["hash_ids"], told, (), ids)
                yield request(at + asked["t"], f"{told['id']}.{agents}", told["id"], number, asked, blocks, asked.get("stop"))
        else:
            turn += 1
            blocks = chain(step["hash_ids"], told, sizes, ids)
            yield request(at, told["id"], None, turn, step, blocks, step.get("stop"))


def chain(hashes, told, head, ids):
    """Numbers of the full blocks: equal ones mean an equal whole prefix."""
    small = BLOCK_TOKENS // told["block_size"]
    blocks, before = [], None
    for at in range(len(hashes) // small):
        shared = at < sum(head) // BLOCK_TOKENS
        key = (head, at) if shared else (told["id"], before, tuple(hashes[at * small : (at + 1) * small]))
        before = ids.setdefault(key, len(ids))
        blocks.append(before)
    return blocks


def names_in(trace):
    opened = gzip.open if trace.endswith(".gz") else open
    with opened(trace, "rt", encoding="utf-8") as lines:
        next(lines)
        return {(json.loads(line)["session"] or "").split(".")[0] for line in lines}


def header(name, source):
    return {"trace": name, "block_tokens": BLOCK_TOKENS, "source": source, "licence": "Apache-2.0"}


def request(at, name, parent, turn, told, blocks, stop):
    size = {
        "input": told.get("in", told.get("input_length")),
        "output": told.get("out", told.get("output_length")),
    }
    return {"t": round(at, 3), "session": name, "parent": parent, "turn": turn, **size, "blocks": blocks, "stop": stop}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    forms = parser.add_subparsers(required=True)
    form = forms.add_parser("mooncake")
    form.add_argument("file")
    form.set_defaults(make=mooncake)
    form = forms.add_parser("sessions")
    form.add_argument("folder")
    for name, usual in (("sessions", 120), ("skip", 0), ("hours", 4.0), ("seed", 0)):
        form.add_argument(f"--{name}", type=type(usual), default=usual)
    form.add_argument("--without", nargs="*", default=[], metavar="TRACE")
    form.set_defaults(make=sessions)
    options = parser.parse_args()
    for line in options.make(options):
        json.dump(line, sys.stdout, separators=(",", ":"))
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
