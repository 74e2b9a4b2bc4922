#!/usr/bin/env python3
"""Makes links of the built book that leave it lead to the tree's own files: mdBook knows only what is under docs/.

.ci/book_links.py target/book
"""

from __future__ import annotations

import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r'href="([^":#]+)(#[^"]*)?"')


def main(book: pathlib.Path) -> None:
    for page in book.rglob("*.html"):
        source = DOCS / page.relative_to(book).parent

        def outward(found: re.Match[str], page: pathlib.Path = page, source: pathlib.Path = source) -> str:
            target = pathlib.Path(os.path.normpath(source / found[1]))
            if target.is_relative_to(DOCS) or not target.is_relative_to(ROOT):
                return found[0]
            # mdBook takes every .md for a page of its own.
            target = target if target.exists() else target.with_suffix(".md")
            return f'href="{os.path.relpath(target, page.parent)}"' if target.exists() else found[0]

        page.write_text(LINK.sub(outward, page.read_text()))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
