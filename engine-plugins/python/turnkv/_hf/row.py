"""One session of a cache: the names of its pages, finding them at a turn's begin, storing them at its end.

Owns: block hashes, which pages the pool is known to have, what is committed in place and what must be copied. Must not know:
transformers.

Pages of full attention are named by their token prefix, so equal prefixes are one page for all sessions. Pages of a window
hang beside one another on the last sink page: an older one can go without those after it. They are named by their token
prefix too, and where a session was trimmed (what a token saw then depends on its session's past) also by the session.
"""

from __future__ import annotations

import array
import hashlib
from typing import Any

import turnkv

from .common import TurnReport, packed, view
from .group import Group, GroupShape
from .memory import GroupMemory

HASH = 32


class Row:
    """See the module text."""

    def __init__(
        self, session: str | None, at: int, memory: GroupMemory, shapes: list[GroupShape], deadline_ms: int | None
    ) -> None:
        self.session, self._at, self._memory, self._shapes = session, at, memory, shapes
        self._deadline_ms = deadline_ms
        self.found = 0
        self._tail: bytes | None = None

    # ---- names ----------------------------------------------------------------------------------------------------

    def _chain(self, tokens: array.array[int], size: int) -> bytes:
        """Hashes of all pages of `tokens`, a partial last one too."""
        hashes = turnkv.chain_hashes(packed(tokens), size)
        rest = len(tokens) - len(hashes) // HASH * size
        if rest:
            hashes += turnkv.chain_hashes(packed(tokens[len(tokens) - rest :]), rest, hashes[-HASH:] or None)
        return hashes

    def _names(self, shape: GroupShape, tokens: array.array[int]) -> bytes:
        """Names of the pages that are kept of `tokens`: the sinks, then the window."""
        chain = self._chain(tokens, shape.page_tokens)
        if shape.window is None:
            return chain
        first, sinks = shape.first(len(tokens)) * HASH, shape.sink_pages * HASH
        window = b"".join(self._window_name(shape, chain[at : at + HASH]) for at in range(first, len(chain), HASH))
        return chain[:sinks] + window

    def _window_name(self, shape: GroupShape, prefix: bytes) -> bytes:
        owner = b"" if shape.exact else (self.session or "").encode()
        return hashlib.sha256(b"turnkv-window-1\0" + prefix + owner).digest()

    # ---- begin ----------------------------------------------------------------------------------------------------

    def open(self, tokens: array.array[int], turn: TurnReport) -> int:
        """Begins the session's turn; how many leading tokens the pool seems to have."""
        shape = self._shapes[0]
        self.found, self._tail = self._memory.doors[shape].call(lambda pages: self._look(pages, shape, tokens, turn))
        if not self.found:
            turn.misses["absent"] += 1
        return self.found

    def _look(
        self, pages: turnkv.Namespace, shape: GroupShape, tokens: array.array[int], turn: TurnReport
    ) -> tuple[int, bytes | None]:
        size = shape.page_tokens
        begun: turnkv.TurnBegun | None = None
        if self.session is not None:
            begun = pages.begin_turn(self.session)
            turn.turn = begun.turn
        whole = (len(tokens) - 1) // size
        chain = turnkv.chain_hashes(packed(tokens[: whole * size]), size)
        if shape.window is not None:
            return self._look_back(begun, shape, tokens, chain)
        found = pages.lookup(chain, session=self.session) if chain else 0
        tail = self._matches(begun, shape, tokens, chain, found)
        return found * size + tail, begun.tail if tail and begun is not None else None

    def _look_back(
        self, begun: turnkv.TurnBegun | None, shape: GroupShape, tokens: array.array[int], chain: bytes
    ) -> tuple[int, bytes | None]:
        """Where a trimmed session ended is told by its tail, the one page that its list ends with."""
        for page in range(len(chain) // HASH, -1, -1):
            tail = self._matches(begun, shape, tokens, chain, page)
            if tail and begun is not None:
                return page * shape.page_tokens + tail, begun.tail
        return 0, None

    def _matches(
        self, begun: turnkv.TurnBegun | None, shape: GroupShape, tokens: array.array[int], chain: bytes, page: int
    ) -> int:
        """Tokens of the session's partial tail if it is page `page` of this prompt; else 0."""
        size = shape.page_tokens
        if begun is None or begun.tail is None or not 0 < begun.tail_tokens < size:
            return 0
        at, tail = page * size, begun.tail_tokens
        if at + tail >= len(tokens):
            return 0
        before = chain[(page - 1) * HASH : page * HASH] if page else None
        name = turnkv.chain_hashes(packed(tokens[at : at + tail]), tail, before)
        if shape.window is not None and page >= shape.sink_pages:
            name = self._window_name(shape, name)
        return tail if name == begun.tail else 0

    def load(self, group: Group, tokens: array.array[int], wanted: int, turn: TurnReport) -> int:
        """Maps the pages of the first `wanted` tokens; how many tokens they have (copied, where mapping is not possible)."""
        shape, size = group.shape, group.shape.page_tokens
        if shape is self._shapes[0] and shape.window is None and self._tail is None:
            wanted = wanted // size * size
        names = self._names(shape, tokens[:wanted])
        if shape.window is None and self.found > wanted and wanted % size:
            names = names[: wanted // size * HASH]  # another row has less: its own tail page is not this row's
            wanted = wanted // size * size
        report = self._map(group, names, turn)
        if report.miss is not None:
            turn.misses[report.miss] += 1
        all_there = report.pages * HASH == len(names)
        if not all_there and shape.window is not None:
            return 0
        loaded = wanted if all_there else report.pages * size
        if shape is self._shapes[0]:
            dram = loaded if not report.from_nvme else min(report.from_dram * size, loaded)
            turn.tokens_from_dram += dram
            turn.tokens_from_nvme += loaded - dram
        return loaded

    def _map(self, group: Group, names: bytes, turn: TurnReport) -> Any:
        if group.span is not None and not group.spilled:
            try:
                before = group.span.counts()["copied"]
                report = group.span.hold(self._at, 0, names, session=self._session(group), deadline_ms=self._deadline_ms)
                copied = group.span.counts()["copied"] - before
                turn.pages_mapped += report.pages - copied
                turn.pages_copied += copied
                return report
            except turnkv.Error as error:
                if error.kind not in ("invalid", "limit"):
                    raise
                group.spill(f"error:{error.kind}")
        tokens = len(names) // HASH * group.shape.page_tokens
        target = turnkv.Strided([view(tensor[self._at : self._at + 1, :, :tokens], 0) for tensor in group.kv], tokens)
        session = self._session(group)
        report = self._memory.doors[group.shape].call(
            lambda pages: pages.reload(names, target, session=session, deadline_ms=self._deadline_ms)
        )
        turn.pages_copied += report.pages
        return report

    # ---- end ------------------------------------------------------------------------------------------------------

    def store(self, tokens: array.array[int], durable: bool, keep: bool, hints: dict[str, Any], turn: TurnReport) -> None:
        """Makes this row's pages the pool's, the leading group last: only then can the session be found."""
        for shape in reversed(self._shapes):
            group, leads = self._memory.find(shape), shape is self._shapes[0]
            kept = self._kept(shape, tokens)
            if not kept:
                continue
            group.trim(shape.first(len(kept)))  # what the next token would drop has no name
            names = self._names(shape, kept)
            done = self._store_pages(group, names, kept, durable, keep, turn)
            complete = done * HASH == len(names)
            if not leads:
                if not complete:
                    return  # without its windows the session could not go on from here
                continue
            tail = len(kept) % shape.page_tokens if complete else 0
            whole = len(kept) - tail if complete else done * shape.page_tokens
            turn.tokens_offloaded += whole + tail
            if self.session is not None:
                self._end_session(shape, names[: done * HASH], tail, complete, hints)

    def _kept(self, shape: GroupShape, tokens: array.array[int]) -> array.array[int]:
        """The tokens to store: a session that is found by its tail must have one."""
        size = shape.page_tokens
        if self._shapes[0].window is not None:
            return tokens[:-1] if len(tokens) % size == 0 else tokens
        return tokens if self.session is not None else tokens[: len(tokens) // size * size]

    def _end_session(self, shape: GroupShape, names: bytes, tail: int, complete: bool, hints: dict[str, Any]) -> None:
        if shape.window is not None:
            if not complete:
                return
            names = names[: shape.sink_pages * HASH] + names[-HASH:] if len(names) > shape.sink_pages * HASH else names
        session, call = self.session, self._memory.doors[shape].call
        assert session is not None
        call(lambda pages: pages.end_turn(session, names, tail_tokens=tail, **hints))

    def _store_pages(
        self,
        group: Group,
        names: bytes,
        tokens: array.array[int],
        durable: bool,
        keep: bool,
        turn: TurnReport,
        retry: bool = True,
    ) -> int:
        """How many leading pages of `names` the pool has in the end."""
        shape, count = group.shape, len(names) // HASH
        at = self._known(group, names) if retry else 0
        turn.pages_present += at
        while at < count:
            end, siblings = count, shape.window is not None and at >= shape.sink_pages
            if shape.window is not None and at < shape.sink_pages:
                end = min(count, shape.sink_pages)
            run, standing = (end - at, "empty")
            if group.span is not None:
                run, standing = group.span.run(self._at, self._place(group, at), end - at)
            try:
                report = self._store_run(group, names, at, run, standing == "writable", siblings, tokens, durable, keep)
            except turnkv.Error as error:
                if retry and standing == "writable" and error.kind == "lease_expired":
                    # Another server answered: it knows none of these slots, but their bytes are still good.
                    return self._store_pages(group, names, tokens, durable, keep, turn, retry=False)
                raise
            done = report.stored + report.present
            turn.pages_stored += report.stored
            turn.pages_present += report.present
            turn.durable &= report.durable
            if report.not_durable is not None:
                turn.misses[f"not_durable:{report.not_durable}"] += 1
            if standing == "writable":
                turn.pages_in_place += report.stored
            else:
                turn.pages_copied += report.stored
            at += done
            if report.declined:
                if retry and at and done == 0 and report.first_decline == "no_parent":
                    return self._store_pages(group, names, tokens, durable, keep, turn, retry=False)
                turn.pages_declined += count - at
                turn.misses[f"declined:{report.first_decline}"] += count - at
                turn.durable = False
                break
        return at

    def _known(self, group: Group, names: bytes) -> int:
        """Leading pages of `names` that were mapped for reading, and are so still: the pool has them."""
        count = len(names) // HASH
        if group.span is None:
            return 0
        run, standing = group.span.run(self._at, self._place(group, 0), count)
        return run if standing == "read_only" else 0

    def _place(self, group: Group, page: int) -> int:
        """Where the `page`th page of the names is."""
        return group.start + page

    def _store_run(
        self,
        group: Group,
        names: bytes,
        at: int,
        run: int,
        in_place: bool,
        siblings: bool,
        tokens: array.array[int],
        durable: bool,
        keep: bool,
    ) -> Any:
        """Stores `run` pages that stand alike: in place, or by a copy."""
        shape, size = group.shape, group.shape.page_tokens
        sinks, ends = shape.sink_pages, (at + run) * HASH == len(names)
        tail = len(tokens) % size if ends else 0
        before = sinks if siblings else at
        parent = names[(before - 1) * HASH : before * HASH] if before else None
        session = self.session if shape is self._shapes[0] and not siblings else None
        part = names[at * HASH : (at + run) * HASH]
        if in_place and group.span is not None:
            return group.span.commit(
                self._at,
                self._place(group, at),
                part,
                session=session,
                parent=parent,
                tail_tokens=tail,
                siblings=siblings,
                keep=keep,
                durable=durable,
                deadline_ms=self._deadline_ms,
            )
        if siblings:
            part, run, tail = part[:HASH], 1, tail if run == 1 else 0
        first = self._place(group, at) * size
        count = run * size - (size - tail if tail else 0)
        source = turnkv.Strided([view(tensor[self._at : self._at + 1], first) for tensor in group.kv], count)
        return self._memory.doors[shape].call(
            lambda pages: pages.offload(
                part, source, session=session, parent=parent, durable=durable, deadline_ms=self._deadline_ms
            )
        )

    def _session(self, group: Group) -> str | None:
        return self.session if group.shape is self._shapes[0] else None
