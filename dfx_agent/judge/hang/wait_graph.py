"""Who waits for whom: a circle in it is a deadlock, as each of them waits for the next one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def circle(misses: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """Some nodes of which each misses the next one, and the last the first; [] for none."""
    done: set[Node] = set()
    for start in misses:
        path: dict[Node, int] = {}
        stack = [(start, iter(misses[start]))]
        path[start] = 0
        while start not in done:
            node, others = stack[-1]
            following = next((o for o in others if o not in done), None)
            if following is None:
                stack.pop()
                del path[node]
                done.add(node)
            elif following in path:
                return list(path)[path[following] :]
            else:
                path[following] = len(path)
                stack.append((following, iter(misses.get(following, ()))))
    return []
