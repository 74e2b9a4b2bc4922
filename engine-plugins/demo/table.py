"""The demo's live table. Owns: columns, widths, colours. Must not know: where the numbers come from."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass

Columns = tuple[tuple[str, int], ...]
"""Names and widths."""

COLUMNS: Columns = (
    ("turn", 4),
    ("session", 8),
    ("prompt", 6),
    ("found in", 11),
    ("reused", 6),
    ("shared", 6),
    ("DRAM", 5),
    ("NVMe", 5),
    ("computed", 8),
    ("reload ms", 9),
    ("re-prefill ms", 13),
    ("gain", 6),
    ("identical", 9),
)
COLOURS = os.environ.get("NO_COLOR") is None and sys.stdout.isatty()


@dataclass
class Row:
    """One turn."""

    turn: int
    session: str
    prompt: int
    reused: int
    shared: int
    dram: int
    nvme: int
    reload_ms: float
    prefill_ms: float | None
    identical: bool

    @property
    def found(self) -> str:
        """Where the prefix was."""
        if not self.reused:
            return "none"
        if self.reused <= self.shared:
            return "shared"
        return "DRAM+NVMe" if self.dram and self.nvme else "NVMe" if self.nvme else "DRAM"


def header(columns: Columns = COLUMNS) -> None:
    """The column names."""
    say("  ".join(bold(name.rjust(width)) for name, width in columns))


def show(row: Row) -> None:
    """One line."""
    gain = f"{row.prefill_ms / row.reload_ms:.0f}x" if row.prefill_ms and row.reload_ms else "-"
    cells = (
        row.turn,
        row.session,
        row.prompt,
        row.found,
        row.reused,
        row.shared,
        row.dram,
        row.nvme,
        row.prompt - row.reused,
        f"{row.reload_ms:.1f}",
        "-" if row.prefill_ms is None else f"{row.prefill_ms:.0f}",
        gain,
        "yes" if row.identical else "NO",
    )
    cells_of(COLUMNS, cells, row.identical)


def cells_of(columns: Columns, cells: Iterable[object], good: bool = True) -> None:
    """One line of any table."""
    line = "  ".join(str(cell).rjust(width) for cell, (_, width) in zip(cells, columns, strict=True))
    say(line if good else red(line))


def say(text: str = "") -> None:
    """Prints at once, also into a pipe."""
    print(text, flush=True)


def bold(text: str) -> str:
    """For headings."""
    return f"\033[1m{text}\033[0m" if COLOURS else text


def red(text: str) -> str:
    """For what must not be."""
    return f"\033[31m{text}\033[0m" if COLOURS else text
