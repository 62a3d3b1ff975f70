"""Experiment cases with `method = "server"`: run, report, and what is refused. The arithmetic is in tests/unit/algorithms."""

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import ConfigError
from peer.experiment.jobs import Job, jobs_of, runs_left
from peer.experiment.runner import run_job
from peer.experiment.scaling import Scale
from peer.experiment.simulated import SimulatedSettings
from peer.experiment.spec import load_experiment
from peer.observe.report import build_report

FILE = """
title = "small"
source = "this test"
peers = 4
train_samples = 240
test_samples = 80
[graph]
kind = "complete"
[run]
rounds = 2
split = "rotated_soft"
model_options = { hidden = 8 }
split_options = { samples_per_peer = 60, test_per_peer = 20 }
[[case]]
name = "a"
"""

LOCAL = 'run = { algorithm = "local" }'


def experiment(tmp_path, case):
    path = tmp_path / "small.toml"
    path.write_text(FILE + case)
    return load_experiment(path)


@pytest.mark.parametrize(
    "case",
    [
        'method = "server"\nrun = { algorithm = "fedsoft" }\nserver = { selected = 2 }',
        'method = "server"\nrun = { algorithm = "pfedme" }',
        'method = "server"\nrun = { algorithm = "fedrep", options = { joint = true } }',
        'method = "server"\nrun = { algorithm = "cgpfl", clusters = 2, local_epochs = 6 }',
        'method = "server"\nrun = { algorithm = "cgpfl", options = { clusters = "auto" }, local_epochs = 6 }',
    ],
)
def test_a_server_case_runs_and_is_measured(tmp_path, case):
    loaded = experiment(tmp_path, case)
    job = Job(loaded, loaded.case[0], 1, Scale(), "simulated")
    (result,) = run_job(job, tmp_path / "out", keep=False, command="", on_round=lambda done, accuracy: None)
    assert result["backend"] == "server" and result["rounds"] == 2
    assert 10 < result["measured"] <= 100
    assert 4 <= result["models_sent"] <= 8


def test_the_best_center_of_a_distribution_is_measured(tmp_path):
    measured = []
    for cluster in (0, 1):
        loaded = experiment(tmp_path, f'metric = "best_center_{cluster}"\nrun = {{ algorithm = "fedsoft" }}')
        job = Job(loaded, loaded.case[0], 1, Scale(), "simulated")
        out = tmp_path / str(cluster)
        (result,) = run_job(job, out, keep=True, command="", on_round=lambda done, accuracy: None)
        run = build_report(job.place(out).with_suffix("")).run
        tables = np.array([peer.last["state"]["center_scores"] for peer in run.peers])[:, :, cluster].sum(axis=0)
        assert result["measured"] == pytest.approx(100 * (tables[:, 0] / tables[:, 1]).max())
        assert tables[0, 1] > 0 and len(tables) == 2
        measured.append(result["measured"])
    assert measured[0] != measured[1]


@pytest.mark.parametrize(
    ("case", "found"),
    [
        ('method = "server"\nrun = { algorithm = "dfca" }', "apfl, cgpfl, dfedavg, ditto, fedrep"),
        ('method = "server"\nrun = { algorithm = "pfedme" }\nserver = { selected = 2 }', "selected"),
        ('method = "server"\nrun = { algorithm = "fedsoft" }\nserver = { restarts = 2 }', "restarts"),
        ('method = "ifca-server"\nserver = { selected = 2 }', "selected"),
        ('run = { algorithm = "fedsoft" }\nserver = { selected = 2 }', "selected"),
        ('method = "server"\nrun = { algorithm = "fedsoft", options = { sigma = 3 } }', "sigma"),
    ],
)
def test_wrong_server_cases_are_refused(tmp_path, case, found):
    with pytest.raises(ConfigError, match=found):
        experiment(tmp_path, case)


def test_cases_that_measure_the_same_run_share_it(tmp_path):
    """Three cases, two runs: each center has the value that it has in a run of its own."""
    centers = [f'metric = "best_center_{cluster}"\nrun = {{ algorithm = "fedsoft" }}' for cluster in (0, 1)]
    loaded = experiment(tmp_path, f'{centers[0]}\n[[case]]\nname = "b"\n{centers[1]}\n[[case]]\nname = "c"\n{LOCAL}')
    jobs = jobs_of(loaded, Scale(), 1, "simulated", SimulatedSettings(), [])
    left = runs_left(jobs, tmp_path / "out")
    assert [[case.name for case in job.measured_by] for job in left] == [["a", "b"], ["c"]]
    options = {"keep": False, "command": "", "on_round": lambda done, accuracy: None}
    first, second = run_job(left[0], tmp_path / "out", **options)
    assert runs_left(jobs, tmp_path / "out") == [jobs[2]]
    alone = [run_job(job, tmp_path / "alone", **options)[0] for job in jobs[:2]]
    assert [first["measured"], second["measured"]] == [result["measured"] for result in alone]
    assert first["measured"] != second["measured"]
    assert second["run_of"] == "a" and "run_of" not in first
    assert second["run_seconds"] == 0.0 < first["run_seconds"], "the time of the run counts once"
    assert [first["data"]["test_distribution"], second["data"]["test_distribution"]] == [0, 1]


def test_a_case_that_measures_something_else_than_its_result_is_run_again(tmp_path):
    run = 'run = { algorithm = "fedsoft" }'
    (job,) = jobs_of(experiment(tmp_path, run), Scale(), 1, "simulated", SimulatedSettings(), [])
    run_job(job, tmp_path / "out", keep=False, command="", on_round=lambda done, accuracy: None)
    assert runs_left([job], tmp_path / "out") == []
    changed = experiment(tmp_path, f'metric = "best_center_1"\n{run}')
    other = jobs_of(changed, Scale(), 1, "simulated", SimulatedSettings(), [])
    assert runs_left(other, tmp_path / "out") == other
