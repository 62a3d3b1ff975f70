"""`papers/suite/site_tables.py`: the rows of real sites as tables that peers read."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "papers" / "suite"))

from site_tables import SITES, TABLES, SiteTable, above, is_yes, table

SOURCE = SiteTable("package/small", "town", ("age",), above("score"))


def rows_of(sites):
    """Site i of ``sites`` has i + 1 rows."""
    return [
        {"town": f"t{i:02}", "age": str(n), "score": str(n), "won": "yes"} for i in range(sites) for n in range(i + 1)
    ]


def test_the_largest_sites_are_kept_and_numbered_by_name():
    header, *lines = table(rows_of(SITES + 3), SOURCE)
    assert header == ["site", "age", "target"]
    assert [sum(line[0] == str(site) for line in lines) for site in range(SITES)] == list(range(4, SITES + 4))
    scores = sorted(int(line[1]) for line in lines)
    assert all((line[2] == "yes") == (int(line[1]) > scores[len(scores) // 2]) for line in lines), "of the kept rows"


def test_too_few_sites_are_refused():
    with pytest.raises(ValueError, match=f"package/small: expected {SITES} values of town or more, got {SITES - 1}"):
        table(rows_of(SITES - 1), SOURCE)


def test_what_is_predicted_is_no_input():
    assert is_yes("won")([{"won": "yes"}, {"won": "no"}]) == [True, False]
    targets = {
        "procedures": "procedure",
        "deaths": "died",
        "reading": "treadssk",
        "benefits": "ui",
        "pharmacy": "pharvis",
    }
    assert all(
        targets[name] not in source.inputs and source.site not in source.inputs for name, source in TABLES.items()
    )
