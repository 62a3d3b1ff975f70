"""PNG pictures of a run: its metric over rounds and bytes, the graph colored by cluster, and who averages whose models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator_free_bootstrap.errors import Option, UsageError
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.strict_json import printable
from coordinator_free_bootstrap.validation import unknown_name
from peer.core.metric import Metric
from peer.store.files import storage_errors
from peer.view.report.collaboration import Links, links
from peer.view.report.history_table import rows
from peer.view.report.matrix import columns_of
from peer.view.state.layout import positions
from peer.view.state.run_files import Curve, NumberField, RunFiles, metric_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The palette of Okabe and Ito (2008), distinguishable for color-blind readers; it repeats after eight.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
UNKNOWN_COLOR = "#D0D0D0"
TEXT_COLOR, PALE = "#333333", "#E4E4E4"
NUMBERS_MAX = 16  # peers in a picture of the matrix with numbers


def save_plots(run: RunFiles, directory: Path) -> list[Path]:
    """Write the pictures of a run, and return their paths, sorted.

    They are ``metric_rounds.png``, ``metric_bytes.png``, ``clusters.png``, ``collaboration.png`` and ``matrix.png``. A run
    without evaluations has no curves, one without a graph file no picture of clusters, one whose peers choose no collaborators
    no picture of them, and one without tests of neighbors' models no matrix.

    Raises:
        StorageError: the directory cannot be written.
    """
    curve = metric_curve(run)
    task = run.manifest.task if run.manifest else "an unknown task"
    title = f"{run.algorithm or 'unknown algorithm'} on {task}, {len(run.peers)} peers"
    figures: dict[str, Figure] = {} if run.graph is None else {"clusters.png": cluster_figure(run, run.graph, title)}
    if chosen := links(run):
        figures["collaboration.png"] = collaboration_figure(run, chosen, title)
    if tests := matrix_figure(run, title):
        figures["matrix.png"] = tests
    if curve.round_index.size:
        megabytes = curve.payload_bytes / 1e6
        rounds, metric = curve.round_index + 1, run.metric
        figures["metric_rounds.png"] = metric_figure(curve, rounds, "rounds", title, metric, len(run.peers))
        figures["metric_bytes.png"] = metric_figure(
            curve, megabytes, "megabytes sent per peer", title, metric, len(run.peers)
        )
    with storage_errors("write plots to", directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            figure.savefig(directory / name, dpi=150)
    return [directory / name for name in sorted(figures)]


def _over(counts: Sequence[float] | np.ndarray, peers: int) -> str:
    """Return over how many of the peers a mean is, if in some rounds it is over fewer."""
    low, high = int(min(counts)), int(max(counts))
    if low >= peers:
        return "peers"
    return f"{low if low == high else f'{low} to {high}'} of {peers} peers"


def metric_figure(curve: Curve, x: np.ndarray, x_label: str, title: str, metric: Metric, peers: int) -> Figure:
    """Return the mean of the metric with a band from the worst to the best peer, against `x` (float [rounds]).

    The legend says over how many of the run's ``peers`` the mean is, where some have no value.
    """
    from matplotlib.ticker import MaxNLocator

    figure, (axes,) = make_figure(7.0, 4.2, title=title)
    marker = "o" if x.size < 3 else ""
    axes.fill_between(x, curve.worst, curve.best, color=COLORS[0], alpha=0.15, linewidth=0, label="worst to best peer")
    axes.plot(
        x, curve.mean, color=COLORS[0], linewidth=2, marker=marker, label=f"mean over {_over(curve.peers, peers)}"
    )
    axes.plot(x, curve.worst, color=COLORS[0], linewidth=0.8, alpha=0.6)
    axes.set_xlabel(x_label)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=x_label == "rounds"))
    axes.set_ylabel(printable(metric.label, 80), parse_math=False)
    if metric.share:
        axes.set_ylim(max(0.0, float(curve.worst.min()) - 0.05), 1.0)
    if x.min() < x.max():
        axes.set_xlim(float(x.min()), float(x.max()))
    axes.grid(color=PALE, linewidth=0.8)
    axes.annotate(
        metric.text(float(curve.mean[-1])),
        (x[-1], curve.mean[-1]),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        color=TEXT_COLOR,
    )
    axes.legend(loc="lower right" if metric.higher_is_better else "upper right", frameon=False)
    return figure


def series_figure(run: RunFiles, name: str | None = None) -> Figure:
    """Return a value of the round lines over rounds: the mean over peers, with a band from the lowest to the highest.

    Args:
        run: what a run left.
        name: of the value; of a nested one with dots, such as ``seconds.train``. Default: the task's metric.

    Raises:
        UsageError: no round has this value.
    """
    from matplotlib.ticker import MaxNLocator

    name = name or "metric_value"
    points: dict[int, list[float]] = {}
    known: set[str] = set()
    for row in rows(run):
        numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
        known |= numbers.keys()
        if name in numbers:
            points.setdefault(int(row["round_index"]), []).append(float(numbers[name]))
    if not points:
        raise UsageError(unknown_name(str(Option("metric")), name, sorted(known)))
    rounds = sorted(points)
    values = [np.array(points[r]) for r in rounds]
    title = f"{run.algorithm or 'unknown algorithm'}, {len(run.peers)} peers"
    figure, (axes,) = make_figure(7.0, 4.2, title=title)
    x = np.array(rounds) + 1
    low, mean, high = ([function(row) for row in values] for function in (np.min, np.mean, np.max))
    axes.fill_between(x, low, high, color=COLORS[0], alpha=0.15, linewidth=0, label="lowest to highest peer")
    over = _over([len(row) for row in values], len(run.peers))
    axes.plot(x, mean, color=COLORS[0], linewidth=2, marker="o" if x.size < 3 else "", label=f"mean over {over}")
    axes.set_xlabel("rounds")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_ylabel(run.metric.label if name == "metric_value" else name, parse_math=False)
    axes.grid(color=PALE, linewidth=0.8)
    axes.legend(frameon=False)
    return figure


def cluster_figure(run: RunFiles, topology: Graph, title: str) -> Figure:
    """Return a drawing of the graph: the color is the assigned cluster, the marker shape the true one."""
    import networkx as nx

    figure, (axes,) = make_figure(6.4, 6.0, title=title)
    axes.set_axis_off()
    graph = topology.to_networkx()
    many = len(run.peers) > 60
    places = positions(topology)
    nx.draw_networkx_edges(graph, places, ax=axes, edge_color="#B8B8B8", width=0.6 if many else 1.2)
    for peer in run.peers:
        assigned, true = peer.last.get("cluster_index"), peer.last.get("true_cluster")
        x, y = places[peer.peer_id]
        axes.scatter(
            [x], [y], s=60 if many else 420, zorder=2, linewidths=0.8, edgecolors=TEXT_COLOR,
            marker=MARKERS[0 if true is None else int(true) % len(MARKERS)],
            c=UNKNOWN_COLOR if assigned is None else COLORS[int(assigned) % len(COLORS)],
        )  # fmt: skip
        if not many:
            axes.text(x, y, str(peer.peer_id), ha="center", va="center", fontsize=9, color="white", zorder=3)
    axes.margins(0.1)
    _cluster_legend(axes, run)
    return figure


def collaboration_figure(run: RunFiles, chosen: Links, title: str) -> Figure:
    """Return a matrix with a square where the peer of the row averages the model of the peer of the column.

    Args:
        run: what a run left; it has the true clusters.
        chosen: the collaborators of each peer.
        title: of the figure.
    """
    from matplotlib.patches import Patch, Rectangle
    from matplotlib.ticker import MaxNLocator

    true = {peer.peer_id: peer.last.get("true_cluster") for peer in run.peers}
    ids = [peer.peer_id for peer in run.peers]
    place = {peer: at for at, peer in enumerate(ids)}
    within, across, unknown = "within a true cluster", "across true clusters", "true clusters unknown"
    looks = {within: COLORS[0], across: COLORS[1], unknown: COLORS[7]}

    def look(i: int, j: int) -> str:
        if true[i] is None or true[j] is None:
            return unknown
        return within if true[i] == true[j] else across

    figure, (axes,) = make_figure(6.4, 6.4, title=title)
    pairs = [(i, j) for i, others in chosen.items() for j in others if j in place]
    for i, j in pairs:
        axes.add_patch(Rectangle((place[j] - 0.45, place[i] - 0.45), 0.9, 0.9, color=looks[look(i, j)]))
    axes.set(xlim=(-0.5, len(ids) - 0.5), ylim=(len(ids) - 0.5, -0.5), aspect="equal")
    for axis, label in ((axes.xaxis, "averages the model of peer"), (axes.yaxis, "peer")):
        axis.set_major_locator(MaxNLocator(12, integer=True))
        axis.set_major_formatter(lambda at, _: str(ids[int(at)]) if 0 <= at < len(ids) else "")
        axis.set_label_text(label)
    shown = {look(i, j) for i, j in pairs}
    handles = [Patch(color=color, label=name) for name, color in looks.items() if name in shown]
    if handles:
        axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False)
    return figure


def matrix_figure(run: RunFiles, title: str) -> Figure | None:
    """Return the matrix as a picture; None without a result. Gray: a model that is missing; white: peers without an edge."""
    from matplotlib.ticker import MaxNLocator

    columns = columns_of(run)
    ids = sorted({r.model_of for column in columns.values() for r in column} | {*columns})
    place = {peer: at for at, peer in enumerate(ids)}
    values, missing = np.full((len(ids), len(ids)), np.nan), np.zeros((len(ids), len(ids)), dtype=bool)
    for tester, column in columns.items():
        for r in column:
            at = place[r.model_of], place[tester]
            values[at], missing[at] = (np.nan if r.value is None else r.value), r.value is None
    if np.isnan(values).all():
        return None
    figure, (axes,) = make_figure(6.8, 6.0, title=title)
    axes.imshow(np.where(missing, 0.0, np.nan), cmap="gray", vmin=-3, vmax=1)
    drawn = axes.imshow(values, cmap="viridis" if run.metric.higher_is_better else "viridis_r")
    figure.colorbar(drawn, ax=axes, shrink=0.8).set_label(printable(run.metric.label, 80), parse_math=False)
    if len(ids) <= NUMBERS_MAX:
        low, high = np.nanmin(values), np.nanmax(values)
        for (row, column_at), value in np.ndenumerate(values):
            if not np.isnan(value):
                share = (value - low) / (high - low) if high > low else 1.0
                bright = share > 0.5 if run.metric.higher_is_better else share < 0.5
                color = TEXT_COLOR if bright else "white"
                axes.text(
                    column_at, row, run.metric.text(float(value), 2), ha="center", va="center", fontsize=8, color=color
                )
    for axis, label in ((axes.xaxis, "test samples of peer"), (axes.yaxis, "model of peer")):
        axis.set_major_locator(MaxNLocator(16, integer=True))
        axis.set_major_formatter(lambda at, _: str(ids[int(at)]) if 0 <= at < len(ids) else "")
        axis.set_label_text(label)
    return figure


def _cluster_legend(axes: Axes, run: RunFiles) -> None:
    def entries(key: NumberField) -> Sequence[int]:
        return sorted({int(label) for label in run.latest(key)})

    def entry(label: str, **look: Any) -> Any:
        from matplotlib.lines import Line2D

        return Line2D([], [], linestyle="", markersize=9, markeredgecolor=TEXT_COLOR, label=label, **look)

    handles = [entry(f"assigned {j}", marker="o", color=COLORS[j % len(COLORS)]) for j in entries("cluster_index")]
    handles += [entry(f"true {j}", marker=MARKERS[j % len(MARKERS)], color="white") for j in entries("true_cluster")]
    if handles:
        axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=4, frameon=False)


def make_figure(
    width: float, height: float, rows: int = 1, *, title: str = "", **layout: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes below each other. It is in no global state, so any thread can draw it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = list(figure.subplots(rows, 1, squeeze=False, **layout)[:, 0])
    all_axes[0].set_title(title, loc="left", fontsize=11, color=TEXT_COLOR)
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, all_axes
