"""A simulation that Ctrl-C or an error ends keeps its rounds, and the same call continues from its checkpoints, bit for bit."""

import json
import logging
import signal

import numpy as np
import pytest
import torch
from torch import nn

import peer
from coordinator_free_bootstrap.errors import CheckpointCorrupt, TaskError
from peer.store.history import read_history

ROUNDS = 5


class Blobs(peer.Task):
    """Two clouds of points; it does `act` in training step `at` of the run, the trial before it not counted."""

    classes = 2
    preprocessing = peer.Preprocessing()

    def __init__(self, act=lambda: None, at=None):
        self.act, self.at, self.calls, self.acted, self.runs = act, at, 0, 0, False

    def make_model(self):
        return nn.Linear(3, 2)

    def load_shard(self, peer_id):
        self.runs, self.calls = peer_id == 3, 0  # the last one; the trial is made with the data of the first
        draw = np.random.default_rng(peer_id)
        y = draw.integers(0, 2, 60)
        x = (draw.normal(size=(60, 3)) + 3.0 * y[:, None]).astype(np.float32)
        return peer.Shard(train_x=x[:40], train_y=y[:40], test_x=x[40:], test_y=y[40:])

    def loss(self, outputs, y):
        self.calls += torch.is_grad_enabled()
        if self.runs and self.at is not None and self.calls >= self.at:
            self.at, self.acted = None, self.acted + 1
            self.act()
        return nn.functional.cross_entropy(outputs, y, reduction="none")


def interrupt():
    signal.raise_signal(signal.SIGINT)


def graph_of(**run):
    keys = {"algorithm": "dfca", "rounds": ROUNDS, "batch_size": 10, "local_epochs": 1}
    return peer.Graph.make("ring", peers=4, run={**keys, **run})


def steps_in(rounds):
    """Return the number of training steps of all four peers in so many rounds of `graph_of`."""
    return 4 * 4 * rounds


def interrupt_after(monkeypatch, rounds, times=1):
    """Interrupt the next simulation when all peers have completed so many rounds; returns what was seen."""
    seen = []

    def update(bar, completed, metric):
        seen.append(completed)
        if completed == rounds:
            for _ in range(times):
                interrupt()

    monkeypatch.setattr("peer.view.live.progress.Progress.update", update)
    return seen


def rounds_of(directory):
    """Return the round lines of each peer, by id, with those of all incarnations."""
    lines = {i: read_history(directory / f"peer-{i}" / "history.jsonl") for i in range(4)}
    return {i: [line["round_index"] for line in of if line["kind"] == "round"] for i, of in lines.items()}


def each(rounds):
    """Return the same rounds for each peer."""
    return {peer_id: rounds for peer_id in range(4)}


def same_models(left, right):
    for peer_id, models in left.models.items():
        assert models.keys() == right.models[peer_id].keys()
        for name, tensors in models.items():
            assert all(np.array_equal(tensors[key], right.models[peer_id][name][key]) for key in tensors)


@pytest.mark.parametrize(
    "run",
    [
        {},
        {"algorithm": "dfca", "options": {"warmup_rounds": 1, "relay_steps": 2}},
        {"algorithm": "fedspd", "options": {}},
        {"encoding": "delta_int8"},
        {"participation": 0.6},
    ],
    ids=lambda run: "-".join(map(str, run.values())) or "dfca",
)
def test_ctrl_c_keeps_the_rounds_and_the_same_call_completes_the_run(run, tmp_path, monkeypatch, capsys):
    graph, out = graph_of(**run), tmp_path / "run"
    with monkeypatch.context() as patch:
        seen = interrupt_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            peer.simulate(graph, Blobs(), out=out, progress=False)
    assert seen == [1, 2] and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert rounds_of(out) == each([0, 1])
    stopped = peer.Run(out)
    assert (stopped.metrics["state"], stopped.metrics["rounds"]) == ("stopped", 2)
    assert (
        f"{out}: stopped after 2 of 5 rounds; the same call or command continues from there" in capsys.readouterr().err
    )

    done = peer.simulate(graph, Blobs(), out=out, progress=False)
    assert f"{out}: resuming an interrupted run after 2 of 5 rounds" in capsys.readouterr().err
    assert rounds_of(out) == each([*range(ROUNDS)])
    assert (done.metrics["state"], done.metrics["rounds"], len(done.frame())) == ("complete", ROUNDS, 4 * ROUNDS)
    whole = peer.simulate(graph, Blobs(), progress=False)
    same_models(done, whole)
    assert done.metrics["models_folded"] == whole.metrics["models_folded"]


