"""Goal: a peer with keep_sent keeps each model that it sends, and one without keeps those of the last round.

Method: two real peers in one event loop; what one keeps is compared with what the other made of it.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from tools.running import on_loopback
from typer.testing import CliRunner

import peer
from coordinator_free_bootstrap import make_graph, parse_manifest
from peer.store.model_file import load_model
from peer.store.state_dir import StateDir
from peer.view.verbs.privacy import app

pytestmark = pytest.mark.process
ROUNDS = 3


def test_sent_models_are_kept_by_round_and_measured(tmp_path: Path) -> None:
    run = {
        "algorithm": "dfedavg",
        "rounds": ROUNDS,
        "task": "linear",
        "split": "iid",
        "timeouts": {"suspicion_s": 60.0},
    }
    graph = peer.Graph.of(on_loopback(make_graph("line", 2, manifest=parse_manifest(run, "test"))))
    homes = [StateDir.of_peer(tmp_path, i) for i in (0, 1)]

    async def both() -> None:
        keeping, other = (
            peer.run_async(i, graph, state_dir=homes[i].root, insecure=True, keep_sent=i == 0) for i in (0, 1)
        )
        await asyncio.gather(keeping, other)

    asyncio.run(both())
    assert sorted(homes[0].sent.iterdir()) == [homes[0].sent_model(t, 0) for t in range(ROUNDS)]
    assert sorted(homes[1].sent.iterdir()) == [homes[1].sent_model(ROUNDS - 1, 0)]

    def tensors(path: Path) -> np.ndarray:
        return np.concatenate([tensor.ravel() for tensor in load_model(path)[0].values()])

    last = [tensors(home.sent_model(ROUNDS - 1, 0)) for home in homes]
    assert not np.allclose(*last, atol=1e-4)
    for home in homes:  # with Metropolis weights two peers take the mean of what they have sent
        assert np.allclose(tensors(home.cluster_model(0)), (last[0] + last[1]) / 2, atol=1e-5)
    found = CliRunner().invoke(app, ["leak", str(tmp_path), "--json"], catch_exceptions=False)
    rows = {row["peer_id"]: row["models"] for row in json.loads(found.stdout)["peers"]}
    assert [row["round_index"] for row in rows[0]] == [0, 1, 2] and [row["round_index"] for row in rows[1]] == [2]
    assert all(row["low"] < row["auc"] < row["high"] for each in rows.values() for row in each)
