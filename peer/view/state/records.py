"""Records that reports read (history lines, summaries, fault timelines), validated: a wrong record is a note, not a traceback."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from coordinator_free_bootstrap.graph import ID_MAX
from coordinator_free_bootstrap.strict_json import printable
from coordinator_free_bootstrap.validation import sentences
from peer.core.metric import MORE_METRICS_MAX, plain_keys
from peer.store.history import COUNTERS
from peer.view.state.peer_status import ENTRIES_MAX, Count, MetricRecord, Number, PeerId, PeerStatus, Word

Record = dict[str, Any]
Text = Annotated[str, Field(max_length=4096)]
CLUSTERS_MAX = 4096
PROBLEMS_MAX = 3  # per file; the others are counted
CenterScores = Annotated[  # [center][true cluster]: sum of the test samples' scores, and their number
    list[Annotated[list[Annotated[list[Number], Field(min_length=2, max_length=2)]], Field(min_length=1)]],
    Field(min_length=1, max_length=CLUSTERS_MAX),
]
Metrics = Annotated[dict[Text, Number | None], Field(max_length=MORE_METRICS_MAX)]
Weights = Annotated[list[Number], Field(min_length=1, max_length=CLUSTERS_MAX)]


def _iso(text: str) -> str:
    try:
        datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"found {printable(text, 40)}; allowed: a time in ISO 8601") from error
    return text


def _rectangle(rows: list[list[int]]) -> list[list[int]]:
    if len({len(row) for row in rows}) != 1 or not rows[0] or not any(map(sum, rows)):
        raise ValueError("found rows of different lengths or no samples; allowed: a table of counts")
    return rows


Time = Annotated[str, AfterValidator(_iso)]
Small = Annotated[int, Field(ge=0, le=2**53)]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class Line(_Record):
    """A history line of any kind."""

    kind: Text
    t: Number | None = None
    time: Time | None = None
    incarnation: Count | None = None


class StartLine(Line):
    """The first line of an incarnation."""

    peer_id: PeerId | None = None
    true_cluster: Count | None = None
    digests: dict[str, Text] | None = None
    metric: MetricRecord | None = None
    more_metrics: Annotated[list[MetricRecord], Field(max_length=MORE_METRICS_MAX)] | None = None


class AlgorithmState(_Record):
    """The parts of an algorithm's state that reports compute with."""

    candidates: Annotated[list[PeerId], Field(max_length=ENTRIES_MAX)] | None = None
    collaborators: Annotated[list[PeerId], Field(max_length=ENTRIES_MAX)] | None = None
    mixture: Weights | None = None
    soft_mixture: Weights | None = None
    center_scores: CenterScores | None = None
    class_explains: Number | None = None
    confusion: (
        Annotated[
            list[Annotated[list[Small], Field(max_length=CLUSTERS_MAX)]],
            Field(min_length=1, max_length=CLUSTERS_MAX),
            AfterValidator(_rectangle),
        ]
        | None
    ) = None


class _ResultLine(Line):
    accuracy: Number | None = None
    metric_value: Number | None = None
    accuracy_shared: Number | None = None
    metric_shared: Number | None = None
    accuracy_train: Number | None = None
    metric_train: Number | None = None
    loss: Number | None = None
    metrics: Metrics | None = None
    cluster_index: Count | None = None
    state: AlgorithmState | None = None


class RoundLine(_ResultLine):
    """One completed round."""

    round_index: Annotated[int, Field(ge=0, le=2**31)]
    neighbors_alive: Count | None = None
    restores: Count | None = None
    seconds: dict[str, Number | None] | None = None
    missing: Annotated[list[PeerId], Field(max_length=ENTRIES_MAX)] | None = None


class EndLine(_ResultLine):
    """The end of a run."""

    rounds_completed: Count | None = None
    accuracy_before_final: Number | None = None
    accuracy_after_final: Number | None = None
    metric_before_final: Number | None = None
    metric_after_final: Number | None = None
    final_share: Number | None = None


