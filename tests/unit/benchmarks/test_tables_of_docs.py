"""Each result of `benchmarks/results` names a command that is there, and stands in a page."""

import json
import re
from pathlib import Path

import pytest
import record

RESULTS = sorted(record.RESULTS.glob("*.json"))
ROOT = record.RESULTS.parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
SCRIPTS = {path.name for path in record.RESULTS.parent.glob("*.py") if "__main__" in path.read_text()}
KEYS = ["title", "date", "machine", "load", "command", "commit", "figures"]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_says_where_it_comes_from_and_is_shown(path):
    result = json.loads(path.read_text())
    assert list(result) == KEYS
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", result["date"]) and re.match(r"\d+ cores, \d+ GB", result["machine"])
    assert re.fullmatch(r"[0-9a-f]{7,}(-dirty)?", result["commit"])
    script = script_of(result)
    assert script in SCRIPTS and f'"{path.stem}"' in names_in(script)
    columns = list(result["figures"][0])
    assert all(list(row) == columns for row in result["figures"])
    shown = (f"<!-- table: {path.stem} -->", f"benchmarks/results/{path.name})")
    assert any(text in page.read_text() for page in PAGES for text in shown)


def script_of(result):
    """Return the name of the script that wrote a result; `.ci/run` calls one."""
    return re.match(
        r"python benchmarks/(\w+\.py)", result["command"].replace(".ci/run --save", "python benchmarks/checks.py")
    )[1]


def names_in(script):
    """Return the text of a script in which a name that ends with a parameter has each of its values."""
    text = (record.RESULTS.parent / script).read_text()
    found = {
        name
        for start in re.findall(r'f"([\w-]+-)\{', text)
        for name in (path.stem for path in RESULTS)
        if name.startswith(start)
    }
    return text + "".join(f'"{name}"' for name in found)


def test_every_script_has_a_result():
    assert {script_of(json.loads(path.read_text())) for path in RESULTS} == SCRIPTS


def test_the_documentation_names_only_scripts_that_are_there():
    for page in PAGES:
        named = set(re.findall(r"benchmarks/(\w+\.py)", page.read_text()))
        assert named <= SCRIPTS, page.name


def test_numbers_keep_their_digits(tmp_path):
    rows = [["1 MB", "0.80", 12345, "1.0e-05"], ["2 MB", None, "", "+1 %"]]
    about = {"date": "2026-01-02", "machine": "2 cores", "load": "1.0", "command": "python x.py", "commit": "abc"}
    (tmp_path / "x.json").write_text(record.as_json(about, ["model", "GB/s", "n", "slope"], rows))
    assert json.loads((tmp_path / "x.json").read_text())["figures"] == [
        {"model": "1 MB", "GB/s": 0.8, "n": 12345, "slope": 1e-5},
        {"model": "2 MB", "GB/s": None, "n": None, "slope": "+1 %"},
    ]
    assert record.rendered("x", tmp_path).splitlines() == [
        "2026-01-02; 2 cores; load average 1.0; `python x.py`; commit abc",
        "",
        "| model | GB/s | n | slope |",
        "| --- | --- | --- | --- |",
        "| 1 MB | 0.80 | 12,345 | 1.0e-05 |",
        "| 2 MB |  |  | +1 % |",
    ]


@pytest.mark.parametrize("columns", [["a", "a"], ["a", ""]])
def test_columns_have_different_names(columns):
    with pytest.raises(ValueError, match="expected different names"):
        record.as_json({}, columns, [[1, 2]])


def test_a_missing_result_is_an_error_that_names_those_there_are():
    with pytest.raises(ValueError, match=r"expected one of .* transport, .* got no file nothing\.json"):
        record.rendered("nothing")


def test_save_writes_a_result_and_without_it_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    monkeypatch.setattr("sys.argv", ["benchmarks/some.py", "--save", "--peers", "4"])
    record.record("some", "Some", ["a"], [[1]], save=False)
    assert not (tmp_path / "results").exists()
    record.record("some", "Some", ["a"], [[1]], save=True)
    found = json.loads((tmp_path / "results" / "some.json").read_text())
    assert list(found) == KEYS
    assert (found["command"], found["figures"]) == ("python benchmarks/some.py --peers 4", [{"a": 1}])
    assert Path(record.RESULTS).name == "results"
