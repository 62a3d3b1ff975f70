"""Edge coloring: the edges of a graph in classes in which each peer has one edge at most. Pure.

There are at most D + 1 classes, D the largest degree. Source: Jayadev Misra and David Gries, "A constructive proof of Vizing's
theorem", 1992. An edge gets the first class that both ends are free in; only where there is none, edges before it change theirs.
So the classes of a hypercube, whose ids are its corners, are its dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

Partners = dict[int, dict[int, int]]  # peer -> class -> the other end of its edge in that class


def matchings(edges: Iterable[tuple[int, int]]) -> tuple[Mapping[int, int], ...]:
    """Return the classes of the edges of a simple graph, each as a map from a peer to its partner, both ways.

    Edges are taken in ascending order, so the classes depend on the graph alone.

    >>> matchings([(0, 1), (1, 2)])
    ({0: 1, 1: 0}, {1: 2, 2: 1})
    """
    ordered = sorted((min(edge), max(edge)) for edge in edges)
    partners: Partners = {peer: {} for edge in ordered for peer in edge}
    degree_of = dict.fromkeys(partners, 0)
    for peer in (peer for edge in ordered for peer in edge):
        degree_of[peer] += 1
    most = max(degree_of.values(), default=0) + 1
    for u, v in ordered:
        free = next((c for c in range(most) if c not in partners[u] and c not in partners[v]), None)
        if free is None:
            _make_room(partners, u, v)
        else:
            _join(partners, u, v, free)
    found = [{peer: of[c] for peer, of in partners.items() if c in of} for c in range(most)]
    return tuple(each for each in found if each)


def _join(partners: Partners, u: int, v: int, color: int) -> None:
    partners[u][color], partners[v][color] = v, u


def _first_free(used: Iterable[int]) -> int:
    taken = set(used)
    return next(c for c in range(len(taken) + 1) if c not in taken)


def _make_room(partners: Partners, u: int, v: int) -> None:
    """Put an edge into a class where no class is free at both ends: rotate a fan around u, after a path is inverted."""
    fan = [v]  # each edge u-w but the first has a class that is free at the fan's vertex before w
    while (
        w := next((w for c, w in partners[u].items() if c not in partners[fan[-1]] and w not in fan), None)
    ) is not None:
        fan.append(w)
    color = _first_free(partners[fan[-1]])
    _invert(partners, u, color, _first_free(partners[u]))
    classes = {w: c for c, w in partners[u].items()}
    end = next(i for i, w in enumerate(fan) if color not in partners[w])
    for w, after in pairwise(fan[: end + 1]):
        del partners[after][classes[after]]
        _join(partners, u, w, classes[after])
    _join(partners, u, fan[end], color)


def _invert(partners: Partners, start: int, color: int, other: int) -> None:
    """Exchange two classes along the path that begins at a vertex with ``color``, which has no edge of ``other``."""
    path, at, wanted = list[tuple[int, int, int]](), start, (color, other)
    while wanted[0] in partners[at]:
        path.append((at, partners[at][wanted[0]], wanted[0]))
        at, wanted = path[-1][1], (wanted[1], wanted[0])
    for x, y, c in path:
        del partners[x][c], partners[y][c]
    for x, y, c in path:
        _join(partners, x, y, other if c == color else color)
