"""One testbed from its start to its end, in the process that starts its peers: of `peer testbed` and of `peer.Testbed`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap import Graph
from peer.bed.chaos.network import FaultyNetwork
from peer.bed.chaos.runner import FaultRunner
from peer.bed.chaos.script import Script
from peer.bed.testbed.directory import check_same_run
from peer.bed.testbed.testbed import OnStartFailure, Testbed
from peer.bed.testbed.warm_up import check_task_first, warm_up
from peer.view.live.watch import TestbedWatcher
from peer.view.trackers.export import LiveExport


@dataclass(frozen=True)
class BedSettings:
    """Local choices of a testbed.

    Attributes:
        out: folder of the peers' state, logs and models; an earlier run with the same graph and settings is resumed.
        data_root: where built-in data sets lie.
        threads: PyTorch threads per peer; None: cores divided by peers.
        insecure: plaintext in place of TLS with generated keys.
        proxy: connect peers through fault proxies, which faults of edges need.
        traceback: log whole traces of errors.
        exports: trackers that get the rounds while they come, as ``--export`` takes them.
        source: name of the script of faults, for messages.
        amp: "bf16" for mixed precision, else None.
        on_start_failure: whether to "stop" the other peers when one cannot start, or to "continue"; None: stop if
            ``run.start.rule`` is "all", so that they would wait for it.
    """

    out: Path
    data_root: Path | None = None
    threads: int | None = None
    insecure: bool = False
    proxy: bool = False
    traceback: bool = False
    exports: tuple[str, ...] = ()
    source: str = "script"
    amp: str | None = None
    on_start_failure: OnStartFailure | None = None


class BedRun:
    """A checked testbed: `run` starts its peers and returns when all have ended.

    Raises:
        UsageError: the folder holds another run.
        PeerError: the task, the data or the script cannot be used.
    """

    def __init__(self, graph: Graph, settings: BedSettings, script: Script | None = None) -> None:
        self.graph, self.settings, self.script = graph, settings, script or Script()
        self._export = LiveExport(settings.out, settings.exports)
        check_same_run(graph, settings.out)
        self.script.check(graph, settings.source)
        warm_up(graph, settings.data_root)
        check_task_first(graph, settings.data_root)
        self.bed = Testbed(
            graph,
            settings.out,
            data_root=settings.data_root,
            threads=settings.threads,
            insecure=settings.insecure,
            traceback=settings.traceback,
            amp=settings.amp,
            on_start_failure=settings.on_start_failure,
        )
        network = FaultyNetwork(self.bed.graph) if settings.proxy or self.script.needs_network else None
        self.bed.graph_of = network.graph_of if network else self.bed.graph_of
        self.watcher = TestbedWatcher(settings.out, graph)
        self._runner = FaultRunner(self.bed, self.watcher.rounds_completed, self.script, network)

    def run(self, on_progress: Callable[[], Any], on_failure: Callable[[str], Any]) -> dict[int, int]:
        """Start the peers, wait until all have ended, and return the exit codes of those that failed.

        Args:
            on_progress: called at least twice a second.
            on_failure: called with a sentence as soon as a peer has failed; its neighbors may wait for it long.
        """
        told: set[int] = set()

        def look() -> None:
            failed = self._runner.failed()
            for peer_id in failed.keys() - told:
                on_failure(self.failure(peer_id, failed[peer_id]))
            told.clear()
            told.update(failed)
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
