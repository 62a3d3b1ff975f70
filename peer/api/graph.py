"""`peer.Graph`: make, load, save and check graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self, Unpack

from typing_extensions import override

from coordinator_free_bootstrap import Graph as BaseGraph
from coordinator_free_bootstrap import Kind, Manifest, digest, load_graph, make_graph, parse_manifest, save_graph
from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem, Option, written_as
from coordinator_free_bootstrap.generators import KIND, PEERS, DrawOptions
from coordinator_free_bootstrap.graph import Node
from coordinator_free_bootstrap.mixing import agreement_on_one_edge, rounds_to_agree, spectral_gap
from coordinator_free_bootstrap.options import given_keys
from peer.api.arguments import given_path, named_in_python

TRIMMED_VALUES_MIN = 2  # of fewer values nothing is left when one at each end is trimmed


class Graph(BaseGraph):
    """Peers, the edges between them, and the settings of the run. Immutable and valid.

    >>> graph = Graph.make("ring", peers=4, run={"algorithm": "dfca", "rounds": 3})
    >>> graph
    <peer.Graph: ring, 4 peers, 4 edges, dfca, 3 rounds>
    >>> graph.neighbors(0)
    (1, 3)
    >>> graph.manifest.rounds
    3
    """

    @classmethod
    @written_as({"algorithm": "run.algorithm"})
    @named_in_python()
    def make(
        cls,
        kind: Kind = KIND,
        peers: int = PEERS,
        *,
        run: Mapping[str, Any] | Manifest | None = None,
        **options: Unpack[DrawOptions],
    ) -> Self:
        """Make a connected graph, as `peer graph make` does.

        Args:
            kind: ring, line, torus, complete, hypercube, base-k, star, regular, expander, small-world, erdos-renyi,
                barabasi-albert or geometric.
            peers: number of peers, 2 or more; ids start at 0.
            run: manifest keys (`peer graph keys` lists them): ``{"rounds": 12, "timeouts": {"suspicion_s": 3}}``. The value of
                ``algorithm`` may be an own subclass of `Algorithm`; ``options`` are then its options.
            options: seed (1), k, p, m, degree, radius, base_port and address_template (`DrawOptions`). The degree is 4, or more
                if needed for a connected graph. ``run={"seed": ...}`` is the seed of the run.

        Raises:
            GraphError: a parameter is out of range or unknown to this kind, or no draw is connected.
            ConfigError, TaskError: a key, or the name of an algorithm, task, split or model is wrong.
            UsageError: a key in ``run``, or ``base_port``, has no effect.

        >>> Graph.make("ring", peers=4, run={"round": 3})
        Traceback (most recent call last):
        coordinator_free_bootstrap.errors.ConfigError: run.round: expected no such key, got 3 (did you mean rounds?)
        """
        manifest = run if isinstance(run, Manifest) else parse_manifest(_named(_keys(run)), "")
        graph = cls.of(make_graph(kind, peers, manifest=manifest, **options))
        check_run(graph, () if isinstance(run, Manifest) else given_keys(_keys(run)), source="")
        return graph

    @classmethod
    @named_in_python()
    def load(cls, path: str | Path) -> Self:
        """Read a graph file.

        Raises:
            GraphError: the file cannot be read, or its graph is invalid.
            ConfigError: its manifest is invalid.
        """
        return cls.of(load_graph(given_path("path", path)))

    @classmethod
    def of(cls, graph: BaseGraph) -> Self:
        """Return the same graph with the methods of this class."""
        return cls(**{field.name: getattr(graph, field.name) for field in fields(BaseGraph)})

    @named_in_python()
    def save(self, path: str | Path) -> None:
        """Write the graph file that all peers share.

        Raises:
            GraphError: the file cannot be written.
        """
        save_graph(self, given_path("path", path))

    @named_in_python()
    def check(self) -> dict[str, Any]:
        """Check the names in the manifest, and return the facts that `peer graph check --json` prints.

        Raises:
            ConfigError: the algorithm or an option of it is wrong.
            TaskError: task, split or model are wrong.

        >>> Graph.make("star", peers=5).check()["degree_max"]
        4
        """
        check_names(self)
        degrees, gap = [self.degree(peer_id) for peer_id in self.ids], spectral_gap(self)
        degree_mean, rounds = sum(degrees) / len(degrees), rounds_to_agree(gap)
        rounds_on_one, models_on_one = agreement_on_one_edge(self) or (None, None)
        return {
            "peers": len(self.nodes),
            "edges": len(self.edges),
            "degree_min": min(degrees),
            "degree_mean": degree_mean,
            "degree_max": max(degrees),
            "diameter_at_most": self.diameter_bound,
            "connected_parts": len(self.components),
            "spectral_gap": gap,
            "rounds_to_agree": rounds,
            "models_to_agree": None if rounds is None else rounds * degree_mean,
            "rounds_to_agree_on_one_edge": rounds_on_one,
            "models_to_agree_on_one_edge": models_on_one,
            "dials_only_peers": sum(node.dials_only for node in self.nodes),
            "relayed_edges": len(self.via),
            "pinned_peers": sum(bool(node.pins) for node in self.nodes),
            "algorithm": self.manifest.algorithm,
            "clusters": self.manifest.clusters,
            "rounds": self.manifest.rounds,
            "pace": self.manifest.pace,
            "task": self.manifest.task,
            "screening": screening_in_words(self),
            "graph_digest": self.digest,
            "manifest_digest": digest(self.manifest),
        }

    @override
    @named_in_python()
    def node(self, peer_id: int) -> Node:
        return super().node(peer_id)

    @override
    def __repr__(self) -> str:
        run, edges = self.manifest, len(self.edges)
        name = self.name or f"{len(self.nodes)} peers"
        return f"<peer.Graph: {name}, {edges} edges, {run.algorithm}, {run.rounds} rounds>"


def _keys(run: object) -> Mapping[str, Any]:
    """Return manifest keys as a program gives them; None: none."""
    if run is None or isinstance(run, Mapping):
        return run or {}
    raise ConfigError(ConfigProblem(Option("run"), "manifest keys by name, or a peer.Manifest", repr(run)))


def _named(run: Mapping[str, Any]) -> dict[str, object]:
    """Return manifest keys with the name of an algorithm in place of its class, which is made known to this process."""
    from peer.algorithms.registry import register

    return {
        key: register(value) if key == "algorithm" and isinstance(value, type) else value for key, value in run.items()
    }


def screening_in_words(graph: BaseGraph) -> str:
    """Return the manifest's screening; where it is off, what to set if neighbors are not trusted."""
    found = {key: value for key, value in graph.manifest.screening.model_dump().items() if value is not None}
    if found:
        return ", ".join(f"{key} {value:g}" for key, value in found.items())
    if not graph.edges or graph.manifest.algorithm == "local":
        return "off"
    values = 1 + min(graph.degree(peer_id) for peer_id in graph.ids)  # of one coordinate: the own one and the arrivals
    remedies = ["run.screening.clip=1"]
    if values > TRIMMED_VALUES_MIN:
        share = math.ceil(100 / values) / 100
        remedies.insert(0, f"run.screening.trimmed_mean={share:g}, which trims one model at each end,")
    return (
        "off: one lying neighbor can make the models useless; where neighbors are not trusted, set "
        f"{' or '.join(remedies)} (docs/choosing.md)"
    )


