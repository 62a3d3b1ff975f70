"""Experiment files: checks, scale, sweep, results, tables and `peer experiment`."""

import hashlib
import json
import re
import shutil

import numpy as np
import pytest
from tools.experiments import FILES, HEAD, file_named, tables_of
from typer.testing import CliRunner

from coordinator_free_bootstrap import canonical_json
from coordinator_free_bootstrap.errors import ConfigError, PeerError, RunFailed, TaskError, UsageError
from peer.algorithms.registry import algorithm_named
from peer.cli.main import app
from peer.core.metric import Metric
from peer.lab.cells import cells_of
from peer.lab.jobs import Job, device_of, done_already, skipped, slug
from peer.lab.render import how, markdown
from peer.lab.runner import run_job
from peer.lab.scaling import Scale, scaled_degree, scaled_graph
from peer.lab.simulated import SimulatedSettings
from peer.lab.spec import GraphSpec, load_experiment

SMALL = f"""{HEAD}
[[case]]
name = "DFCA-GI"
published = 93.7
published_std = 0.07
run = {{ algorithm = "dfca" }}

[[case]]
name = "local"
run = {{ algorithm = "local" }}

[[case]]
name = "FedAvg (server)"
method = "published"
published = 88.8
"""

SWEEP = """
[sweep]
key = "%s"
values = %s

[[case]]
name = "A"
run = { algorithm = "local" }

[[case]]
name = "B"
run = { algorithm = "fedspd", split = "rotated_soft", final = { epochs = 1 } }
"""
LOCAL = 'run = { algorithm = "local" }'
DFCA = 'run = { algorithm = "dfca", options = { %s } }'
FEDSPD = 'run = { algorithm = "fedspd", options = { %s } }'


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_experiment_file_is_valid_at_full_and_small_scale(path):
    experiment = load_experiment(path)
    for case in experiment.case:
        if skipped(case) is not None:
            continue
        for factor in (0.1, 1.0):
            graph = scaled_graph(experiment, case, 1, Scale(factor))
            assert len(graph.nodes) == Scale(factor).peers(experiment)
            name = experiment.manifest_keys(case).get("algorithm", graph.manifest.algorithm)
            assert graph.manifest.algorithm == name
            if case.method == "peers":
                assert algorithm_named(name)(graph.manifest, 0, graph).name == name


