"""The run in a testbed's directory: its graph, whether a command continues it, and its removal."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from coordinator_free_bootstrap import Graph, apply_settings, load_graph, make_graph, parse_manifest
from coordinator_free_bootstrap.errors import Option, UsageError
from coordinator_free_bootstrap.generators import KIND, GraphOptions, kind_named
from peer.bed.testbed.ports import on_free_ports
from peer.store.history import first_line, parse_lines
from peer.store.origin import differences_of_graphs, listed
from peer.store.state_dir import StateDir
from peer.view.state.tail import EXITS, TIMELINE


def clear(directory: Path) -> None:
    """Delete the files of an earlier testbed run from a directory, and nothing else."""
    for path in [*directory.glob("peer-*"), directory / "report", directory / "certs"]:
        shutil.rmtree(path, ignore_errors=True)
    for name in ("graph.json", TIMELINE, EXITS, "testbed.log"):
        (directory / name).unlink(missing_ok=True)


def earlier_graph(directory: Path) -> Graph | None:
    """Return the graph of the run in a directory; None without a run: no peer has written a line of history.

    Raises:
        GraphError: the graph file of the run cannot be read.
    """
    histories = (StateDir(path).history for path in directory.glob("peer-*"))
    has_run = any(path.exists() and path.stat().st_size for path in histories)
    return load_graph(directory / "graph.json") if has_run and (directory / "graph.json").exists() else None


def default_graph(drawn: GraphOptions, directory: Path) -> Graph:
    """Return the graph of an earlier run in the directory, or make one with these options on free loopback ports."""
    before = earlier_graph(directory)
    if before is not None and not drawn:
        return before
    graph = make_graph(**{**drawn, **kind_named(drawn.get("kind", KIND))})
    if before is not None and (before.ids, before.edges) == (graph.ids, graph.edges):
        return before
    return on_free_ports(graph)


def check_same_run(graph: Graph, directory: Path) -> None:
    """Raise UsageError if a directory holds a run with other peers, edges or settings, or a simulated one."""
    before = earlier_graph(directory)
    if before is None:
        return
    if is_simulated(directory):
        raise UsageError(
            f"{Option('out')} {directory}: expected no run or a run of processes, got a simulated run, which processes cannot "
            f"resume. Add {Option('fresh')} to replace it, or name another folder."
        )
    if changed := differences_of_graphs(before, graph):
        raise UsageError(
            f"{Option('out')} {directory}: expected no run or this run, got another run: {listed(changed)}. Add "
            f"{Option('fresh')} to replace it, or name another folder."
        )


def is_simulated(directory: Path) -> bool:
    """Return whether a simulation has written the histories in a directory."""
    starts = (next(iter(parse_lines(first_line(StateDir(path).history))), {}) for path in directory.glob("peer-*"))
    return any(line.get("backend") == "simulated" for line in starts)


def with_settings(graph: Graph, settings: list[str]) -> Graph:
    """Return the graph with manifest keys changed by ``--set`` settings.

    Raises:
        ConfigError: a key is unknown or its value not allowed.
    """
    if not settings:
        return graph
    run = apply_settings(graph.manifest.model_dump(), settings)
    return replace(graph, manifest=parse_manifest(run, ""))
