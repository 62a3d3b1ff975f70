"""Every run behind the accuracy tables and the plot of docs/fedspd.md; rows that are there already are not run again.

    python experiments/fedspd/sweep.py --data-root DATA --out rows.jsonl

Then table.py prints a table of one setting, and plot.py draws accuracy over degree. About three hours on one core.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SEEDS = (1, 2, 3)
PUBLISHED = ("local", "dfedavg", "dfedavg+final", "fedspd", "fedem", "dfca")
CONFIDENT = {"center_labels": True, "personalize": "confident"}
OURS = {
    "warm 35, centered, confident": CONFIDENT | {"warm_rounds": 35},
    "updates, centered, confident": CONFIDENT | {"split": "updates", "warm_rounds": 35, "hard_rounds": 5},
    "warm 10, centered, confident": CONFIDENT | {"warm_rounds": 10},
}

Run = tuple[str, str, dict[str, object], dict[str, object]]  # label, method, options, setting


def runs() -> Iterator[Run]:
    """Yield all runs but for their seeds."""
    for method in PUBLISHED:
        yield method, method, {}, {"task": "fmnist"}
    for degree in (3, 12, 6):
        for method in ("fedspd", "fedem", "dfedavg", "dfedavg+final"):
            yield method, method, {}, {"degree": degree}
    for label, options in OURS.items():
        yield label, "fedspd", options, {"task": "fmnist"}
    yield "updates, centered, confident", "fedspd", OURS["updates, centered, confident"], {}
    for method in PUBLISHED:
        yield method, method, {}, {"samples": 600, "degree": 9}
    for label, options in OURS.items():
        yield label, "fedspd", options, {"samples": 600, "degree": 9}
    for method in ("local", "dfca"):
        yield method, method, {}, {}
    yield "warm 35, centered, confident", "fedspd", OURS["warm 35, centered, confident"], {}


def done(path: Path) -> set[str]:
    """Return the keys of the rows that are there."""
    if not path.exists():
        return set()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {key(row["method"], row["seed"], row["setting"]) for row in rows}


def key(label: str, seed: int, setting: dict[str, object]) -> str:
    """Return what tells one row from another."""
    usual: dict[str, object] = {"task": "mnist", "degree": 6.0, "samples": 250}
    told = {name: setting.get(name, value) for name, value in usual.items()}
    return f"{label} {seed} {told['task']} {float(str(told['degree']))} {told['samples']}"


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    for label, method, options, setting in runs():
        for seed in SEEDS:
            if key(label, seed, setting) in done(arguments.out):
                continue
            command = [sys.executable, str(Path(__file__).with_name("study.py")), "--method", method, "--label", label]
            command += ["--options", json.dumps(options), "--seeds", str(seed)]
            command += ["--data-root", str(arguments.data_root), "--out", str(arguments.out)]
            command += [text for name, value in setting.items() for text in (f"--{name}", str(value))]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