def check_names(graph: BaseGraph) -> None:
    """Refuse an unknown algorithm, task, split or model, and options that they do not have.

    Raises:
        ConfigError: the algorithm is wrong.
        TaskError: task, split or model are wrong.
    """
    from peer.algorithms.registry import check_algorithm
    from peer.tasks.loading import check_names as check_task_names

    check_task_names(graph.manifest)
    check_algorithm(graph)


def check_run(
    graph: BaseGraph,
    given: Iterator[str] | Collection[str],
    say: Callable[[str], object] = lambda warning: None,
    source: str = "--set ",
) -> None:
    """Check names and options, and refuse given keys without effect; ``say`` is called for the others without effect.

    Raises:
        ConfigError, TaskError: as `check_names`.
        UsageError: a given key has no effect.
    """
    from peer.tasks.given_keys import warn_without_effect

    check_names(graph)
    warn_without_effect(graph.manifest, frozenset(given), say, source)


def with_run(graph: BaseGraph, keys: Mapping[str, object]) -> Graph:
    """Return the graph with some manifest keys changed.

    Raises:
        ConfigError: a value is not allowed.
    """
    manifest = parse_manifest(graph.manifest.model_dump() | dict(keys), "") if keys else graph.manifest
    return Graph.of(replace(graph, manifest=manifest))
