"""Tables compare rows of the same data over equal seeds, with intervals, and say what a comparison lacks."""

import json
from io import StringIO

import pytest
from rich.console import Console

from peer.core.metric import Metric
from peer.lab.comparison import cautions, difference, half_width
from peer.lab.table import markdown, read_blocks, rendered


def result(case, seed, measured, **changes):
    texts = dict.fromkeys(
        ("experiment", "title", "backend", "device", "scale", "machine", "date", "command", "measures"), "a"
    )
    numbers = dict.fromkeys(("peers", "rounds"), 1) | {"mean_degree": 2.0, "run_seconds": 1.0, "curve": []}
    known = {"case": case, "seed": seed, "measured": measured, "algorithm": case, "place": 0, "data": {"split": "iid"}}
    return texts | numbers | known | {"metric": Metric().as_json()} | changes


def written(folder, results):
    for place, each in enumerate(results):
        path = folder / "a" / each["case"] / f"seed-{place}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(each))


def table(folder):
    (block,) = read_blocks(folder)
    header, *rows = block.cells()
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


def test_the_interval_is_students():
    """Three values with deviation 1: 4.303 / sqrt(3), from a table of the t distribution."""
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.3027 / 3**0.5, abs=1e-4)
    assert half_width([1.0]) is None


def test_a_difference_is_taken_over_the_seeds_that_both_rows_have():
    """The seeds differ by ten points, the rows by one in each seed: the difference has no spread."""
    best = [result("dfca", seed, 80.0 + 10 * seed) for seed in (1, 2, 3)]
    row = [result("local", seed, 79.0 + 10 * seed) for seed in (1, 2, 4)]
    assert difference(row, best) == (pytest.approx(-1.0), pytest.approx(0.0))
    assert difference(row[-1:], best) is None


def test_rows_are_compared_with_the_best_on_their_own_data(tmp_path):
    hard, easy = {"split": "dirichlet"}, {"split": "iid"}
    written(tmp_path, [result("dfca", s, 70.0 + s, data=hard) for s in (1, 2, 3)])
    written(tmp_path, [result("local", s, 60.0 + 2 * s, data=hard) for s in (1, 2, 3)])
    written(tmp_path, [result("dfedavg", s, 90.0, data=easy) for s in (1, 2, 3)])
    rows = table(tmp_path)
    assert rows["dfca"]["to the best"] == "best"
    assert rows["local"]["to the best"] == "-8.00 ± 2.48"
    assert rows["dfedavg"]["to the best"] == "", "alone on its data"


def test_the_best_error_is_the_lowest(tmp_path):
    mse = {"name": "mse", "higher_is_better": False, "share": False}
    written(tmp_path, [result(case, 1, value, metric=mse) for case, value in (("local", 36.5), ("dfedavg", 29.0))])
    rows = table(tmp_path)
    assert (rows["local"]["to the best"], rows["dfedavg"]["to the best"]) == ("+7.5", "best")


@pytest.mark.parametrize(("width", "first"), [(60, ["case", "local", "dfedavg"]), (200, ["case", "measured, %"])])
def test_a_narrow_terminal_shows_cases_as_columns(tmp_path, width, first):
    """Before, fifteen columns of three characters each filled 80."""
    numbers = {"cluster_ari": 0.5, "mix_err": 0.1, "settled_round": 3, "models_sent": 7}
    written(tmp_path, [result(name, 1, 50.0, place=i, **numbers) for i, name in enumerate(("local", "dfedavg"))])
    console = Console(width=width, record=True, file=StringIO())
    console.print(rendered(read_blocks(tmp_path)))
    header = next(line for line in console.export_text().splitlines() if "case" in line)
    assert [cell.strip() for cell in header.strip("┃").split("┃")][: len(first)] == first


@pytest.mark.parametrize(
    ("seeds", "names", "words"),
    [
        ((3, 6), ("local", "dfedavg"), "Rows have between 3 and 6 seeds"),
        ((2, 2), ("local", "dfedavg"), "Fewer than 3 seeds: no difference is a finding."),
        ((3, 3), ("local", "dfca"), "No row of dfedavg"),
        ((3, 3), ("dpfl", "dfca"), "No row of local and dfedavg"),
        ((3, 3), ("local", "dfedavg"), None),
    ],
)
def test_a_table_says_what_it_lacks(tmp_path, seeds, names, words):
    rows = {name: [result(name, s, 50.0) for s in range(count)] for name, count in zip(names, seeds, strict=True)}
    found = cautions(rows)
    assert [text[: len(words or "")] for text in found] == ([words] if words else [])
    written(tmp_path, [each for row in rows.values() for each in row])
    assert all(text in markdown(read_blocks(tmp_path)) for text in found)