def test_every_table_of_the_papers_has_a_file():
    sources = {load_experiment(path).source for path in FILES}
    assert {f"DFCA, Table {n}" for n in (1, 2)} <= sources
    assert {f"FedSPD, Table {n}" for n in range(2, 10)} <= sources
    assert {"FedSoft, Tables 1 and 2", *(f"FedSoft, Table {n}" for n in (1, 3, 4))} <= sources
    assert {f"DPFL, Table {n}" for n in range(1, 7)} <= sources
    assert {f"CGPFL, Table {n}" for n in (1, 2)} <= sources


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("peers = 8", "peers = 1", ["peers", "got 1", "at least 2"]),
        ("peers = 8", "peers = 8\ncolour = 1", ["colour", "no such key"]),
        ("rounds = 2", "rouns = 2", ["small.toml", "run.rouns", "did you mean rounds?"]),
        ("rounds = 2", "seed = 2", ["run.seed", "Each seed of the experiment sets it"]),
        ("p = 0.5", "p = 0.5\ndegree = 3", ["graph", "1 of p and degree"]),
        ('kind = "erdos-renyi"', 'kind = "geometric"', ["graph.p", "expected degree"]),
        ('kind = "erdos-renyi"', 'kind = "ring"', ["0 of p and degree"]),
        ('name = "local"', 'name = "DFCA-GI"', ["'DFCA-GI' 2 times", "each name once"]),
        ("published = 93.7", "published = 937", ["case[0].published", "got 937"]),
        ("[run]", "[run", ["expected an experiment file in TOML"]),
        (LOCAL, DFCA % "warmup_round = 1", ["small.toml, case 'local'", "warmup_round", "warmup_rounds"]),
        ("[graph]", '[sweep]\nkey = "graph.kind"\nvalues = [1, 2]\n[graph]', ["sweep.key", "graph.kind"]),
        (
            "[graph]",
            '[sweep]\nkey = "graph.degree"\nvalues = [0, 3]\n[graph]',
            ["sweep.values", "got 0", "more than 0"],
        ),
        ("[graph]", '[sweep]\nkey = "run.rouns"\nvalues = [1, 2]\n[graph]', ["published value beside a sweep"]),
        (LOCAL, FEDSPD % "dp_epsilon = 1.0", ["small.toml, case 'local'", "min_cluster_samples"]),
    ],
)
def test_a_wrong_file_is_refused_with_key_and_allowed_values(small, old, new, words):
    small.write_text(SMALL.replace(old, new, 1))
    with pytest.raises(ConfigError) as raised:
        load_experiment(small)
    for word in words:
        assert word in str(raised.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected a file, got none"):
        load_experiment(tmp_path / "none.toml")


def test_scale_keeps_the_samples_of_a_peer_and_equal_clusters():
    experiment = load_experiment(file_named("dfca-table2-mnist-k4"))
    scale = Scale(0.1, ("run.rounds=30",))
    graph = scaled_graph(experiment, experiment.case[0], 1, scale)
    assert len(graph.nodes) == 24
    assert graph.manifest.rounds == 30
    assert graph.manifest.split_options == {"samples_per_peer": 1000, "test_per_peer": 166, "k": 4}
    assert scale.sentence(experiment) == "24 of 240 peers, each with its full share of samples; rounds=30"
    assert Scale().sentence(experiment) == "full scale"
    assert Scale(0.001).peers(experiment) == 8


def test_a_server_draws_the_same_share_of_the_clients_at_every_scale():
    """60 of 100 clients became all of 10: every center was the mean of the same models."""
    experiment = load_experiment(file_named("fedsoft-table1-synthetic-10-90"))
    case = experiment.case[0]
    assert case.server.selected == 60
    scaled, full = (Job(experiment, case, 1, Scale(factor), "simulated") for factor in (0.1, 1.0))
    assert (scaled.server.selected, full.server.selected) == (6, 60)
    drawn_by_all = case.model_copy(update={"server": case.server.model_copy(update={"selected": 100})})
    assert scaled.digest() != Job(experiment, drawn_by_all, 1, Scale(0.1), "simulated").digest()


def test_the_degree_scales_with_the_logarithm_of_the_peers():
    spec = GraphSpec(kind="erdos-renyi", p=0.1)
    assert scaled_degree(spec, 240, 240) == pytest.approx(23.9)
    assert scaled_degree(spec, 240, 24) == pytest.approx(23.9 * np.log(24) / np.log(240))
    assert scaled_degree(GraphSpec(kind="geometric", degree=14), 50, 8) == 7
    assert scaled_degree(GraphSpec(kind="ring"), 50, 8) is None
    assert scaled_degree(GraphSpec(kind="small-world", degree=4), 64, 16) == 4  # only even degrees exist


@pytest.mark.parametrize("factor", [0.0, -1.0, 1.5, float("nan")])
def test_an_impossible_scale_is_refused(small, factor):
    with pytest.raises(ConfigError, match=r"--scale: expected a factor above 0, up to 1, got"):
        Scale(factor)
    done = CliRunner().invoke(app, ["experiment", "run", str(small), "--scale", str(factor)])
    assert isinstance(done.exception, ConfigError)


def test_a_result_has_the_numbers_of_the_table(small, tmp_path):
    experiment = load_experiment(small)
    job = Job(experiment, experiment.case[0], 1, Scale(), "simulated")
    assert not done_already(job, tmp_path)
    (result,) = run_job(
        job, tmp_path, keep=True, command="peer experiment run", on_round=lambda completed, accuracy: None
    )
    assert done_already(job, tmp_path)
    assert not done_already(
        Job(experiment, experiment.case[0], 1, Scale(settings=("run.rounds=3",)), "simulated"), tmp_path
    )
    assert result["measured"] == pytest.approx(100 * result["metric_mean"])
    assert [round_ for round_, _ in result["curve"]] == [1, 2]
    assert [round_ for round_, _ in result["curve_train"]] == [1, 2]
    assert 0 < result["curve_train"][0][1] < result["curve_train"][1][1] <= 1
    assert result["peers"] == 8
    assert (tmp_path / "small" / "dfca-gi" / "seed-1" / "peer-0" / "history.jsonl").is_file()


AT_BEST = (
    HEAD
    + """
[[case]]
name = "A"
metric = "metric_at_best"
run = { algorithm = "local", learning_rate = 1.0, split_options.validation = %s, final = { epochs = %d } }
"""
)


@pytest.mark.parametrize("epochs", [0, 2])
def test_at_best_is_the_test_metric_of_the_round_or_final_phase_that_validation_chose(tmp_path, epochs):
    path = tmp_path / "best.toml"
    path.write_text(AT_BEST % (0.3, epochs))
    experiment = load_experiment(path)
    job = Job(experiment, experiment.case[0], 1, Scale(settings=("run.rounds=6",)), "simulated")
    (result,) = run_job(
        job, tmp_path, keep=True, command="peer experiment run", on_round=lambda completed, metric: None
    )
    values, chosen = [], set()
    for place in sorted((tmp_path / "best" / "a" / "seed-1").glob("peer-*/history.jsonl")):
        lines = [json.loads(line) for line in place.read_text().splitlines()]
        shown = [
            line for line in lines if line["kind"] in ("round", "end")
        ]  # without a final phase the end repeats a round
        best = max(shown, key=lambda line: line["metric_validation"])
        values.append(best["metric_value"])
        chosen.add(shown.index(best))
    assert len(values) == 8 and len(chosen) > 1
    assert result["measured"] == pytest.approx(100 * np.mean(values)) and result["metric_worst"] == min(values)


def test_at_best_without_validation_samples_is_refused(tmp_path):
    path = tmp_path / "best.toml"
    path.write_text(AT_BEST % (0.0, 0))
    experiment = load_experiment(path)
    job = Job(experiment, experiment.case[0], 1, Scale(), "simulated")
    with pytest.raises(RunFailed, match=r"peer 0: metric = 'metric_at_best' expects a round evaluated on validation"):
        run_job(job, tmp_path, keep=True, command="peer experiment run", on_round=lambda completed, metric: None)


def test_the_command_runs_resumes_and_prints_a_table(small, tmp_path):
    out = tmp_path / "results"
    arguments = ["experiment", "run", str(small), "--seeds", "2", "--out", str(out)]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert "FedAvg (server): not run: published number" in first.output
    assert first.output.count("\nlearns classification with 10 classes [0, 1, 2") == 1
    results = sorted(out.rglob("seed-*.json"))
    assert len(results) == 4
    kept, cut = results[0].stat().st_mtime_ns, results[-1]
    cut.unlink()  # as after an interruption of the runs
    again = CliRunner().invoke(app, arguments)
    assert "3 of 4 results done already" in again.output
    assert results[0].stat().st_mtime_ns == kept
    assert cut.is_file()

    table = CliRunner().invoke(app, ["experiment", "table", str(out), "--out", str(tmp_path / "t.md")])
    assert table.exit_code == 0, table.output
    text = (tmp_path / "t.md").read_text()
    assert "### A small one" in text
    assert "| DFCA-GI | 93.7 ± 0.07 |" in text
    assert "full scale" in text
    assert "seeds 2" in text or "| 2 |" in text


def test_a_case_may_have_the_algorithm_of_a_file(small, tmp_path, monkeypatch):
    """Before, it was skipped: no algorithm 'half.py:Half' in this version."""
    monkeypatch.chdir(tmp_path)
    small.write_text(SMALL.replace('algorithm = "local"', 'algorithm = "half.py:Half"'))
    arguments = ["experiment", "run", str(small), "--out", "results", "--seeds", "1", "--case", "local"]
    missing = CliRunner().invoke(app, arguments)
    assert "run.algorithm: expected path/to/file.py:Class, got no file 'half.py'" in str(missing.exception)
    (tmp_path / "half.py").write_text("import peer\n\n\nclass Half(peer.Algorithm):\n    pass\n")
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    (result,) = (tmp_path / "results").rglob("seed-1.json")
    assert json.loads(result.read_text())["algorithm"] == "half.py:Half"


def test_a_wrong_option_of_the_last_case_is_an_error_before_the_first_run(small, tmp_path):
    small.write_text(small.read_text().replace(LOCAL, 'run = { algorithm = "local", split_options = { sampels = 4 } }'))
    out = tmp_path / "results"
    done = CliRunner().invoke(app, ["experiment", "run", str(small), "--seeds", "1", "--out", str(out)])
    assert isinstance(done.exception, TaskError)
    assert str(done.exception).startswith("case 'local': run.split_options.sampels: expected an option of split")
    assert not list(out.rglob("seed-*")), "no case was run"


def test_results_of_another_scale_are_in_another_table(small, tmp_path):
    experiment = load_experiment(small)
    for seed, settings in ((1, ()), (2, ("run.rounds=1",))):
        job = Job(experiment, experiment.case[1], seed, Scale(settings=settings), "simulated")
        run_job(job, tmp_path, keep=False, command="", on_round=lambda completed, accuracy: None)
        assert not (tmp_path / "small" / "local" / f"seed-{seed}").exists()
    tables = tables_of(tmp_path)
    assert sorted(how(table).split(".")[0] for table in tables) == ["Scale: full scale", "Scale: rounds=1"]
    assert "ARI" not in markdown(tables)  # a column without numbers is left out
    assert markdown(tables_of(tmp_path / "small")) == markdown(tables), (
        "the folder of one experiment has the same tables"
    )


def test_an_incomplete_result_is_run_again(small, tmp_path):
    experiment = load_experiment(small)
    job = Job(experiment, experiment.case[1], 1, Scale(), "simulated")
    job.place(tmp_path).parent.mkdir(parents=True)
    job.place(tmp_path).write_text(json.dumps({"digest": job.digest()})[:-4])
    assert not done_already(job, tmp_path)
    with pytest.raises(UsageError, match="expected results, got none"):
        tables_of(tmp_path)


def test_curves_are_drawn_into_small_files(small, tmp_path):
    out = tmp_path / "results"
    assert CliRunner().invoke(app, ["experiment", "run", str(small), "--seeds", "1", "--out", str(out)]).exit_code == 0
    done = CliRunner().invoke(app, ["experiment", "table", str(out), "--out", str(tmp_path / "drawn")])
    assert done.exit_code == 0, done.output
    picture = tmp_path / "drawn" / "figures" / "a-small-one.png"
    assert 1000 < picture.stat().st_size < 100_000
    assert 1000 < picture.with_stem("a-small-one-train").stat().st_size < 100_000
    shutil.rmtree(tmp_path / "drawn")


def test_a_sweep_repeats_each_case_with_each_value(small):
    small.write_text(HEAD + SWEEP % ("graph.degree", "[2, 3.5]"))
    cases = load_experiment(small).case
    assert [case.name for case in cases] == [f"{name}, degree = {x}" for name in ("A", "B") for x in ("2", "3.5")]
    assert [case.graph for case in cases] == [GraphSpec(degree=2), GraphSpec(degree=3.5)] * 2
    assert cases[1].swept.model_dump() == {"key": "graph.degree", "value": 3.5, "case": "A"}
    small.write_text(HEAD + SWEEP % ("run.split_options.samples_per_peer", "[40, 50]"))
    experiment = load_experiment(small)
    options = [experiment.manifest(case).split_options for case in experiment.case]
    assert options == [{"samples_per_peer": n, "test_per_peer": 20} for n in (40, 50)] * 2
    assert [experiment.manifest(case).algorithm for case in experiment.case] == ["local"] * 2 + ["fedspd"] * 2
    small.write_text(HEAD + SWEEP % ("run.rouns", "[1, 2]"))
    with pytest.raises(ConfigError, match="did you mean rounds"):
        load_experiment(small)


def test_a_case_without_the_swept_key_runs_once(small):
    once = SWEEP.replace('name = "A"', 'name = "A"\nsweep = false\npublished = 80.0')
    small.write_text(HEAD + once % ("run.options.u_min", "[0.1, 0.2]"))
    cases = load_experiment(small).case
    assert [case.name for case in cases] == ["A", "B, u_min = 0.1", "B, u_min = 0.2"]
    assert cases[0].published == 80.0 and cases[0].swept is None
    small.write_text(SMALL.replace('name = "local"', 'name = "local"\nsweep = false'))
    with pytest.raises(ConfigError, match="sweep only in a file with"):
        load_experiment(small)


def test_a_center_is_not_compared_with_models_of_peers(tmp_path):
    """A FedSoft center is measured on the samples of one distribution, the others on each peer's own samples."""
    path = file_named("fedsoft-table1-synthetic-10-90")
    experiment = load_experiment(path)
    scale = Scale(0.01, ("run.rounds=1", "run.local_epochs=1"))
    wanted = ("FedSoft between neighbors, distribution 0", "local", "dfedavg")
    for case in (case for case in experiment.case if case.name in wanted):
        run_job(
            Job(experiment, case, 1, scale, "simulated"), tmp_path, keep=False, command="", on_round=lambda r, m: None
        )
    (table,) = tables_of(tmp_path)
    best = {row.case: bool(row.to_best) for row in table.rows}
    assert best == {wanted[0]: False, "local": True, "dfedavg": True}


@pytest.mark.parametrize("path", [path for path in FILES if path.stem.startswith(("fedsoft", "dpfl", "cgpfl"))])
def test_the_tables_of_the_other_systems_have_the_simplest_rivals(path):
    cases = {case.placed.case if case.placed else case.name: case for case in load_experiment(path).case}
    assert {"local", "dfedavg", "dfedavg+final"} <= cases.keys()
    assert cases["dfedavg+final"].run["final"]["epochs"] > 0


@pytest.mark.parametrize("path", [path for path in FILES if path.stem.startswith("cgpfl-table1")], ids=lambda p: p.stem)
def test_the_numbers_of_cgpfl_stand_beside_runs_with_a_server(path):
    published = {case.name: case.method for case in load_experiment(path).case if case.published is not None}
    servers = ("FedAvg", "IFCA", "APFL", "Per-FedAvg", "Ditto", "pFedMe", "CGPFL", "CGPFL-Heur")
    assert {name.partition(" with a server")[0] for name in published} == set(servers)
    assert set(published.values()) == {"server", "ifca-server"}


NO_RIVALS = {
    "fedspd-bytes": "counts models and bytes, on data of ten rounds; accuracies are not compared",
}


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.stem.startswith("fedspd-")], ids=lambda path: path.stem
)
def test_every_file_of_fedspd_has_the_simplest_rivals(path):
    """Without them a FedSPD that ends below training alone looked as if it did not depend on the graph."""
    if path.stem in NO_RIVALS:
        assert not any(case.published for case in load_experiment(path).case)
        return
    experiment = load_experiment(path)
    found = {case.swept.case if case.swept else case.name: experiment.manifest(case) for case in experiment.case}
    rivals = {name: found[name] for name in ("local", "dfedavg", "dfedavg, tau 1", "dfedavg+final")}
    assert [rival.algorithm for rival in rivals.values()] == ["local"] + ["dfedavg"] * 3
    epochs = experiment.run["local_epochs"]
    assert [rival.local_epochs for rival in rivals.values()] == [epochs, epochs, 1, epochs]
    assert [bool(rival.final.epochs) for rival in rivals.values()] == [False, False, False, True]
    fedspd = {run.final.epochs or 10 for run in found.values() if run.algorithm == "fedspd"}
    assert rivals["dfedavg+final"].final.epochs in fedspd, "another final phase than that of FedSPD"


