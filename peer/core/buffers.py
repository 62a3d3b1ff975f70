"""Which neighbor gets a receive buffer, so that no neighbor uses up what is there for the others. Pure.

All neighbors share `Constants.concurrent_receives` buffers, and a model keeps its buffer from its first byte to its fold. So

- a neighbor has one model read at a time, however many it offers;
- where models are folded as they come, the neighbor that was read longest ago comes first;
- neighbors whose transfers take far longer than those of the others have all buffers but one at most;
- if such transfers hold all buffers nevertheless and another neighbor waits, the longest is given up. Its sender repeats it.

With a single buffer a slow neighbor has it for a twentieth of the time at most, and each time twice as long as before, so that an
honest one succeeds in the end. What is slow is measured here, by the transfers of the other neighbors.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.core.arrivals import Arrival
from peer.core.state import State

SLOW = 4.0  # a transfer is slow if it takes this many times the median of the other neighbors' last transfers
REMEMBERED = 0.8  # of how long a neighbor's transfers took, at each quicker one
FAILED = 4.0  # a transfer without a model counts this many times: it was of no use
GIVEN_UP = 8.0  # a transfer that was given up counts as this many times what is slow
PAUSE = (
    19.0  # with a single buffer, a slow neighbor first leaves it to the others this many times as long as it gets it
)


class Buffers:
    """The receive buffers of one peer.

    Args:
        state: the shared state; its arrivals say what is offered, read and complete.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._most = state.constants.concurrent_receives
        self._began: dict[int, tuple[Arrival, float]] = {}  # by stream: what is being read, since when
        self._took_s: dict[int, float] = {}  # by neighbor
        self._read_at: dict[int, float] = {}  # by neighbor: when its last transfer ended
        self._granted_s: dict[int, float] = {}  # with a single buffer: how long a slow neighbor may have it next time
        self._pause_until: dict[int, float] = {}

    def note(self, now: float) -> None:
        """Note the transfers that ended since the last call."""
        for stream in self._began.keys() - self._state.arrivals.reading.keys():
            arrival, began_at = self._began.pop(stream)
            sender, took_s = arrival.sender, now - began_at
            counted_s = took_s if stream in self._state.arrivals.complete else FAILED * took_s
            self._took_s[sender] = max(counted_s, REMEMBERED * self._took_s.get(sender, 0.0))
            self._read_at[sender] = now
            if self._most == 1 and self._is_slow(sender, now):
                self._granted_s[sender] = 2 * took_s
                self._pause_until[sender] = now + PAUSE * self._granted_s[sender]

    def in_order(self, *, by_round: bool) -> list[Arrival]:
        """Return the offered models as they are to be read: by round and neighbor, or neighbors in rotation."""
        offered = self._state.arrivals.offered.values()
        if by_round:
            return sorted(offered, key=fold_order)
        return sorted(offered, key=lambda each: (self._read_at.get(each.sender, 0.0), fold_order(each)))

    def has_room(self, sender: int, turn: int | None, now: float, *, in_turn: bool) -> bool:
        """Return whether a model may be read now; where one neighbor has the turn, a buffer stays free for it."""
        arrivals, free = self._state.arrivals, self._most - self._state.arrivals.buffers()
        if free < 1 or arrivals.is_reading_from(sender):
            return False
        if turn is None and self._is_slow(sender, now):
            if self._most == 1:
                return now >= self._pause_until.get(sender, 0.0) and not self._prompt_waits(now)
            return sum(self._is_slow(other.sender, now) for other, _ in self._began.values()) < self._most - 1
        return free > 1 or in_turn or any(each.sender == turn for each in arrivals.reading.values())

    def begin(self, arrival: Arrival, now: float) -> None:
        """Note that a model is read from now on."""
        self._began[arrival.stream] = arrival, now

    def give_up_slow(self, now: float) -> None:
        """If slow transfers hold all buffers and another neighbor waits, give up the longest one."""
        if not self._prompt_waits(now) or len(self._began) < self._most:
            return
        if any(now < self._may_last_until(stream) for stream in self._began):
            return
        arrival, _ = min(self._began.values(), key=lambda began: began[1])
        sender = arrival.sender
        reason = "the transfer is slow, and other neighbors wait for its buffer; send again later"
        self._state.answer(arrival, Refusal(RefusalCode.TOO_SLOW, reason))
        self._took_s[sender] = max(self._took_s.get(sender, 0.0), GIVEN_UP * self._slow_s(sender))
        self.note(now)

    def next_time(self, now: float) -> Iterator[float]:
        """Yield when a transfer may have to be given up, and when a pause ends, if anything waits for that."""
        if not self._state.arrivals.offered:
            return
        times = [*self._pause_until.values()]
        if len(self._began) == self._most:
            times.append(max(self._may_last_until(stream) for stream in self._began))
        yield from (at for at in times if at > now)

    def _may_last_until(self, stream: int) -> float:
        """Return when a transfer has lasted long enough: with a single buffer, twice as long as the neighbor's last one."""
        arrival, began_at = self._began[stream]
        return began_at + max(self._slow_s(arrival.sender), self._granted_s.get(arrival.sender, 0.0))

    def _prompt_waits(self, now: float) -> bool:
        """Return whether a neighbor that is not slow, and of which nothing is read, offers a model."""
        arrivals = self._state.arrivals
        waiting = {arrival.sender for arrival in arrivals.offered.values()}
        return any(not self._is_slow(n, now) and not arrivals.is_reading_from(n) for n in waiting)

    def _is_slow(self, neighbor: int, now: float) -> bool:
        """Return whether the last transfers of a neighbor were slow, or the present one is."""
        lasts_s = [now - at for arrival, at in self._began.values() if arrival.sender == neighbor]
        return max([*lasts_s, self._took_s.get(neighbor, 0.0)]) > self._slow_s(neighbor)

    def _slow_s(self, neighbor: int) -> float:
        """Return how long a transfer may take and not be slow: never less than a heartbeat interval."""
        timeouts = self._state.manifest.timeouts
        others = sorted(took_s for n, took_s in self._took_s.items() if n != neighbor)
        usual_s = others[(len(others) - 1) // 2] if others else timeouts.suspicion_s / SLOW
        return max(timeouts.heartbeat_s, SLOW * usual_s)


def fold_order(arrival: Arrival) -> tuple[int, ...]:
    """Return the key by which arrivals are folded: round, step, neighbor, index."""
    header = arrival.header
    return (header.round_index, header.step, header.sender, header.index, arrival.stream)
