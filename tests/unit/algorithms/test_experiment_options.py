"""Every case of the project's experiment files has options that its algorithm accepts."""

from pathlib import Path

import pytest

from coordinator_free_bootstrap import Graph, make_graph
from peer.algorithms.registry import algorithm_named
from peer.lab.jobs import skipped
from peer.lab.spec import load_experiment

FILES = sorted((Path(__file__).parents[3] / "experiments").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_case_has_options_that_its_algorithm_accepts(path):
    experiment = load_experiment(path)
    ring = make_graph("ring", 8, seed=1)
    for case in experiment.case:
        if skipped(case) is None:
            manifest = experiment.manifest(case)
            algorithm_named(manifest.algorithm)(manifest, 0, Graph(ring.nodes, ring.edges, manifest))
