"""Experiment files with settings: each case in each setting; tables with a row for each case and a column for each setting."""

import json

import pytest
from tools.experiments import HEAD, file_named, tables_of
from typer.testing import CliRunner

from coordinator_free_bootstrap.errors import ConfigError
from peer.algorithms.registry import algorithms
from peer.cli.main import app
from peer.core.metric import Metric
from peer.lab.jobs import Job, jobs_of
from peer.lab.render import markdown, sheets
from peer.lab.runner import run_job
from peer.lab.scaling import Scale
from peer.lab.simulated import SimulatedSettings
from peer.lab.spec import GraphSpec, load_experiment

NAMES = set(algorithms())  # as collected: without those that other tests register when they run
ALL = file_named("all-algorithms")
FILE = f"""{HEAD}
[[setting]]
name = "hard"
run = {{ split = "rotated_hard", split_options.k = 2 }}

[[setting]]
name = "sparse"
run = {{ split = "iid", local_epochs = 1 }}
graph = {{ kind = "ring" }}

[[case]]
name = "ditto"
run = {{ algorithm = "ditto", local_epochs = 2 }}

[[case]]
name = "local"
run = {{ algorithm = "local" }}
"""


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "two.toml"
    place.write_text(FILE)
    return place


def test_each_case_is_run_in_each_setting_and_what_the_case_says_wins(path):
    experiment = load_experiment(path)
    names = ["hard: ditto", "hard: local", "sparse: ditto", "sparse: local"]
    assert [case.name for case in experiment.case] == names
    manifests = [experiment.manifest(case) for case in experiment.case]
    assert [manifest.split for manifest in manifests] == ["rotated_hard"] * 2 + ["iid"] * 2
    assert [manifest.local_epochs for manifest in manifests[2:]] == [2, 1]
    assert manifests[0].split_options == {"samples_per_peer": 60, "test_per_peer": 20, "k": 2}
    assert [case.graph for case in experiment.case] == [None, None, *[GraphSpec(kind="ring")] * 2]
    assert experiment.case[2].placed.model_dump() == {"setting": "sparse", "case": "ditto"}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("local", ["hard: local", "sparse: local"]),
        ("hard", ["hard: ditto", "hard: local"]),
        ("sparse: ditto", ["sparse: ditto"]),
    ],
)
def test_a_case_is_chosen_by_its_name_its_row_or_its_column(path, wanted, expected):
    jobs = jobs_of(load_experiment(path), Scale(), 1, "simulated", SimulatedSettings(), [wanted])
    assert [job.case.name for job in jobs] == expected


def test_an_unknown_case_is_refused_with_rows_and_columns(path):
    with pytest.raises(ConfigError, match=r"expected one of .*sparse.*, got 'dfca'"):
        jobs_of(load_experiment(path), Scale(), 1, "simulated", SimulatedSettings(), ["dfca"])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "local"', 'name = "local"\npublished = 80.0', "published value beside settings"),
        ('name = "sparse"', 'name = "hard"', "'hard: ditto' 2 times"),
        ('name = "sparse"', 'name = "sparse"\npeers = 3', "setting.*peers: expected no such key, got 3"),
        ("local_epochs = 1", "local_epoch = 1", "sparse: ditto.*did you mean local_epochs"),
        ("local_epochs = 1", "seed = 1", "run.seed"),
    ],
)
def test_wrong_settings_are_refused(path, old, new, words):
    path.write_text(FILE.replace(old, new, 1))
    with pytest.raises(ConfigError, match=words):
        load_experiment(path)


def test_a_run_has_its_setting_its_cpu_time_and_the_memory_of_its_models(path, tmp_path):
    experiment = load_experiment(path)
    found = {}
    for case in experiment.case[:2]:
        job = Job(experiment, case, 1, Scale(), "simulated")
        (found[case.name],) = run_job(
            job, tmp_path / "out", keep=False, command="c", on_round=lambda done, metric: None
        )
    assert found["hard: local"]["setting"] == {"setting": "hard", "case": "local"}
    parameters = 64 * 8 + 8 + 8 * 10 + 10
    assert found["hard: local"]["held_bytes"] == 4 * parameters
    assert found["hard: ditto"]["held_bytes"] == 2 * 4 * parameters, "a shared and a personal model"
    assert all(result["cpu_seconds"] > 0 for result in found.values())
    (table,) = tables_of(tmp_path / "out")
    assert [cells[0] for cells in sheets(table)[0][1]] == ["case", "ditto", "local"]


