"""The fault runner of a testbed: executes a script of faults and requests, and records them in ``DIR/chaos.jsonl``.

It runs in the testbed's parent process, which can start peers again at any time. Other processes send requests through the
control socket (`peer.bed.chaos.control`).
"""

from __future__ import annotations

import heapq
import json
import logging
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import count
from multiprocessing.connection import wait
from typing import Any

from pydantic import ValidationError

from coordinator_free_bootstrap.errors import ConfigProblem, Option, UsageError
from coordinator_free_bootstrap.ordinary_file import ordinary_file
from coordinator_free_bootstrap.validation import sentences
from peer.bed.chaos.control import ControlServer
from peer.bed.chaos.faults import FAULTS, FaultEvent
from peer.bed.chaos.network import FaultyNetwork
from peer.bed.chaos.script import Script
from peer.bed.chaos.toxics import Counters, Direction, Toxics
from peer.bed.testbed.testbed import Supervisor
from peer.store.files import storage_errors
from peer.store.state_dir import StateDir
from peer.view.state.tail import TIMELINE

log = logging.getLogger("peer")
LEAVE_S = 10.0  # how long a restart waits for a peer that was asked to leave
END_S = 5.0  # how long to wait for a killed process
KEPT_WITHOUT_DISK = ("identity", "peer.log")  # a peer that lost its disk keeps its key


