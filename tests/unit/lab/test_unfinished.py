"""An interrupted run of an experiment whose run directory is kept continues from its last round, with the same bits."""

import signal

import numpy as np
import pytest
from rich.console import Console
from tools.experiments import HEAD
from typer.testing import CliRunner

from coordinator_free_bootstrap.errors import CheckpointCorrupt, UsageError
from peer.cli.main import app
from peer.lab.jobs import Job
from peer.lab.progress import TableProgress
from peer.lab.runner import run_job
from peer.lab.scaling import Scale
from peer.lab.spec import load_experiment
from peer.lab.unfinished import refuse_other_runs
from peer.store.model_file import load_model
from peer.view.state.run_files import RunFiles

ROUNDS = 4
CASES = """
[[case]]
name = "DFCA"
run = { algorithm = "dfca" }

[[case]]
name = "FedSPD"
run = { algorithm = "fedspd", split = "rotated_soft", final = { epochs = 1 } }
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(HEAD + CASES)
    return path


def job_of(file, case=0, settings=(f"run.rounds={ROUNDS}",), backend="simulated"):
    experiment = load_experiment(file)
    return Job(experiment, experiment.case[case], 1, Scale(settings=settings), backend)


def run(job, out, *, stop_after=None, keep=True):
    """Run a job; returns its result, the completed rounds as they were reported, and what was told."""
    rounds, told = [], []

    def on_round(completed, metric):
        rounds.append(completed)
        if completed == stop_after:
            signal.raise_signal(signal.SIGINT)

    def result():
        return run_job(job, out, keep=keep, command="", on_round=on_round, tell=told.append)[0]

    if stop_after is None:
        return result(), rounds, told
    with pytest.raises(KeyboardInterrupt):
        result()
    return None, rounds, told


def models_in(directory):
    return {path.relative_to(directory): load_model(path)[0] for path in sorted(directory.rglob("*.safetensors"))}


@pytest.mark.parametrize("case", [0, 1], ids=["dfca", "fedspd"])
def test_an_interrupted_run_goes_on_at_its_round_with_the_same_bits(file, tmp_path, case):
    job, out = job_of(file, case), tmp_path / "out"
    directory = job.directory(out)
    _, rounds, told = run(job, out, stop_after=2)
    assert rounds == [1, 2] and not job.place(out).exists()
    assert told == [f"{directory}: stopped after 2 of 4 rounds; the same call or command continues from there"]

    result, rounds, told = run(job, out)
    assert rounds == [3, 4], "completed rounds are not repeated"
    assert told == [f"{directory}: resuming an interrupted run after 2 of 4 rounds"]
    whole, _, none = run(job, tmp_path / "whole")
    assert none == []
    there = models_in(directory)
    for path, tensors in models_in(job.directory(tmp_path / "whole")).items():
        assert tensors.keys() == there[path].keys()
        assert all(np.array_equal(tensors[name], there[path][name]) for name in tensors), path
    for key in ("measured", "curve", "curve_train", "models_sent", "payload_bytes_sent", "digest", "rounds"):
        assert result[key] == whole[key], key
    first = max(peer.history[-1]["t"] for peer in RunFiles.read(directory).peers)
    assert result["run_seconds"] > first > 0 and result["cpu_seconds"] is None, "the time before it counts too"

    again, rounds, told = run(job, out)
    assert (rounds, told) == ([1, 2, 3, 4], []) and again["measured"] == whole["measured"], (
        "a completed run is replaced"
    )


def test_without_keep_it_is_resumed_too_and_its_directory_goes_at_the_end(file, tmp_path):
    job = job_of(file)
    run(job, tmp_path, stop_after=3)
    result, rounds, _ = run(job, tmp_path, keep=False)
    assert rounds == [4] and result["rounds"] == ROUNDS and not job.directory(tmp_path).exists()
    run(job, tmp_path, stop_after=3, keep=False)
    _, rounds, told = run(job, tmp_path, keep=False)
    assert rounds == [1, 2, 3, 4] and told == [], "without --keep nothing is left to continue from"


def test_a_changed_file_is_refused_with_the_key_before_any_run(file, tmp_path):
    run(job_of(file), tmp_path / "out", stop_after=2)
    changed = job_of(file, settings=("run.rounds=6",))
    directory = changed.directory(tmp_path / "out")
    changes = r"run.rounds was 4, is now 6\. To start again, delete"
    words = f"{directory}: expected the state of this run, got another: {changes} {directory}"
    with pytest.raises(CheckpointCorrupt, match=words):
        refuse_other_runs([job_of(file, 1), changed], tmp_path / "out")
    with pytest.raises(CheckpointCorrupt, match=words):
        run(changed, tmp_path / "out")
    with pytest.raises(
        UsageError, match="expected a run of --backend processes, got an interrupted one of --backend simulated"
    ):
        run(job_of(file, backend="processes"), tmp_path / "out")
    arguments = [
        "experiment",
        "run",
        str(file),
        "--seeds",
        "1",
        "--out",
        str(tmp_path / "out"),
        "--set",
        "run.rounds=6",
    ]
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, CheckpointCorrupt) and not list((tmp_path / "out").rglob("*.json.tmp"))
    assert not list((tmp_path / "out").rglob("fedspd")), "no case was run"
    _, rounds, _ = run(job_of(file), tmp_path / "out")
    assert rounds == [3, 4], "the interrupted run is as it was"


def test_a_completed_run_of_other_settings_is_replaced(file, tmp_path):
    run(job_of(file, settings=("run.rounds=1",)), tmp_path)
    _, rounds, told = run(job_of(file), tmp_path)
    assert (rounds, told) == ([1, 2, 3, 4], [])


def test_the_command_goes_on_and_says_from_which_round(file, tmp_path, monkeypatch):
    def interrupt(progress, job, completed, metric):
        if completed == 1:
            signal.raise_signal(signal.SIGINT)

    arguments = ["experiment", "run", str(file), "--seeds", "1", "--keep", "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr("peer.lab.progress.TableProgress.on_round", interrupt)
        assert CliRunner().invoke(app, arguments).exit_code != 0
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "dfca/seed-1: resuming an interrupted run after 1 of 2 rounds" in done.output
    assert len(list((tmp_path / "out").rglob("seed-1.json"))) == 2


def test_what_makes_a_result_doubtful_is_told_with_it(file, tmp_path):
    job, console = job_of(file), Console(record=True, width=200)
    result, _, _ = run(job, tmp_path)
    assert result["warnings"] == [], "all peers took part"
    with TableProgress(console, [job]) as progress:
        progress.done(job, [result | {"warnings": ["peer 3 took part in 12 of 20 rounds"]}])
    assert f"warning: {job.case.name}, seed {job.seed}: peer 3 took part in 12 of 20 rounds" in console.export_text()
