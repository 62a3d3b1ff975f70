"""The generated tables in docs are those of the code and of `benchmarks/results`; `make tables` writes them."""

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
SPEC = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
generate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate)
PAGES = generate.PAGES


@pytest.mark.parametrize("page", generate.PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_up_to_date(page):
    text = page.read_text()
    assert generate.generated(text) == text, "run make tables"


def test_each_table_stands_in_one_page_and_is_not_empty():
    found = [match for page in generate.PAGES for match in generate.GENERATED.finditer(page.read_text())]
    assert sorted(match[3] for match in found if match[2] == "code") == sorted(generate.TABLES)
    assert all(make().count("\n") > 2 for make in generate.TABLES.values())


def test_each_rule_of_a_key_or_option_is_stated_in_its_row():
    cells = [cell for make in (generate.manifest_keys, generate.algorithm_options) for cell in make().split(" | ")]
    assert sum("no effect if" in cell for cell in cells) > 50
    assert [cell for cell in cells if re.search(r"no effect if *(,|$)|or if *(,|$)", cell)] == []


def test_a_table_that_differs_is_written_anew_and_the_text_around_it_stays():
    page = (DOCS / "history.md").read_text()
    stale = page.replace("| `models_sent` | ", "| `models_sent` | not ")
    assert stale != page and generate.generated(stale) == page


def test_a_table_of_a_paper_has_the_totals_of_its_results_and_says_how_they_were_measured():
    page = generate.generated("<!-- paper: suite/all-algorithms -->\n<!-- end -->\n")
    own = (DOCS.parent / "papers" / "suite" / "README.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith(("| ", "Scale: "))]
    assert len(lines) > 20 and set(lines) <= set(own.splitlines())


@pytest.mark.parametrize(
    ("page", "error", "words"),
    [
        ("<!-- code: nonsense -->\n\n\n<!-- end -->\n", KeyError, "nonsense"),
        ("<!-- table: nonsense -->\n<!-- end -->\n", ValueError, r"no file nonsense\.json"),
        ("<!-- paper: suite/nonsense -->\n<!-- end -->\n", ValueError, r"no file nonsense\.json"),
        ("<!-- table: transport -->\n| old |\n", ValueError, "after each"),
        ("<!-- end -->\n", ValueError, "after each"),
        ("<!-- code: kinds -->\n<!-- table: transport -->\n<!-- end -->\n", ValueError, "after each"),
    ],
)
def test_a_marker_of_no_table_or_without_an_end_is_an_error(page, error, words):
    with pytest.raises(error, match=words):
        generate.generated(page)
