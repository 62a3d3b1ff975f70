"""A state directory is resumed by the run that made it; another run is refused by key, and its models are never deleted.

Before, another manifest over an old state was one warning with two digests, began at round 0, and deleted the checkpoints.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.permissions import bound_by_permissions
from torch import nn

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest, save_graph
from coordinator_free_bootstrap.errors import CheckpointCorrupt, StorageError, UsageError
from peer.bed.testbed.directory import check_same_run
from peer.core import effects as do
from peer.lab.simulated import simulate
from peer.runtime.assembly import Assembled, LocalSettings, assemble
from peer.store.files import seal, unseal
from peer.store.model_file import load_model
from peer.tasks import Preprocessing, Shard, Task

RUN = {
    "rounds": 4,
    "task": "linear",
    "task_options": {"features": 3, "samples_per_cluster": 40, "test_per_cluster": 10},
    "split": "iid",
    "model_options": {},
}


def graph_of(kind: str = "ring", peers: int = 4, **run: Any) -> Graph:
    return make_graph(kind, peers, manifest=parse_manifest(RUN | run, "test"))  # type: ignore[arg-type]


def start(place: Path, graph: Graph | None = None, peer_id: int = 0, *, discard: bool = False) -> Assembled:
    """Return a peer that has begun; its lock is released, as at the end of its process."""
    parts = assemble(peer_id, graph or graph_of(), LocalSettings.at(place, discard_state=discard))
    parts.origin.write()
    parts.lock.release()
    return parts


def trained(place: Path) -> Path:
    """Leave the state of a peer that has completed two rounds, and return its newest checkpoint."""
    parts = start(place)
    engine_state = parts.host.state.checkpoint()
    saved = parts.host.checkpoint(do.WriteCheckpoint(2, engine_state | {"round_index": 2}))
    (place / "history.jsonl").write_text('{"kind":"start","peer_id":0}\n')
    return parts.checkpoints.save(2, saved.arrays, saved.state)


OTHERS: dict[str, tuple[Graph, int, str]] = {
    "rounds": (graph_of(rounds=9), 0, "run.rounds was 4, is now 9"),
    "section": (graph_of(timeouts={"suspicion_s": 2.5}), 0, "run.timeouts.suspicion_s was 5.0, is now 2.5"),
    "algorithm": (graph_of(algorithm="dfedavg"), 0, 'run.algorithm was "dfca", is now "dfedavg"'),
    "options": (graph_of(options={"warmup_rounds": 2}), 0, "run.options.warmup_rounds was absent, is now 2"),
    "task": (graph_of(task_options=RUN["task_options"] | {"features": 5}), 0, "run.task_options.features was 3, is now 5"),
    "edges": (graph_of("line"), 0, "edges were 4, are now 3 (without edge 0-3)"),
    "peers": (graph_of(peers=5), 0, "peers were 4, are now 5 (with the new peer 4)"),
    "peer": (graph_of(), 1, "peer id was 0, is now 1"),
}  # fmt: skip


@pytest.mark.parametrize("change", OTHERS)
def test_the_state_of_another_run_is_refused_with_key_and_both_values(tmp_path: Path, change: str) -> None:
    checkpoint = trained(tmp_path)
    graph, peer_id, sentence = OTHERS[change]
    with pytest.raises(CheckpointCorrupt) as caught:
        start(tmp_path, graph, peer_id)
    assert caught.value.exit_code == 31
    assert sentence in str(caught.value) and "--discard-state" in str(caught.value)
    assert (checkpoint / "arrays.safetensors").exists()
    assert start(tmp_path).resumed_from == 2, "a refused start must leave the state as it was"


def test_another_model_of_the_same_manifest_is_refused_with_its_tensor(tmp_path: Path) -> None:
    """The same manifest builds another model after a change of the user's task file."""
    trained(tmp_path)
    facts = unseal((tmp_path / "origin.json").read_bytes())
    name = next(iter(facts["tensors"]))
    facts["tensors"][name] = ["parameter", 7, 7]
    (tmp_path / "origin.json").write_bytes(seal(facts))
    with pytest.raises(CheckpointCorrupt, match=rf"model tensor {name} was \[7, 7\], is now \["):
        start(tmp_path)


