"""The folders of papers: results as JSON, and the pages that come from them."""

import json
from pathlib import Path

import pytest
from tools.experiments import FILES, PAPERS, file_named
from typer.testing import CliRunner

from coordinator_free_bootstrap.errors import UsageError
from peer.cli.main import app
from peer.lab.cells import cells_of
from peer.lab.jobs import names_of
from peer.lab.page import page
from peer.lab.spec import load_experiment
from peer.lab.table import CaseRow, ResultTable, mean_of
from peer.lab.table_files import read_tables, table_files, text_of_tables, write_tables

FOLDERS = sorted(path for path in PAPERS.iterdir() if path.is_dir())
RESULTS = sorted(PAPERS.glob("*/results/*.json"))
BYTES_MAX = 1 << 20
every_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
every_file = pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)


def tables_in(folder: Path) -> list[ResultTable]:
    return [table for path in table_files(folder) for table in read_tables(path)]


def test_every_folder_of_a_paper_has_files_results_and_a_page():
    assert {path.parent for path in FILES} == {path.parent.parent for path in RESULTS} == set(FOLDERS)
    assert len({path.stem for path in FILES}) == len(FILES), "results of two files would share a folder"


@every_folder
def test_the_page_of_a_paper_is_what_its_files_and_results_give(folder):
    command = f"peer experiment table papers/{folder.name} --out papers/{folder.name}/README.md"
    assert (folder / "README.md").read_text() == page(folder, tables_in(folder)), f"write it again: {command}"


def test_the_results_are_small():
    assert sum(path.stat().st_size for path in RESULTS) < BYTES_MAX


@every_file
def test_results_are_written_as_the_command_writes_them(path):
    assert path.read_text() == text_of_tables(read_tables(path))


@every_file
def test_results_name_cases_settings_and_published_numbers_of_their_file(path):
    experiment = load_experiment(file_named(path.stem))
    assert file_named(path.stem).parent == path.parent.parent
    settings = {setting.name for setting in experiment.setting} | {None}
    cases = {name: case for case in experiment.case for name in names_of(case)}
    for table in read_tables(path):
        assert table.experiment == path.stem and table.title == experiment.title
        assert {row.setting for row in table.rows} <= settings
        if not table.commands[0].startswith("peer experiment run"):
            continue  # a benchmark of methods that are no cases
        assert all(f"papers/{path.parent.parent.name}/{path.stem}.toml" in command for command in table.commands)
        assert {row.case for row in table.rows} <= cases.keys()
        for row in table.rows:
            assert row.published is None or mean_of(row.published) == cases[row.case].published, row.case


def test_the_document_on_experiments_is_short():
    assert len((PAPERS.parent / "docs" / "experiments.md").read_text().split()) <= 2000


# ---- from results to tables, files and pages ----------------------------------------------------------------------------


def table_of(scale="full scale", **changes):
    row = CaseRow(
        case="dfca", seeds=2, measured=(91.0, 2.5), to_best="best", clusters_right=(1, 2), by_seed={1: 90.8, 2: 91.2}
    )
    values = {
        "experiment": "one",
        "title": "An experiment",
        "metric": {"name": "accuracy"},
        "scale": scale,
        "peers": 8,
        "mean_degree": 3.5,
        "rounds": 2,
        "backends": ("simulated",),
        "device": "cpu",
        "dates": ("2026-11-20",),
        "machine": "2 cores",
        "minutes": 1,
        "commands": ("peer experiment run one.toml",),
        "rows": (row, CaseRow(case="local", seeds=2, measured=(71.0, 2.5), to_best=(-20.0, 1.5))),
    }
    return ResultTable.model_validate(values | changes)


def test_a_table_comes_back_from_its_file(tmp_path):
    table = table_of(cautions=("Fewer than 3 seeds: no difference is a finding.",))
    (path,) = write_tables(tmp_path, [table])
    assert path.name == "one.json"
    assert read_tables(path) == (table,)
    assert cells_of(table) == cells_of(read_tables(path)[0])


def test_a_file_keeps_its_tables_of_other_scales(tmp_path):
    kept, old, new = table_of(), table_of("rounds=1"), table_of("rounds=1", minutes=7)
    write_tables(tmp_path, [kept, old])
    (path,) = write_tables(tmp_path, [new])
    assert read_tables(path) == (kept, new)


