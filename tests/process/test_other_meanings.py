"""Peers whose own data have other classes, columns or task files: refused with the remedy, or told; never one wrong model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tools.running import forked_peer, on_loopback, until
from tools.task_files import TWO_CLASSES
from tools.warm_parent import Forked

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest, save_graph
from peer.view.models.saved import SavedModel

pytestmark = pytest.mark.process
RUN = {"algorithm": "dfedavg", "rounds": 4, "local_epochs": 5, "split": "shard", "clusters": 1}


def graph_of(**run: object) -> Graph:
    """Return two peers that wait for each other as long as it takes."""
    return on_loopback(
        make_graph("complete", 2, manifest=parse_manifest(RUN | {"start": {"deadline_s": 600.0}} | run, "test"))
    )


def start(folder: Path, graph: Graph, files: Sequence[Path]) -> list[Forked]:
    """Start a peer for each file of data."""
    save_graph(graph, folder / "graph.json")
    return [forked_peer(i, folder, "--insecure", "--shard", file) for i, file in enumerate(files)]


def refusals(peers: list[Forked]) -> tuple[list[str], list[str]]:
    """Return what the peers wrote that ended because all neighbors refuse them, and what all wrote; the others are stopped.

    The peer that is refused first may end before it has refused the other one.
    """
    until(lambda: any(peer.poll() is not None for peer in peers), "a peer ends", logs=[peer.err for peer in peers])
    for peer in peers:
        peer.terminate()
    told = [peer.communicate(timeout=120)[1] for peer in peers]
    return [text for text in told if "refused by all neighbors" in text], told


def grades(path: Path, kept: str, seed: int) -> Path:
    """Write patients of some grades of 1 to 3, which follow from the size alone."""
    draw = np.random.default_rng(seed)
    size = draw.normal(0, 1, 200).round(3)
    grade = np.where(size > 0.5, "3", np.where(size > -0.5, "2", "1"))
    rows = [f"{s},{g}\n" for s, g in zip(size, grade, strict=True) if g in kept]
    path.write_text("size,grade\n" + "".join(rows))
    return path


def test_sites_with_other_classes_are_refused_and_with_the_setting_give_a_patient_the_same_grade(
    tmp_path: Path,
) -> None:
    files = grades(tmp_path / "a.csv", "12", 0), grades(tmp_path / "b.csv", "23", 1)
    options: dict[str, object] = {"standardize": False}
    graph = graph_of(task="tabular", task_options=options, learning_rate=0.3, rounds=15)
    refused, told = refusals(start(tmp_path, graph, files))
    assert refused
    assert all("classes differ" in text and "[1, 2]" in text and "[2, 3]" in text for text in told), told
    assert all('--set \'run.task_options.classes=["1", "2", "3"]\'' in text for text in told), told

    run = graph.manifest.model_dump() | {"task_options": options | {"classes": ["1", "2", "3"]}}
    agreed = replace(graph, manifest=parse_manifest(run, "test"))
    folder = tmp_path / "agreed"
    folder.mkdir()
    peers = start(folder, agreed, files)
    assert [peer.wait(timeout=120) for peer in peers] == [0, 0]
    patients = np.array([[-2], [0], [2]], np.float32)
    for peer_id in (0, 1):
        saved = SavedModel.read(folder / f"peer-{peer_id}" / "models" / "personalized.safetensors")
        assert [row["class"] for row in saved.predictions(agreed.manifest, patients)] == ["1", "2", "3"]


def test_tables_with_columns_in_another_order_are_refused_and_taken_by_name_with_the_setting(tmp_path: Path) -> None:
    graph, draw = graph_of(task="tabular"), np.random.default_rng(0)
    data = {"age": draw.normal(50, 10, 160).round(1), "bp": draw.normal(130, 15, 160).round(1)}
    risk = np.where(data["age"] > 50, "high", "low")
    files = []
    for columns in (("age", "bp"), ("bp", "age")):
        rows = (",".join([*(str(data[name][row]) for name in columns), risk[row]]) for row in range(160))
        files.append(tmp_path / f"{columns[0]}.csv")
        files[-1].write_text("\n".join([",".join([*columns, "risk"]), *rows]) + "\n")
    refused, told = refusals(start(tmp_path, graph, files))
    assert refused
    assert all(words in text for text in told for words in ("[age, bp]", "[bp, age]", "(the same in another order)")), (
        told
    )
    assert all('--set \'run.task_options.columns=["age", "bp"]\'' in text for text in refused)

    folder, graph = tmp_path / "agreed", graph_of(task="tabular", task_options={"columns": ["age", "bp"]}, rounds=8)
    folder.mkdir()
    peers = start(folder, graph, files)
    assert [peer.wait(timeout=120) for peer in peers] == [0, 0]
    for peer_id in (0, 1):
        assert json.loads((folder / f"peer-{peer_id}" / "summary.json").read_text())["metric"]["value"] > 0.85


def versions(folder: Path, *texts: str) -> list[Forked]:
    """Start two peers, each with its own text of the task file ``task.py`` in its own working directory."""
    graph, peers = graph_of(task="task.py:task"), []
    for peer_id, text in enumerate(texts):
        home = folder / str(peer_id)
        home.mkdir()
        (home / "task.py").write_text(text)
        save_graph(graph, home / "graph.json")
        peers.append(forked_peer(peer_id, home, "--insecure", cwd=home))
    return peers


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"names": '("no", "yes")'}, "[yes, no]"),
        ({"scaling": "Preprocessing.standardizing(x)"}, "scalings of inputs differ"),
    ],
    ids=["classes", "scaling"],
)
def test_two_versions_of_a_task_with_another_meaning_are_refused(
    tmp_path: Path, other: dict[str, str], words: str
) -> None:
    one = {"names": '("yes", "no")', "scaling": "Preprocessing()"}
    refused, told = refusals(versions(tmp_path, TWO_CLASSES.format(**one), TWO_CLASSES.format(**one | other)))
    assert refused
    assert all(words in text for text in told), told


def test_task_files_that_differ_only_as_files_train_together_and_are_told_at_both_peers(tmp_path: Path) -> None:
    text = TWO_CLASSES.format(names='("yes", "no")', scaling="Preprocessing()")
    peers = versions(tmp_path, text, text + "# another comment\n")
    done = [(peer.communicate(timeout=120)[1], peer.returncode) for peer in peers]
    assert [code for _, code in done] == [0, 0], done
    assert all(text.count("task files (SHA-256) differ") == 1 for text, _ in done), done
