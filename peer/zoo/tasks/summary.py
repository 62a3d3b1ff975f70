"""Statistics of the shards, as numbers and as a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coordinator_free_bootstrap.errors import StorageError
from peer.tasks.arrays import count
from peer.tasks.shard import Shard


@dataclass(frozen=True)
class ShardSummary:
    """Sample counts of one shard; classes, degrees and clusters count the training samples by value."""

    peer: int
    train: int
    validation: int
    test: int
    classes: Mapping[int, int]
    degrees: Mapping[int, int]
    clusters: Mapping[int, int]


def summarize(peer_id: int, shard: Shard) -> ShardSummary:
    """Count the samples of one shard; targets without one label per sample have no classes."""
    integers = np.issubdtype(shard.train_y.dtype, np.integer) and len(shard.train_y.shape) == 1
    labels = shard.train_y if integers else np.empty(0, np.int64)
    turns = np.empty(0, np.int64) if shard.turns is None else shard.turns * 90
    clusters = np.empty(0, np.int64) if shard.true_cluster is None else shard.true_cluster
    return ShardSummary(
        peer=peer_id,
        train=count(shard.train_x),
        validation=count(shard.part("validation")[0]),
        test=count(shard.test_x),
        classes=_counts(labels),
        degrees=_counts(turns),
        clusters=_counts(clusters),
    )


def save_plot(summaries: Sequence[ShardSummary], path: Path) -> None:
    """Write a PNG plot with one bar per peer, stacked by class and, if images are rotated, by rotation.

    Raises:
        StorageError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    rows = [("class", [s.classes for s in summaries])]
    if any(len(s.degrees) > 1 or 0 not in s.degrees for s in summaries if s.degrees):
        rows.append(("rotation", [s.degrees for s in summaries]))
    figure = Figure(figsize=(max(6.0, min(24.0, 0.25 * len(summaries))), 3.2 * len(rows)), layout="constrained")
    for axes, (name, counts) in zip(np.ravel(figure.subplots(len(rows), 1)), rows, strict=True):
        keys = sorted({key for count in counts for key in count})
        colors = _colors(len(keys))
        bottom = np.zeros(len(summaries))
        for color, key in zip(colors, keys, strict=True):
            heights = np.array([count.get(key, 0) for count in counts], dtype=float)
            label = f"{key} degrees" if name == "rotation" else str(key)
            axes.bar([s.peer for s in summaries], heights, bottom=bottom, color=color, width=0.85, label=label)
            bottom += heights
        if not keys:
            axes.bar([s.peer for s in summaries], [s.train for s in summaries], width=0.85)
        axes.set_xlabel("peer")
        axes.set_ylabel("training samples")
        if 0 < len(keys) <= 26:
            axes.legend(title=name, fontsize=7, ncols=1 + len(keys) // 13, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    try:
        figure.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise StorageError(f"plot {path} cannot be written: {error}. Give a path in a writable folder.") from error


def _colors(count: int) -> list[tuple[float, float, float, float]]:
    import matplotlib

    for name, size in (("tab10", 10), ("tab20", 20)):
        if count <= size:
            return [matplotlib.colormaps[name](i) for i in range(count)]
    return [matplotlib.colormaps["nipy_spectral"](0.05 + 0.9 * i / (count - 1)) for i in range(count)]


def _counts(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> dict[int, int]:
    return dict(sorted(Counter(values.tolist()).items()))