@pytest.mark.parametrize("stacked", [False, True])
def test_ctrl_c_in_a_training_begins_its_round_again(tmp_path, stacked):
    task = Blobs(interrupt, steps_in(2) + 6)
    with pytest.raises(KeyboardInterrupt):
        peer.simulate(graph_of(algorithm="dfedavg"), task, out=tmp_path, stacked=False, progress=False)
    assert task.acted == 1 and task.calls < steps_in(3)  # the training of its round was not done to its end
    assert rounds_of(tmp_path) == each([0, 1])
    done = peer.simulate(graph_of(algorithm="dfedavg"), Blobs(), out=tmp_path, stacked=stacked, progress=False)
    assert rounds_of(tmp_path) == each([*range(ROUNDS)])
    if not stacked:
        same_models(done, peer.simulate(graph_of(algorithm="dfedavg"), Blobs(), progress=False))


def test_a_run_is_resumed_as_often_as_it_is_interrupted(tmp_path, monkeypatch):
    for rounds in (1, 3, 5):
        with monkeypatch.context() as patch:
            interrupt_after(patch, rounds)
            with pytest.raises(KeyboardInterrupt):
                peer.simulate(graph_of(), Blobs(), out=tmp_path, progress=False)
        assert rounds_of(tmp_path) == each([*range(rounds)])
    assert peer.Run(tmp_path).metrics["state"] == "stopped"  # the final evaluation is missing
    done = peer.simulate(graph_of(), Blobs(), out=tmp_path, progress=False)
    starts = [line for line in read_history(tmp_path / "peer-0" / "history.jsonl") if line["kind"] == "start"]
    assert [(line["incarnation"], line.get("resumed_from")) for line in starts] == [(1, None), (2, 1), (3, 3), (4, 5)]
    assert done.metrics["state"] == "complete"
    same_models(done, peer.simulate(graph_of(), Blobs(), progress=False))


def test_a_second_ctrl_c_interrupts_at_once_and_the_rounds_are_kept(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3, times=2)
        with pytest.raises(KeyboardInterrupt):
            peer.simulate(graph_of(), Blobs(), out=tmp_path, progress=False)
    assert peer.Run(tmp_path).metrics["state"] == "stopped"
    assert max(map(len, rounds_of(tmp_path).values())) == 3
    peer.simulate(graph_of(), Blobs(), out=tmp_path, progress=False)
    frame = peer.Run(tmp_path).frame()
    assert sorted(zip(frame["peer_id"], frame["round_index"], strict=True)) == [
        (i, r) for i in range(4) for r in range(ROUNDS)
    ]


def fail():
    raise ZeroDivisionError("sample 7")


def test_an_error_of_a_task_keeps_the_rounds_and_the_repaired_task_goes_on(tmp_path, capsys):
    task = Blobs(fail, steps_in(3) + 1)
    with pytest.raises(TaskError, match="ZeroDivisionError: sample 7"):
        peer.simulate(graph_of(algorithm="dfedavg"), task, out=tmp_path, progress=False)
    assert rounds_of(tmp_path) == each([0, 1, 2])
    failed = peer.Run(tmp_path).metrics
    assert (failed["state"], failed["states"]) == ("incomplete", {"failed": 4})
    assert json.loads((tmp_path / "peer-0" / "summary.json").read_text())["exit_code"] == TaskError.exit_code
    assert "failed after 3 of 5 rounds; the same call or command continues from there" in capsys.readouterr().err
    done = peer.simulate(graph_of(algorithm="dfedavg"), Blobs(), out=tmp_path, progress=False)
    assert rounds_of(tmp_path) == each([*range(ROUNDS)])
    same_models(done, peer.simulate(graph_of(algorithm="dfedavg"), Blobs(), progress=False))


