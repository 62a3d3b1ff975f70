"""Experiment cases with `method = "server"`: run, report, and what is refused. The arithmetic is in tests/unit/algorithms."""

from operator import attrgetter

import numpy as np
import pytest

from coordinator_free_bootstrap import Manifest
from coordinator_free_bootstrap.errors import ConfigError
from peer.lab.jobs import Job, jobs_of, read_result, refresh_labels, runs_left
from peer.lab.runner import run_job
from peer.lab.scaling import Scale
from peer.lab.server_keys import READ
from peer.lab.simulated import SimulatedSettings
from peer.lab.spec import load_experiment
from peer.view.report.report import build_report

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
        'method = "server"\nrun = { algorithm = "dfedavg", private_parameters = ["3.*"] }',
        'method = "server"\nrun = { algorithm = "cgpfl", clusters = 20, local_epochs = 6 }',
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
        ('method = "server"\nrun = { algorithm = "dfca" }', "apfl, cgpfl, dfedavg, ditto, fedprox, fedrep"),
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


UNREAD = [
    ("participation = 0.5", r"run\.participation: expected no value .*got 0\.5"),
    ('encoding = "int8"', r"run\.encoding: expected no value .*got 'int8'"),
    ('pace = "async"', r"run\.pace: expected no value .*got 'async'"),
    ('mix = "uniform"', r"run\.mix: expected no value .*got 'uniform'"),
    ('aggregation = "batch"', r"run\.aggregation: expected no value .*got 'batch'"),
    ("dynamic_edges = 0.2", r"run\.dynamic_edges: expected no value .*got 0\.2"),
    ("diverged_restores = 1", r"run\.diverged_restores: expected no value .*got 1"),
    ("screening = { clip = 1.0 }", r"run\.screening\.clip: expected no value .*got 1\.0"),
    ("start = { deadline_s = 3.0 }", r"run\.start\.deadline_s: expected no value .*got 3"),
    ("final = { epochs = 2 }", r"run\.final\.epochs: expected no value .*got 2"),
]


@pytest.mark.parametrize(("method", "algorithm"), [("server", "pfedme"), ("ifca-server", "ifca")])
@pytest.mark.parametrize(("setting", "words"), UNREAD)
def test_a_key_that_no_server_reads_is_refused(tmp_path, method, algorithm, setting, words):
    with pytest.raises(ConfigError, match=rf"case \'a\': {words}"):
        experiment(tmp_path, f'method = "{method}"\nrun = {{ algorithm = "{algorithm}", {setting} }}')


@pytest.mark.parametrize(
    ("method", "run", "words"),
    [
        (
            "server",
            'algorithm = "fedsoft", options = { variant = "select" }',
            r"options\.variant: expected no value .*got 'select'",
        ),
        ("server", 'algorithm = "fedsoft", options = { rate = 0.2 }', r"options\.rate: expected no value .*got 0\.2"),
        ("server", 'algorithm = "fedsoft", options = { initialization = "local" }', r"options\.initialization"),
        (
            "server",
            'algorithm = "dfedavg", options = { partners = 2 }',
            r"options\.partners: expected no value .*got 2",
        ),
        (
            "server",
            'algorithm = "cgpfl", options = { align_every = 2 }',
            r"options\.align_every: expected no value .*got 2",
        ),
        (
            "server",
            'algorithm = "cgpfl", options = { sketch_size = 9 }',
            r"options\.sketch_size: expected no value .*got 9",
        ),
        (
            "ifca-server",
            'algorithm = "ifca", optimizer_state = "keep"',
            r"optimizer_state: expected no value .*got 'keep'",
        ),
        ("ifca-server", "options = { warmup_rounds = 2 }", r"options: expected no value .*got \{'warmup_rounds': 2\}"),
        ("ifca-server", 'algorithm = "ditto"', r"algorithm: expected .*, got 'ditto'"),
    ],
)
def test_a_setting_that_its_own_server_does_not_read_is_refused(tmp_path, method, run, words):
    with pytest.raises(ConfigError, match=rf"case 'a': run\.{words}"):
        experiment(tmp_path, f'method = "{method}"\nrun = {{ {run} }}')


def test_keys_that_servers_read_exist():
    for key in READ:
        attrgetter(key.removeprefix("run."))(Manifest())


def test_no_final_phase_is_what_a_server_has(tmp_path):
    experiment(tmp_path, 'method = "server"\nrun = { algorithm = "pfedme", final = { epochs = 0 } }')


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


def test_a_result_takes_its_place_and_published_number_from_the_file_without_a_new_run(tmp_path):
    run = 'run = { algorithm = "local" }'
    (job,) = jobs_of(experiment(tmp_path, f"published = 90.0\n{run}"), Scale(), 1, "simulated", SimulatedSettings(), [])
    run_job(job, tmp_path / "out", keep=False, command="", on_round=lambda done, accuracy: None)
    before = read_result(job.place(tmp_path / "out"))
    changed = experiment(tmp_path, f'{LOCAL}\n[[case]]\nname = "z"\n{run}').model_copy(update={"title": "New"})
    changed = changed.model_copy(update={"case": changed.case[::-1]})
    jobs = [
        each for each in jobs_of(changed, Scale(), 1, "simulated", SimulatedSettings(), []) if each.case.name == "a"
    ]
    refresh_labels(jobs, tmp_path / "out")
    assert read_result(job.place(tmp_path / "out")) == before | {"published": None, "place": 1, "title": "New"}
    assert runs_left(jobs, tmp_path / "out") == []
