"""Events of a run: what peers, observers and fault runners wrote or said, each validated, in one form for the reducer.

| kind | where it comes from | beside the kind in `LoggedEvent.data` |
|---|---|---|
| a kind of `peer.store.records.KINDS` | ``history.jsonl`` | the line |
| ``summary`` | ``summary.json`` | ``summary``: {} where it is gone |
| ``lost`` | the history is another file than before: the peer lost its disk | nothing |
| ``process`` | the lock of the state directory | ``held``: whether a process holds it; null if it cannot be known |
| ``status`` | `Status`, `WatchStatus` | ``status``: the answer |
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
from typing import Literal

from typing_extensions import TypedDict

from peer.store.records import HistoryLine, Summary
from peer.view.state.records import Answered, Exit, FaultLine, Gap, Silent


class Ended(TypedDict):
    """The summary of a peer."""

    kind: Literal["summary"]
    summary: Summary


class Process(TypedDict):
    """Whether a process has the state directory of a peer."""

    kind: Literal["process"]
    held: bool | None


class Lost(TypedDict):
    """A peer that lost its disk."""

    kind: Literal["lost"]


EventData = (
    HistoryLine | Ended | Process | Lost | Answered | Silent | Gap | FaultLine | Exit
)  # distinguished by ``kind``


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One thing that happened.

    Attributes:
        at: seconds of the wall clock (Unix time).
        peer: whose it is; None for events of the whole run.
        data: see the table of this module.
    """

    at: float
    peer: int | None
    data: EventData

    @property
    def kind(self) -> str:
        """The kind of the event."""
        return self.data["kind"]


def seconds_of(text: str) -> float:
    """Return an ISO 8601 time as Unix seconds; without a time zone it is UTC."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def events_of(peer: int | None, lines: Iterable[HistoryLine | FaultLine], after: float = 0.0) -> Iterator[LoggedEvent]:
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
        yield LoggedEvent(after, peer, line)


def merged(streams: Iterable[Iterable[LoggedEvent]]) -> list[LoggedEvent]:
    """Return events of several files in the order of their times; events of one file keep their order."""
    return list(heapq.merge(*streams, key=lambda event: event.at))
