"""What SGLang's calls of a linker leave out, read from the locals of the method that calls: the only such look in turnkv.

Why: SGLang 0.5.23 tells a linker too little, and gives it no other way to ask.
- `offload` gets the keys of one tree node without those before it. The pool never keeps a page whose parent it does not have, so
  it must know the page before. `UnifiedCacheLinkerWrapper._offload_node`, which calls, has `node_id`, and `self.cache`.
- `lookup` gets a request's name. What an orchestrator said with the request (`kv_hints`, `session_id`) is an attribute of it.
  `UnifiedCacheLinkerWrapper.match`, which calls, has it as `req`.
The factory that makes a linker hands it the server's arguments, the pools and a set of component types: no tree, no requests, no
wrapper. Locals are read, never written, and no method of SGLang is replaced.

Where a caller looks different nothing is raised, `callers_unread` counts it (the first time is logged, with SGLang's version):
- a parent that cannot be told is what this process remembers of its own offloads; where it remembers none, the node's pages are
  not stored (`dropped:no_parent`), and SGLang is told so;
- a request that cannot be told has no hints, and all else goes on.

Owns: which locals of which methods, and that none of them is needed. Must not know: the pool.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import sglang

from .chain import ROOT, block_hash
from .door import Counts

logger = logging.getLogger("turnkv.sglang")
CALLER = 2
"""Frames up from the methods here: they are called by the linker's, which SGLang calls."""


class Callers:
    """See the head of this file."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._said: set[str] = set()

    def parent_of_offload(self, first_key: str, tokens: int) -> bytes | None:
        """The hash of the page before a node that is being offloaded, ROOT for none; None if it cannot be told."""
        local = sys._getframe(CALLER).f_locals
        try:
            node, tree = local["node_id"], local["self"].cache.tree_core
            state = tree.validate_buffer_backup(node, tokens)
            if state is None or first_key not in tree.get_hash_values(node)[:1]:
                return None  # the node is another one by now
            if state.parent_is_root:
                return ROOT
            return block_hash(state.parent_last_hash) if state.parent_last_hash else None
        except Exception as error:
            self._unread("offload", error)
            return None

    def request_of_lookup(self, rid: str) -> Any:
        """The request that a lookup is for; None if it cannot be told."""
        local = sys._getframe(CALLER).f_locals
        try:
            request = local["req"]
            if request.rid != rid:
                raise LookupError(f"req is {request.rid!r}, the lookup is for {rid!r}")
            return request
        except Exception as error:
            self._unread("lookup", error)
            return None

    def _unread(self, call: str, error: Exception) -> None:
        self._counts.add("callers_unread")
        if call not in self._said:
            self._said.add(call)
            lost = {"offload": "pages whose parent is not remembered are not stored", "lookup": "hints are not heard"}[call]
            logger.warning(
                "turnkv: SGLang %s calls a linker's %s otherwise than 0.5.23 does (%s: %s): %s",
                sglang.__version__,
                call,
                type(error).__name__,
                error,
                lost,
            )
