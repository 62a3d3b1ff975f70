"""Whose values some peers can solve for together, from the models that reach them: by the graph alone.

The model is linear. Each peer has one secret value, and peers average with weights W. The value is either the first model of
the peer (gossip averaging), or the update that it adds in every round, where updates change little from round to round. What
peer j sends in round t is row j of W^t, in the first case, or of I + W + ... + W^t, in the second; both give the same equations
over T rounds. A value can be solved for if its unit vector is in the span of the rows that curious peers receive or send.

Nothing is lost to rounding: the elimination is in the integers modulo a prime, since all weights are fractions. It errs only
where a determinant is a multiple of that prime, about once in 10^9.

Source: Abdellah El Mrini, Edwige Cyffers and Aurélien Bellet, "Privacy Attacks in Decentralized Learning", ICML 2024, arXiv
2402.10001, Sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap import Graph
from peer.algorithms.registry import algorithm_named

PRIME = (1 << 31) - 1  # products of two residues fit into 64 bits
Residues = NDArray[np.int64]


@dataclass(frozen=True)
class Solved:
    """What curious peers can solve for.

    Attributes:
        curious: the peers that share what they receive; they know their own values.
        peers: the others whose values they can solve for, ascending.
        beyond: those of them that are no neighbor of a curious peer.
        equations: the independent equations that they have, their own values among them.
    """

    curious: tuple[int, ...]
    peers: tuple[int, ...]
    beyond: tuple[int, ...]
    equations: int


class Averaging:
    """The averaging of a run: the weights of its algorithm, as residues.

    Args:
        graph: of the run; ``run.mix`` or the algorithm's default decides the weights.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._index = {peer: index for index, peer in enumerate(graph.ids)}

    @cached_property
    def _weights(self) -> tuple[Residues, Residues, Residues]:
        """Row, column and weight of each element of W that is not 0."""
        graph, manifest = self._graph, self._graph.manifest
        uniform = (manifest.mix or algorithm_named(manifest.algorithm).default_mix) == "uniform"
        elements: list[tuple[int, int, int]] = []
        for peer in graph.ids:
            own = 1
            for neighbor in graph.neighbors(peer):
                parts = graph.degree(peer) if uniform else max(graph.degree(peer), graph.degree(neighbor))
                weight = pow(1 + parts, -1, PRIME)
                elements.append((self._index[peer], self._index[neighbor], weight))
                own -= weight
            elements.append((self._index[peer], self._index[peer], own % PRIME))
        rows, columns, weights = zip(*elements, strict=True)
        return np.array(rows), np.array(columns), np.array(weights)

    def solved_by(self, curious: Collection[int], rounds: int) -> Solved:
        """Return what some peers can solve for together after a number of rounds."""
        graph, manifest = self._graph, self._graph.manifest
        heard = {*curious}
        if algorithm_named(manifest.algorithm).exchanges(manifest):
            heard = heard.union(*(graph.neighbors(peer) for peer in curious))
        else:  # each knows its own value
            rounds = 1
        span = _Span(len(self._index))
        rows = [_unit(self._index[peer], len(self._index)) for peer in sorted(heard)]
        for _ in range(rounds):
            rows = [self._averaged(row) for row in span.added(rows)]
            if not rows:  # a further round tells nothing new
                break
        own = {*curious}
        known = [peer for peer, index in self._index.items() if span.has_unit(index)]
        peers = [peer for peer in known if peer not in own]
        return Solved(
            tuple(sorted(own)), tuple(peers), tuple(peer for peer in peers if peer not in heard), span.dimension
        )

    def _averaged(self, row: Residues) -> Residues:
        """Return row W."""
        rows, columns, weights = self._weights
        product = np.zeros_like(row)
        np.add.at(product, columns, row[rows] * weights % PRIME)
        return product % PRIME


class _Span:
    """A growing space of rows in reduced echelon form."""

    def __init__(self, size: int) -> None:
        self._basis = np.zeros((0, size), np.int64)
        self._pivots: list[int] = []

    @property
    def dimension(self) -> int:
        """The number of independent rows."""
        return len(self._pivots)

    def added(self, rows: Iterable[Residues]) -> list[Residues]:
        """Add rows, and return those that were not in the space before."""
        return [row for row in rows if self._add(row)]

    def _add(self, row: Residues) -> bool:
        rest = (row - (row[self._pivots][:, None] * self._basis % PRIME).sum(axis=0)) % PRIME
        found = np.flatnonzero(rest)
        if not len(found):
            return False
        pivot = int(found[0])
        rest = rest * pow(int(rest[pivot]), -1, PRIME) % PRIME
        self._basis = (self._basis - self._basis[:, pivot, None] * rest % PRIME) % PRIME
        self._basis = np.vstack([self._basis, rest])
        self._pivots.append(pivot)
        return True

    def has_unit(self, index: int) -> bool:
        """Return whether a unit vector is in the space: in reduced echelon form it is then a row of the basis."""
        if index not in self._pivots:
            return False
        return bool(np.count_nonzero(self._basis[self._pivots.index(index)]) == 1)


def _unit(index: int, size: int) -> Residues:
    row = np.zeros(size, np.int64)
    row[index] = 1
    return row
