"""Who carries a script of faults out on a testbed, and keeps the book of them: ``DIR/chaos.jsonl``.

It lives in the testbed's parent, which can fork peers again at any time; other processes ask it through the control socket.
"""

from __future__ import annotations

import heapq
import json
import logging
import shutil
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from multiprocessing.connection import wait
from typing import Any

from pydantic import ValidationError

from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.validation import sentences
from peer.chaos.control import ControlServer
from peer.chaos.network import FaultyNetwork
from peer.chaos.proxy import Direction
from peer.chaos.script import NETWORK, Event, Script
from peer.chaos.toxics import Counters, Toxics
from peer.observe.faults import TIMELINE
from peer.store.files import storage_errors
from peer.store.state_dir import StateDir
from peer.testbed import Testbed

log = logging.getLogger("peer")
LEAVE_S = 10.0  # how long a restart waits for a peer that was asked to leave
KEPT_WITHOUT_DISK = ("identity", "peer.log")  # a key is who the peer is, not what it remembers


class Director:
    """Act on the peers and edges of one testbed.

    Args:
        bed: the testbed, whose peers this may kill and start.
        script: what to do by itself, and when; more can be asked for through the control socket.
        network: the proxies between the peers; None: no faults of edges.
        rounds: returns how many rounds the first peer has completed, for ``at_round``.
    """

    def __init__(
        self,
        bed: Testbed,
        script: Script | None = None,
        network: FaultyNetwork | None = None,
        rounds: Callable[[], int] = lambda: 0,
    ) -> None:
        self.bed = bed
        self.network = network
        self.killed: set[int] = set()
        self.left: set[int] = set()
        self.last_counters: dict[str, dict[str, int]] = {}  # of the network, when it ended
        self._rounds = rounds
        self._number = count()
        self._due: list[tuple[float, int, Event]] = []
        self._due_at_round: list[Event] = []
        self._began = time.monotonic()
        self._timeline = bed.directory / TIMELINE
        self.control = ControlServer(bed.directory)
        bed.not_for_children += [self.control.socket, *([network.socket] if network else [])]
        script = script or Script()
        script.check(bed.graph, "the chaos script")
        self.late = script.late
        if script.needs_network and network is None:
            raise UsageError("the chaos script has faults of edges; start the testbed with --proxy")
        for event in script.event:
            self._plan(event)

    def run(self, on_progress: Callable[[], Any] = lambda: None, interval_s: float = 0.5) -> dict[int, int]:
        """Run until all peers have ended and nothing is planned for one; return the exit codes of failures.

        A peer that was killed on purpose is no failure.
        """
        try:
            while self.bed.processes or any(event.do in ("restart", "join") for _, _, event in self._due):
                self.wait(min(interval_s, self._next_s()))
                on_progress()
        except KeyboardInterrupt:
            log.warning("interrupted: asking %d peers to leave", len(self.bed.processes))
            self.bed.stop()
            raise
        finally:
            self.close()
        on_purpose = {peer_id for peer_id in self.killed if self.bed.exit_codes.get(peer_id) == -signal.SIGKILL}
        return {p: code for p, code in sorted(self.bed.exit_codes.items()) if code != 0 and p not in on_purpose}

    def wait(self, seconds: float) -> None:
        """Wait for the end of a peer, a request or the next event, at most so long, and do what is due."""
        sentinels = [process.sentinel for process in self.bed.processes.values()]
        wait([*sentinels, self.control.fileno()], timeout=max(0.0, seconds))
        self.bed.poll(0)
        self.control.serve(self.answer)
        self._do_due()

    def close(self) -> None:
        """Stop answering; end the network."""
        self.control.close()
        if self.network is not None:
            self.last_counters = _named(self.network.counters(), Counters.as_dict)
            self.network.close()

    # ---- requests -------------------------------------------------------------------------------------------------

    def answer(self, request: dict[str, Any]) -> Any:
        """Answer one request of the control socket.

        Raises:
            UsageError: it cannot be carried out.
        """
        match request:
            case {"do": "event", "event": fields}:
                event = self._event(fields)
                if event.do in NETWORK and self.network is None:
                    raise UsageError("faults of edges need proxies; start the testbed with --proxy")
                return self.act(event)
            case {"do": "state"}:
                return self.state()
            case {"do": "failpoints", "peer": int(peer_id), "text": str(text)}:
                self.bed.failpoints[peer_id] = text
                return True
            case {"do": "stop"}:
                self._due.clear()
                self.bed.stop()
                return True
        raise UsageError(f"no such request: {json.dumps(request)[:200]}")

    def state(self) -> dict[str, Any]:
        """Return the testbed's processes, exit codes, and the faults that are on."""
        network = self.network
        return {
            "proxies": network is not None,
            "processes": {str(peer_id): self.bed.pid(peer_id) for peer_id in self.bed.processes},
            "exit_codes": {str(peer_id): code for peer_id, code in self.bed.exit_codes.items()},
            "faults": _named(network.toxics(), lambda t: t.model_dump(exclude_defaults=True)) if network else {},
            "counters": _named(network.counters(), Counters.as_dict) if network else {},
        }

    def _event(self, fields: dict[str, Any]) -> Event:
        try:
            event = Event.model_validate(fields)
        except ValidationError as error:
            raise UsageError("; ".join(sentences(error, Event, fields, "event"))) from error
        Script(event=(event,)).check(self.bed.graph, "the request")
        return event

    # ---- when -----------------------------------------------------------------------------------------------------

    def _plan(self, event: Event) -> None:
        if event.at_round is not None:
            self._due_at_round.append(event)
        else:
            heapq.heappush(self._due, (self._began + (event.at_s or 0.0), next(self._number), event))

    def _next_s(self) -> float:
        return self._due[0][0] - time.monotonic() if self._due else float("inf")

    def _do_due(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            self.act(heapq.heappop(self._due)[2])
        rounds = self._rounds() if self._due_at_round else 0
        for event in [event for event in self._due_at_round if (event.at_round or 0) <= rounds]:
            self._due_at_round.remove(event)
            self.act(event)

    # ---- what -----------------------------------------------------------------------------------------------------

    def act(self, event: Event) -> str:
        """Do one event now, plan its end, write it down; return ``done`` or why not."""
        result = self._on_network(event) if event.do in NETWORK else self._on_peers(event)
        if event.for_s is not None:
            undo = (time.monotonic() + event.for_s, next(self._number), event.undo())
            heapq.heappush(self._due, undo)
        line = {
            "kind": "chaos",
            "t": round(time.monotonic() - self._began, 3),
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "words": event.words(),
            **event.model_dump(exclude_defaults=True, exclude={"at_s", "at_round"}),
            "rounds_completed": self._rounds(),
            "result": result,
        }
        with storage_errors("append to", self._timeline), open(self._timeline, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        log.info("chaos: %s: %s", event.words(), result)
        return result

    def _on_peers(self, event: Event) -> str:
        skipped = []
        for peer_id in event.peers:
            running = peer_id in self.bed.processes
            if event.do in ("restart", "join"):
                self._start(peer_id, event.disk == "lose")
            elif running:
                self._signal(peer_id, event.do)
            else:
                skipped.append(peer_id)
        return f"skipped, not running: {', '.join(map(str, skipped))}" if skipped else "done"

    def _signal(self, peer_id: int, do: str) -> None:
        numbers = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "continue": signal.SIGCONT, "leave": signal.SIGTERM}
        self.bed.signal(peer_id, numbers[do])
        if do == "kill":
            self.killed.add(peer_id)
            self._end(peer_id)
        elif do == "leave":
            self.left.add(peer_id)

    def _start(self, peer_id: int, lose_disk: bool) -> None:
        if peer_id in self.bed.processes and not (peer_id in self.left and self._end(peer_id, LEAVE_S)):
            self._signal(peer_id, "kill")
        if lose_disk:
            for path in StateDir.of_peer(self.bed.directory, peer_id).root.glob("*"):
                if path.name not in KEPT_WITHOUT_DISK:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.killed.discard(peer_id)
        self.left.discard(peer_id)
        self.bed.start(peer_id)

    def _end(self, peer_id: int, patience_s: float = 5.0) -> bool:
        """Wait for the end of a process; return whether it came."""
        process = self.bed.processes[peer_id]
        process.join(patience_s)
        self.bed.poll(0)
        return peer_id not in self.bed.processes

    def _on_network(self, event: Event) -> str:
        assert self.network is not None  # checked where events come in
        toxics, directions = Toxics(), list(event.edges)
        broken = Toxics(reset=True) if event.mode == "reset" else Toxics(black_hole=True)
        if event.do in ("cut", "one_way"):
            toxics = broken
        elif event.do == "slow":
            toxics = event.toxics
        elif event.do == "partition":
            toxics, directions = broken, self._between(event.groups)
        elif not directions:  # heal everything
            directions = list(self.bed.graph.edges)
        if event.do != "one_way":
            directions += [(b, a) for a, b in directions]
        self.network.set(directions, toxics)
        return "done"

    def _between(self, groups: tuple[tuple[int, ...], ...]) -> list[Direction]:
        group_of = {peer_id: index for index, group in enumerate(groups) for peer_id in group}
        return [
            (a, b) for a, b in self.bed.graph.edges if a in group_of and b in group_of and group_of[a] != group_of[b]
        ]


def _named(found: dict[Direction, Any], shown: Callable[[Any], Any]) -> dict[str, Any]:
    return {f"{a}->{b}": shown(value) for (a, b), value in found.items()}