@pytest.mark.parametrize(
    ("row", "mark"),
    [
        ({"to_best": "best"}, "best"),
        ({"to_best": (-0.5, 0.6)}, "not separated"),
        ({"to_best": (-0.7, 0.6)}, ""),
        ({"to_best": -0.1}, ""),
        ({"to_best": "no common seed"}, ""),
        ({}, ""),
    ],
)
def test_a_row_is_marked_where_the_interval_of_its_difference_includes_0(row, mark):
    assert CaseRow(case="a", seeds=1, **row).mark == mark


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"rounds": 2', '"rounds": "many"', r'one.json: tables\[0\].rounds: expected .*, got "many"'),
        ('"seeds": 2', '"seed": 2', "no such key"),
        ("{", "[", "one.json: expected what peer experiment table --out writes"),
        ('"measured": [91, 2.5]', '"measured": [91, NaN]', "measured"),
    ],
)
def test_a_wrong_file_of_tables_is_refused_with_its_key(tmp_path, old, new, words):
    (path,) = write_tables(tmp_path, [table_of()])
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(UsageError, match=words):
        read_tables(path)


@pytest.fixture
def paper(tmp_path):
    """A folder with two experiment files and results of one."""
    text = (PAPERS / "fedspd" / "fedspd-linear-mixtures.toml").read_text()
    folder = tmp_path / "own"
    (folder / "results").mkdir(parents=True)
    for name in ("one", "two"):
        (folder / f"{name}.toml").write_text(text.replace('title = "', f'title = "{name}: ', 1))
    write_tables(folder / "results", [table_of()])
    return folder


def test_a_page_has_notes_tables_and_what_was_not_measured(paper, tmp_path):
    out = tmp_path / "page.md"
    done = CliRunner().invoke(app, ["experiment", "table", str(paper), "--out", str(out)])
    assert done.exit_code == 0, done.output
    text = out.read_text()
    assert text == page(paper, tables_in(paper))
    measured, missing = text.split("## Not measured")
    assert "- Not from a paper." in measured and "| dfca | 91.0 ± 2.50 | best | 1 of 2 | 2 |" in measured
    assert (
        "`peer experiment run one.toml`" in measured and "one.toml" not in missing and "[two.toml](two.toml)" in missing
    )


def test_a_page_leaves_no_table_out(paper):
    (paper / "one.toml").unlink()
    with pytest.raises(UsageError, match=r"expected one\.toml beside results/one\.json"):
        page(paper, tables_in(paper))


def test_a_folder_is_refused_for_saved_tables(paper, tmp_path):
    done = CliRunner().invoke(app, ["experiment", "table", str(paper), "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith("--out: expected FILE.md") and not (tmp_path / "out").exists()


def result(case, setting, seed, measured):
    texts = dict.fromkeys(("title", "backend", "device", "scale", "machine", "date", "command"), "a")
    numbers = {"peers": 2, "rounds": 1, "mean_degree": 2.0, "run_seconds": 1.0, "cpu_seconds": 2.0, "held_bytes": 3e6}
    known = {
        "case": f"{setting}: {case}",
        "setting": {"setting": setting, "case": case},
        "place": 0,
        "experiment": "one",
    }
    shown = {"metric_worst": 0.5, "metric_p10": 0.6, "payload_bytes_sent": 8e6, "measured": measured}
    accuracy = {"name": "accuracy", "higher_is_better": True, "share": True}
    own = {"seed": seed, "algorithm": case, "measures": "metric_value", "metric": accuracy, "data": {"split": setting}}
    return texts | numbers | known | shown | own


def test_results_of_single_runs_become_a_file_with_the_numbers_of_each_seed(tmp_path):
    for case, setting, values in (("dfca", "hard", (90, 91)), ("local", "hard", (70, 71)), ("dfca", "easy", (99, 97))):
        for seed, value in enumerate(values):
            path = tmp_path / "out" / "one" / f"{setting}-{case}" / f"seed-{seed}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(result(case, setting, seed, value)))
    done = CliRunner().invoke(app, ["experiment", "table", str(tmp_path / "out"), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    (table,) = read_tables(tmp_path / "results" / "one.json")
    assert [(row.setting, row.case, row.by_seed) for row in table.rows] == [
        ("easy", "dfca", {0: 99, 1: 97}),
        ("hard", "dfca", {0: 90, 1: 91}),
        ("hard", "local", {0: 70, 1: 71}),
    ]
    totals = {
        total.case: (total.mean, total.megabytes_sent, total.held_megabytes, total.seeds) for total in table.totals
    }
    assert totals == {"dfca": (94.25, 4, 3, (2,)), "local": (None, 4, 3, (2,))}