def test_an_error_before_the_first_checkpoint_leaves_nothing_to_resume(tmp_path, capsys):
    with pytest.raises(TaskError):
        peer.simulate(graph_of(), Blobs(fail, 1), out=tmp_path, progress=False)
    assert peer.Run(tmp_path).metrics["states"] == {"failed": 4}
    assert "failed after 0 of 5 rounds; the same call or command begins anew" in capsys.readouterr().err
    assert peer.simulate(graph_of(rounds=1), Blobs(), out=tmp_path, progress=False).metrics["rounds"] == 1


@pytest.mark.parametrize("every", [0, 2])
def test_peers_without_a_checkpoint_of_the_last_round_write_one(tmp_path, monkeypatch, every):
    graph = graph_of(checkpoint_rounds=every)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            peer.simulate(graph, Blobs(), out=tmp_path, progress=False)
    (kept,) = {tuple(rounds) for rounds in rounds_of(tmp_path).values()}
    assert kept in ((0,), (0, 1))
    peer.simulate(graph, Blobs(), out=tmp_path, progress=False)
    assert rounds_of(tmp_path) == each([*range(ROUNDS)])


def test_another_run_does_not_replace_an_interrupted_one(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            peer.simulate(graph_of(), Blobs(), out=tmp_path, progress=False)
    said = r"run.rounds was 5, is now 9 \(docs/trouble\.md#other-run\)\. Name another folder as out, or delete"
    with pytest.raises(CheckpointCorrupt, match=said):
        peer.simulate(graph_of(rounds=9), Blobs(), out=tmp_path, progress=False)
    done = peer.simulate(graph_of(), Blobs(), out=tmp_path, progress=False)
    assert done.metrics["state"] == "complete"
    again = peer.simulate(graph_of(rounds=2), Blobs(), out=tmp_path, progress=False)  # a completed run is replaced
    assert rounds_of(tmp_path) == each([0, 1]) and again.metrics["state"] == "complete"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"class_names": ("cold", "warm")},
            "classes were [warm, cold], are now [cold, warm] (the same in another order)",
        ),
        (
            {"preprocessing": peer.Preprocessing(columns=("bp", "age", "size"))},
            "input columns were [age, bp, size], are now [bp, age, size]",
        ),
    ],
    ids=["classes", "columns"],
)
def test_an_interrupted_run_is_not_continued_with_another_task(tmp_path, monkeypatch, changed, words):
    """Before, the models were refused as those of other data; processes refused the same by another sentence."""

    def task(**fields):
        made = Blobs()
        made.class_names, made.preprocessing = ("warm", "cold"), peer.Preprocessing(columns=("age", "bp", "size"))
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            peer.simulate(graph_of(), task(), out=tmp_path, progress=False)
    with pytest.raises(CheckpointCorrupt) as caught:
        peer.simulate(graph_of(), task(**changed), out=tmp_path, progress=False)
    assert f"expected the state of this run, got another: {words}" in str(caught.value)
    assert "Name another folder as out, or delete this one." in str(caught.value)
    assert peer.simulate(graph_of(), task(), out=tmp_path, progress=False).metrics["state"] == "complete"


def test_what_may_be_meant_is_said_when_a_simulation_goes_on(tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            peer.simulate(graph_of(), Blobs(), out=tmp_path, progress=False)
    (tmp_path / "peer-2" / "origin.json").write_bytes(b"damaged")
    again = Blobs()
    again.facts = {"unit": "mm"}
    with caplog.at_level(logging.WARNING):
        assert peer.simulate(graph_of(), again, out=tmp_path, progress=False).metrics["state"] == "complete"
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("peer ")]
    assert sum("facts of the task (unit) were none declared, are now mm" in line for line in told) == 3
    assert any("peer 2: " in line and "damaged (" in line for line in told)


def test_without_out_and_with_a_handler_of_the_program_ctrl_c_is_theirs(tmp_path, monkeypatch):
    interrupt_after(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        peer.simulate(graph_of(), Blobs(), progress=False)
    told = []
    before = signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
    try:
        done = peer.simulate(graph_of(), Blobs(), out=tmp_path, progress=False)
    finally:
        signal.signal(signal.SIGINT, before)
    assert told == [signal.SIGINT] and done.metrics["state"] == "complete"
