"""Records that reports read, validated: a wrong record is a note, not a traceback. History lines: `peer.store.records`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coordinator_free_bootstrap.graph import ID_MAX
from coordinator_free_bootstrap.strict_json import printable
from coordinator_free_bootstrap.validation import sentences
from peer.core.counters import COUNTERS
from peer.store.records import (
    ENTRIES_MAX,
    KINDS,
    Line,
    PeerId,
    Small,
    Text,
    Time,
)
from peer.view.state.peer_status import PeerStatus

JsonRecord = dict[str, Any]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class TimelineLine(_Record):
    """One event of ``chaos.jsonl``."""

    time: Time
    do: Text
    undo: Text | None
    result: Text
    peers: list[PeerId] | None = None
    edges: list[tuple[PeerId, PeerId] | Annotated[list[PeerId], Field(min_length=2, max_length=2)]] | None = None


class ExitLine(_Record):
    """The end of a peer's process, in ``exits.jsonl``; -n: signal n ended it."""

    time: Time
    peer_id: PeerId
    exit_code: Annotated[int, Field(ge=-255, le=255)]


class StatusLine(_Record):
    """What a peer answered to an observer, in ``watch.jsonl``."""

    time: Time
    peer_id: PeerId
    status: PeerStatus


class SilentLine(_Record):
    """No usable answer to an observer."""

    time: Time
    peer_id: PeerId
    reason: Text


class GapLine(_Record):
    """Rounds, both included, that an observer did not get because the peer did not keep their records."""

    time: Time
    peer_id: PeerId
    from_round: Small
    to_round: Small


OBSERVED_LINES: dict[str, type[BaseModel]] = {"status": StatusLine, "silent": SilentLine, "gap": GapLine}


def problem_of(record: Any, model: type[BaseModel]) -> str:
    """Return the first wrong key of a record as a sentence, "" if there is none."""
    try:
        model.model_validate(record)
    except ValidationError as error:
        return printable(sentences(error, model, record)[0])
    return ""


def problem_of_line(line: JsonRecord) -> str:
    """Return the first wrong key of a history line as a sentence, "" if there is none."""
    kind = line.get("kind")
    problem = problem_of(line, KINDS.get(kind, Line) if isinstance(kind, str) else Line)
    for key in line.keys() & COUNTERS if not problem else ():
        value = line[key]
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63):
            return f"{key}: expected a count, got {printable(repr(value), 80)}"
    return problem or _problem_of_arrivals(line.get("folded") or ())


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


def compact(line: JsonRecord) -> JsonRecord:
    """Return a round line for memory: no empty lists, no counters that are 0, and of each folded arrival only the neighbor."""
    found = {key: value for key, value in line.items() if value or key not in _OMITTED}
    if rows := found.get("folded"):
        key = tuple(row[0] for row in rows)
        if len(_SENDERS) >= _SENDERS_MAX:
            _SENDERS.clear()
        found["folded"] = _SENDERS.setdefault(key, tuple((neighbor,) for neighbor in key))
    return found


_OMITTED = frozenset(COUNTERS) | {"missing", "rejected", "folded", "state"}


def kept(line: JsonRecord) -> JsonRecord:
    """Return a valid history line as it is kept in memory."""
    return compact(line) if line["kind"] == "round" else line
