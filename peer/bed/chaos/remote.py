"""Run a script of faults on the testbed of another process, through its control socket."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import NeighborUnavailable
from coordinator_free_bootstrap.strict_json import printable
from peer.bed.chaos.control import ask
from peer.bed.chaos.script import Script
from peer.view.live.watch import TestbedWatcher

LINE_CHARACTERS_MAX = 1000
POLL_S = 0.2  # between two reads of the peers' rounds


def run_faults(directory: Path, script: Script, graph: Graph, report: Callable[[str], None]) -> None:
    """Send each event to the testbed when it is due; return when all were sent or the testbed has ended.

    Raises:
        UsageError: the testbed cannot execute an event.
    """
    began, number = time.monotonic(), count()
    due = [(event.at_s or 0.0, next(number), event) for event in script.event if event.at_round is None]
    heapq.heapify(due)
    at_round = [event for event in script.event if event.at_round is not None]
    watcher = TestbedWatcher(directory, graph)
    while due or at_round:
        now = time.monotonic() - began
        ready = [heapq.heappop(due)[2]] if due and due[0][0] <= now else []
        if at_round:
            watcher.refresh()
            ready += [event for event in at_round if (event.at_round or 0) <= watcher.rounds_completed()]
        for event in ready:
            if event in at_round:
                at_round.remove(event)
            fields = event.model_dump(mode="json", exclude_defaults=True, exclude={"at_s", "at_round"})
            try:
                result = ask(directory, {"do": "event", "event": fields})
            except NeighborUnavailable:
                report("the testbed has ended")
                return
            report(printable(f"{now:7.1f} s  {event.text()}: {result}", LINE_CHARACTERS_MAX))
        if not ready:
            time.sleep(min(POLL_S, max(0.0, due[0][0] - now)) if due else POLL_S)
