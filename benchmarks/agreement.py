"""Rounds until peers agree, by kind of graph and number of peers, beside what the spectral gap predicts.

Peers average with Metropolis weights (`dfedavg`) and no longer learn. Two starts:

    halves   the half of the peers that is nearest to peer 0 has learned +1, the other half -1: the worst case that is likely
    random   each peer has learned a number of its own, drawn from a normal distribution

The consensus distance is the root mean square distance of the peers' models from their mean. The table has the rounds until a
hundredth of the first one is left, and the prediction: ln(0.01) / ln(1 - gap), the bound for every start. The rounds are computed
as running averages of all peers at once, which gives the bits of the simulated backend (a test compares them).

    python benchmarks/agreement.py [--peers 16 64 256 1024] [--kinds ring torus ...] [--save]
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from record import new_parser, record

from coordinator_free_bootstrap import Graph, apply_settings, make_graph, parse_manifest
from coordinator_free_bootstrap.mixing import LEFT, rounds_to_agree, spectral_gap
from coordinator_free_bootstrap.seeds import generator
from peer.algorithms.dfedavg import DFedAvg

KINDS: dict[str, Any] = {
    "ring": lambda peers: {},
    "torus": lambda peers: {},
    "small-world": lambda peers: {"degree": 4},
    "erdos-renyi": lambda peers: {"degree": 2 * math.log(peers)},  # below ln N, a random graph is never connected
    "expander": lambda peers: {"degree": 4},
}
ROUNDS_MAX = 100_000
Models = np.ndarray[Any, np.dtype[np.float32]]


def graph_of(kind: str, peers: int, rounds: int = 1) -> Graph:
    """Return a graph of a kind, with the manifest of the algorithm that averages."""
    settings = ["run.algorithm=dfedavg", f"run.rounds={rounds}", "run.task=linear", "run.split=linear_synth"]
    shape = KINDS[kind](peers)
    return make_graph(kind, peers, manifest=parse_manifest(apply_settings({}, settings), "benchmark"), **shape)  # type: ignore[arg-type]


def starts(graph: Graph) -> Models:
    """Return what the peers have learned, float32[N, 2]: halves, random."""
    order = list(graph._distances(graph.ids[0]))
    values = np.empty((len(order), 2), np.float32)
    values[:, 0] = -1
    values[order[: len(order) // 2], 0] = 1
    values[:, 1] = generator(1, "start").normal(size=len(order))
    return values


class Averages:
    """Rounds of `dfedavg` for all peers at once: each averages its arrivals by neighbor id, then merges its own model."""

    def __init__(self, graph: Graph) -> None:
        peers, most = len(graph.ids), max(graph.degrees)
        self._neighbors = np.zeros((most, peers), np.int64)
        self._steps = np.zeros(
            (most, peers, 1), np.float32
        )  # of the running average; 0 where there is no such neighbor
        self._merge = np.zeros((peers, 1), np.float32)
        for peer in graph.ids:
            algorithm, total = DFedAvg(graph.manifest, peer, graph), 0.0
            for place, neighbor in enumerate(graph.neighbors(peer)):
                weight = algorithm.mixing_weight(neighbor)
                total += weight
                self._neighbors[place, peer] = neighbor
                self._steps[place, peer] = weight / total
            self._merge[peer] = total / (algorithm.own_weight(total) + total)

    def round(self, models: Models) -> Models:
        """Return the models after a round; float32[N, d]."""
        average = models[self._neighbors[0]]
        for neighbors, step in zip(self._neighbors[1:], self._steps[1:], strict=True):
            average += step * (models[neighbors] - average)
        result: Models = models + self._merge * (average - models)
        return result


def consensus_distance(models: Models) -> Any:
    """Return the root mean square distance of the peers from their mean, for each start; float64[d]."""
    wide = models.astype(np.float64)
    return np.sqrt(((wide - wide.mean(axis=0)) ** 2).mean(axis=0))


def rounds_measured(graph: Graph, rounds_max: int = ROUNDS_MAX) -> list[int | None]:
    """Return for each start the rounds until a hundredth of its consensus distance is left; None: not within ``rounds_max``."""
    models, averages = starts(graph), Averages(graph)
    first, found = consensus_distance(models), [None, None]  # type: tuple[Any, list[int | None]]
    for completed in range(1, rounds_max + 1):
        models = averages.round(models)
        for start in np.flatnonzero(consensus_distance(models) <= LEFT * first):
            found[start] = found[start] or completed
        if None not in found:
            break
    return found


def row(kind: str, peers: int) -> list[object]:
    """Return the row of a graph."""
    graph = graph_of(kind, peers)
    gap = spectral_gap(graph)
    predicted = rounds_to_agree(gap)
    halves, random = rounds_measured(graph) if predicted and predicted <= ROUNDS_MAX else (None, None)
    degree = 2 * len(graph.edges) / peers
    counts = [f"{count:,}" if count else "" for count in (predicted, halves, random)]
    return [kind, f"{peers:,}", f"{degree:.1f}", f"{gap:.2g}", *counts]


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--peers", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    given = parser.parse_args()
    rows = [row(kind, peers) for kind in given.kinds for peers in given.peers]
    header = ("graph", "peers", "degree", "spectral gap", "rounds predicted", "measured, halves", "measured, random")
    record("agreement", "Rounds until a hundredth of the differences is left", header, rows, save=given.save)


if __name__ == "__main__":
    main()
