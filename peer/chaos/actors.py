"""Carry a script out on a testbed of another process, event by event, through its control socket."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import NeighborUnavailable
from peer.chaos.control import ask
from peer.chaos.script import Event, Script
from peer.observe.watch import TestbedWatcher

LOOK_S = 0.2  # between two looks at how many rounds are done


def carry_out(directory: Path, script: Script, graph: Graph, tell: Callable[[str], None]) -> None:
    """Send each event to the testbed when it is due, and return when all are over or the testbed has ended.

    Raises:
        UsageError: the testbed cannot carry an event out.
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
            try:
                result = ask(directory, {"do": "event", "event": _at_once(event)})
            except NeighborUnavailable:
                tell("the testbed has ended")
                return
            tell(f"{now:7.1f} s  {event.words()}: {result}")
        if not ready:
            time.sleep(min(LOOK_S, max(0.0, due[0][0] - now)) if due else LOOK_S)


def _at_once(event: Event) -> dict[str, object]:
    """Return what the testbed is to do now; it undoes by itself what has ``for_s``."""
    return event.model_dump(mode="json", exclude_defaults=True, exclude={"at_s", "at_round"})