class FaultRunner:
    """Execute faults on the peers and edges of one testbed.

    Args:
        bed: the testbed, whose peers the runner may end and start.
        rounds: returns how many rounds the first peer has completed, for ``at_round`` and the timeline.
        script: the events to execute; requests may add more.
        network: the proxies between the peers; None: no faults of edges.

    Raises:
        ConfigError: the script names peers or edges that the graph does not have.
        UsageError: the script has faults of edges and there is no network.
    """

    def __init__(
        self,
        bed: Supervisor,
        rounds: Callable[[], int],
        script: Script | None = None,
        network: FaultyNetwork | None = None,
    ) -> None:
        self.bed = bed
        self.graph = bed.graph
        self.network = network
        self.killed: set[int] = set()
        self.leaving: set[int] = set()
        self.last_counters: dict[str, dict[str, int]] = {}  # of the network, when it ended
        self._rounds = rounds
        self._number = count()
        self._due: list[tuple[float, int, FaultEvent]] = []
        self._due_at_round: list[FaultEvent] = []
        self._began = time.monotonic()
        self._timeline = bed.directory / TIMELINE
        self.control = ControlServer(bed.directory)
        bed.parent_sockets += [self.control.socket, *([network.socket] if network else [])]
        script = script or Script()
        script.check(bed.graph, "the chaos script")
        self._late = script.late
        self.stopped_for = ""  # why the peers were stopped before their end, if they were
        for event in script.event:
            self._check_network(event)
            self._plan(event)

    def begin(self, absent: Iterable[int] = ()) -> None:
        """Start the peers that no event of the script starts; ``absent`` ones stay away, too."""
        self.bed.start(sorted(set(self.graph.ids) - self._late - set(absent)))

    def run(self, on_progress: Callable[[], Any] = lambda: None, interval_s: float = 0.5) -> dict[int, int]:
        """Run until all peers have ended and no event starts one; return `failed`."""
        try:
            while self.bed.processes or any(event.do in ("restart", "join") for _, _, event in self._due):
                self.wait(min(interval_s, self._next_s()))
                if not self.stopped_for and (reason := self.bed.why_stop(self._late | self._starting())):
                    self.stopped_for = reason
                on_progress()
                if self.stopped_for:
                    self._due.clear()
                    self.bed.stop()
        except KeyboardInterrupt:
            log.warning("interrupted: stopping %d peers; a second Ctrl-C ends them at once", len(self.bed.processes))
            self.bed.stop()
            raise
        finally:
            self.close()
        return self.failed()

    def _starting(self) -> set[int]:
        """Return the peers that events to come start again."""
        events = [*(event for _, _, event in self._due), *self._due_at_round]
        return {peer_id for event in events if event.do in ("restart", "join") for peer_id in event.peers}

    def failed(self) -> dict[int, int]:
        """Return the exit codes of the peers that have failed so far; a peer that a fault killed has not failed."""
        killed = {peer_id for peer_id in self.killed if self.bed.exit_codes.get(peer_id) == -signal.SIGKILL}
        return {p: code for p, code in sorted(self.bed.exit_codes.items()) if code != 0 and p not in killed}

    def wait(self, seconds: float) -> None:
        """Wait up to a timeout for the end of a peer, a request or the next event, and execute what is due."""
        sentinels = [process.sentinel for process in self.bed.processes.values()]
        wait([*sentinels, self.control.fileno()], timeout=max(0.0, seconds))
        self.bed.poll(0)
        self.control.serve(self.answer)
        while self._due and self._due[0][0] <= time.monotonic():
            self.execute(heapq.heappop(self._due)[2])
        rounds = self._rounds() if self._due_at_round else 0
        for event in [event for event in self._due_at_round if (event.at_round or 0) <= rounds]:
            self._due_at_round.remove(event)
            self.execute(event)

    def close(self) -> None:
        """Close the control socket and end the network."""
        self.control.close()
        if self.network is not None:
            self.last_counters = _by_edge(self.network.counters(), Counters.as_dict)
            self.network.close()

    def _plan(self, event: FaultEvent) -> None:
        if event.at_round is not None:
            self._due_at_round.append(event)
        else:
            heapq.heappush(self._due, (self._began + (event.at_s or 0.0), next(self._number), event))

    def _next_s(self) -> float:
        return self._due[0][0] - time.monotonic() if self._due else float("inf")

    def _check_network(self, event: FaultEvent) -> None:
        if FAULTS[event.do].network and self.network is None:
            expected = "a fault of peers, as this testbed has no fault proxies"
            raise UsageError(
                ConfigProblem("do", expected, repr(event.do), f"Start the testbed with {Option('proxy')}.")
            )

    # ---- requests -------------------------------------------------------------------------------------------------

    def answer(self, request: dict[str, Any]) -> Any:
        """Answer one request of the control socket.

        Raises:
            UsageError: the request is unknown or cannot be executed.
            ConfigError: its event names peers or edges that the graph does not have.
        """
        match request:
            case {"do": "event", "event": fields}:
                return self.execute(self._event(fields))
            case {"do": "state"}:
                return self.state()
            case {"do": "failpoints", "peer": int(peer_id), "text": str(text)}:
                self.bed.failpoints[peer_id] = text
                return True
            case {"do": "stop"}:
                self._due.clear()
                self.bed.stop()
                return True
        raise UsageError(ConfigProblem("request", "one that the testbed knows", json.dumps(request)[:200]))

    def state(self) -> dict[str, Any]:
        """Return the testbed's processes, exit codes, and the toxics that are set."""
        network = self.network
        return {
            "proxies": network is not None,
            "processes": {str(peer_id): self.bed.pid(peer_id) for peer_id in self.bed.processes},
            "exit_codes": {str(peer_id): code for peer_id, code in self.bed.exit_codes.items()},
            "faults": _by_edge(network.toxics(), lambda t: t.model_dump(exclude_defaults=True)) if network else {},
            "counters": _by_edge(network.counters(), Counters.as_dict) if network else {},
        }

    def _event(self, fields: dict[str, Any]) -> FaultEvent:
        try:
            event = FaultEvent.model_validate(fields)
        except ValidationError as error:
            raise UsageError("; ".join(sentences(error, FaultEvent, fields, "event"))) from error
        Script(event=(event,)).check(self.graph, "the request")
        self._check_network(event)
        return event

    # ---- execution ------------------------------------------------------------------------------------------------

    def execute(self, event: FaultEvent) -> str:
        """Execute one event now, plan its undo, record it; return ``done``, or why not."""
        fault = FAULTS[event.do]
        result = fault.processes(self, event)
        if event.for_s is not None:
            heapq.heappush(self._due, (time.monotonic() + event.for_s, next(self._number), event.undo()))
        line = {
            "kind": "fault",
            "t": round(time.monotonic() - self._began, 3),
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "text": event.text(),
            **event.model_dump(exclude_defaults=True, exclude={"at_s", "at_round"}),
            "undo": fault.undo,
            "rounds_completed": self._rounds(),
            "result": result,
        }
        with (
            storage_errors("append to", self._timeline),
            open(ordinary_file(self._timeline), "a", encoding="utf-8") as file,
        ):
            file.write(json.dumps(line) + "\n")
        log.info("chaos: %s: %s", event.text(), result)
        return result

    def signal(self, peer_id: int, number: int) -> bool:
        """Send a signal to a peer's process, and wait for its end after SIGKILL; return False if it does not run."""
        if peer_id not in self.bed.processes:
            return False
        self.bed.signal(peer_id, number)
        if number == signal.SIGKILL:
            self.killed.add(peer_id)
            self._wait_for_end(peer_id, END_S)
        elif number == signal.SIGTERM:
            self.leaving.add(peer_id)
        return True

    def start(self, peer_id: int, *, lose_disk: bool) -> None:
        """Start a peer's process; end it first if it runs, with SIGKILL unless it is leaving."""
        if peer_id in self.bed.processes and not (peer_id in self.leaving and self._wait_for_end(peer_id, LEAVE_S)):
            self.signal(peer_id, signal.SIGKILL)
        if lose_disk:
            for path in StateDir.of_peer(self.bed.directory, peer_id).root.glob("*"):
                if path.name not in KEPT_WITHOUT_DISK:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.killed.discard(peer_id)
        self.leaving.discard(peer_id)
        self.bed.start([peer_id])

    def _wait_for_end(self, peer_id: int, timeout_s: float) -> bool:
        """Wait for the end of a process; return whether it has ended."""
        self.bed.processes[peer_id].join(timeout_s)
        self.bed.poll(0)
        return peer_id not in self.bed.processes

    def set_toxics(self, directions: Iterable[Direction], toxics: Toxics) -> None:
        """Replace the toxics of directed edges."""
        assert self.network is not None  # `_check_network` was called for every event
        self.network.set(directions, toxics)


def _by_edge(found: dict[Direction, Any], to_json: Callable[[Any], Any]) -> dict[str, Any]:
    return {f"{a}->{b}": to_json(value) for (a, b), value in found.items()}
