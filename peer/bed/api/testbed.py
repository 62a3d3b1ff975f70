"""`peer.Testbed`: every peer of a graph as a process on this machine."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from typing_extensions import override

from coordinator_free_bootstrap import Graph, dump_graph, errors
from coordinator_free_bootstrap.errors import (
    ConfigProblem,
    LocalProtocolError,
    NeighborUnavailable,
    Option,
    PeerError,
    RunFailed,
    TaskError,
    UsageError,
)
from coordinator_free_bootstrap.strict_json import of_type
from peer.api.arguments import named_in_python, refuse_unless
from peer.api.choices import TaskChoice, chosen
from peer.bed.options import BedOptions, bed_options
from peer.store.files import storage_errors
from peer.store.system import require_unix
from peer.view.api.results import Run
from peer.view.live.progress import Progress

if TYPE_CHECKING:
    from peer.view.live.watch import TestbedWatcher
    from peer.view.state.peer_state import PeerState

LOG = "testbed.log"  # of the parent process
POLL_S = 0.25
STOP_S = 30.0
ENDED = ("completed", "left")  # states of peers that have ended as they should
# and of those that complete no further round; a killed peer is dead
NOT_LIVE = ("dead", "failed", "diverged", "refused", "removed", "behind")


class Testbed:
    """A run of real processes, with TLS between them; the end of the ``with`` block stops all of them.

    The peers are children of a fresh process, so a notebook or a program with threads can start a testbed. Peers listen on
    free loopback ports. If ``out`` has an earlier run with the same graph and settings, that run is resumed.

    Args:
        graph: peers, edges and settings.
        task: the name of a task, or ``path/to/file.py:object``: other processes load it. Default: the graph's.
        algorithm: the name of an algorithm, built in or installed. Default: the graph's.
        progress: show a progress bar in `wait`, and print a line at the start on how the targets are interpreted.
        options: those of `peer testbed`: ``out``, the folder of the peers' state, logs and models; ``fresh``, ``data_root``,
            ``threads``, ``amp``, ``insecure``, ``on_start_failure``, ``export``, and ``proxy``, which `cut` and `heal` need.

    >>> import peer, tempfile
    >>> graph = peer.Graph.make("line", peers=2, run={"rounds": 3})
    >>> with tempfile.TemporaryDirectory() as folder, peer.Testbed(graph, out=folder, progress=False) as bed:
    ...     bed.kill(1)
    ...     bed.restart(1)
    ...     bed.wait().metrics["rounds"]
    3
    """

    __test__ = False  # pytest collects classes named Test*

    @named_in_python()
    def __init__(
        self,
        graph: Graph,
        task: TaskChoice = None,
        *,
        algorithm: str | None = None,
        progress: bool = True,
        **options: Unpack[BedOptions],
    ) -> None:
        if not (task is None or isinstance(task, str)):
            expected, fix = (
                "path/to/file.py:object, or the name of an installed task",
                "The peers of a testbed are other processes.",
            )
            raise TaskError(ConfigProblem(Option("task"), expected, of_type(task), fix))
        from peer.tasks.loading import absolute_task

        self.graph = chosen(graph, task, algorithm)[0]
        self._options = bed_options(options)
        self.directory = Path(self._options["out"]).absolute()  # the program may change its working directory
        self._started_in, self._task = Path.cwd(), absolute_task(self.graph.manifest.task)
        refuse_unless(isinstance(progress, bool), "progress", "true or false", progress)
        self._progress = progress
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()
        self._last: dict[str, Any] | None = None  # the answer that says how the peers have ended
        self._is_over = False

    @override
    def __repr__(self) -> str:
        if self._process is None and not self._is_over:
            state, rounds = "not started", 0
        else:
            from peer.view.state.peer_state import run_state

            watcher = self._watcher()
            rounds = watcher.rounds_of_all()
            state = run_state(watcher.tail.log.peers.values(), self.graph.manifest.rounds)
        done = f"{rounds} of {self.graph.manifest.rounds} rounds"
        return f"<peer.Testbed: {state}, {len(self.graph.nodes)} peers, {done}, {self.directory}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @named_in_python()
    def start(self) -> Self:
        """Start the peers; returns when all processes run.

        Raises:
            PeerError: as `peer testbed`: the task, the data, the graph or the folder cannot be used.
        """
        from peer.bed.testbed.directory import clear
        from peer.bed.testbed.ports import on_free_ports

        require_unix("peer.Testbed")

        if self._process is not None:
            fix = "Make another Testbed to run again."
            raise UsageError(ConfigProblem("Testbed.start", "a testbed that was not started", "a started one", fix))
        if self._options["fresh"]:
            clear(self.directory)
        self.graph = replace(self.graph, nodes=on_free_ports(self.graph).nodes)
        with storage_errors("make", self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            log = open(self.directory / LOG, "ab")  # noqa: SIM115  closed below; the child has its own
        with log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "peer.bed.api.bed_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._started_in,
                env=os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
                start_new_session=True,  # Ctrl-C in a terminal reaches this process alone, which then stops the peers
            )
        request = {
            "graph": dump_graph(self.graph),
            "options": {**self._options, "out": self.directory},
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request, default=str) + "\n")
        self._process.stdin.flush()
        self._reader = threading.Thread(target=self._read, args=(self._process,), name="testbed answers", daemon=True)
        self._reader.start()
        try:
            answer = self._answer()
        except BaseException:
            self._end()
            raise
        if self._progress and answer is not None:
            print(f"learns {answer['goal']}", file=sys.stderr)
        return self

    @named_in_python()
    def kill(self, *peer_ids: int) -> None:
        """End the processes of peers at once, with SIGKILL."""
        self._do("kill", peers=peer_ids)

    @named_in_python()
    def restart(self, *peer_ids: int, lose_disk: bool = False) -> None:
        """Start peers again, from their last checkpoint; with ``lose_disk`` from an empty state directory."""
        self._do("restart", peers=peer_ids, disk="lose" if lose_disk else "keep")

    @named_in_python()
    def cut(self, *edges: tuple[int, int]) -> None:
        """Block edges: bytes stop, connections stay open. Needs ``proxy=True``."""
        self._do("cut", edges=edges)

    @named_in_python()
    def heal(self, *edges: tuple[int, int]) -> None:
        """Remove the faults of edges, or of all edges. Needs ``proxy=True``."""
        self._do("heal", edges=edges)

    @named_in_python()
    def status(self) -> dict[int, PeerState]:
        """Return the state of each peer as its files say now: ``bed.status()[3].status``, ``.rounds_completed``, ``.neighbors``.

        Raises:
            UsageError: the testbed was not started.
            StorageError: a file cannot be read.
        """
        self._started()
        return {peer_id: state.copy() for peer_id, state in sorted(self._watcher().tail.log.peers.items())}

    @named_in_python()
    def wait_round(self, rounds: int) -> dict[int, PeerState]:
        """Wait until every running peer has completed ``rounds`` rounds, and return the state of each; Ctrl-C ends the wait.

        Raises:
            UsageError: the run has fewer rounds.
            RunFailed: no peer runs any more, and not all have completed that many; or a peer failed.
        """
        total = self.graph.manifest.rounds
        refuse_unless(isinstance(rounds, int), "rounds", "an integer", rounds)
        if not 0 <= rounds <= total:
            raise UsageError(ConfigProblem(Option("rounds"), f"0 to {total}, the rounds of the run", str(rounds)))
        self._started()
        watcher = self._watcher()
        while True:
            over = self._last is not None or self._is_over
            watcher.refresh()
            peers = watcher.tail.log.peers
            live = [state for state in peers.values() if state.status not in (*ENDED, *NOT_LIVE)]
            asked = [*live, *(state for state in peers.values() if state.status in ENDED)]
            if asked and all(state.rounds_completed >= rounds for state in asked):
                return self.status()
            if over:
                states = ", ".join(
                    f"peer {p} {state.status} after {state.rounds_completed}" for p, state in peers.items()
                )
                raise RunFailed(
                    f"Testbed.wait_round: the run is over, and not all have completed {rounds} rounds: {states}"
                )
            if (answer := self._answer(POLL_S)) is not None:
                self._take(answer)
                if "failure" in answer:
                    raise RunFailed(answer["failure"])

    @named_in_python()
    def wait(self) -> Run:
        """Wait until all peers have ended, and return what they left; a peer that `kill` ended has not failed.

        A peer that fails meanwhile is a RuntimeWarning at once: its neighbors may wait for it long.

        Raises:
            RunFailed: a peer failed; the message has exit code, last error and log of each.
        """
        from peer.view.live.watch import TestbedWatcher

        self._running()
        watcher, answer = TestbedWatcher(self.directory, self.graph), self._last
        with Progress("rounds", self.graph.manifest.rounds, shown=self._progress) as bar:
            while answer is None or "failed" not in answer:
                answer = self._answer(POLL_S)
                if answer is not None and "failure" in answer:
                    warnings.warn(answer["failure"], RuntimeWarning, stacklevel=3)
                self._take(answer)
                watcher.refresh()
                bar.update(watcher.rounds_of_all(), watcher.mean_metric())
        self._end()
        if answer["problem"]:
            warnings.warn(answer["problem"], RuntimeWarning, stacklevel=3)
        failed = answer["failed"]
        if failed:
            raise RunFailed("\n".join(sentence for _, sentence in failed.values()))
        return Run(self.directory, task=self._task)

    def stop(self) -> None:
        """Ask all peers to leave, and wait for their end; without effect if the testbed has ended."""
        if self._process is not None:
            self._end()

    def _do(self, name: str, **fields: Any) -> None:
        from peer.bed.chaos.control import ask

        self._refuse_after_the_end(name)
        self._running()
        given = {key: value for key, value in fields.items() if value}
        try:
            result = ask(self.directory, {"do": "event", "event": {"do": name, **given}})
        except NeighborUnavailable:
            self._refuse_after_the_end(name, POLL_S)  # the last peer has ended just now
            raise
        if result != "done":
            raise UsageError(f"Testbed.{name}: {result}")

    def _refuse_after_the_end(self, name: str, wait_s: float = 0.0) -> None:
        """Raise UsageError if all peers have ended, as far as is known within ``wait_s``."""
        if self._last is None and self._process is not None:
            self._look_for_the_end(wait_s)
        if self._last is not None or self._is_over:
            got, fix = "one that is over: every peer has ended", "Make another Testbed to run again."
            raise UsageError(ConfigProblem(f"Testbed.{name}", "a run that goes on", got, fix))

    def _look_for_the_end(self, wait_s: float) -> None:
        """Take an answer about the end that has come; what else has come stays for `wait`."""
        waiting: list[str] = []
        while self._last is None and (answer := self._answer(wait_s)) is not None:
            self._take(answer)
            waiting.append(json.dumps(answer))
        for line in waiting if self._last is None else ():
            self._answers.put(line)

    def _take(self, answer: dict[str, Any] | None) -> None:
        if answer is not None and "failed" in answer:
            self._last = answer

    def _watcher(self) -> TestbedWatcher:
        from peer.view.live.watch import TestbedWatcher

        watcher = TestbedWatcher(self.directory, self.graph)
        watcher.refresh()
        return watcher

    def _started(self) -> None:
        if not self._is_over:
            self._running()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise UsageError("Testbed: expected running peers, got none. Use: with peer.Testbed(graph) as bed: ...")
        return self._process

    def _read(self, process: subprocess.Popen[str]) -> None:
        """Put the answers of the parent process into the queue, and at its end an empty one."""
        assert process.stdout is not None
        for line in process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _answer(self, wait_s: float | None = None) -> dict[str, Any] | None:
        """Return the next answer of the parent process, or raise the error in it; None if there is none within ``wait_s``."""
        self._running()
        try:
            line = self._answers.get(timeout=wait_s)
        except queue.Empty:
            return None
        if not line:
            raise NeighborUnavailable(f"the process of the testbed has ended; see {self.directory / LOG}")
        answer: dict[str, Any] = json.loads(line)
        if (found := answer.get("error")) is not None:
            kind = getattr(errors, found["class"], LocalProtocolError)
            error: PeerError = kind(found["text"])
            for note in found["notes"]:
                error.add_note(note)
            raise error
        return answer

    def _end(self) -> None:
        """Close the pipes, which tells the parent process to stop the peers, and wait for its end."""
        process, self._process = self._process, None
        if process is None:
            return
        self._is_over = True
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._reader.join()
        process.stdout.close()
