"""Accuracy over rounds of an experiment's cases, as one small PNG."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from peer.experiment.table import Block


def save_curves(block: Block, path: Path) -> None:
    """Draw the mean over seeds of each case, with the range of the seeds, into a PNG of less than 100 KB."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), dpi=90)
    for row in block.rows:
        curves = [np.array(result["curve"], dtype=float) for result in row.results if result["curve"]]
        if not curves:
            continue
        shortest = min(map(len, curves))
        rounds, values = curves[0][:shortest, 0], 100 * np.stack([curve[:shortest, 1] for curve in curves])
        (line,) = axes.plot(rounds, values.mean(0), label=row.case, linewidth=1.2)
        axes.fill_between(rounds, values.min(0), values.max(0), color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy, %, mean over peers")
    axes.set_title(block.title, fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
