"""All that a peer knows about one neighbor, and what is still to be sent to it. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from coordinator_free_bootstrap.errors import Refusal
from coordinator_free_bootstrap.seeds import uniform
from peer.core.backoff import backoff_s
from peer.core.liveness import LIVE, Liveness
from peer.core.messages import Control, ModelHeader, Numbers, Pass, Phase, Select, Statistics, SumMessage

RoundStep = tuple[int, int]  # (round, step)
Message = Control | ModelHeader
SELECTIONS_MAX = 64  # kept of one neighbor; a faster one (async pace) may send more


@dataclass
class Neighbor:
    """One neighbor.

    Attributes:
        incarnation: the highest one seen, also before a restart of this peer; lower ones are over for good. 0: none.
        connected: the handshake with this incarnation is complete, since this peer started.
        round_index: the neighbor's round; it only grows within one incarnation.
        proven_round: the highest round of a model of this neighbor that passed screening.
        is_straggler: a round was closed at its deadline without the neighbor, and it has not delivered in time since.
        returns_until: it left before the end of its run, perhaps to restart: rounds wait for it until this time.
    """

    id: int
    liveness: Liveness
    outbox: Outbox
    incarnation: int = 0
    connected: bool = False
    round_index: int = 0
    proven_round: int = -1
    phase: Phase = Phase.STARTING
    is_straggler: bool = False
    returns_until: float | None = None
    stalls: int = 0  # transfers of its models in the present step that stopped or were too slow
    misses: float = 0.0  # rounds that waited for it without a result, less a credit (`peer.core.lockstep`)
    waited_from: int = 0  # the first round that waits for it again
    unreachable: bool = False  # heard, but it has not answered since
    needs_file: bool = False  # it has an earlier graph file, under which this peer and it exchange nothing
    needs_file_until: float = 0.0  # without an answer: it may have stopped to change
    refusal: Refusal | None = None  # why one of us refused the other's last hello for good

    hello_at: float | None = 0.0  # when to send a hello; None: not needed, or in flight
    hello_sent_at: float = float("-inf")
    hello_failures: int = 0
    hello_in_flight: bool = False
    sent_at: float = float("-inf")  # when anything was last sent to this neighbor
    heartbeat_at: float = float("-inf")  # when a heartbeat was last sent to this neighbor
    heartbeat_in_flight: bool = False

    pull_at: float = 0.0  # no pull before this time; later after each failure
    pull_failures: int = 0

    selections: dict[int, Select] = field(default_factory=dict)  # by round
    passed: dict[RoundStep, Numbers] = field(default_factory=dict)  # the numbers of each pass
    totals: dict[RoundStep, int] = field(default_factory=dict)  # models that a step brings, as the first header says
    delivered: dict[RoundStep, set[int]] = field(default_factory=dict)  # indices that need not come (again)

    @property
    def is_reachable(self) -> bool:
        """Whether messages can be sent: it is live and the handshake is complete."""
        return self.connected and self.liveness.state in LIVE

    @property
    def was_lost(self) -> bool:
        """Whether it took part in the run, in this or an earlier incarnation of this peer, and is not live now."""
        return self.incarnation > 0 and not self.liveness.is_live

    def note_round(self, round_index: int) -> None:
        """Note the round of a message."""
        self.round_index = max(self.round_index, round_index)

    def note_restart(self, incarnation: int, round_index: int, round_step: RoundStep) -> None:
        """Begin a new incarnation, which sends step ``round_step`` again; what is folded of that step stays delivered."""
        self.incarnation, self.connected, self.round_index = incarnation, True, round_index
        done = self.delivered.get(round_step)
        self.delivered = {round_step: done} if done else {}
        self.totals = {round_step: total} if done and (total := self.totals.get(round_step)) is not None else {}
        self.selections, self.passed = {}, {}

    def note_model(self, round_index: int) -> None:
        """Note a model that passed screening."""
        self.proven_round = max(self.proven_round, round_index)

    def note_pull(self, complete: bool, now: float, pause_s: float) -> None:
        """Note the end of a pull; after failures in a row the next waits for ``pause_s``, doubled each time, up to 64 times."""
        self.pull_failures = 0 if complete else self.pull_failures + 1
        self.pull_at = now + pause_s * 2 ** min(self.pull_failures - 1, 6) if self.pull_failures else 0.0

    def note_select(self, select: Select) -> None:
        """Note a selection; the oldest one is dropped if there are too many."""
        self.selections[select.round_index] = select
        if len(self.selections) > SELECTIONS_MAX:
            del self.selections[min(self.selections)]

    def note_pass(self, message: Pass) -> None:
        """Note that a step brings no (more) models, and its numbers; an earlier incarnation may have begun to send some."""
        round_step = message.round_index, message.step
        self.totals.pop(round_step, None)
        self.passed[round_step] = message.numbers
        if len(self.passed) > SELECTIONS_MAX:
            del self.passed[min(self.passed)]

    def note_delivered(self, header: ModelHeader) -> None:
        """Note that a model need not come (again): it is folded, answered or refused for good."""
        round_step = (header.round_index, header.step)
        self.totals[round_step] = header.total
        self.delivered.setdefault(round_step, set()).add(header.index)

    def announced(self, round_step: RoundStep) -> bool:
        """Return whether the neighbor has said what a step brings, by a selection or a pass."""
        return round_step in self.passed or (round_step[1] == 0 and round_step[0] in self.selections)

    def forget_before(self, round_step: RoundStep, selections_from: int | None = None) -> None:
        """Drop what belongs to steps that are over; selections are kept from round ``selections_from`` on, where given."""
        for table in (self.totals, self.delivered):
            for key in [key for key in table if key < round_step]:
                del table[key]
        oldest = round_step if selections_from is None else min(round_step, (selections_from, 0))
        self.passed = {key: numbers for key, numbers in self.passed.items() if key >= oldest}
        self.selections = {r: s for r, s in self.selections.items() if (r, 0) >= oldest}

    def newest_selection(self, from_round: int = 0) -> Select | None:
        """Return the newest selection of a round from ``from_round`` on, one with numbers before one without."""
        known = [s for s in self.selections.values() if s.round_index >= from_round]
        return max(known, key=lambda s: (bool(s.numbers), s.round_index), default=None)

    def last_selection(self) -> Select | None:
        """Return the selection of the highest round."""
        return self.selections[max(self.selections)] if self.selections else None


class Outbox:
    """The messages still to be sent to one neighbor: one in flight, in order, retried until answered or obsolete.

    Messages of the last two rounds are kept after they were answered: a neighbor that died after our delivery and restarted in
    the same round gets them again. Delivery is at least once; the receiver folds exactly once.

    Args:
        peer_id: this peer; with ``neighbor`` it seeds the jitter of retries.
        neighbor: the receiver.
    """

    def __init__(self, peer_id: int, neighbor: int) -> None:
        self.in_flight: Message | None = None
        self._seed = (peer_id, neighbor)
        self._queue: deque[Message] = deque()
        self._kept: list[Message] = []  # of the last two rounds, answered or not
        self._oldest_round = 0  # snapshots of earlier rounds are freed
        self._failures = 0
        self._retry_at = 0.0
        self._checked_at = 0.0  # when the message in flight was sent, or last checked for a stall
        self._stalls = 0  # how often the message in flight was given up after a silence

    def post(self, message: Message) -> None:
        """Queue a message, and keep it in case the neighbor restarts.

        Statistics come first: a neighbor that waits for them reads no model. They are not kept, but made anew from what is known.
        What opens a sum comes first too, in order, and is not kept: a restarted neighbor has lost what it needs for it. It waits
        once, however often a neighbor asks for it.
        """
        if isinstance(message, SumMessage):
            if message not in (self.in_flight, *self._queue):
                ahead = sum(isinstance(each, SumMessage) for each in self._queue)
                self._queue.insert(ahead, message)
            return
        if isinstance(message, Statistics):
            self._queue.appendleft(message)
            return
        self._queue.append(message)
        self._kept.append(message)

    def supersede(self, before_round: int) -> None:
        """Async pace: drop what is still unsent of earlier rounds; a newer model replaces an older one."""
        self._queue = deque(m for m in self._queue if m.round_index >= before_round)

    def drop_before(self, round_index: int) -> None:
        """Drop everything of rounds whose snapshots are freed."""
        self._oldest_round = round_index
        self._queue = deque(m for m in self._queue if m.round_index >= round_index)
        self._kept = [m for m in self._kept if m.round_index >= round_index]

    def repost(self, from_round: int) -> None:
        """Queue again everything kept from a round on, for a neighbor's new incarnation."""
        statistics = [m for m in self._queue if isinstance(m, Statistics)]
        self._queue = deque([*statistics, *(m for m in self._kept if not _is_past(m, from_round))])
        self._failures, self._retry_at = 0, 0.0

    def clear(self) -> None:
        """Send nothing more to a neighbor that has left; the kept messages wait for its return."""
        self._queue.clear()

    def next(self, now: float, from_round: int) -> Message | None:
        """Return the next message to send and mark it as in flight; None if there is none or it must wait.

        ``from_round``: the neighbor's own round. It has closed earlier ones, so their messages are dropped, except those of the
        round before that it still answers: a selection, with the models that it has kept, and what opens a sum.
        """
        if self.in_flight is not None or now < self._retry_at:
            return None
        while self._queue and _is_past(self._queue[0], from_round):
            self._queue.popleft()
        self.in_flight = self._queue.popleft() if self._queue else None
        self._checked_at = now
        return self.in_flight

    def is_overdue(self, now: float, patience_s: float) -> bool:
        """Return whether the model in flight is unanswered for ``patience_s``, doubled after each stall; once in this time."""
        if not isinstance(self.in_flight, ModelHeader) or now < self._checked_at + patience_s * 2**self._stalls:
            return False
        self._checked_at = now
        return True

    def stalled(self, now: float) -> None:
        """Put the message in flight back to the front; the time until the next such step doubles."""
        self._stalls += 1
        self.failed(now)

    def answered(self) -> Message | None:
        """Take the message in flight as answered and return it."""
        message, self.in_flight, self._failures, self._retry_at, self._stalls = self.in_flight, None, 0, 0.0, 0
        return message

    def failed(self, now: float) -> None:
        """Put the message in flight back to the front; it is sent again after a pause."""
        if self.in_flight is not None and self.in_flight.round_index >= self._oldest_round:
            self._queue.appendleft(self.in_flight)
        self.in_flight = None
        self._failures += 1
        self._retry_at = now + backoff_s(self._failures, uniform(0, "retry", *self._seed, self._failures))

    def retry_now(self) -> None:
        """End the pause: the neighbor was just heard."""
        self._retry_at = 0.0

    def next_retry(self) -> float | None:
        """Return when the next message may be sent, if it waits for that."""
        return self._retry_at if self._queue and self.in_flight is None and self._retry_at > 0 else None

    def owes(self, round_step: RoundStep, from_round: int) -> bool:
        """Return whether a message of a step is still unanswered; ``from_round`` as in `next`: what is dropped is not owed.

        What opens a sum is not owed: its step waits for the answers that it needs.
        """
        in_flight = self.in_flight
        if in_flight is not None and not isinstance(in_flight, SumMessage) and _round_step(in_flight) == round_step:
            return True
        left = (m for m in self._queue if not isinstance(m, SumMessage) and not _is_past(m, from_round))
        return any(_round_step(m) == round_step for m in left)

    @property
    def has_statistics(self) -> bool:
        """Whether the numbers of sites are queued or in flight."""
        return isinstance(self.in_flight, Statistics) or any(isinstance(m, Statistics) for m in self._queue)

    def pending(self) -> int:
        """Return how many messages are queued or in flight."""
        return len(self._queue) + (self.in_flight is not None)


def _round_step(message: Message) -> RoundStep:
    return message.round_index, message.step


def _is_past(message: Message, from_round: int) -> bool:
    return message.round_index < from_round - isinstance(message, Select | SumMessage)
