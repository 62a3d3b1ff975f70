"""What the benchmark scripts share: their options, and their figures as a table on the screen and as JSON in `results/`.

A result is a JSON object with ``title``, ``date``, ``machine``, ``load``, ``command``, ``commit``, and ``figures``: a list of
rows, each an object with the same keys, the columns. `docs/generate.py` writes the tables of the documentation from these files.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def new_parser(document: str | None) -> argparse.ArgumentParser:
    """Return a parser with what all scripts take."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="write the figures to benchmarks/results")
    return parser


def machine() -> str:
    """Return the machine in a line: cores, memory, processor, Python."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    memory_gb = round(pages * size / (1 << 30))
    return f"{os.cpu_count()} cores, {memory_gb} GB, {platform.machine()}, Python {platform.python_version()}"


def command() -> str:
    """Return the command that runs this benchmark again."""
    script = Path(sys.argv[0])
    return " ".join(["python", f"benchmarks/{script.name}", *(word for word in sys.argv[1:] if word != "--save")])


def commit() -> str:
    """Return the commit of this checkout, with ``-dirty`` if files but results and pages were changed; "" outside of one."""
    beside = [":(top)", ":(top,exclude)benchmarks/results", ":(top,exclude)docs"]
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *beside)
    return _git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=RESULTS.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def record(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    save: bool,
    source: str | None = None,
) -> None:
    """Print a table; with ``save`` also write it to ``results/NAME.json``. ``source``: the command, if not this script."""
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*("" if cell is None else escape(str(cell)) for cell in row))
    Console().print(table)
    if save:
        about = {
            "title": title,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": machine(),
            "load": f"{os.getloadavg()[0]:.1f}",
            "command": source or command(),
            "commit": commit(),
        }
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(as_json(about, columns, rows), encoding="utf-8")


def as_json(about: dict[str, str], columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a result as JSON, one row in a line; a text that is a number becomes one, with the digits that it has.

    Raises:
        ValueError: a column has no name, or the name of another one.
    """
    if len(set(columns)) != len(columns) or not all(columns):
        raise ValueError(f"columns: expected different names, got {list(columns)}")
    texts = {"commit": json.dumps(about["commit"])} if "commit" in about else {}  # 894454e6 is no number
    head = [f" {json.dumps(key)}: {texts.get(key, _literal(value))},\n" for key, value in about.items()]
    lines = [", ".join(f"{_literal(c)}: {_literal(v)}" for c, v in zip(columns, row, strict=True)) for row in rows]
    figures = ",\n".join(f"  {{{line}}}" for line in lines)
    return f'{{\n{"".join(head)} "figures": [\n{figures}\n ]\n}}\n'


def _literal(cell: object) -> str:
    text = "" if cell is None else str(cell)
    if NUMBER.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=False) if text else "null"


def rendered(name: str, results: Path = RESULTS) -> str:
    """Return a result as Markdown: where its figures come from, header, rows.

    Raises:
        ValueError: there is no such result.
    """
    path = results / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in results.glob("*.json")))
        raise ValueError(f"table {name}: expected one of benchmarks/results: {known}, got no file {path.name}")
    result = json.loads(path.read_text(encoding="utf-8"), parse_float=str)  # the digits as they were written
    load = f"load average {result['load']}; " if result["load"] else ""
    origin = f"{result['date']}; {result['machine']}; {load}`{result['command']}`; commit {result['commit']}"
    columns = list(result["figures"][0])
    rows = [[_cell(row[column]) for column in columns] for row in result["figures"]]
    lines = ["| " + " | ".join(cells) + " |" for cells in (columns, ["---"] * len(columns), *rows)]
    return "\n".join([origin, "", *lines]) + "\n"


def _cell(value: object) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
