"""The counters of a peer: `Totals` is their one table. A new counter is one line there, and the line that counts.

The history, its validation, what observers get, the metrics endpoint, reports, statuses and the tables in docs are
derived from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints


@dataclass(frozen=True)
class Series:
    """A metric of Prometheus that is computed from a field of a record and has a name of its own.

    Attributes:
        name: without the prefix ``peer_`` and the ending ``_total``.
        kind: its type there.
        help: what it means, without a period; Markdown.
        value: from the field's value, which is not None: a number, or a number for each value of `label`.
        label: its one label and all values of that; "": none.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    value: Callable[[Any], Any]
    label: str = ""
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """What the vocabulary says of a counter, or of a field of a record: metadata in the ``Annotated`` type of an attribute.

    Attributes:
        help: what it means, without a period; Markdown.
        unit: of a number.
        observable: whether observers get it.
        prometheus: its type there, under its own name; "": it has no such metric.
        series: metrics that are computed from it.
        scope: of a counter. ``round``: each line counts what happened since the one before. ``run``: in totals only.
        by: which part counts, of a counter.
        name: filled in by `entries`.
    """

    help: str
    unit: str = ""
    observable: bool = False
    prometheus: Literal["", "counter", "gauge"] = ""
    series: tuple[Series, ...] = ()
    scope: Literal["round", "run"] = "round"
    by: Literal["engine", "wire"] = "engine"
    name: str = ""


def counter(
    help: str, unit: str, *, scope: Literal["round", "run"] = "round", by: Literal["engine", "wire"] = "engine"
) -> Entry:
    """Return the entry of a counter: exported, and observable if lines of rounds have it."""
    return Entry(help, unit, observable=scope == "round", prometheus="counter", scope=scope, by=by)


@cache
def entries(table: type) -> dict[str, Entry]:
    """Return the entries of a class by attribute name, in order; attributes without one are left out."""
    found = {}
    for name, hint in get_type_hints(table, include_extras=True).items():
        for about in getattr(hint, "__metadata__", ()):
            if isinstance(about, Entry):
                found[name] = replace(about, name=name)
    return found


@dataclass(slots=True)
class Totals:
    """What was counted, from 0; a name that is no counter is an AttributeError."""

    models_sent: Annotated[int, counter("models sent to neighbors and acknowledged by them", "models")] = 0
    models_folded: Annotated[int, counter("arrivals folded into a running average", "models")] = 0
    models_unused: Annotated[int, counter("arrivals that the algorithm did not use", "models")] = 0
    models_rejected: Annotated[int, counter("complete arrivals that failed screening", "models")] = 0
    models_adopted: Annotated[int, counter("models of neighbors adopted by a peer that caught up", "models")] = 0
    duplicates_dropped: Annotated[int, counter("arrivals dropped because they were folded before", "models")] = 0
    stale_dropped: Annotated[int, counter("arrivals dropped because they were too old", "models")] = 0
    payload_bytes_sent: Annotated[int, counter("bytes of model payload sent", "bytes")] = 0
    wire_bytes_sent: Annotated[
        int, counter("bytes sent, including framing and control messages", "bytes", by="wire")
    ] = 0
    control_messages_sent: Annotated[int, counter("messages sent, without models", "messages")] = 0
    selections_sent: Annotated[int, counter("messages *Select* sent", "messages")] = 0
    passes_sent: Annotated[int, counter("messages *Pass* sent", "messages")] = 0
    number_bytes_sent: Annotated[
        int, counter("bytes of numbers sent with selections, models, or in place of models", "bytes")
    ] = 0
    rounds_alone: Annotated[int, counter("rounds of an exchange in which no neighbor took part", "rounds")] = 0
    rounds_without_budget: Annotated[
        int, counter("rounds in which a peer did not train since they would pass `run.privacy.epsilon_max`", "rounds")
    ] = 0
    sums_lost: Annotated[
        int, counter("rounds in which a peer kept its own model, as its secure sum could not be opened", "rounds")
    ] = 0
    checkpoint_failures: Annotated[
        int, counter("checkpoints that could not be written", "checkpoints", scope="run")
    ] = 0

    def __getitem__(self, name: str) -> int:
        return int(getattr(self, name))

    def __setitem__(self, name: str, count: int) -> None:
        setattr(self, name, count)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield (name, count) of all counters."""
        return ((each.name, getattr(self, each.name)) for each in fields(self))

    def add(self, counts: Mapping[str, object], names: Iterable[str]) -> None:
        """Add what a line counts under these names; None counts nothing."""
        for name in names:
            if isinstance(count := counts.get(name), int):
                self[name] += count

    @classmethod
    def of(cls, line: Mapping[str, object]) -> Totals:
        """Return what a line of the history counts."""
        totals = cls()
        totals.add(line, COUNTERS)
        return totals

    def as_json(self) -> dict[str, int]:
        """Return the counters that are not 0."""
        return {name: count for name, count in self if count}


# in lines of `COUNTING` kinds
COUNTERS = tuple(name for name, each in entries(Totals).items() if each.scope == "round")
BY_ENGINE = tuple(name for name in COUNTERS if entries(Totals)[name].by == "engine")
COUNTING = frozenset({"round", "end", "leave"})  # kinds of lines of the history


class RecordCounts:
    """What was counted from record to record of the history.

    Args:
        totals: of all incarnations; only read.
    """

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._before = copy(totals)

    def since_last(self) -> dict[str, int]:
        """Return what was counted since the last call."""
        counted = {name: getattr(self._totals, name) - getattr(self._before, name) for name in BY_ENGINE}
        self._before = copy(self._totals)
        return counted