def test_the_exceptions_of_the_files_of_fedspd_exist():
    assert {path.stem for path in FILES} >= NO_RIVALS.keys()


def test_ifca_with_a_server_is_the_best_of_five_in_the_table_of_fedspd():
    """The choice is by training loss, so no test data are used."""
    for path in (path for path in FILES if path.stem.startswith("fedspd-table2")):
        (ifca,) = (case for case in load_experiment(path).case if case.name == "IFCA (server)")
        assert ifca.server.restarts == 5


def test_rows_that_need_pretrained_weights_say_that_they_cannot_be_reproduced():
    pretrained = [
        e for e in map(load_experiment, FILES) if "mobilenet" in e.run.get("model", "") and "FedSPD" in e.source
    ]
    assert len(pretrained) == 4
    assert all(any(note.startswith("Not reproducible as written") for note in e.notes) for e in pretrained)


@pytest.mark.slow
def test_a_sweep_is_drawn_over_its_values(small, tmp_path):
    small.write_text(HEAD + SWEEP % ("graph.degree", "[2, 4]"))
    out = tmp_path / "results"
    assert CliRunner().invoke(app, ["experiment", "run", str(small), "--seeds", "2", "--out", str(out)]).exit_code == 0
    done = CliRunner().invoke(app, ["experiment", "table", str(out), "--out", str(tmp_path / "drawn")])
    assert done.exit_code == 0, done.output
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "drawn" / "figures").iterdir()}
    assert sizes.keys() == {"a-small-one.png", "a-small-one-sweep.png", "a-small-one-train.png"}
    assert all(1000 < size < 100_000 for size in sizes.values())
    header, *rows = cells_of(tables_of(tmp_path / "results")[0])
    shown = [dict(zip(header, row, strict=True)) for row in rows]
    assert [row["case"] for row in shown] == ["A, degree = 2", "A, degree = 4", "B, degree = 2", "B, degree = 4"]
    assert [bool(row["before final, %"]) for row in shown] == [False, False, True, True]
    assert all(float(row["mixture error"]) <= 1 for row in shown[2:])
    assert float(shown[2]["models sent"]) > 0 == float(shown[0]["models sent"])


