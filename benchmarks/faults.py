"""What the reliability benchmarks share: a testbed with a fault runner, driven and sampled from one loop."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from testbeds import loopback_graph, rounds_of

from coordinator_free_bootstrap import Graph
from peer.bed.chaos.network import FaultyNetwork
from peer.bed.chaos.runner import FaultRunner
from peer.bed.testbed.testbed import Testbed
from peer.bed.testbed.warm_up import warm_up
from peer.store.history import read_history
from peer.store.state_dir import StateDir


class FaultyRun:
    """One testbed on the bundled digits, in a temporary directory; plaintext, so that numbers are about peers, not TLS."""

    def __init__(self, directory: Path, graph: Graph, *, proxy: bool, failpoints: dict[int, str]) -> None:
        self.graph = graph
        warm_up(graph, None)
        self.bed = Testbed(graph, directory, threads=1, insecure=True)
        network = FaultyNetwork(graph) if proxy else None
        self.bed.graph_of = network.graph_of if network else self.bed.graph_of
        self.bed.failpoints = dict(failpoints)
        self.runner = FaultRunner(self.bed, lambda: rounds_of(self.bed), network=network)
        self.began = time.monotonic()
        self.bed.start()

    def history(self, peer_id: int, kind: str) -> list[dict[str, Any]]:
        """Return a peer's lines of one kind so far, with ``at``: wall-clock seconds."""
        lines = read_history(StateDir.of_peer(self.bed.directory, peer_id).history)
        return [line | {"at": moment(line)} for line in lines if line["kind"] == kind]

    def drive(self, seconds: float, until: Callable[[], bool] = lambda: False, every_s: float = 0.1) -> None:
        """Let the run go on until something holds, at most so long, or to its end."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not until():
            self.runner.wait(every_s)
            if not self.bed.processes:
                return


@contextmanager
def faulty_run(
    kind: str,
    peers: int,
    settings: list[str],
    *,
    proxy: bool = False,
    failpoints: dict[int, str] | None = None,
    **shape: Any,
) -> Iterator[FaultyRun]:
    """Start a run and end it."""
    with tempfile.TemporaryDirectory() as directory:
        graph = loopback_graph(kind, peers, settings, **shape)
        run = FaultyRun(Path(directory), graph, proxy=proxy, failpoints=failpoints or {})
        try:
            yield run
        finally:
            run.bed.stop(5.0)
            run.runner.close()


def moment(line: dict[str, Any]) -> float:
    """Return a history line's wall-clock time in seconds."""
    return datetime.fromisoformat(line["time"]).timestamp()


def pauses(rounds: list[dict[str, Any]]) -> tuple[float, int]:
    """Return the seconds that a peer lost to long rounds, and how many there were: more than 1 s over the median round."""
    took = np.diff([line["at"] for line in rounds])
    if not took.size:
        return 0.0, 0
    usual = float(np.median(took))
    long = took[took > usual + 1.0]
    return float((long - usual).sum()), int(long.size)


def back_after(run: FaultyRun, peer_id: int, since: float) -> float | None:
    """Return the seconds from ``since`` until the last running neighbor held a peer to be alive; None if one did not."""
    last = since
    for neighbor in run.graph.neighbors(peer_id):
        changes = [line for line in run.history(neighbor, "neighbor") if line["neighbor"] == peer_id]
        alive = [line["at"] for line in changes if line["state"] == "alive" and line["at"] >= since - 0.5]
        if alive:
            last = max(last, alive[0])
        elif not changes or changes[-1]["state"] != "alive":
            return None
    return last - since
