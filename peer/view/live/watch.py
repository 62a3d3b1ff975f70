"""Live progress of a run, from the new lines of its files: a screen on a terminal, a few plain lines in a pipe."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live

from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.strict_json import printable
from peer.core.metric import Metric
from peer.view.live.screen import run_screen
from peer.view.state.durations import duration
from peer.view.state.tail import RunTail
from peer.view.state.view import View

REFRESH_S = 0.25  # of a terminal
FIRST_PAUSE_S, PAUSE_GROWTH, LAST_PAUSE_S = 1.0, 1.5, 60.0  # between two lines in a pipe


class LinePace:
    """When the next line of progress is due in a pipe: often at first, later once a minute."""

    def __init__(self, pause_s: float = FIRST_PAUSE_S) -> None:
        self._pause_s, self._at = pause_s, float("-inf")

    def due(self, now: float) -> bool:
        """Return whether a line is due at ``now`` (monotonic, seconds); the next one is due later."""
        if now - self._at < self._pause_s:
            return False
        self._at, self._pause_s = now, min(LAST_PAUSE_S, self._pause_s * PAUSE_GROWTH)
        return True


class TestbedWatcher:
    """The progress of all peers of a run's directory; `refresh` reads only new lines."""

    __test__ = False  # pytest collects classes named Test*

    def __init__(self, directory: Path, graph: Graph | None = None) -> None:
        self.tail = RunTail(directory, graph)
        self.view = View(self.tail.log, self.tail.graph)

    def refresh(self) -> bool:
        """Read the new complete lines of each file; return whether there were any."""
        return self.tail.refresh()

    def rounds_completed(self) -> int:
        """Return the largest number of completed rounds, as of the last refresh."""
        return max((peer.rounds_completed for peer in self.tail.log.peers.values()), default=0)

    def rounds_of_all(self) -> int:
        """Return how many rounds every peer has completed, as of the last refresh."""
        return min((peer.rounds_completed for peer in self.tail.log.peers.values()), default=0)

    def ended(self) -> bool:
        """Return whether no peer runs any more."""
        state = self.view.log.state()
        return self.view.header(state).ended

    def mean_metric(self) -> float | None:
        """Return the mean over peers of the last metric; None before the first evaluation."""
        known = [v for peer in self.tail.log.peers.values() if (v := peer.last.get("metric_value")) is not None]
        return sum(known) / len(known) if known else None

    @property
    def metric(self) -> Metric:
        """The task's metric; not named until a peer has started."""
        started = any(peer.lines for peer in self.tail.log.peers.values())
        return self.view.metric() if started else Metric("metric")

    def render(self) -> RenderableType:
        """Return a line about all peers, and a table with a row per peer."""
        return run_screen(self.view, self.line(), self.metric)

    def line(self) -> str:
        """Return the state of the run in one line."""
        state = self.view.log.state()
        header, peers = self.view.header(state), list(state.peers.values())
        low, high, total = header.rounds_min, header.rounds_max, header.rounds_total
        span = str(low) if low == high else f"{low}..{high}"
        clusters = Counter(found for peer in peers if (found := peer.last.get("cluster_index")) is not None)
        sizes = "+".join(str(count) for _, count in sorted(clusters.items())) or "-"
        words = {"missing": "not started"}
        states = ", ".join(f"{count} {words.get(word, word)}" for word, count in header.states.items())
        known, all_of_them = header.measured, len(peers)
        over = f" ({known} of {all_of_them} peers)" if 0 < known < all_of_them else ""
        left = "" if header.seconds_left is None else f"  {duration(header.seconds_left)} left"
        return (
            f"round {span}/{'?' if total is None else total}"
            f"  {printable(self.metric.name, 64)} {self.metric.text(header.mean)}{over}"
            f"  clusters {sizes}  {header.totals.payload_bytes_sent / 1e6:.1f} MB sent  {states}{left}"
        )


class LiveProgress:
    """Print the progress: a live table on a terminal, else lines that become rare; call `update` often."""

    def __init__(self, watcher: TestbedWatcher, console: Console, *, full_screen: bool = False) -> None:
        self.watcher, self.console = watcher, console
        terminal = console.is_terminal
        self._live = Live(console=console, auto_refresh=False, screen=full_screen) if terminal else None
        self._pace = LinePace()
        self._shown_at = float("-inf")
        self._last_line = ""
        self._logged: set[str] = set()

    def update(self, *, force: bool = False) -> None:
        """Refresh and print if it is time; equal lines are not repeated."""
        now = time.monotonic()
        if not force and (now - self._shown_at < REFRESH_S if self._live else not self._pace.due(now)):
            return
        self._shown_at = now
        self.watcher.refresh()
        if self._live:
            self._live.update(self.watcher.render(), refresh=True)
        elif (line := self.watcher.line()) != self._last_line:
            self.console.print(line, highlight=False, soft_wrap=True)
            self._last_line = line
        for problem in self.watcher.tail.log.problems if not self._live else ():
            if problem not in self._logged:
                self._logged.add(problem)
                self.console.print(f"warning: {problem}", markup=False, highlight=False, soft_wrap=True)

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


def follow(directory: Path, console: Console, going_on: Callable[[], bool] | None = None) -> None:
    """Show a run on a terminal, full screen, until Ctrl-C or its end; in a pipe, as lines.

    Args:
        directory: of the run.
        console: where.
        going_on: whether an observer still writes the run; None: until no peer runs.

    Raises:
        UsageError, GraphError, StorageError: see `RunTail`.
    """
    watcher = TestbedWatcher(directory)
    goes_on = going_on or (lambda: not watcher.ended())
    try:
        with LiveProgress(watcher, console, full_screen=True) as progress:
            while goes_on():
                progress.update()
                time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        pass
    if console.is_terminal:  # the full screen is gone
        console.print(watcher.render())
