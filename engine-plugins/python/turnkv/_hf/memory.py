"""The groups of layers of one cache of the slab form. Owns: when a group is made, and of which namespace. Must not know: layers,
sessions, turns.
"""

from __future__ import annotations

import turnkv
from turnkv._door import Door

from .group import Group, GroupShape


class GroupMemory:
    """The groups of one cache, made when they are first needed. Knows no layer, so nothing keeps a cache's slots alive."""

    def __init__(self, doors: dict[GroupShape, Door], rows: int, capacity: int) -> None:
        self.doors, self.rows, self.capacity = doors, rows, capacity
        self.groups: dict[GroupShape, Group] = {}

    def rename(self, doors: dict[GroupShape, Door]) -> None:
        """Pages are of other namespaces from now on: what is mapped of the old ones is of no use."""
        for group in self.groups.values():
            group.release()
        self.doors = doors
        self.groups.clear()

    def find(self, shape: GroupShape) -> Group:
        """The group of a shape, in private memory when the pool cannot be asked."""
        if shape not in self.groups:
            try:
                group = self.doors[shape].call(lambda pages: Group(shape, pages, self.rows, self.capacity))
            except turnkv.Error as error:
                group = Group(shape, None, self.rows, self.capacity)
                group.spill(f"error:{error.kind}")
            self.groups[shape] = group
        return self.groups[shape]
