"""How long the checks of this repository take: the make targets, and the layers of the tests one by one.

    python benchmarks/checks.py NAME ... [--save]     # run these checks; without a name, print the times there are
    .ci/run --save                                    # run all steps of .ci/run and save their times

A check that is not run keeps its time and its date, unless they are of another machine. The load average
of one minute is that at the end of a check: above the number of cores, other work slowed it down.
"""

from __future__ import annotations

import datetime
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from record import RESULTS, machine, new_parser, record

ROOT = Path(__file__).parents[1]
NAME = "checks"
COLUMNS = ("command", "seconds", "load average", "date")
CHECKS = {
    "environment": "make dev",
    "lint": "make lint",
    "types": "make types",
    "stubs": "make stubs",
    "size": "make size",
    "tables": "make tables",
    "tests": "make test",
    "slow-tests": "make test-slow",
    "browser": "make test-browser",
    "newcomer": "make newcomer",
    "wheel": "make wheel",
    "containers": "make test-compose",
    "total": ".ci/run",
    "property": "pytest tests/property",
    "oracle": "pytest tests/oracle",
    "fuzz": "pytest tests/fuzz",
    "attacks": "pytest tests/attacks",
    "simulation": 'pytest tests/simulation -m ""',
    "process": 'pytest tests/process -m ""',
    "chaos": 'pytest tests/chaos -m ""',
    "simulate": "make simulate SEEDS=5000",
}


def seconds_of(command: str) -> float:
    """Run a check to its end.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    began = time.monotonic()
    subprocess.run(shlex.split(command), cwd=ROOT, env=os.environ | {"PATH": path}, check=True)
    return time.monotonic() - began


def row(name: str, seconds: float) -> dict[str, object]:
    """Return the row of a check that has just ended."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return dict(zip(COLUMNS, (f"`{CHECKS[name]}`", f"{seconds:.0f}", f"{os.getloadavg()[0]:.1f}", today), strict=True))


def saved(results: Path) -> dict[object, Mapping[str, object]]:
    """Return the rows of the saved result, by their command; nothing if it is of another machine."""
    path = results / f"{NAME}.json"
    result = json.loads(path.read_text(encoding="utf-8"), parse_float=str) if path.is_file() else {}
    return {figure["command"]: figure for figure in result["figures"]} if result.get("machine") == machine() else {}


def main() -> None:
    """Run the checks that are named, or take their times from the command line; print the times of all."""
    parser = new_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CHECKS))
    parser.add_argument("--took", nargs="*", metavar="NAME=SECONDS", help="times of .ci/run, which calls this")
    given = parser.parse_args()
    if unknown := {*given.names} - CHECKS.keys():
        parser.error(f"expected names of {', '.join(CHECKS)}, got {', '.join(sorted(unknown))}")
    rows = saved(RESULTS)
    times = {name: float(seconds) for name, _, seconds in (text.partition("=") for text in given.took or [])}
    new = [row(name, seconds) for name, seconds in times.items()]
    new += [row(name, seconds_of(CHECKS[name])) for name in given.names]
    rows |= {figure["command"]: figure for figure in new}
    ordered = [rows[command] for command in (f"`{check}`" for check in CHECKS.values()) if command in rows]
    cells = [[figure[column] for column in COLUMNS] for figure in ordered]
    source = ".ci/run --save" if times else None
    record(NAME, "Time of each check", COLUMNS, cells, save=given.save, source=source)
    if "newcomer" in {*times, *given.names}:
        pages = json.loads((ROOT / "out" / "newcomer.json").read_text(encoding="utf-8"))
        parts = [(name, f"{seconds:.0f}") for name, seconds in pages.items()]
        record("newcomer", "First minutes on a new machine", ("part", "seconds"), parts, save=given.save, source=source)


if __name__ == "__main__":
    main()
