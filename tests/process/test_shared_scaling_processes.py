"""Shared scaling with real peers: killed before round 0, or resumed after it, every peer ends with the bits of one process."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from tools.beds import final_models, same_models
from tools.running import forked_peer, on_loopback, until
from tools.warm_parent import Forked

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest, save_graph
from peer.lab.simulated import simulate
from peer.tasks.preprocessing import Preprocessing
from peer.view.models.saved import SavedModel

pytestmark = pytest.mark.process

TASK = """
import numpy as np
from torch import nn
from peer.tasks import Shard, Task

class Sites(Task):
    classes = 2
    preprocessing = "shared"

    def make_model(self):
        return nn.Linear(2, 2)

    def load_shard(self, peer_id):
        x = np.random.default_rng(peer_id).normal([3.0 * peer_id, 100.0], [1.0, 5.0 + peer_id], (80, 2))
        y = (x[:, 0] > 4.5).astype(int)
        return Shard(train_x=x[:60], train_y=y[:60], test_x=x[60:], test_y=y[60:])

task = Sites()
"""
VICTIM = 2


def graph_of(folder: Path, **run: object) -> Graph:
    """Return four peers in a line, which train quickly, and write their files."""
    fields = {"algorithm": "dfedavg", "clusters": 1, "rounds": 5, "learning_rate": 0.3, "local_epochs": 2}
    fields |= {"start": {"deadline_s": 300.0}, "timeouts": {"suspicion_s": 2.0, "round_deadline_s": 120.0}} | run
    graph = on_loopback(make_graph("line", 4, manifest=parse_manifest(fields, "test")))
    save_graph(graph, folder / "graph.json")
    return graph


def text_of(peer: Forked) -> str:
    return peer.err.read_text()


def lines(folder: Path, peer_id: int, kind: str) -> list[dict[str, object]]:
    text = (folder / f"peer-{peer_id}" / "history.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if line["kind"] == kind]


def test_a_peer_killed_before_round_0_and_restarted_changes_no_bit(tmp_path: Path) -> None:
    (tmp_path / "sites.py").write_text(TASK)
    graph = graph_of(tmp_path, task=f"{tmp_path / 'sites.py'}:task")
    simulate(graph, tmp_path / "simulated")

    peers = {i: forked_peer(i, tmp_path, "--insecure") for i in (0, 1, VICTIM)}
    logs = [peer.err for peer in peers.values()]
    until(  # it knows all that there is to know, and peer 3 is not here: no round can have begun
        lambda: "and word of peers [3]" in text_of(peers[0]), "the numbers reach the other end", logs=logs
    )
    peers[VICTIM].kill()
    assert peers[VICTIM].wait(timeout=60) == -9
    assert not any(lines(tmp_path, i, "scaling") for i in peers)
    peers |= {i: forked_peer(i, tmp_path, "--insecure") for i in (VICTIM, 3)}
    assert [peer.wait(timeout=120) for peer in peers.values()] == [0] * 4, [text_of(peer) for peer in peers.values()]

    same_models(final_models(tmp_path, graph), final_models(tmp_path / "simulated", graph))
    digests = {line["digest"] for i in graph.ids for line in lines(tmp_path, i, "scaling")}
    assert digests == {lines(tmp_path / "simulated", 0, "scaling")[0]["digest"]}
    assert len({line["incarnation"] for line in lines(tmp_path, VICTIM, "start")}) == 2


def table(path: Path, seed: int, age: float, rows: int = 60) -> Path:
    """Write patients of one ward around an age; those with a dose above 1 are ill, everywhere."""
    draw = np.random.default_rng(seed)
    dose = draw.normal(age / 50, 1, rows).round(3)
    body = [f"{draw.normal(age, 5):.1f},{d},{'ill' if d > 1 else 'well'}\n" for d in dose]
    path.write_text("age,dose,state\n" + "".join(body))
    return path


OPTIONS = {"standardize": "shared", "classes": ["ill", "well"]}


def test_tables_of_devices_are_scaled_alike_and_raw_rows_are_predicted(tmp_path: Path) -> None:
    files = [table(tmp_path / f"{i}.csv", i, 20.0 + 20 * i) for i in range(4)]
    graph = graph_of(tmp_path, task="tabular", split="shard", task_options=OPTIONS)
    peers = [forked_peer(i, tmp_path, "--insecure", "--shard", file) for i, file in enumerate(files)]
    assert [peer.wait(timeout=120) for peer in peers] == [0] * 4, [text_of(peer) for peer in peers]
    models = [tmp_path / f"peer-{i}" / "models" / "personalized.safetensors" for i in graph.ids]
    scalings = [Preprocessing.from_json(SavedModel.read(path).metadata["preprocessing"]) for path in models]
    assert len({json.dumps(scaling.scale()) for scaling in scalings}) == 1
    assert scalings[0].shared is not None and scalings[0].shared.sites == 4
    rows = tmp_path / "new.csv"
    rows.write_text("age,dose\n20,0.0\n80,0.0\n20,3.0\n80,3.0\n")
    predict = Forked("predict", models[0], rows, "--out", tmp_path / "predicted.csv")
    assert predict.wait(timeout=60) == 0
    with (tmp_path / "predicted.csv").open() as predicted:
        assert [row["class"] for row in csv.DictReader(predicted)] == ["well", "well", "ill", "ill"]
    show = Forked("data", "show", tmp_path / "peer-1", "--federation")
    assert show.wait(timeout=60) == 0
    printed = show.out.read_text()
    assert "smallest site: 48 samples" in printed
    assert [name for name in ("age", "dose") if name in printed] == ["age", "dose"]


def test_a_table_with_too_few_rows_is_refused_and_the_others_name_the_missing_site(tmp_path: Path) -> None:
    files = [table(tmp_path / f"{i}.csv", i, 40.0, rows=60 if i else 11) for i in range(4)]
    run = {"task_options": OPTIONS | {"samples_min": 20}, "start": {"deadline_s": 8.0}}
    graph_of(tmp_path, task="tabular", split="shard", **run)
    peers = [forked_peer(i, tmp_path, "--insecure", "--shard", file) for i, file in enumerate(files)]
    assert all(peer.wait(timeout=120) for peer in peers)
    said = [text_of(peer) for peer in peers]
    assert "expected at least 20 training samples of a site for shared scaling, got 9" in said[0]
    for text in said[1:]:
        assert "expected the numbers of all 4 sites in 8 s (run.start.deadline_s), got none of peers [0]" in text
