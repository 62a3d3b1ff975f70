"""The messages still to be sent to one neighbor: one in flight, in order, retried until answered or obsolete. Pure.

Messages of the last two rounds are kept after they were answered: a neighbor that died after our delivery and restarted in
the same round gets them again. Delivery is at least once; the receiver folds exactly once.
"""

from __future__ import annotations

from collections import deque

from coordinator_free_bootstrap.seeds import uniform
from peer.core.backoff import backoff_s
from peer.core.messages import Control, ModelHeader, Select

RoundStep = tuple[int, int]  # (round, step)
Message = Control | ModelHeader


class Outbox:
    """The queue for one neighbor.

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
        """Queue a message, and keep it in case the neighbor restarts."""
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
        self._queue = deque(m for m in self._kept if not _is_past(m, from_round))
        self._failures, self._retry_at = 0, 0.0

    def clear(self) -> None:
        """Send nothing more to a neighbor that has left; the kept messages wait for its return."""
        self._queue.clear()

    def next(self, now: float, from_round: int) -> Message | None:
        """Return the next message to send and mark it as in flight; None if there is none or it must wait.

        ``from_round``: the neighbor's own round. It has closed earlier ones, so their messages are dropped, except the selection
        of the round before, which it still answers with the models that it has kept.
        """
        if self.in_flight is not None or now < self._retry_at:
            return None
        while self._queue and _is_past(self._queue[0], from_round):
            self._queue.popleft()
        self.in_flight = self._queue.popleft() if self._queue else None
        self._checked_at = now
        return self.in_flight

    def is_overdue(self, now: float, patience_s: float) -> bool:
        """Return whether the model in flight is unanswered for ``patience_s``, doubled after each stall; once in such a time."""
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
        """Return whether a message of a step is still unanswered; ``from_round`` as in `next`: what is dropped is not owed."""
        if self.in_flight is not None and (self.in_flight.round_index, self.in_flight.step) == round_step:
            return True
        return any((m.round_index, m.step) == round_step and not _is_past(m, from_round) for m in self._queue)

    def pending(self) -> int:
        """Return how many messages are queued or in flight."""
        return len(self._queue) + (self.in_flight is not None)


def _is_past(message: Message, from_round: int) -> bool:
    return message.round_index < from_round - isinstance(message, Select)
