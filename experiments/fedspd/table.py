"""Print rows that study.py wrote as a Markdown table: mean and sample standard deviation over seeds.

python experiments/fedspd/table.py rows.jsonl --task mnist --degree 6
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = {
    "accuracy": "after aggregation",
    "accuracy_final": "final",
    "worst_final": "worst peer",
    "mix_err": "mix_err",
    "sample_accuracy": "samples right",
}


def cell(rows: list[dict[str, Any]], key: str) -> str:
    """Return mean and spread of a number over the seeds, or a dash."""
    found = [row[key] for row in rows if row.get(key) is not None]
    if not found:
        return "-"
    spread = f" ± {np.std(found, ddof=1):.3f}" if len(found) > 1 else ""
    return f"{np.mean(found):.3f}{spread}"


def main() -> None:
    """Print the table of one setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--task", default="mnist")
    parser.add_argument("--degree", type=float, default=6)
    parser.add_argument("--samples", type=int, default=250)
    parser.add_argument("--model", default="mlp")
    arguments = parser.parse_args()
    wanted = {name: getattr(arguments, name) for name in ("task", "degree", "samples", "model")}
    methods: dict[str, list[dict[str, Any]]] = {}
    for line in arguments.rows.read_text().splitlines():
        row = json.loads(line)
        if all(row["setting"][key] == value for key, value in wanted.items()):
            methods.setdefault(row["method"], []).append(row)
    print(f"| method | seeds | {' | '.join(COLUMNS.values())} | models sent | MB sent | seconds |")
    print("|---" * (len(COLUMNS) + 5) + "|")
    for method, rows in methods.items():
        sent, megabytes = (np.mean([row[key] for row in rows]) for key in ("models_sent", "payload_bytes_sent"))
        numbers = " | ".join(cell(rows, key) for key in COLUMNS)
        seconds = np.mean([row["seconds"] for row in rows])
        print(f"| {method} | {len(rows)} | {numbers} | {sent:,.0f} | {megabytes / 1e6:,.0f} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
