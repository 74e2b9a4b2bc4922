"""Checks an export of the archive with the standard library and the `zstd` command: `python check_export.py EXPORT`."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Every page's K and V must be there, and have the SHA-256 that names it."""
    export = Path(sys.argv[1])
    manifest = json.loads((export / "manifest.json").read_text())
    assert manifest["layout"] == "paged-batchinvariant-v1", manifest["layout"]
    digests = {page[part] for page in manifest["pages"] for part in ("k", "v", "kv") if part in page}
    for digest in sorted(digests):
        blob = export / "blobs" / f"{digest}.zst"
        content = subprocess.run(["zstd", "-dc", str(blob)], check=True, capture_output=True).stdout
        if hashlib.sha256(content).hexdigest() != digest:
            sys.exit(f"{blob} is damaged")
    print(f"{len(manifest['pages'])} pages, {len(digests)} blobs: all as they are named")


if __name__ == "__main__":
    main()
