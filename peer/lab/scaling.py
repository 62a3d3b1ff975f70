"""The scale of an experiment: fewer peers for a small machine, and a sentence that names what was scaled.

A scale s multiplies the number of peers N and the amount of data; the samples per peer stay. The average degree is
multiplied by log(s N) / log(N): a random graph stays connected, and a model reaches all peers in about as many rounds. A graph
whose peers have an exact degree keeps it. Rounds, model and optimizer stay, unless settings change them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from coordinator_free_bootstrap import Graph, apply_settings, make_graph, parse_manifest
from coordinator_free_bootstrap.errors import ConfigError
from peer.lab.spec import FIXED_SHAPES, Case, Experiment, GraphSpec

PEERS_MIN = 8
EXACT_DEGREES = ("regular", "expander", "small-world")


@dataclass(frozen=True)
class Scale:
    """The scale of a run, and its changed settings.

    Attributes:
        factor: of peers and data, in (0, 1].
        settings: changed manifest keys, in the form of ``--set``.

    Raises:
        ConfigError: the factor is out of range.
    """

    factor: float = 1.0
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 1:  # also true for NaN
            raise ConfigError(f"--scale: expected a factor above 0, up to 1, got {self.factor:g}")

    def peers(self, experiment: Experiment) -> int:
        """Return N at this scale: a multiple of the number of clusters, so that all clusters have the same size."""
        clusters = int(experiment.run.get("clusters", 2))
        least = max(PEERS_MIN, 2 * clusters)
        wanted = round(experiment.peers * self.factor / clusters) * clusters
        return experiment.peers if self.factor == 1 else min(experiment.peers, max(least, wanted))

    def sentence(self, experiment: Experiment) -> str:
        """Return the scale in words, for the table."""
        peers = self.peers(experiment)
        if peers == experiment.peers and not self.settings:
            return "full scale"
        words = (
            []
            if peers == experiment.peers
            else [f"{peers} of {experiment.peers} peers, each with its full share of samples"]
        )
        return "; ".join([*words, *(setting.removeprefix("run.") for setting in self.settings)])


def scaled_degree(graph: GraphSpec, full: int, peers: int) -> float | None:
    """Return the average degree for N' peers: the full graph's times log N' / log N, or the exact one; None for fixed shapes."""
    if graph.kind in FIXED_SHAPES:
        return None
    degree = graph.degree if graph.degree is not None else (graph.p or 0.0) * (full - 1)
    if peers != full and graph.kind not in EXACT_DEGREES:
        degree *= math.log(peers) / math.log(full)
    return float(min(peers - 1, degree))


def scaled_graph(experiment: Experiment, case: Case, seed: int, scale: Scale) -> Graph:
    """Return the graph of one run, with its manifest; the same for equal arguments.

    Raises:
        ConfigError: a setting is wrong.
        GraphError: no connected graph of this kind can be drawn.
    """
    peers = scale.peers(experiment)
    run = experiment.manifest_keys(case) | {"seed": seed, "data_seed": seed}
    run["split_options"] = _split_options(run.get("split_options", {}), experiment, peers)
    run = apply_settings(run, scale.settings)
    spec = case.graph or experiment.graph
    degree = scaled_degree(spec, experiment.peers, peers)
    manifest = parse_manifest(run, f"{experiment.file}.toml, case {case.name!r}")
    return make_graph(spec.kind, peers, seed=seed, manifest=manifest, degree=degree)


def _split_options(options: dict[str, Any], experiment: Experiment, peers: int) -> dict[str, Any]:
    """Return the split's options; with fewer peers, each peer still gets its full share of samples."""
    if peers == experiment.peers:
        return options
    shares = {
        "samples_per_peer": max(1, experiment.train_samples // experiment.peers),
        "test_per_peer": max(1, experiment.test_samples // experiment.peers),
    }
    return shares | options
