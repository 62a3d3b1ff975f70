"""Draw accuracy over the graph's average degree from rows that study.py wrote: mean and spread over seeds.

python experiments/fedspd/plot.py rows.jsonl --out docs/figures/fedspd-degree.png
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

LABELS = {
    "fedspd": ("FedSPD, final", "accuracy_final"),
    "fedem": ("FedEM", "accuracy"),
    "dfedavg": ("dfedavg", "accuracy"),
    "dfedavg+final": ("dfedavg, local final phase", "accuracy_final"),
}


def main() -> None:
    """Draw one task at one number of samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--task", default="mnist")
    parser.add_argument("--samples", type=int, default=250)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    found: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in arguments.rows.read_text().splitlines():
        row = json.loads(line)
        setting = row["setting"]
        if row["method"] in LABELS and (setting["task"], setting["samples"]) == (arguments.task, arguments.samples):
            found[row["method"]][setting["degree"]].append(row[LABELS[row["method"]][1]])
    figure, axes = pyplot.subplots(figsize=(6, 4))
    for method, by_degree in found.items():
        degrees = sorted(by_degree)
        means = [np.mean(by_degree[degree]) for degree in degrees]
        spread = [np.std(by_degree[degree]) for degree in degrees]
        axes.errorbar(degrees, means, spread, marker="o", capsize=3, label=LABELS[method][0])
    axes.set(xlabel="average degree", ylabel="mean accuracy", title=f"{arguments.task}, mixtures of two rotations")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(arguments.out, dpi=100)


if __name__ == "__main__":
    main()
