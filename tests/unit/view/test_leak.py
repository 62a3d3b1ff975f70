"""How well losses of sent models tell training samples: the numbers against brute force, and the verb on a run that overfits.

Method: a run in one process on tiny noisy shards memorizes them; a run that does not train tells nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import peer
from coordinator_free_bootstrap.errors import StorageError
from peer.store.state_dir import StateDir
from peer.view.privacy.leak import auc_of, interval_of
from peer.view.report.report import build_report
from peer.view.report.tables import report_view
from peer.view.state.leaks import last_leak, shown
from peer.view.verbs.privacy import app

MEMORIZED = """
import numpy as np
from torch import nn
from peer.tasks import Shard, Task

class Noise(Task):
    classes = 2

    def make_model(self):
        return nn.Sequential(nn.Linear(40, 32), nn.ReLU(), nn.Linear(32, 2))

    def load_shard(self, peer_id):
        draws = np.random.default_rng(peer_id)
        x, y = draws.normal(size=(60, 40)).astype(np.float32), draws.integers(0, 2, 60)
        return Shard(train_x=x[:30], train_y=y[:30], test_x=x[30:], test_y=y[30:])
"""


def brute_force(members: np.ndarray, others: np.ndarray) -> float:
    pairs = [(a < b) + (a == b) / 2 for a in members for b in others]
    return sum(pairs) / len(pairs)


@pytest.mark.parametrize("values", [2, 5, 1000])
def test_the_area_is_the_share_of_pairs(values: int) -> None:
    draws = np.random.default_rng(values)
    for members, others in ((1, 1), (3, 40), (40, 3), (25, 25)):
        a, b = (
            draws.integers(0, values, members).astype(np.float32),
            draws.integers(0, values, others).astype(np.float32),
        )
        assert auc_of(a, b) == pytest.approx(brute_force(a, b))
    with_infinity = np.array([1.0, np.inf]), np.array([2.0, np.inf])
    assert auc_of(*with_infinity) == pytest.approx(brute_force(*with_infinity))
    assert auc_of(np.zeros(4), np.ones(4)) == 1.0 and auc_of(np.ones(4), np.zeros(4)) == 0.0


@pytest.mark.parametrize("shift", [0.0, 0.7, 2.0])
def test_the_interval_covers_the_true_area_as_often_as_it_says(shift: float) -> None:
    from math import erf

    draws, true = np.random.default_rng(1), 0.5 + erf(shift / 2) / 2  # of two normals, `shift` apart
    covered = 0
    for _ in range(600):
        auc = auc_of(draws.normal(size=25), draws.normal(shift, size=40))
        low, high = interval_of(auc, 25, 40)
        assert 0 <= low <= auc <= high <= 1
        covered += low <= true <= high
    assert 0.92 < covered / 600 < 0.98


def test_the_interval_has_a_width_at_the_ends_and_mirrors() -> None:
    low, high = interval_of(1.0, 20, 20)
    assert high == pytest.approx(1.0) and 0.8 < low < 0.95
    mirrored = interval_of(0.0, 20, 20)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-6)
    assert interval_of(0.5, 1000, 1000)[1] - 0.5 < 0.03


def simulated(folder: Path, **run: Any) -> Path:
    """Run two peers in this process; return the run's folder."""
    (folder / "noise.py").write_text(MEMORIZED)
    run = {"algorithm": "dfedavg", "rounds": 3, "task": f"{folder}/noise.py:Noise", "batch_size": "all", **run}
    graph = peer.Graph.make("line", peers=2, run=run)
    peer.simulate(graph, out=folder / "out", progress=False)
    return folder / "out"


def verb(*words: object, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["leak", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def test_a_run_that_memorizes_tells_its_samples_and_an_untrained_one_does_not(tmp_path: Path) -> None:
    home = simulated(tmp_path, optimizer="adam", learning_rate=0.02, local_epochs=100)
    found = json.loads(verb(home, "--json").stdout)["peers"]
    assert [row["peer_id"] for row in found] == [0, 1]
    for row in found:
        (model,) = row["models"]
        assert model["round_index"] == 2 and model["slot"] == 0 and (model["train"], model["test"]) == (30, 30)
        assert model["auc"] > 0.85 and model["low"] > 0.6
    values = build_report(home).values
    worst = max(found, key=lambda row: row["models"][0]["auc"])
    assert values["leak"]["worst_peer"] == worst["peer_id"] and values["leak"]["peers"] == 2
    assert values["peers"][0]["leak"] == found[0]["models"][0]
    (tmp_path / "still").mkdir()
    still = simulated(tmp_path / "still", learning_rate=1e-9)
    for row in json.loads(verb(still, "--json").stdout)["peers"]:
        assert row["models"][0]["low"] < 0.5 < row["models"][0]["high"]


def test_report_and_card_show_the_number_and_its_absence(tmp_path: Path) -> None:
    from rich.console import Console

    from peer.view.models.model_card import _data
    from peer.view.state.run_files import RunFiles

    home = simulated(tmp_path)

    def text() -> str:
        console = Console(record=True, width=200)
        console.print(report_view(build_report(home).values))
        return console.export_text()

    def card() -> dict[str, object]:
        run = RunFiles.read(home)
        assert run.manifest is not None
        return dict(_data(run.manifest, {}, run.peers[0]))

    key = "training samples told by the loss of sent models"
    assert "training samples told by loss" not in text() and card()[key] == "not measured"
    verb(home)
    leak = last_leak(StateDir.of_peer(home, 0))
    assert leak is not None and card()[key] == shown(leak)
    assert "training samples told by loss" in text() and "in round 3" in text()
    StateDir.of_peer(home, 0).leak.write_text("[]")
    assert last_leak(StateDir.of_peer(home, 0)) is None


def test_a_run_without_sent_models_is_named(tmp_path: Path) -> None:
    home = simulated(tmp_path, algorithm="local")
    with pytest.raises(StorageError, match="expected models that this peer has sent, got none"):
        verb(home)


def test_the_last_sent_model_is_the_one_before_the_merge(tmp_path: Path) -> None:
    """After the merge both peers of a line have equal models; what they sent differs."""
    from peer.store.model_file import load_model

    home = simulated(tmp_path)
    sent, merged = [], []
    for i in (0, 1):
        place = StateDir.of_peer(home, i)
        tensors, about = load_model(place.sent_model(2, 0))
        assert about["role"] == "sent 0" and about["round_index"] == "2"
        sent.append(tensors["0.weight"])
        merged.append(load_model(place.cluster_model(0))[0]["0.weight"])
    assert np.allclose(merged[0], merged[1], atol=1e-6) and not np.allclose(sent[0], sent[1], atol=1e-3)
    assert np.allclose(merged[0], (sent[0] + sent[1]) / 2, atol=1e-6)
