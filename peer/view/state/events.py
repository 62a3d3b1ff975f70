"""Events of a run: what peers, observers and fault runners wrote or said, each validated, in one form for the reducer.

| kind | where it comes from | `LoggedEvent.data` |
|---|---|---|
| a kind of `peer.store.records.KINDS` | ``history.jsonl`` | the line |
| ``summary`` | ``summary.json`` | the summary |
| ``lost`` | the history is another file than before: the peer lost its disk | nothing |
| ``process`` | the lock of the state directory | ``held``: whether a process holds it; null if it cannot be known |
| ``status`` | `Status`, `WatchStatus` | the answer, see `status_of` |
| ``silent`` | no usable answer to an observer | ``reason`` |
| ``gap`` | an observer that missed rounds | ``from_round``, ``to_round`` |
| ``fault`` | ``chaos.jsonl`` | the line |
| ``exit`` | ``exits.jsonl``: a testbed's peer ended | ``exit_code``; -n: by signal n |
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from coordinator_free_bootstrap.strict_json import printable
from peer.view.state.peer_status import PeerStatus
from peer.view.state.records import OBSERVED_LINES, JsonRecord, problem_of


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One thing that happened.

    Attributes:
        at: seconds of the wall clock (Unix time).
        peer: whose it is; None for events of the whole run.
        kind: see the table of this module.
    """

    at: float
    peer: int | None
    kind: str
    data: JsonRecord


def seconds_of(text: str) -> float:
    """Return an ISO 8601 time as Unix seconds; without a time zone it is UTC."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def events_of(peer: int | None, lines: Iterable[JsonRecord], after: float = 0.0) -> Iterator[LoggedEvent]:
    """Yield the events of validated history lines (or of the fault timeline, with ``peer`` None).

    The order of lines wins over their clocks: a time below that of the line before is raised to it.

    Args:
        peer: whose lines.
        lines: in file order.
        after: time of the last event of this file.
    """
    for line in lines:
        text = line.get("time")
        after = max(after, seconds_of(text)) if text else after
        yield LoggedEvent(after, peer, "fault" if peer is None else str(line["kind"]), line)


def status_of(event: LoggedEvent) -> PeerStatus:
    """Return the answer of a ``status`` event: of an observer that asks, or of a validated line of ``watch.jsonl``."""
    said = event.data["status"]
    return said if isinstance(said, PeerStatus) else PeerStatus.model_validate(said)


def merged(streams: Iterable[Iterable[LoggedEvent]]) -> list[LoggedEvent]:
    """Return events of several files in the order of their times; events of one file keep their order."""
    return list(heapq.merge(*streams, key=lambda event: event.at))


def problem_of_observed(line: JsonRecord) -> str:
    """Return what is wrong with a line of ``watch.jsonl`` as a sentence, "" if it is valid."""
    kind = line.get("kind")
    model = OBSERVED_LINES.get(kind) if isinstance(kind, str) else None
    if model is None:
        return f"kind: expected one of {', '.join(OBSERVED_LINES)}, got {printable(repr(kind), 80)}"
    return problem_of(line, model)
