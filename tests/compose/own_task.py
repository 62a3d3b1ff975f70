"""A user's task file and the data of each site, as the container tests deploy them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest

DATA = "sites/{id}"  # value of --data; each peer finds its own site as the folder data
TASK = '''\
"""Readings of one site: data/readings.npz below the folder in which the peer starts."""

import tempfile

import numpy as np
from torch import nn

from peer.tasks import Preprocessing, Shard, Task


class Readings(Task):
    classes = 3
    preprocessing = Preprocessing()

    def make_model(self):
        return nn.Linear(6, 3)

    def load_shard(self, peer_id):
        with np.load("data/readings.npz") as data, tempfile.TemporaryFile():
            x, y, site = data["x"], data["y"], int(data["site"])
        assert site == peer_id, f"peer {peer_id} has the data of site {site}"
        return Shard(train_x=x[30:], train_y=y[30:], test_x=x[:30], test_y=y[:30])


task = Readings()
'''


def graph_with_own_task(folder: Path, peers: int, kind: str = "ring", more_sites: int = 0, **run: object) -> Graph:
    """Write ``code/readings.py`` and the data of each site, and of more, into a folder; return a graph with that task."""
    (folder / "code").mkdir()
    (folder / "code" / "readings.py").write_text(TASK)
    centers = np.random.default_rng(0).normal(size=(3, 6)) * 2
    for site in range(peers + more_sites):
        draw = np.random.default_rng(100 + site)
        y = draw.integers(0, 3, 120)
        x = (centers[y] + draw.normal(size=(120, 6))).astype(np.float32)
        place = folder / "sites" / str(site)
        place.mkdir(parents=True)
        np.savez(place / "readings.npz", x=x, y=y, site=site)
    manifest = parse_manifest({"task": "code/readings.py:task", "algorithm": "dfedavg"} | run, "test")
    return make_graph(kind, peers, manifest=manifest)