def result(case, setting, seed, measured, worst=0.5, tenth=0.6):
    texts = dict.fromkeys(
        ("experiment", "title", "backend", "device", "scale", "machine", "date", "command", "measures"), "a"
    )
    numbers = {"peers": 2, "rounds": 1, "mean_degree": 2.0, "run_seconds": 1.0, "cpu_seconds": 2.0, "held_bytes": 3e6}
    known = {
        "case": f"{setting}: {case}",
        "setting": {"setting": setting, "case": case},
        "place": 0,
        "curve": [[1, 0.5]],
        "metric": Metric().as_json(),
    }
    shown = {"metric_worst": worst, "metric_p10": tenth, "payload_bytes_sent": 8e6, "measured": measured}
    return texts | numbers | known | shown | {"seed": seed, "algorithm": case, "data": {"split": setting}}


@pytest.fixture
def folder(tmp_path):
    """Results in which dfca is best in "hard" and not separated from dfedavg in "soft"; local is worst, once without a run."""
    values = {
        ("dfca", "hard"): (90.0, 91.0, 92.0),
        ("dfedavg", "hard"): (80.0, 81.0, 82.5),
        ("local", "hard"): (70.0, 71.0, 72.0),
        ("dfca", "soft"): (85.0, 87.0, 85.0),
        ("dfedavg", "soft"): (86.0, 86.0, 86.0),
    }
    for (case, setting), row in values.items():
        for seed, value in enumerate(row):
            place = tmp_path / "a" / f"{setting}-{case}" / f"seed-{seed}.json"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(result(case, setting, seed, value, worst=value / 200)))
    return tmp_path


def test_the_best_of_each_column_and_what_is_not_separated_from_it_are_marked(folder):
    (table,) = tables_of(folder)
    measured, worst, costs = (cells for _, cells in sheets(table))
    assert [row[0] for row in measured] == ["case", "dfca", "dfedavg", "local"]
    cells = {row[0]: dict(zip(measured[0], row, strict=True)) for row in measured}
    assert {name: row["hard"] for name, row in cells.items() if name != "case"} == {
        "dfca": "91.0 ± 2.48 **",
        "dfedavg": "81.2 ± 3.13",
        "local": "71.0 ± 2.48",
    }
    assert cells["dfedavg"]["soft"] == "86.0 ± 0.00 **" and cells["dfca"]["soft"] == "85.7 ± 2.87 *"
    assert cells["local"]["soft"] == "", "it was not run there"
    assert worst[1][1:] == ("45.5 ± 1.24 / 60.0", "42.8 ± 1.43 / 60.0")
    rows = {row[0]: dict(zip(costs[0], row, strict=True)) for row in costs}
    assert (rows["dfca"]["mean regret"], rows["dfca"]["largest regret"]) == ("0.2", "0.3")
    assert (rows["dfedavg"]["mean regret"], rows["dfedavg"]["largest regret"]) == ("4.9", "9.8")
    assert (rows["dfca"]["mean to the best"], rows["local"]["mean to the best"]) == ("best", "")
    assert rows["dfedavg"]["mean to the best"] == "-4.75 ± 1.64", "of the means over both settings of seeds 0, 1, 2"
    assert rows["local"]["mean regret"] == "", "it was not run in every setting"
    assert rows["local"]["mean, %"] == "", "a mean over fewer settings cannot be compared"
    assert (
        rows["dfca"].items()
        >= {
            "MB sent a peer": "4.00",
            "CPU seconds a run": "2.0",
            "MB of models held": "3.00",
            "seeds": "3",
        }.items()
    )


def test_tables_and_pictures_of_settings_are_written(folder, tmp_path):
    out, pictures = tmp_path / "t.md", tmp_path / "pictures"
    arguments = ["experiment", "table", str(folder), "--out", str(out), "--out", str(pictures)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert out.read_text() == markdown(tables_of(folder))
    for words in ("** best", "worst peer / worst tenth", "over all settings", "| dfca | 91.0 ± 2.48 ** |"):
        assert words in out.read_text()
    assert {path.name for path in (pictures / "figures").iterdir()} == {"a-hard.png", "a-soft.png"}


def test_one_seed_marks_the_best_alone(folder):
    for place in folder.rglob("seed-[12].json"):
        place.unlink()
    (table,) = tables_of(folder)
    assert [row[1] for row in sheets(table)[0][1][1:]] == ["90.0 **", "80.0", "70.0"]


def test_the_table_across_all_algorithms_has_every_algorithm_in_every_setting():
    experiment = load_experiment(ALL)
    manifests = [experiment.manifest(case) for case in experiment.case]
    assert {manifest.algorithm for manifest in manifests} == NAMES
    found = {(manifest.task, manifest.split) for manifest in manifests}
    splits = {"rotated_hard", "rotated_soft", "dirichlet", "label_flip"}
    assert found == {(task, split) for task in ("mnist", "fmnist", "emnist") for split in splits}
    letters = [manifest.task_options for manifest in manifests if manifest.task == "emnist"]
    assert letters == [{"split": "letters"}] * len(letters)
