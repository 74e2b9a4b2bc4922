"""Pages in, pages back, a miss, and what a pool is told of a session.

    python examples/python/pool.py unix:/run/turnkv/turnkv.sock [tenant]

Owns: one namespace and one session. Must not know: engines.
"""

from __future__ import annotations

import array
import sys

import turnkv

PAGE_TOKENS = 16
PAGE_BYTES = 128 << 10


def main(address: str, tenant: str = "") -> None:
    pool = turnkv.Pool(address)
    # What a page's bytes mean is ours alone here. An engine names its model, dtype, layers and heads instead. Over TLS the
    # tenant is the one that the certificate names.
    pages = pool.open_namespace(
        "example-model@1", dtype="u8", layout="opaque", page_tokens=PAGE_TOKENS, opaque_shard_bytes=PAGE_BYTES, tenant=tenant
    )

    # A page is named by its tokens and by all tokens before them: 32 bytes each.
    tokens = array.array("I", range(100_000, 100_000 + 4 * PAGE_TOKENS))
    packed = turnkv.chain_hashes(tokens.tobytes(), PAGE_TOKENS)
    hashes = [packed[at : at + 32] for at in range(0, len(packed), 32)]

    begun = pages.begin_turn("chat-python")
    print(f"turn {begun.turn}: {begun.pages} pages are there")

    # The K and V of the first three pages, as an engine would have computed them.
    computed = [bytes([fill]) * PAGE_BYTES for fill in (1, 2, 3)]
    stored = pages.offload(hashes[:3], computed, session="chat-python")
    print(f"stored {stored.stored}, present {stored.present}, declined {stored.declined}")

    # The next turn asks for four. Leading pages come back verified; the rest is to be computed.
    memory = [bytearray(PAGE_BYTES) for _ in hashes]
    found = pages.reload(hashes, memory)
    print(f"reloaded {found.pages} of {len(hashes)} pages, then a miss: {found.miss}")
    assert [bytes(page) for page in memory[: found.pages]] == computed[: found.pages]

    # The user is expected back in half a minute: the pages are in DRAM by then.
    pages.end_turn("chat-python", hashes[:3], expected_return_ms=30_000)
    pages.close("chat-python")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except turnkv.Error as error:
        sys.exit(f"{error}\n{error.advice}")
