"""Testbed runs for benchmarks: start one in a temporary directory, watch it, let faults happen to it, read its histories."""

from __future__ import annotations

import datetime
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from coordinator_free_bootstrap import Graph, make_graph
from peer.bed.chaos.network import FaultyNetwork
from peer.bed.chaos.runner import FaultRunner
from peer.bed.testbed.directory import with_settings
from peer.bed.testbed.ports import free_ports
from peer.bed.testbed.testbed import Supervisor
from peer.bed.testbed.warm_up import warm_up
from peer.store.history import parse_lines, read_history
from peer.store.lines import parts_of
from peer.store.state_dir import StateDir

TAIL_BYTES = 1 << 14
QUICK = ["run.timeouts.round_deadline_s=120", "run.timeouts.suspicion_s=60"]


def loopback_graph(kind: str, peers: int, settings: list[str], **shape: Any) -> Graph:
    """Return a graph on free loopback ports with manifest settings applied."""
    graph = make_graph(kind, peers, **shape)  # type: ignore[arg-type]
    nodes = (replace(n, address=f"127.0.0.1:{p}") for n, p in zip(graph.nodes, free_ports(peers), strict=True))
    return with_settings(replace(graph, nodes=tuple(nodes)), settings)


@dataclass
class Outcome:
    """What a testbed run left: exit codes, wall seconds, histories by peer."""

    codes: dict[int, int]
    seconds: float
    started_at: float
    histories: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def lines(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield all peers' history lines of one kind."""
        for history in self.histories.values():
            yield from (line for line in history if line["kind"] == kind)


@contextmanager
def directory() -> Iterator[Path]:
    """Give a temporary directory for one run."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        yield Path(name)


def run(
    graph: Graph,
    *,
    while_running: Callable[[Supervisor, Path], None] = lambda *_: None,
    limit_s: float = 900,
    codes: Container[int] = (0,),
    **options: Any,
) -> Outcome:
    """Run all peers of a graph to the end.

    Raises:
        RuntimeError: a peer ended with a code that is not in ``codes``, or the run outlasted ``limit_s``.
    """
    with directory() as out:
        warm_up(graph, options.get("data_root"))
        bed = Supervisor(graph, out, **options)
        began, started_at = time.monotonic(), time.time()
        bed.start()
        try:
            while bed.processes:
                bed.poll(0.2)
                while_running(bed, out)
                if time.monotonic() - began > limit_s:
                    raise RuntimeError(f"the run outlasted {limit_s:.0f} s; see {out}")
        finally:
            bed.stop()
        seconds = time.monotonic() - began
        if any(code not in codes for code in bed.exit_codes.values()):
            raise RuntimeError(f"peers failed: {bed.exit_codes}")
        histories = {peer: read_history(StateDir.of_peer(out, peer).history) for peer in graph.ids}
        return Outcome(bed.exit_codes, seconds, started_at, histories)


def last_round(history: Path) -> tuple[int, float]:
    """Return the completed rounds and the median seconds of the last ones, from the end of a history file."""
    lines: list[dict[str, Any]] = []
    for part in reversed(parts_of(history)):  # the newest may have no round yet
        with part.open("rb") as file:
            file.seek(max(0, part.stat().st_size - TAIL_BYTES))
            lines = lines or [line for line in parse_lines(file.read()) if line["kind"] == "round"]
    if not lines:
        return 0, 0.0
    times = [line["t"] for line in lines if line["incarnation"] == lines[-1]["incarnation"]]
    took = [b - a for a, b in itertools.pairwise(times)]
    return lines[-1]["round_index"] + 1, statistics.median(took) if took else 0.0


def rounds_of(bed: Supervisor) -> int:
    """Return how many rounds the first peer has completed."""
    histories = (StateDir.of_peer(bed.directory, peer).history for peer in bed.graph.ids)
    return max((last_round(path)[0] for path in histories if path.exists()), default=0)


def wall(line: dict[str, Any]) -> float:
    """Return the wall-clock seconds of a history line."""
    return datetime.datetime.fromisoformat(line["time"]).timestamp()


def private_mb(pid: int) -> float:
    """Return the private memory of a process, MB: what ending it would give back."""
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean", "Private_Dirty")):
            total += int(line.split()[1])
    return total / 1000


# ---- faults ------------------------------------------------------------------------------------------------------------


class FaultyRun:
    """One testbed on the bundled digits, in a temporary directory; plaintext, so that numbers are about peers, not TLS."""

    def __init__(self, out: Path, graph: Graph, *, proxy: bool, failpoints: dict[int, str]) -> None:
        self.graph = graph
        warm_up(graph, None)
        self.bed = Supervisor(graph, out, threads=1, insecure=True)
        network = FaultyNetwork(graph) if proxy else None
        self.bed.graph_of = network.graph_of if network else self.bed.graph_of
        self.bed.failpoints = dict(failpoints)
        self.runner = FaultRunner(self.bed, lambda: rounds_of(self.bed), network=network)
        self.began = time.monotonic()
        self.bed.start()

    def history(self, peer_id: int, kind: str) -> list[dict[str, Any]]:
        """Return a peer's lines of one kind so far, with ``at``: wall-clock seconds."""
        lines = read_history(StateDir.of_peer(self.bed.directory, peer_id).history)
        return [line | {"at": wall(line)} for line in lines if line["kind"] == kind]

    def drive(self, seconds: float, until: Callable[[], bool] = lambda: False, every_s: float = 0.1) -> None:
        """Let the run continue until a condition holds, at most for this time, or to its end."""
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
    with directory() as out:
        graph = loopback_graph(kind, peers, settings, **shape)
        faulty = FaultyRun(out, graph, proxy=proxy, failpoints=failpoints or {})
        try:
            yield faulty
        finally:
            faulty.bed.stop(5.0)
            faulty.runner.close()


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
