"""The state of one peer: the fold of its events. Reports, `peer status`, progress, the page and replay read this state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from typing import cast

from peer.core.counters import COUNTERS, COUNTING, Totals
from peer.core.metric import MetricRecord
from peer.store.records import (
    PHASES,
    CheckpointLine,
    EndLine,
    Latest,
    PeerStatus,
    RefusedLine,
    RoundLine,
    StartLine,
    Summary,
)
from peer.view.state.events import EventData, LoggedEvent

PACE_WEIGHT = 0.2  # of the newest round in the running mean of seconds per round
BETWEEN = ("running", "dead", "silent")  # states in which end line and summary are those of an earlier incarnation


@dataclass(slots=True)
class PeerState:
    """What is known of a peer after some of its events.

    Attributes:
        position: number of events of the run until this peer's last one; 0 if it has none.
        at: time of its last event, Unix seconds; `said_at`: of the last one that it wrote or answered itself.
        start, evaluated, round, end: its last line of that kind; `evaluated` is the last round with a value of the metric.
        phase: kind of the last line that starts or ends an incarnation: start, leave, end or "".
        held: whether a process has its state directory; None if that cannot be known.
        rounds: number of round lines, with repeated ones.
        pace_s: seconds per round, running mean.
        totals: counters, summed over all lines.
        seconds: seconds by phase of a round, over all rounds.
        neighbors: state of each neighbor, as this peer's history says.
        folded: models folded, by neighbor.
        missing: rounds that closed without a model of a neighbor.
        refused: refused messages by code, of the history lines; `refused_at`: time of the last of each, Unix seconds.
        answer: the last status that it gave to an observer, None without one; `answer_position`: `position` then.
        exited: exit code of the process of its last incarnation, as a testbed saw it; -n: ended by signal n.
        silent: why it last gave none; "" if it answered since.
    """

    peer_id: int
    position: int = 0
    at: float = 0.0
    said_at: float = 0.0
    lines: int = 0
    start: StartLine | None = None
    evaluated: RoundLine | None = None
    round: RoundLine | None = None
    end: EndLine | None = None
    summary: Summary = field(default_factory=Summary)
    phase: str = ""
    held: bool | None = None
    rounds: int = 0
    round_at: float = 0.0
    round_position: int = 0
    pace_s: float | None = None
    totals: Totals = field(default_factory=Totals)
    seconds: dict[str, float] = field(default_factory=dict)
    incarnations: tuple[int | None, ...] = ()
    neighbors: dict[int, str] = field(default_factory=dict)
    folded: dict[int, int] = field(default_factory=dict)
    missing: frozenset[int] = frozenset()
    met_neighbor: bool = False
    refused: dict[str, int] = field(default_factory=dict)
    refused_at: dict[str, float] = field(default_factory=dict)
    refusal: RefusedLine | None = None
    checkpoint: CheckpointLine | None = None
    answer: PeerStatus | None = None
    answer_position: int = 0
    silent: str = ""
    gaps: tuple[tuple[int, int], ...] = ()
    exited: int | None = None
    _last: Latest | None = field(default=None, compare=False, repr=False)

    def copy(self) -> PeerState:
        """Return a state that later events of this one do not change."""
        other = PeerState(self.peer_id)
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(other, name, copy(value) if name in _CHANGED_IN_PLACE else value)
        return other

    # ---- the fold -------------------------------------------------------------------------------------------------------

    def apply(self, event: LoggedEvent, position: int) -> None:
        """Take one event; `position` is its number in the run, from 1."""
        self.position, self.at, self._last = position, event.at, None
        data = event.data
        if data["kind"] == "lost":
            self._forget(event.at)
            return
        if data["kind"] not in _ABOUT_IT:
            self.said_at = event.at
        if data["kind"] in _OTHERS:
            self._take_other(data)
        else:
            self.lines += 1
            self._take_line(data, event.at)

    def _take_line(self, data: EventData, at: float) -> None:
        """Take a line of its history."""
        if data["kind"] in COUNTING:
            self.totals.add(data, COUNTERS)
        match data["kind"]:
            case "round":
                self._take_round(data, at)
            case "start":
                self.start, self.phase = data, "start"
                if data.get("incarnation") not in self.incarnations:
                    self.incarnations += (data.get("incarnation"),)
                self.round_at, self.neighbors, self.exited = at, {}, None
            case "end":
                self.end, self.phase = data, "end"
            case "leave":
                self.phase = "leave"
            case "neighbor":
                self.neighbors[data["neighbor"]] = data["state"]
                self.met_neighbor |= data["state"] == "alive"
            case "refused":
                self.refused[data["code"]] = self.refused.get(data["code"], 0) + 1
                self.refused_at[data["code"]] = at
                self.refusal = data
            case "checkpoint":
                self.checkpoint = data

    def _take_other(self, data: EventData) -> None:
        """Take what its history does not say."""
        match data["kind"]:
            case "status":
                self._take_status(data["status"])
            case "silent":
                self.silent = data["reason"]
            case "summary":
                self.summary = data["summary"]
            case "process":
                self.held = data["held"]
            case "gap":
                self.gaps += ((data["from_round"], data["to_round"]),)
            case "exit":
                self.exited = data["exit_code"]

    def _forget(self, at: float) -> None:
        """Begin anew: the peer lost its disk."""
        anew = PeerState(self.peer_id, self.position, at, at, summary=self.summary, held=self.held)
        for name in self.__slots__:
            setattr(self, name, getattr(anew, name))

    def _take_round(self, line: RoundLine, at: float) -> None:
        self.round = line
        if line.get("metric_value") is not None:
            self.evaluated = line
        self.rounds += 1
        if self.round_at:
            spent = max(0.0, at - self.round_at)
            self.pace_s = spent if self.pace_s is None else self.pace_s + PACE_WEIGHT * (spent - self.pace_s)
        self.round_at, self.round_position = at, self.position
        for phase, seconds in (line.get("seconds") or {}).items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + (seconds or 0.0)
        for arrival in line.get("folded") or ():
            self.folded[arrival[0]] = self.folded.get(arrival[0], 0) + 1
        index = line["round_index"]
        if line.get("missing"):
            self.missing |= {index}
        elif index in self.missing:  # repeated, and complete now
            self.missing -= {index}
        self.met_neighbor |= bool(line.get("neighbors_alive"))

    def _take_status(self, said: PeerStatus) -> None:
        self.answer, self.answer_position, self.silent = said, self.position, ""
        self.neighbors |= {int(neighbor): state for neighbor, state in said["neighbors"].items() if state != "unknown"}

    # ---- what follows from it -------------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """``missing``, ``running``, ``dead``, ``silent``, ``left``, ``completed``, or as the summary says: ``diverged``, ...

        ``dead``: no process, and no end line. ``failed``: also a process that ended with an error before its first line.
        ``silent``: an observer gets no answer, and no file says whether the process runs.
        """
        said = self.summary.get("status")
        started = self.start.get("incarnation") if self.start else None
        ended = said and self.summary.get("incarnation") == started
        if said and ended and self.phase == "start":
            return said
        if self.silent and self.held is None and self.phase not in ("end", "leave"):
            return "silent"
        if not self.lines:
            return "running" if self._runs else said or self._without_history
        if self.phase in (
            "end",
            "leave",
        ):  # before this incarnation has written its summary there may be an earlier one's
            earlier = not ended and "incarnation" in self.summary
            return {"end": "completed", "leave": "left"}[self.phase] if earlier or not said else said
        return "running" if self._runs else "dead"

    @property
    def _without_history(self) -> str:
        """How a peer ended that has never written a line."""
        if not self.exited:
            return "missing"
        return "failed" if self.exited > 0 else "dead"

    @property
    def _runs(self) -> bool:
        """Whether its process runs: it has its lock, or it answered an observer and was not silent since."""
        return bool(self.held) if self.held is not None else bool(self.answer) and not self.silent

    @property
    def exit_code(self) -> int | None:
        """The exit code of a process that has ended, -n if signal n ended it; None if it runs or its end was not observed."""
        status = self.status
        if status == "running":
            return None
        if self.exited is not None or status in BETWEEN:
            return self.exited
        return self.summary.get("exit_code")

    @property
    def last(self) -> Latest:
        """The latest value of each field: from the summary, else the end line, the rounds, the start line; to read only.

        End line and summary count only if no later incarnation runs.
        """
        if self._last is None:
            found: dict[str, object] = {}
            ended = () if self.status in BETWEEN else (self.end, self._measured, self.summary)
            for source in (self.start, self.evaluated, self.round, self._answered, *ended):
                found.update({key: value for key, value in (source or {}).items() if value is not None})
            if self.has_no_final_value:
                del found["metric_value"]
            self._last = cast(Latest, found)
        return self._last

    @property
    def has_no_final_value(self) -> bool:
        """Whether the metric was not defined after the last round, which is always evaluated, but after an earlier one."""
        after = (self.round, self.end, self._measured)
        undefined = self.evaluated is not None and not any(
            line is not None and line.get("metric_value") is not None for line in after
        )
        return undefined and self.status == "completed"

    @property
    def answered(self) -> bool:
        """Whether an answer to an observer is newer than its last round line, and it was not silent since."""
        return self.present_answer is not None

    @property
    def present_answer(self) -> PeerStatus | None:
        """Its answer, if that is newer than its last round line, and it was not silent since."""
        return self.answer if not self.silent and self.answer_position > self.round_position else None

    @property
    def _answered(self) -> Latest:
        """What a newer answer says, under the names of lines."""
        said = self.present_answer
        if said is None:
            return {}
        return {
            "metric_value": said["metric"].get("value"),
            "metrics": values_in(said.get("more_metrics", ())) or None,
            "rounds_completed": said["round_index"],
            "cluster_index": said["cluster_index"],
            "true_cluster": said.get("true_cluster"),
        }

    @property
    def _measured(self) -> Latest:
        """The value of the metric in the summary, under its name in the program."""
        metric = self.summary.get("metric")
        return {"metric_value": metric.get("value") if metric else None}

    @property
    def rounds_completed(self) -> int:
        """Completed rounds, including rounds skipped by catching up."""
        last = self.last
        completed = last.get("rounds_completed")
        return completed if completed is not None else last.get("round_index", -1) + 1

    @property
    def refusals(self) -> dict[str, int]:
        """Refused messages by code: from the summary, else from the history, which has a few lines a minute of each kind."""
        in_summary = self.summary.get("refusals") if self.status not in BETWEEN else None
        return dict(in_summary or self.refused)

    def phase_seconds(self) -> dict[str, float]:
        """Return seconds by phase, over all rounds and incarnations."""
        return {phase: float(self.seconds.get(phase, 0.0)) for phase in PHASES}


_CHANGED_IN_PLACE = frozenset({"totals", "seconds", "neighbors", "folded", "refused", "refused_at"})
_OTHERS = frozenset(
    {"status", "silent", "summary", "process", "gap", "exit"}
)  # kinds of events that are no line of its history
_ABOUT_IT = frozenset({"process", "silent", "gap", "exit"})  # kinds of events that a peer has not said itself


def values_in(metrics: Iterable[MetricRecord]) -> dict[str, float | None]:
    """Return the values of metrics by name."""
    return {metric["name"]: metric.get("value") for metric in metrics}


def ending(status: str, exit_code: int | None) -> str:
    """Return a status with how its process ended, if not well: ``dead, signal 9``, ``failed, exit code 12``."""
    if not exit_code:
        return status
    return f"{status}, signal {-exit_code}" if exit_code < 0 else f"{status}, exit code {exit_code}"


def run_state(peers: Iterable[PeerState], rounds: int | None) -> str:
    """Return the state of a whole run.

    ``running``: a peer runs. ``diverged``: a peer's models are not finite. ``complete``: every peer has completed all rounds.
    ``alone``: the same, but one was without neighbors in most of them. ``stopped``: every peer was asked to leave before that.
    ``incomplete``: anything else, such as a peer that was killed or failed, has never started, was refused, or left while others
    completed the run.

    Args:
        peers: their states.
        rounds: of the manifest; None if it is not known.
    """
    peers = list(peers)
    statuses = {peer.status for peer in peers}
    for found in ("running", "diverged"):
        if found in statuses:
            return found
    if statuses == {"left"}:
        return "stopped"
    all_rounds = rounds is None or all(peer.rounds_completed >= rounds for peer in peers)
    if not statuses <= {"completed", "alone"} or not all_rounds:
        return "incomplete"
    return "alone" if "alone" in statuses else "complete"


def states(peers: dict[int, PeerState]) -> Counter[str]:
    """Return the number of peers in each status."""
    return Counter(peer.status for peer in peers.values())


def totals_of(peers: Iterable[PeerState]) -> Totals:
    """Return the sums of the peers' counters."""
    found = Totals()
    for peer in peers:
        found.add(peer.totals.as_json(), COUNTERS)
    return found