def test_an_unknown_case_or_backend_is_refused(small):
    for arguments, word in ((["--case", "unknown"], "DFCA-GI"), (["--backend", "cloud"], "processes")):
        done = CliRunner().invoke(app, ["experiment", "run", str(small), *arguments])
        assert word in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "gpu"], "--device: expected auto, cpu, cuda, .*, got 'gpu'"),
        (["--device", "cuda:99"], "--device: expected .*, got .cuda:99"),
        (["--device", "cuda:99", "--backend", "processes"], "--device: expected .*, got .cuda:99"),
        (["--out", "{file}"], "--out: expected a path that can be written, got "),
        (["--set", "run.options.warmup_round=1", "--case", "DFCA-GI"], "case 'DFCA-GI': .*warmup_round"),
    ],
)
def test_wrong_options_are_refused_before_the_first_run(small, tmp_path, arguments, words):
    arguments = [argument.format(file=small) for argument in arguments]
    done = CliRunner().invoke(app, ["experiment", "run", str(small), "--out", str(tmp_path / "out"), *arguments])
    assert isinstance(done.exception, PeerError), done.output
    assert re.search(words, str(done.exception))
    assert not list(tmp_path.rglob("seed-*"))


def test_peers_of_processes_choose_their_device(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [device_of("processes", wanted) for wanted in (None, "auto", "cuda")] == ["cuda"] * 3
    assert [device_of("simulated", wanted) for wanted in (None, "auto", "cuda:1")] == ["cpu", "cuda", "cuda:1"]
    for wanted in ("cpu", "cuda:1"):
        with pytest.raises(ConfigError, match=r"--device: expected .* with --backend processes"):
            device_of("processes", wanted)
    with pytest.raises(ConfigError, match="2 CUDA devices"):
        device_of("simulated", "cuda:2")


def test_a_result_of_another_device_is_run_again(small, monkeypatch):
    experiment = load_experiment(small)

    def digest(device):
        return Job(experiment, experiment.case[0], 1, Scale(), "simulated", SimulatedSettings(device=device)).digest()

    graph, case = scaled_graph(experiment, experiment.case[0], 1, Scale()), experiment.case[0]
    parts = [canonical_json(graph.manifest), graph.digest, case.method, case.server.model_dump_json(), "simulated"]
    before_devices_were_recorded = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert digest("cpu") == digest("auto") == before_devices_were_recorded
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert digest("cuda") == digest("cuda:1") == digest("auto") != digest("cpu")


def result_of(command="peer experiment run a.toml", **changes):
    texts = dict.fromkeys(
        ("experiment", "title", "case", "backend", "device", "scale", "machine", "date", "measures"), "a"
    )
    numbers = dict.fromkeys(("place", "seed", "peers", "rounds"), 1) | {"mean_degree": 2.0, "run_seconds": 1.0}
    known = {"algorithm": "dfca", "metric": Metric().as_json(), "data": {}, "curve": []}
    return {**texts, **numbers, **known, "command": command, **changes}


def written(folder, result):
    path = folder / "a" / "case" / f"seed-{result['seed']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result))


@pytest.mark.parametrize(
    ("arguments", "changes", "words"),
    [
        (["--out", "{}/missing/x.md"], {}, "--out: expected a path that can be written, got .*missing/x.md"),
        (["--out", "{}"], {}, "--out: expected another folder"),
        (["--out", "{}/a/case/seed-1.json"], {}, "--out: expected a path that can be written, got "),
        (
            [],
            {"experiment": None},
            "seed-1.json: not a result of peer experiment run: experiment: expected str, got None",
        ),
        ([], {"peers": "many"}, "peers: expected int, got 'many'"),
        ([], {"metric": "accuracy"}, "metric: expected dict, got 'accuracy'"),
    ],
)
def test_wrong_options_and_files_of_a_table_are_refused(tmp_path, arguments, changes, words):
    written(tmp_path, result_of(**changes))
    arguments = [argument.format(tmp_path) for argument in arguments]
    done = CliRunner().invoke(app, ["experiment", "table", str(tmp_path), *arguments])
    assert isinstance(done.exception, UsageError), done.output
    assert re.search(words, str(done.exception))


def test_a_table_shows_the_commands_of_all_its_results(tmp_path):
    base = "peer experiment run a.toml --case"
    for seed, command in enumerate((f"{base} 'one [x]'", f"{base} two", f"{base} two", "peer else")):
        written(tmp_path, result_of(command, seed=seed, title="A [bold] one"))
    tables = tables_of(tmp_path)
    assert how(tables[0]).endswith(f"`{base} 'one [x]'`, `... --case two`, `peer else`")
    shown = CliRunner().invoke(app, ["experiment", "table", str(tmp_path)]).output
    assert "A [bold] one" in shown and "'one [x]'" in shown


@pytest.mark.parametrize(("name", "expected"), [("DFCA-GI", "dfca-gi"), ("tau = 1", "tau-1"), ("p = 0.3", "p-0.3")])
def test_slugs(name, expected):
    assert slug(name) == expected


def test_another_metric_than_accuracy_is_shown_by_its_name_and_not_in_percent(tmp_path):
    """Before, a mean absolute error of 0.0314 was shown as a "measured, %" of 3.1, and its curve as test accuracy."""
    curve = [[1, 0.5], [2, 0.0314]]
    mae = {"name": "mae", "higher_is_better": False, "share": False}
    written(tmp_path, result_of(metric=mae, measured=0.0314, metric_worst=0.25, payload_bytes_sent=0, curve=curve))
    (table,) = tables_of(tmp_path)
    header, row = cells_of(table)
    assert dict(zip(header, row, strict=True)).items() >= {"measured, mae": "0.0314", "worst peer, mae": "0.25"}.items()
    assert "%" not in markdown([table]).split("|")[2]


def test_the_command_names_the_metric_of_the_task(small, tmp_path):
    text = small.read_text().replace("model_options = { hidden = 8 }", 'task = "linear"')
    small.write_text(text.replace("split_options = {", 'split = "iid"\nsplit_options = {'))
    arguments = ["experiment", "run", str(small), "--seeds", "1", "--case", "local", "--out", str(tmp_path / "r")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "local, seed 1: mse " in done.output
    assert "accuracy" not in done.output
