"""The progress of all runs of a table: one bar or line over all rounds with the time left, and a line for each result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from peer.lab.blocks import metric_of
from peer.lab.jobs import Job
from peer.view.live.rounds_bar import RoundsBar


class TableProgress:
    """What the user sees while runs continue, one after another or at the same time.

    Args:
        console: where it is shown.
        jobs: all runs that are left.
    """

    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        self._console = console
        self._rounds = {job.label: job.rounds() for job in jobs}
        self._completed = dict.fromkeys(self._rounds, 0)
        self._bar = RoundsBar(console, sum(self._rounds.values()))

    def on_round(self, job: Job, completed: int, metric: float | None) -> None:
        """Show the rounds of a run."""
        self._completed[job.label] = completed
        self._show(job.label if metric is None else f"{job.label} {metric:.4g}")

    def done(self, job: Job, results: Sequence[dict[str, Any]]) -> None:
        """Show the results of a run, a line for each case that measures it, and what makes them doubtful."""
        self._completed[job.label] = self._rounds[job.label]
        self._show(job.label)
        for result in results:
            metric, found = metric_of(result), result["measured"]
            unit = " %" if metric.share else ""
            shown = f"no {metric.name}" if found is None else f"{metric.name} {metric.scaled_text(found, 2)}{unit}"
            source = f"the run of {result['run_of']}" if "run_of" in result else f"{result['run_seconds']:.0f} s"
            self.say(f"{result['case']}, seed {job.seed}: {shown}, {source}")
        for warning in results[0]["warnings"]:
            self.say(f"warning: {job.case.name}, seed {job.seed}: {warning}")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(line, soft_wrap=True)

    def _show(self, text: str) -> None:
        self._bar.update(sum(self._completed.values()), text)

    def __enter__(self) -> TableProgress:
        self._bar.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._bar.__exit__(*raised)
