"""One reducer: events of a run -> its state at a cursor. Live is the newest cursor, replay any other. Pure, no files.

`reduce` is the definition: the state at cursor n is the fold of the first n events. `EventLog` gives the same states without
folding from the start: each peer has its own track of events with a copied state every `STRIDE` of them, so that any cursor costs
at most `STRIDE` events a peer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from peer.store.records import RoundLine
from peer.view.state.events import LoggedEvent
from peer.view.state.peer_state import PeerState

STRIDE = 16
# Kinds of events that a timeline shows; lines of each round are no news, except a checkpoint that failed.
_NEWS = frozenset(
    {"start", "neighbor", "refused", "caught_up", "leave", "end", "lost", "fault", "gap", "silent", "exit"}
)


@dataclass(frozen=True)
class RunState:
    """The state of a run after its first `cursor` events.

    Attributes:
        at: time of the latest event, Unix seconds; 0 without events.
        peers: state of each peer with events, and of each peer of the graph.
        news: (position, event) of what a timeline shows, in order.
    """

    cursor: int = 0
    at: float = 0.0
    peers: dict[int, PeerState] = field(default_factory=dict)
    news: tuple[tuple[int, LoggedEvent], ...] = ()


def reduce(state: RunState, event: LoggedEvent) -> RunState:
    """Return the state after one more event; the given state does not change."""
    cursor, peers = state.cursor + 1, state.peers
    if event.peer is not None:
        peer = peers[event.peer].copy() if event.peer in peers else PeerState(event.peer)
        peer.apply(event, cursor)
        peers = {**peers, event.peer: peer}
    news = (*state.news, (cursor, event)) if is_news(event) else state.news
    return RunState(cursor, max(state.at, event.at), peers, news)


def is_news(event: LoggedEvent) -> bool:
    """Return whether a timeline shows an event."""
    data = event.data
    if data["kind"] == "exit":
        return bool(data["exit_code"])
    if data["kind"] == "checkpoint":
        return bool(data.get("error"))
    return data["kind"] in _NEWS


@dataclass(frozen=True, slots=True)
class RoundCell:
    """What a picture of all rounds shows of one (peer, round): its last line.

    Attributes:
        position: of the line in the run.
        at: when, Unix seconds; `seconds`: since the peer opened its history.
        payload_bytes: that the peer had sent until then.
        line: the line itself.
    """

    position: int
    at: float
    seconds: float
    metric: float | None
    cluster: int | None
    payload_bytes: int
    line: RoundLine


class _Track:
    """The events of one peer, and its state at any of them."""

    def __init__(self, peer_id: int) -> None:
        self.events: list[LoggedEvent] = []
        self.positions: list[int] = []
        self.newest = PeerState(peer_id)
        self._copies = [self.newest.copy()]  # before event 0, STRIDE, 2 * STRIDE, ...

    def append(self, event: LoggedEvent, position: int) -> None:
        self.events.append(event)
        self.positions.append(position)
        self.newest.apply(event, position)
        if len(self.events) % STRIDE == 0:
            self._copies.append(self.newest.copy())

    def state(self, count: int) -> PeerState:
        """Return a copy of the state after the first ``count`` events of this peer."""
        if count >= len(self.events):
            return self.newest.copy()
        state = self._copies[count // STRIDE].copy()
        for index in range(count - count % STRIDE, count):
            state.apply(self.events[index], self.positions[index])
        return state

    def after_round(self, round_index: int) -> int:
        """Return the number of events until the last line of a round, else until the first line of a later one."""
        after = len(self.events)
        for index, event in enumerate(self.events):
            if event.data["kind"] == "round":
                this = event.data["round_index"]
                if this == round_index:
                    after = index + 1
                elif this > round_index and after == len(self.events):
                    after = index
        return after


class EventLog:
    """All events of a run in the order of arrival, and the state at any cursor.

    Args:
        ids: peers that are known without any event, as those of a graph file.

    Attributes:
        problems: what of the run's files could not be read, so that it has no events, as sentences.
    """

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self.cursor = 0
        self.at = self.began = 0.0  # times of the latest and of the earliest event
        self.news: list[tuple[int, LoggedEvent]] = []
        self.problems: list[str] = []
        self.rounds: dict[int, dict[int, RoundCell]] = {}  # round_index -> peer id -> its last line of the round
        self._newest_of_round: dict[int, int] = {}
        self._times: list[float] = [0.0]  # latest time after the first n events
        self._tracks = {peer_id: _Track(peer_id) for peer_id in ids}

    def append(self, events: Iterable[LoggedEvent]) -> None:
        """Add events at the end."""
        for event in events:
            self.cursor += 1
            self.began = min(self.began or event.at, event.at or self.began)
            self.at = max(self.at, event.at)
            self._times.append(self.at)
            if event.peer is not None:
                track = self._tracks.get(event.peer)
                if track is None:
                    track = self._tracks[event.peer] = _Track(event.peer)
                track.append(event, self.cursor)
                if event.data["kind"] == "round":
                    self._add_cell(track.newest, event.at, event.data)
            if is_news(event):
                self.news.append((self.cursor, event))

    def _add_cell(self, peer: PeerState, at: float, line: RoundLine) -> None:
        index = line["round_index"]
        self.rounds.setdefault(index, {})[peer.peer_id] = RoundCell(
            self.cursor, at, line.get("t") or 0.0, line.get("metric_value"), line.get("cluster_index"),
            peer.totals.payload_bytes_sent, line,
        )  # fmt: skip
        self._newest_of_round[index] = self.cursor

    def changed_rounds(self, since: int) -> list[int]:
        """Return the rounds with a line after a cursor."""
        return [index for index, cursor in self._newest_of_round.items() if cursor > since]

    def newest(self, peer_id: int) -> PeerState:
        """Return the newest state of one peer; read only, the next events change it."""
        return self._tracks[peer_id].newest

    @property
    def peers(self) -> dict[int, PeerState]:
        """The newest state of each peer, by id; read only, the next events change it."""
        return {peer_id: track.newest for peer_id, track in sorted(self._tracks.items())}

    def events(self, peer_id: int, until: int | None = None) -> list[LoggedEvent]:
        """Return the events of one peer, up to a cursor."""
        track = self._tracks[peer_id]
        return track.events[: len(track.events) if until is None else bisect_right(track.positions, until)]

    def state(self, cursor: int | None = None) -> RunState:
        """Return the state after the first ``cursor`` events; None: after all of them."""
        cursor = self.cursor if cursor is None else max(0, min(cursor, self.cursor))
        peers = {
            peer_id: track.state(bisect_right(track.positions, cursor))
            for peer_id, track in sorted(self._tracks.items())
        }
        return RunState(cursor, self._times[cursor], peers, self._news(cursor))

    def at_round(self, round_index: int) -> RunState:
        """Return the state in which each peer has just completed a round: its last line of that round is its last event.

        A peer that skipped the round stands before its next one, a peer that never came so far at its end. The cursor is that of
        the last of these events.
        """
        peers = {
            peer_id: track.state(track.after_round(round_index)) for peer_id, track in sorted(self._tracks.items())
        }
        cursor = max((peer.position for peer in peers.values()), default=0)
        return RunState(cursor, self._times[cursor], peers, self._news(cursor))

    def cursor_at(self, seconds: float) -> int:
        """Return the cursor at a time: the number of events until then."""
        return bisect_right(self._times, seconds) - 1

    def _news(self, cursor: int) -> tuple[tuple[int, LoggedEvent], ...]:
        return tuple(self.news[: bisect_right(self.news, cursor, key=lambda item: item[0])])
