"""One namespace of a pool, opened when it is needed and again when the server forgot it.

Owns: opening and reopening. Must not know: engines, what is called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import turnkv
from turnkv.checkpoint import name_of

T = TypeVar("T")


class Door:
    """The way to one namespace. Threads may share it."""

    def __init__(self, pool: turnkv.Pool, spec: dict[str, Any]) -> None:
        """`spec`: what `Pool.open_namespace` is called with; its model may be a `WeightsName`."""
        self.pool, self.spec = pool, spec
        self._namespace: turnkv.Namespace | None = None
        self._lock = threading.Lock()

    def call(self, work: Callable[[turnkv.Namespace], T]) -> T:
        """Runs `work` with the open namespace; once more when the server came back without knowing it. Raises turnkv.Error."""
        namespace = self._open()
        try:
            return work(namespace)
        except turnkv.Error as error:
            if error.kind != "namespace_unknown":
                raise
        self._forget(namespace)
        return work(self._open())

    def _open(self) -> turnkv.Namespace:
        with self._lock:
            if self._namespace is None:
                self._namespace = self.pool.open_namespace(**self.spec | {"model": name_of(self.spec["model"])})
            return self._namespace

    def _forget(self, namespace: turnkv.Namespace) -> None:
        with self._lock:
            if self._namespace is namespace:
                self._namespace = None
