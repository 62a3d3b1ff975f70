"""Live progress of a testbed, read from the new lines of the peers' history files."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.strict_json import printable
from coordinator_free_bootstrap.validation import counted
from peer.core.metric import Metric, plain_keys
from peer.observe.records import problem_of_line
from peer.observe.tables import ROWS_MAX, shown
from peer.store.history import parse_lines
from peer.store.state_dir import StateDir

READ_BYTES_MAX = 1 << 20  # per peer and refresh


@dataclass
class PeerProgress:
    """The progress of one peer, as of its last history line."""

    state: str = "starting"
    rounds_completed: int = 0
    cluster_index: int | None = None
    accuracy: float | None = None
    neighbors_alive: int | None = None
    payload_bytes_sent: int = 0
    metric: Metric | None = None  # of the task, once the peer has started

    def update(self, line: dict[str, Any]) -> None:
        """Update the progress from one history line."""
        kind = line["kind"]
        self.payload_bytes_sent += int(line.get("payload_bytes_sent") or 0)
        if kind == "start":
            self.state = "running"
            self.metric = Metric.from_json(line["metric"]) if line.get("metric") else self.metric
        elif kind == "round":
            self.state = "running"
            self.rounds_completed = int(line["round_index"]) + 1
            self.neighbors_alive = line.get("neighbors_alive", self.neighbors_alive)
            self._take(line)
        elif kind == "end":
            self.state = "completed"
            self._take(line)
        elif kind == "leave":
            self.state = "left"

    def _take(self, line: dict[str, Any]) -> None:
        self.cluster_index = self.cluster_index if line.get("cluster_index") is None else line["cluster_index"]
        self.accuracy = self.accuracy if line.get("accuracy") is None else line["accuracy"]


class TestbedWatcher:
    """The progress of all peers of a testbed directory; `refresh` reads only new lines."""

    __test__ = False  # pytest collects classes named Test*

    def __init__(self, directory: Path, graph: Graph) -> None:
        self.graph = graph
        self.progress = {peer_id: PeerProgress() for peer_id in graph.ids}
        self._paths = {peer_id: StateDir.of_peer(directory, peer_id).history for peer_id in graph.ids}
        self._offsets = dict.fromkeys(graph.ids, 0)

    def refresh(self) -> None:
        """Read the new complete lines of each history file."""
        for peer_id, path in self._paths.items():
            offset = self._offsets[peer_id]
            try:
                size = path.stat().st_size
                if size < offset:  # an incomplete line was removed, or the peer lost its disk
                    offset = self._offsets[peer_id] = 0 if size == 0 else size
                if size == offset:
                    continue
                with open(path, "rb") as file:
                    file.seek(offset)
                    data = file.read(READ_BYTES_MAX)
            except OSError:  # does not exist, now; the next refresh tries again
                continue
            self._offsets[peer_id] += data.rfind(b"\n") + 1
            for line in filter(lambda line: not problem_of_line(line), parse_lines(data)):
                self.progress[peer_id].update(plain_keys(line))

    def rounds_completed(self) -> int:
        """Return the largest number of completed rounds, as of the last refresh."""
        return max((peer.rounds_completed for peer in self.progress.values()), default=0)

    def rounds_of_all(self) -> int:
        """Return how many rounds every peer has completed, as of the last refresh."""
        return min((peer.rounds_completed for peer in self.progress.values()), default=0)

    def mean_metric(self) -> float | None:
        """Return the mean over peers of the last metric; None before the first evaluation."""
        known = [peer.accuracy for peer in self.progress.values() if peer.accuracy is not None]
        return sum(known) / len(known) if known else None

    @property
    def metric(self) -> Metric:
        """The task's metric; not named until a peer has started."""
        started = any(peer.state != "starting" for peer in self.progress.values())
        default = Metric() if started else Metric("metric")
        return next((peer.metric for peer in self.progress.values() if peer.metric), default)

    def render(self) -> Group:
        """Return a line about all peers and a table with a row per peer, at most `ROWS_MAX`."""
        table = Table(header_style="bold")
        for name in (
            "peer",
            "state",
            "round",
            "cluster",
            escape(printable(self.metric.name, 64)),
            "neighbors alive",
            "MB sent",
        ):
            table.add_column(name, justify="left" if name == "state" else "right")
        for peer_id, peer in list(self.progress.items())[:ROWS_MAX]:
            table.add_row(
                str(peer_id),
                peer.state,
                f"{peer.rounds_completed}/{self.graph.manifest.rounds}",
                shown(peer.cluster_index),
                self.metric.text(peer.accuracy),
                f"{shown(peer.neighbors_alive)}/{self.graph.degree(peer_id)}",
                f"{peer.payload_bytes_sent / 1e6:.1f}",
            )
        if len(self.progress) > ROWS_MAX:
            table.caption = f"and {counted(len(self.progress) - ROWS_MAX, 'more peer')}"
        return Group(Text(self.line(), no_wrap=True, overflow="ellipsis"), table)

    def line(self) -> str:
        """Return the state of the run in one line."""
        peers = list(self.progress.values())
        rounds = sorted(peer.rounds_completed for peer in peers)
        states = ", ".join(f"{count} {state}" for state, count in sorted(Counter(p.state for p in peers).items()))
        span = str(rounds[0]) if rounds[0] == rounds[-1] else f"{rounds[0]}..{rounds[-1]}"
        clusters = Counter(peer.cluster_index for peer in peers if peer.cluster_index is not None)
        sizes = "+".join(str(count) for _, count in sorted(clusters.items())) or "-"
        sent = sum(peer.payload_bytes_sent for peer in peers) / 1e6
        return (
            f"round {span}/{self.graph.manifest.rounds}  {printable(self.metric.name, 64)} {self.metric.text(self.mean_metric())}"
            f"  clusters {sizes}  {sent:.1f} MB sent  {states}"
        )


class LiveProgress:
    """Print the progress: a live table on a terminal, else at most a line per ``interval_s``; call `update` often."""

    def __init__(self, watcher: TestbedWatcher, console: Console, *, interval_s: float = 1.0) -> None:
        self.watcher, self.console, self.interval_s = watcher, console, interval_s
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._shown_at = float("-inf")
        self._last_line = ""

    def update(self, *, force: bool = False) -> None:
        """Refresh and print if the interval is over; equal lines are not repeated."""
        now = time.monotonic()
        pause_s = 0.25 if self._live else self.interval_s
        if not force and now - self._shown_at < pause_s:
            return
        self._shown_at = now
        self.watcher.refresh()
        if self._live:
            self._live.update(self.watcher.render(), refresh=True)
        elif (line := self.watcher.line()) != self._last_line:
            self.console.print(line, highlight=False, soft_wrap=True)
            self._last_line = line

    def __enter__(self) -> LiveProgress:
        if self._live:
            self._live.start()
        self.update(force=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.update(force=True)
        if self._live:
            self._live.stop()
