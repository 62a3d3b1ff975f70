"""One testbed from its start to its end, in the process that starts its peers: of `peer testbed` and of `peer.Testbed`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from coordinator_free_bootstrap import Graph
from peer.bed.chaos.network import FaultyNetwork
from peer.bed.chaos.runner import FaultRunner
from peer.bed.chaos.script import Script
from peer.bed.options import BedOptions, ProcessOptions
from peer.bed.testbed.directory import check_same_run
from peer.bed.testbed.testbed import Supervisor
from peer.bed.testbed.warm_up import check_task_first, warm_up
from peer.view.live.watch import TestbedWatcher
from peer.view.trackers.export import LiveExport


class BedRun:
    """A checked testbed: `run` starts its peers and returns when all have ended.

    Args:
        graph: of the run.
        options: all of them.
        script: of faults.
        source: name of the script, for messages.
        traceback: log whole traces of errors.

    Attributes:
        goal: how the run interprets its targets, and its metric.

    Raises:
        UsageError: the folder holds another run.
        PeerError: the task, the data or the script cannot be used.
    """

    def __init__(
        self,
        graph: Graph,
        options: BedOptions,
        script: Script | None = None,
        *,
        source: str = "script",
        traceback: bool = False,
    ) -> None:
        self.graph, self.options, self.script = graph, options, script or Script()
        out = Path(options["out"])
        data_root = None if options["data_root"] is None else Path(options["data_root"])
        self._export = LiveExport(out, options["export"])
        check_same_run(graph, out)
        self.script.check(graph, source)
        warm_up(graph, data_root)
        self.goal = check_task_first(graph, data_root)
        of_processes = {name: value for name, value in options.items() if name in ProcessOptions.__annotations__}
        self.bed = Supervisor(graph, out, traceback=traceback, **cast(ProcessOptions, of_processes))
        network = FaultyNetwork(self.bed.graph) if options["proxy"] or self.script.needs_network else None
        self.bed.graph_of = network.graph_of if network else self.bed.graph_of
        self.watcher = TestbedWatcher(out, graph)
        self._runner = FaultRunner(self.bed, self.watcher.rounds_completed, self.script, network)

    def run(self, on_progress: Callable[[], Any], on_failure: Callable[[str], Any]) -> dict[int, int]:
        """Start the peers, wait until all have ended, and return the exit codes of those that failed.

        Args:
            on_progress: called at least twice a second.
            on_failure: called with a sentence as soon as a peer has failed; its neighbors may wait for it long.
        """
        reported: set[int] = set()

        def look() -> None:
            failed = self._runner.failed()
            for peer_id in failed.keys() - reported:
                on_failure(self.failure(peer_id, failed[peer_id]))
            reported.clear()
            reported.update(failed)
            if self._runner.stopped_for:
                on_failure(self._runner.stopped_for)
            on_progress()

        with self._export:
            self._runner.begin()
            failed = self._runner.run(look)
            return failed | self._vanished()

    def _vanished(self) -> dict[int, int]:
        """Return the peers whose process ended with exit code 0, and whose run did not end."""
        self.watcher.refresh()
        states = self.watcher.tail.log.peers
        asked = {*self._runner.leaving} if not self._runner.stopped_for else {*states}
        return {
            peer_id: 0
            for peer_id, state in states.items()
            if self.bed.exit_codes.get(peer_id) == 0
            and (state.status == "dead" or (state.status == "missing" and peer_id not in asked))
        }

    @property
    def problem(self) -> str:
        """What is missing in the trackers, as a sentence; empty if nothing is."""
        return self._export.problem

    def failure(self, peer_id: int, code: int) -> str:
        """Return the sentence about a peer that failed: exit code, last error, log."""
        return self.bed.failure(peer_id, code)
