"""Small runs of CGPFL and of pFedMe, its form with one cluster."""

from __future__ import annotations

from coordinator_free_bootstrap import Graph, Manifest, make_graph

SMALL = {"samples_per_peer": 50, "test_per_peer": 20}
BASE = dict(task="digits", split="rotated_hard", split_options=SMALL, rounds=3, model="mlr", batch_size=1000)
LOCAL = {"strength": 2.0, "inner_steps": 3}


def graph_of(peers=4, kind="line", algorithm="cgpfl", options=None, **manifest) -> Graph:
    made = make_graph(kind, peers, seed=3)
    settings = BASE | {"algorithm": algorithm, "options": LOCAL | (options or {}), "learning_rate": 0.3} | manifest
    return Graph(made.nodes, made.edges, Manifest(**settings))