class NeighborLine(Line):
    """A change of a neighbor's state."""

    neighbor: PeerId
    state: Word


class RefusedLine(Line):
    """A refused message."""

    neighbor: PeerId | None = None
    code: Word


class Summary(_Record):
    """``summary.json``."""

    peer_id: PeerId | None = None
    status: Word | None = None
    exit_code: Small | None = None
    incarnation: Count | None = None
    rounds_completed: Count | None = None
    algorithm: Text | None = None
    cluster_index: Count | None = None
    true_cluster: Count | None = None
    metric: MetricRecord | None = None
    accuracy: Number | None = None
    loss: Number | None = None
    metrics: Metrics | None = None
    totals: dict[str, Count] | None = None
    refusals: dict[Word, Count] | None = None
    digests: dict[str, Text] | None = None
    ended_at: Time | None = None


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
_KINDS: dict[str, type[Line]] = {
    "start": StartLine,
    "round": RoundLine,
    "end": EndLine,
    "leave": EndLine,
    "neighbor": NeighborLine,
    "refused": RefusedLine,
}


def problem_of(record: Any, model: type[BaseModel]) -> str:
    """Return the first wrong key of a record as a sentence, "" if there is none."""
    try:
        model.model_validate(record)
    except ValidationError as error:
        return printable(sentences(error, model, record)[0])
    return ""


def problem_of_line(line: Record) -> str:
    """Return the first wrong key of a history line as a sentence, "" if there is none."""
    kind = line.get("kind")
    problem = problem_of(line, _KINDS.get(kind, Line) if isinstance(kind, str) else Line)
    for key in COUNTERS & line.keys() if not problem else ():
        value = line[key]
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63):
            return f"{key}: found {printable(repr(value), 80)}; allowed: a count"
    return problem or _problem_of_arrivals(line.get("folded") or ())


def _problem_of_arrivals(rows: Any) -> str:
    """Return a sentence if the folded arrivals are not lists that begin with a peer id; by hand, as a history has many."""
    if isinstance(rows, list | tuple) and len(rows) <= ENTRIES_MAX:
        for row in rows:
            if not isinstance(row, list | tuple) or not row or type(row[0]) is not int or not 0 <= row[0] <= ID_MAX:
                break
        else:
            return ""
    return f"folded: found {printable(repr(rows), 80)}; allowed: a list of [neighbor, incarnation, round, step, slot]"


_SENDERS: dict[tuple[int, ...], tuple[tuple[int], ...]] = {}  # one tuple for all rounds with the same neighbors
_SENDERS_MAX = 100_000


def compact(line: Record) -> Record:
    """Return a round line for memory: no empty lists, no counters that are 0, and of each folded arrival only the neighbor."""
    found = {key: value for key, value in line.items() if value or key not in _OMITTED}
    if rows := found.get("folded"):
        key = tuple(row[0] for row in rows)
        if len(_SENDERS) >= _SENDERS_MAX:
            _SENDERS.clear()
        found["folded"] = _SENDERS.setdefault(key, tuple((neighbor,) for neighbor in key))
    return found


_OMITTED = COUNTERS | {"missing", "rejected", "folded", "state"}


def usable(name: str, lines: Iterable[Record], problems: list[str]) -> list[Record]:
    """Return the lines of a history file that are valid; a sentence for each of the first others is added to `problems`."""
    found, wrong = [], 0
    for line in lines:
        problem = problem_of_line(line)
        if not problem:
            plain = plain_keys(line)
            found.append(compact(plain) if plain["kind"] == "round" else plain)
            continue
        wrong += 1
        if wrong <= PROBLEMS_MAX:
            problems.append(f"{name}: a line is not used: {problem}")
    if wrong > PROBLEMS_MAX:
        problems.append(f"{name}: {wrong - PROBLEMS_MAX} more lines are not used")
    return found
