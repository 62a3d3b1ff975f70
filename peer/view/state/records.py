"""Records that reports read, validated: a wrong record is a note, not a traceback. History lines: `peer.store.records`."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, Required, cast

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from coordinator_free_bootstrap.graph import ID_MAX
from coordinator_free_bootstrap.strict_json import printable
from coordinator_free_bootstrap.validation import sentences
from peer.core.counters import COUNTERS
from peer.store.records import (
    ENTRIES_MAX,
    KINDS,
    HistoryLine,
    LineOfLater,
    PeerId,
    PeerStatus,
    RoundLine,
    Small,
    Text,
    Time,
)


class FaultLine(TypedDict, total=False):
    """One fault, a line of ``chaos.jsonl``."""

    kind: Required[Literal["fault"]]
    time: Required[Time]
    do: Required[Text]
    text: str
    undo: Required[Text | None]
    result: Required[Text]
    peers: list[PeerId] | None
    edges: list[tuple[PeerId, PeerId] | Annotated[list[PeerId], Field(min_length=2, max_length=2)]] | None


class Exit(TypedDict):
    """The end of a peer's process; -n: signal n ended it."""

    kind: Literal["exit"]
    exit_code: Annotated[int, Field(ge=-255, le=255)]


class Answered(TypedDict):
    """What a peer answered to an observer."""

    kind: Literal["status"]
    status: PeerStatus


class Silent(TypedDict):
    """No usable answer to an observer."""

    kind: Literal["silent"]
    reason: Text


class Gap(TypedDict):
    """Rounds, both included, that an observer did not get because the peer did not keep their records."""

    kind: Literal["gap"]
    from_round: Small
    to_round: Small


class _Noted(TypedDict):
    time: Time
    peer_id: PeerId


class ExitLine(Exit, _Noted):
    """A line of ``exits.jsonl``."""


class StatusLine(Answered, _Noted):
    """A line of ``watch.jsonl``."""


class SilentLine(Silent, _Noted):
    """A line of ``watch.jsonl``."""


class GapLine(Gap, _Noted):
    """A line of ``watch.jsonl``."""


OBSERVED_LINES: dict[str, type] = {"status": StatusLine, "silent": SilentLine, "gap": GapLine}


@cache
def _check(record: type) -> TypeAdapter[object]:
    return TypeAdapter(record)


def problem_of(value: object, record: type) -> str:
    """Return the first wrong key of a JSON value that should be a record of this type as a sentence, "" if there is none."""
    try:
        _check(record).validate_python(value, strict=True)
    except ValidationError as error:
        return printable(sentences(error, None, value)[0])
    return ""


def problem_of_line(line: dict[str, Any]) -> str:
    """Return the first wrong key of a history line as a sentence, "" if there is none."""
    kind = line.get("kind")
    problem = problem_of(line, KINDS.get(kind, LineOfLater) if isinstance(kind, str) else LineOfLater)
    for key in line.keys() & COUNTERS if not problem else ():
        value = line[key]
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63):
            return f"{key}: expected a count, got {printable(repr(value), 80)}"
    return problem or _problem_of_arrivals(line.get("folded") or ())


def problem_of_observed(line: dict[str, Any]) -> str:
    """Return what is wrong with a line of ``watch.jsonl`` as a sentence, "" if it is valid."""
    kind = line.get("kind")
    model = OBSERVED_LINES.get(kind) if isinstance(kind, str) else None
    if model is None:
        return f"kind: expected one of {', '.join(OBSERVED_LINES)}, got {printable(repr(kind), 80)}"
    return problem_of(line, model)


def _problem_of_arrivals(rows: Any) -> str:
    """Return a sentence if the folded arrivals are not lists that begin with a peer id; by hand, as a history has many."""
    if isinstance(rows, list | tuple) and len(rows) <= ENTRIES_MAX:
        for row in rows:
            if not isinstance(row, list | tuple) or not row or type(row[0]) is not int or not 0 <= row[0] <= ID_MAX:
                break
        else:
            return ""
    return f"folded: expected a list of [neighbor, incarnation, round, step, slot], got {printable(repr(rows), 80)}"


_SENDERS: dict[tuple[int, ...], tuple[tuple[int], ...]] = {}  # one tuple for all rounds with the same neighbors
_SENDERS_MAX = 100_000


def compact(line: RoundLine) -> RoundLine:
    """Return a round line for memory: no empty lists, no counters that are 0, and of each folded arrival only the neighbor."""
    found = cast(RoundLine, {key: value for key, value in line.items() if value or key not in _OMITTED})
    if rows := found.get("folded"):
        key = tuple(row[0] for row in rows)
        if len(_SENDERS) >= _SENDERS_MAX:
            _SENDERS.clear()
        found["folded"] = _SENDERS.setdefault(key, tuple((neighbor,) for neighbor in key))
    return found


_OMITTED = frozenset(COUNTERS) | {"missing", "rejected", "folded", "state"}


def kept(line: HistoryLine) -> HistoryLine:
    """Return a valid history line as it is kept in memory."""
    return compact(line) if line["kind"] == "round" else line
