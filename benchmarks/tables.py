"""Write the tables of the documentation from `benchmarks/results/*.json`.

    python benchmarks/tables.py [--check]

In a page a table stands between a line ``<!-- table: NAME -->`` and a line ``<!-- end -->``, with the date, machine and command
of ``results/NAME.json`` above it. ``--check`` writes nothing, names the pages that would change, and ends with exit code 1 if
there are any.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from record import RESULTS

ROOT = RESULTS.parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BEGIN, END = "<!-- table: {} -->", "<!-- end -->"
TABLE = re.compile(r"<!-- table: (.+?) -->\n.*?<!-- end -->", re.DOTALL)


def rendered(name: str, results: Path = RESULTS) -> str:
    """Return the lines of a table: where its figures come from, header, rows.

    Raises:
        ValueError: there is no such result.
    """
    path = results / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in results.glob("*.json")))
        raise ValueError(f"table {name}: no file {path.name} in benchmarks/results; it has {known}")
    result = json.loads(path.read_text(encoding="utf-8"), parse_float=str)  # the digits as they were written
    load = f"load average {result['load']}; " if result["load"] else ""
    origin = f"{result['date']}; {result['machine']}; {load}`{result['command']}`; commit {result['commit']}"
    columns = list(result["figures"][0])
    rows = [[_cell(row[column]) for column in columns] for row in result["figures"]]
    lines = ["| " + " | ".join(cells) + " |" for cells in (columns, ["---"] * len(columns), *rows)]
    return "\n".join([origin, "", *lines])


def filled(text: str, results: Path = RESULTS) -> str:
    """Return a page with all its tables written anew.

    Raises:
        ValueError: a table has no end, or there is no result of its name.
    """
    if text.count(BEGIN.partition("{")[0]) != text.count(END) or len(TABLE.findall(text)) != text.count(END):
        raise ValueError(f"expected a line {END} after each {BEGIN.format('NAME')}")

    def block(found: re.Match[str]) -> str:
        return f"{BEGIN.format(found[1])}\n{rendered(found[1], results)}\n\n{END}"

    return TABLE.sub(block, text)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    """Write all pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page would change")
    check = parser.parse_args().check
    changed = [page for page in PAGES if filled(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")]
    for page in changed:
        print(page.relative_to(ROOT))
        if not check:
            page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    raise SystemExit(bool(changed and check))


if __name__ == "__main__":
    main()