class Patients(Task):
    """A task as a user edits it between two starts of a peer."""

    def __init__(self, columns: tuple[str, ...] = ("age", "bp"), classes: int | None = 2, **fields: Any) -> None:
        self.columns, self.classes = columns, classes
        for name, value in fields.items():
            setattr(self, name, value)

    def make_model(self) -> nn.Module:
        return nn.Linear(2, 2 if self.kind == "classification" else 1)

    def load_shard(self, peer_id: int) -> Shard:
        x = np.random.default_rng(peer_id).normal(size=(60, 2)).astype(np.float32)
        y = (x[:, 0] > 0).astype(int) if self.kind == "classification" else x[:, 0]
        scaling = replace(Preprocessing.standardizing(x), columns=self.columns)
        return Shard(train_x=x[:40], train_y=y[:40], test_x=x[40:], test_y=y[40:], preprocessing=scaling)


class OwnLoss(Patients):
    def loss(self, outputs: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(outputs, y, reduction="none")


NAMED = Patients(class_names=("yes", "no"))
TASKS: dict[str, tuple[Task, str]] = {
    "classes": (Patients(class_names=("no", "yes")), "classes were [yes, no], are now [no, yes] (the same in another order)"),
    "other classes": (
        Patients(class_names=("yes", "maybe")),
        "classes were [yes, no], are now [yes, maybe] (only the state has [no], only this start has [maybe])",
    ),
    "columns": (Patients(("bp", "age"), class_names=("yes", "no")), "input columns were [age, bp], are now [bp, age] (the same"),
}  # fmt: skip


def start_task(place: Path, task: Task, *, discard: bool = False) -> Assembled:
    graph = graph_of(task="own.py:task", task_options={}, split="shard")
    settings = LocalSettings.at(place, discard_state=discard)
    settings.task = task
    parts = assemble(0, graph, settings)
    parts.origin.write()
    parts.lock.release()
    return parts


def trained_task(place: Path, task: Task) -> Path:
    parts = start_task(place, task)
    saved = parts.host.checkpoint(do.WriteCheckpoint(2, parts.host.state.checkpoint() | {"round_index": 2}))
    return parts.checkpoints.save(2, saved.arrays, saved.state)


@pytest.mark.parametrize("change", TASKS)
def test_a_task_with_another_meaning_is_another_run_and_its_state_can_be_discarded(
    tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, --discard-state did not cover it, and one could only name another folder."""
    checkpoint = trained_task(tmp_path, NAMED)
    task, sentence = TASKS[change]
    with pytest.raises(CheckpointCorrupt) as caught:
        start_task(tmp_path, task)
    assert caught.value.exit_code == 31
    assert f"expected the state of this run, got another: {sentence}" in str(caught.value) and "--discard-state" in str(
        caught.value
    )
    assert start_task(tmp_path, NAMED).resumed_from == 2, "a refused start must leave the state as it was"
    assert start_task(tmp_path, task, discard=True).resumed_from is None
    assert (tmp_path / "discarded-1" / "checkpoints" / checkpoint.name).exists() and sentence in caplog.text
    assert start_task(tmp_path, task).host.compared.meaning == start_task(tmp_path, task).host.compared.meaning != ""


def test_what_may_be_meant_resumes_and_is_a_note_once(tmp_path: Path) -> None:
    trained_task(tmp_path, NAMED)
    changed = OwnLoss(class_names=("yes", "no"), facts={"unit": "mm"})
    parts = start_task(tmp_path, changed)
    assert parts.resumed_from == 2
    assert "losses were default, are now own" in parts.notes
    assert "facts of the task (unit) were none declared, are now mm" in parts.notes
    assert not [note for note in start_task(tmp_path, changed).notes if "are now" in note]
    with pytest.raises(CheckpointCorrupt, match=r"facts of the task \(unit\) were mm, are now cm"):
        start_task(tmp_path, Patients(class_names=("yes", "no"), facts={"unit": "cm"}))


def test_the_same_task_resumes_without_a_note(tmp_path: Path) -> None:
    trained_task(tmp_path, NAMED)
    parts = start_task(tmp_path, Patients(class_names=("yes", "no")))
    assert parts.resumed_from == 2 and parts.notes == []


def test_addresses_pins_names_and_observers_may_change(tmp_path: Path) -> None:
    trained(tmp_path)
    graph = graph_of()
    nodes = tuple(replace(n, address=f"10.0.0.{n.id}:9000", pins=("sha256:" + "0" * 64,)) for n in graph.nodes)
    moved = replace(graph, nodes=nodes, name="other")
    assert start(tmp_path, moved).resumed_from == 2


def test_a_discarded_state_is_moved_and_not_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = trained(tmp_path)
    incarnation = (tmp_path / "incarnation.json").read_bytes()
    parts = start(tmp_path, graph_of(rounds=9), discard=True)
    assert parts.resumed_from is None
    aside = tmp_path / "discarded-1"
    assert (aside / "checkpoints" / checkpoint.name / "arrays.safetensors").exists()
    assert (aside / "history.jsonl").exists() and not (tmp_path / "history.jsonl").exists()
    assert unseal((tmp_path / "incarnation.json").read_bytes())["incarnation"] == unseal(incarnation)["incarnation"] + 1
    assert "run.rounds was 4, is now 9" in caplog.text and "discarded-1" in caplog.text


def test_each_discarded_state_has_a_folder_of_its_own(tmp_path: Path) -> None:
    trained(tmp_path)
    start(tmp_path, graph_of(rounds=9), discard=True)
    trained(tmp_path)
    start(tmp_path, graph_of(rounds=9), discard=True)
    assert (tmp_path / "discarded-1").is_dir() and (tmp_path / "discarded-2").is_dir()


def test_the_state_of_this_run_is_resumed_and_not_discarded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A supervisor that restarts a peer with the same options must not lose its rounds."""
    trained(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert start(tmp_path, discard=True).resumed_from == 2
    assert "--discard-state has no effect" in caplog.text
    assert not (tmp_path / "discarded-1").exists()


def test_a_state_without_a_completed_round_is_no_reason_to_refuse(tmp_path: Path) -> None:
    """A user who corrects a key after a first start that got nowhere continues."""
    start(tmp_path)
    assert start(tmp_path, graph_of(rounds=9)).resumed_from is None
    assert unseal((tmp_path / "origin.json").read_bytes())["run"]["rounds"] == 9


def test_a_state_of_an_earlier_release_is_refused_by_its_digest(tmp_path: Path) -> None:
    trained(tmp_path)
    (tmp_path / "origin.json").unlink()
    with pytest.raises(CheckpointCorrupt, match="got another: other peer or run: expected manifest_digest"):
        start(tmp_path, graph_of(rounds=9))
    assert start(tmp_path).resumed_from == 2
    assert (tmp_path / "origin.json").exists()


def test_a_damaged_description_of_the_run_does_not_stop_it(tmp_path: Path) -> None:
    trained(tmp_path)
    for content in (b"", b"x" * 100, seal([1]), seal({"peer_id": "0"})):
        (tmp_path / "origin.json").write_bytes(content)
        parts = start(tmp_path)
        assert parts.resumed_from == 2 and any("origin.json" in note for note in parts.notes)


STATES = [
    {"incarnation": "5"},
    {"incarnation": None},
    {"round_index": -1},
    {"round_index": [2]},
    {"algorithm_state": []},
    {"folded": {"a": 1}},
    {"folded": [["a"]]},
    {"incarnations": [[1]]},
    {"totals": [1]},
    {"refusals": {"a": "b"}},
    {"missed": [[1]]},
    {"best": {"round_index": 1, "value": 0.5}},
    {"best": {"round_index": 1, "value": 0.5, "how": "other", "weights": []}},
]


@pytest.mark.parametrize("change", [*STATES, "text", ["list"], 7, None, {}], ids=str)
def test_a_sealed_checkpoint_with_an_engine_state_of_another_form_is_refused(tmp_path: Path, change: Any) -> None:
    """Before, each of them ended as a bug of this program, exit code 70."""
    manifest = trained(tmp_path) / "manifest.json"
    value = unseal(manifest.read_bytes())
    changed = value["state"] | change if isinstance(change, dict) and change else change
    manifest.write_bytes(seal(value | {"state": changed}))
    if isinstance(changed, dict):
        with pytest.raises(CheckpointCorrupt, match="engine state that is not valid"):
            start(tmp_path)
    else:
        parts = start(tmp_path)
        assert parts.resumed_from is None and any("was not used" in note for note in parts.notes)


ALGORITHM_STATES = [{"trained": 1}, {"sample_count": "4"}, {"losses": [0.5, None]}, {"masses": "ff00"}, {"more": 1}]


@pytest.mark.parametrize("change", ALGORITHM_STATES, ids=str)
def test_a_sealed_checkpoint_with_another_state_of_the_algorithm_is_refused(tmp_path: Path, change: Any) -> None:
    """Before, the first work on such a state failed, as a bug of this program."""
    manifest = trained(tmp_path) / "manifest.json"
    value = unseal(manifest.read_bytes())
    value["state"]["algorithm_state"] |= change
    manifest.write_bytes(seal(value))
    with pytest.raises(CheckpointCorrupt, match=rf"algorithm_state.*{next(iter(change))}.*--discard-state"):
        start(tmp_path)
    assert start(tmp_path, discard=True).resumed_from is None


def test_a_checkpoint_without_one_of_the_models_is_refused(tmp_path: Path) -> None:
    trained(tmp_path)
    parts = start(tmp_path)
    saved = parts.checkpoints.load_latest()
    assert saved is not None
    parts.checkpoints.save(3, {name: a for name, a in saved.arrays.items() if name != "slot/1"}, saved.state)
    with pytest.raises(CheckpointCorrupt, match=r"slot/1: expected float32 .*, got nothing"):
        start(tmp_path)


BEST = {"round_index": 1, "value": 0.5, "how": "personalized_model", "weights": []}


def test_a_start_writes_the_best_model_of_its_checkpoint_and_removes_that_of_undone_rounds(tmp_path: Path) -> None:
    """A crash may come between a checkpoint and the file; and a checkpoint may be lost, with the file of its round left."""
    trained(tmp_path)
    parts = start(tmp_path)
    file, saved = parts.state_dir.best_model, parts.checkpoints.load_latest()
    assert saved is not None and not file.exists()
    model = parts.host.workspace.learner.initial_model(7)
    parts.checkpoints.save(3, saved.arrays | {"best/0": model}, saved.state | {"best": BEST})
    again = start(tmp_path)
    assert again.host.workspace.best is not None and again.host.workspace.best.value == 0.5
    tensors, about = load_model(file)
    names = [spec.name for spec in parts.host.workspace.learner.schema.tensors]
    assert np.array_equal(np.concatenate([tensors[name].ravel() for name in names]), model)
    assert (about["best_round"], about["metric_validation"]) == ("1", "0.5")
    shutil.rmtree(max(parts.state_dir.checkpoints.glob("checkpoint-*")))
    assert start(tmp_path).host.workspace.best is None and not file.exists()


def test_a_checkpoint_without_the_best_model_that_it_names_is_refused(tmp_path: Path) -> None:
    trained(tmp_path)
    parts = start(tmp_path)
    saved = parts.checkpoints.load_latest()
    assert saved is not None
    parts.checkpoints.save(3, saved.arrays, saved.state | {"best": BEST})
    with pytest.raises(CheckpointCorrupt, match=r"wrong models of the best round: expected 1 of float32 .*, got \[\]"):
        start(tmp_path)


def test_a_peer_whose_models_travel_in_part_resumes(tmp_path: Path) -> None:
    """Before, the body of FedRep, which is shorter than a whole model, was refused as damage."""
    graph = graph_of(algorithm="fedrep", private_parameters=["1.bias"])
    parts = start(tmp_path, graph)
    saved = parts.host.checkpoint(do.WriteCheckpoint(2, parts.host.state.checkpoint() | {"round_index": 2}))
    parts.checkpoints.save(2, saved.arrays, saved.state)
    assert start(tmp_path, graph).resumed_from == 2


def test_a_private_peer_without_its_newest_checkpoint_does_not_start_with_an_older_budget(tmp_path: Path) -> None:
    """An older checkpoint says that less was spent; without privacy it is used."""
    private = graph_of(algorithm="dfedavg", privacy={"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-3})
    for graph, refused in ((private, True), (graph_of(algorithm="dfedavg"), False)):
        place = tmp_path / str(refused)
        parts = start(place, graph)
        for completed in (1, 2):
            engine_state = parts.host.state.checkpoint() | {"round_index": completed}
            saved = parts.host.checkpoint(do.WriteCheckpoint(completed, engine_state))
            newest = parts.checkpoints.save(completed, saved.arrays, saved.state)
        assert start(place, graph).resumed_from == 2
        (newest / "arrays.safetensors").write_bytes(b"damaged")
        if not refused:
            assert start(place, graph).resumed_from == 1
            continue
        for _ in range(2):
            with pytest.raises(
                CheckpointCorrupt, match=r"spent of run\.privacy, got checkpoint-\d+: incomplete.*--discard-state"
            ):
                start(place, graph)
        shutil.rmtree(min(newest.parent.iterdir()))
        with pytest.raises(CheckpointCorrupt, match=r"spent of run\.privacy"):  # no other is left
            start(place, graph)
        assert start(place, graph, discard=True).resumed_from is None


def test_a_refused_start_releases_the_lock(tmp_path: Path) -> None:
    """In a notebook the next call comes from the same process."""
    trained(tmp_path)
    with pytest.raises(CheckpointCorrupt):
        assemble(0, graph_of(rounds=9), LocalSettings.at(tmp_path))
    assert start(tmp_path).resumed_from == 2


def test_a_testbed_names_key_and_both_values(tmp_path: Path) -> None:
    save_graph(graph_of(), tmp_path / "graph.json")
    (tmp_path / "peer-0").mkdir()
    (tmp_path / "peer-0" / "history.jsonl").write_text(json.dumps({"kind": "start"}) + "\n")
    check_same_run(graph_of(), tmp_path)
    with pytest.raises(UsageError, match=r"got another run: run.rounds was 4, is now 9\. Add --fresh"):
        check_same_run(graph_of(rounds=9), tmp_path)


def test_a_simulation_does_not_replace_what_processes_have_learned(tmp_path: Path) -> None:
    checkpoint = trained(tmp_path / "peer-0")
    with pytest.raises(UsageError, match="expected no checkpoints of peers that are processes"):
        simulate(graph_of(), tmp_path)
    assert checkpoint.exists()


def test_a_testbed_does_not_go_on_from_a_simulation(tmp_path: Path) -> None:
    """It has no checkpoints; before, a testbed began at round 0 and appended to the histories of the simulation."""
    simulate(graph_of(), tmp_path)
    with pytest.raises(UsageError, match=r"got a simulated run, which processes cannot resume\. Add --fresh"):
        check_same_run(graph_of(), tmp_path)


def test_checkpoints_that_are_all_damaged_are_moved_and_not_deleted(tmp_path: Path) -> None:
    """The peer begins again and rejoins its neighbors; what can be rescued of its models is still there."""
    checkpoint = trained(tmp_path)
    (checkpoint / "manifest.json").write_bytes(b"damaged")
    parts = start(tmp_path)
    assert parts.resumed_from is None and any("was not used" in note for note in parts.notes)
    assert (tmp_path / "discarded-1" / "checkpoints" / checkpoint.name / "arrays.safetensors").exists()
    assert (tmp_path / "history.jsonl").exists() and (tmp_path / "checkpoints").is_dir()


@pytest.mark.parametrize("file", ["manifest.json", "arrays.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "locked"])
def test_a_checkpoint_that_cannot_be_read_now_is_not_replaced_by_an_earlier_one(
    tmp_path: Path, kind: str, file: str
) -> None:
    """Wrong permissions, or a pipe in place of a file, are no damage: the models may be whole."""
    trained(tmp_path)
    path = trained(tmp_path) / file
    if kind != "locked":
        path.unlink()
    {
        "pipe": os.mkfifo,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "locked": lambda path: path.chmod(0),
    }[kind](path)
    with bound_by_permissions(), pytest.raises(StorageError, match="cannot read") as caught:
        start(tmp_path)
    assert caught.value.exit_code == 30
