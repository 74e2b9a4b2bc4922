"""The command `turnkv`: the pool's server, which the wheel carries.

Owns: where the binary lies. Must not know: its commands. (The compiled module looks for it in the same place.)
"""

from __future__ import annotations

import os
import pathlib
import sys

BINARY = pathlib.Path(__file__).resolve().parent / "_bin" / "turnkv"


def main() -> None:
    """Becomes the server."""
    if not os.access(BINARY, os.X_OK):
        sys.exit(f"turnkv: this package was built without the server ({BINARY}): `make python` builds it with one")
    os.execv(BINARY, [str(BINARY), *sys.argv[1:]])


if __name__ == "__main__":
    main()
