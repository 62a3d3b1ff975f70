"""Pictures of an experiment: the task's metric over rounds, and over the values of a sweep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from peer.lab.table import Block


def save_curves(block: Block, path: Path) -> None:
    """Draw the task's metric over rounds into a PNG file of less than 100 KB.

    Also draw that of the training samples over rounds, into ``STEM-train.png`` beside it, if the results have it.
    For an experiment with a sweep, also draw the measured numbers over its values: into ``STEM-sweep.png`` beside it.
    """
    metric = block.metric
    name = f"{metric.label}, %" if metric.share else metric.label
    with _axes(block, path, "round", f"test {name}, mean over peers") as axes:
        _draw_curves(axes, block, "curve")
    if any(result.get("curve_train") for row in block.rows for result in row.results):
        train = path.with_stem(f"{path.stem}-train")
        with _axes(block, train, "round", f"training {name}, mean over peers") as axes:
            _draw_curves(axes, block, "curve_train")
    swept = [result for row in block.rows for result in row.results if result.get("sweep")]
    if swept:
        path = path.with_stem(f"{path.stem}-sweep")
        with _axes(block, path, swept[0]["sweep"]["key"], f"measured {name}, mean over peers") as axes:
            _draw_sweep(axes, swept)


@contextmanager
def _axes(block: Block, path: Path, xlabel: str, ylabel: str) -> Iterator[Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8.4, 3.8), dpi=90, layout="constrained")
    colors = pyplot.rcParams["axes.prop_cycle"].by_key()["color"]
    styles = [style for style in ("-", "--", ":") for _ in colors]
    axes.set_prop_cycle(linestyle=styles, color=3 * colors)  # no two of 30 lines are alike
    yield axes
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_title(block.title, fontsize=9)
    axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=7)  # hides no line
    figure.savefig(path)
    pyplot.close(figure)


def _draw_curves(axes: Any, block: Block, key: str) -> None:
    """Draw the mean over seeds of each case, with the range of the seeds."""
    for row in block.rows:
        curves = [np.array(result[key], dtype=float) for result in row.results if result.get(key)]
        if not curves:
            continue
        shortest = min(map(len, curves))
        rounds, values = (
            curves[0][:shortest, 0],
            row.metric.factor * np.stack([curve[:shortest, 1] for curve in curves]),
        )
        (line,) = axes.plot(rounds, values.mean(0), label=row.case, linewidth=1.2)
        axes.fill_between(rounds, values.min(0), values.max(0), color=line.get_color(), alpha=0.1, linewidth=0)


def _draw_sweep(axes: Any, results: list[dict[str, Any]]) -> None:
    """Draw one line for each case: mean and sample standard deviation over seeds at each value."""
    lines: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        if result["measured"] is not None:
            lines[result["sweep"]["case"]][result["sweep"]["value"]].append(result["measured"])
    for case, found in lines.items():
        values = sorted(found)
        means = [np.mean(found[value]) for value in values]
        spreads = [np.std(found[value], ddof=1) if len(found[value]) > 1 else 0.0 for value in values]
        axes.errorbar(values, means, spreads, marker="o", capsize=3, label=case)
