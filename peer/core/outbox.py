"""What still has to be said to each neighbor: one message in flight each, in order, retried until answered or obsolete.

The messages of the last two rounds are kept after they were answered: a neighbor that died after our delivery and came
back in the same round gets them again. Delivery is at least once; the receiver folds exactly once. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from coordinator_free_bootstrap.seeds import uniform
from peer.core.messages import Announce, ModelHeader
from peer.core.neighbors import Place

Message = Announce | ModelHeader

RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0


def backoff_s(failures: int, jitter: float, longest_s: float = RETRY_MAX_S) -> float:
    """Return the pause after ``failures`` >= 1 in a row: doubling, capped, and spread by ``jitter`` in [0, 1)."""
    return float(min(longest_s, RETRY_FIRST_S * 2 ** min(failures - 1, 16)) * (0.5 + jitter))


@dataclass
class _Lane:
    queue: deque[Message] = field(default_factory=deque)
    in_flight: Message | None = None
    failures: int = 0
    retry_at: float = 0.0
    asked_at: float = 0.0  # when the message in flight was sent, or its sending last looked into
    asks: int = 0
    kept: list[Message] = field(default_factory=list)  # of the last two rounds, answered or not


def _is_past(message: Message, from_round: int) -> bool:
    selection = isinstance(message, Announce) and message.total < 0
    return message.round_index < from_round - selection


class Outbox:
    """The queues of one peer, one lane a neighbor."""

    def __init__(self, neighbors: tuple[int, ...], peer_id: int) -> None:
        self._lanes = {neighbor: _Lane() for neighbor in neighbors}
        self._peer_id = peer_id
        self._oldest_round = 0  # of earlier ones the snapshots are gone

    def post(self, neighbor: int, message: Message) -> None:
        """Queue a message and keep it for a neighbor that comes back."""
        lane = self._lanes[neighbor]
        lane.queue.append(message)
        lane.kept.append(message)

    def supersede(self, neighbor: int, before_round: int) -> None:
        """Async pace: drop what is still unsent of earlier rounds; a newer model says more than an older one."""
        lane = self._lanes[neighbor]
        lane.queue = deque(m for m in lane.queue if m.round_index >= before_round)

    def forget(self, before_round: int) -> None:
        """Drop everything of rounds that no neighbor can ask for again."""
        self._oldest_round = before_round
        for lane in self._lanes.values():
            lane.queue = deque(m for m in lane.queue if m.round_index >= before_round)
            lane.kept = [m for m in lane.kept if m.round_index >= before_round]

    def repost(self, neighbor: int, from_round: int) -> int:
        """Queue again everything kept from a round on, for a neighbor's new life; return how many messages."""
        lane = self._lanes[neighbor]
        lane.queue = deque(m for m in lane.kept if not _is_past(m, from_round))
        lane.failures, lane.retry_at = 0, 0.0
        return len(lane.queue)

    def clear(self, neighbor: int) -> None:
        """Say nothing more to a neighbor that has left; what is kept of the last two rounds is for its return."""
        self._lanes[neighbor].queue.clear()

    def next(self, neighbor: int, now: float, from_round: int) -> Message | None:
        """Return the next message to send and mark it as in flight; None if there is none or it must wait.

        ``from_round``: the neighbor's own round; it has closed earlier ones, so what belongs to them is dropped, but for the
        selection of the one before, which it still answers with what it has kept.
        """
        lane = self._lanes[neighbor]
        if lane.in_flight is not None or now < lane.retry_at:
            return None
        while lane.queue and _is_past(lane.queue[0], from_round):
            lane.queue.popleft()
        lane.in_flight = lane.queue.popleft() if lane.queue else None
        lane.asked_at = now
        return lane.in_flight

    def overdue(self, neighbor: int, now: float, patience_s: float) -> bool:
        """Return, ever more rarely, whether the model in flight has gone unanswered for long: has it been lost on the way?"""
        lane = self._lanes[neighbor]
        if not isinstance(lane.in_flight, ModelHeader) or now < lane.asked_at + patience_s * 2**lane.asks:
            return False
        lane.asked_at, lane.asks = now, lane.asks + 1
        return True

    def in_flight(self, neighbor: int) -> Message | None:
        """Return the message that is being sent."""
        return self._lanes[neighbor].in_flight

    def answered(self, neighbor: int) -> Message | None:
        """The message in flight was answered: return it and go on with the next."""
        lane = self._lanes[neighbor]
        message, lane.in_flight, lane.failures, lane.retry_at, lane.asks = lane.in_flight, None, 0, 0.0, 0
        return message

    def failed(self, neighbor: int, now: float) -> None:
        """The message in flight was not answered: it goes first again after a pause."""
        lane = self._lanes[neighbor]
        if lane.in_flight is not None and lane.in_flight.round_index >= self._oldest_round:
            lane.queue.appendleft(lane.in_flight)
        lane.in_flight = None
        lane.failures += 1
        lane.retry_at = now + backoff_s(lane.failures, uniform(0, "retry", self._peer_id, neighbor, lane.failures))

    def retry_now(self, neighbor: int) -> None:
        """The neighbor was just heard: do not wait out the pause."""
        self._lanes[neighbor].retry_at = 0.0

    def next_retry(self, neighbor: int) -> float | None:
        """Return when the lane may send again, if it waits for that."""
        lane = self._lanes[neighbor]
        return lane.retry_at if lane.queue and lane.in_flight is None and lane.retry_at > 0 else None

    def owes(self, neighbor: int, place: Place) -> bool:
        """Return whether anything of a step still waits for an answer."""
        lane = self._lanes[neighbor]
        messages = [*lane.queue, lane.in_flight] if lane.in_flight is not None else lane.queue
        return any((m.round_index, m.step) == place for m in messages)

    def pending(self, neighbor: int) -> int:
        """Return how many messages are queued or in flight."""
        lane = self._lanes[neighbor]
        return len(lane.queue) + (lane.in_flight is not None)
