"""What a peer knows of each neighbor: its incarnation, its round, what it announced and delivered. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from peer.core.messages import Announce, Phase

Place = tuple[int, int]  # (round, step)
ANNOUNCED_MAX = 64


@dataclass
class NeighborView:
    """One neighbor, as its own messages describe it. Whether it is alive is `Membership`'s to say."""

    neighbor: int
    incarnation: int = 0  # of the last complete handshake in this life of ours; 0: none yet
    last_incarnation: int = 0  # the highest ever seen, also before a restart of ours: lives below it are over for good
    round_index: int = 0
    persisted_round: int = 0
    late: bool = False  # a round was closed at its deadline without it, and it has not been in time since
    phase: Phase = Phase.STARTING
    greet_at: float | None = 0.0  # when to send a hello; None: not needed or under way
    greeted_at: float = float("-inf")
    greet_failures: int = 0
    greeting: bool = False
    unreachable: bool = False  # it is heard, and has not answered since
    said_at: float = float("-inf")  # when this peer last said anything to it
    beating: bool = False  # a beat is under way
    announced: dict[Place, Announce] = field(default_factory=dict)
    totals: dict[Place, int] = field(default_factory=dict)
    delivered: dict[Place, set[int]] = field(default_factory=dict)

    def heard_round(self, round_index: int, *, anew: bool = False) -> None:
        """Its round only grows within one incarnation; a new one says where it starts."""
        self.round_index = round_index if anew else max(self.round_index, round_index)

    def forget_before(self, place: Place, announced_from: int | None = None) -> None:
        """Drop what belongs to steps that are over; announcements live on from round ``announced_from``, where given."""
        for table in (self.totals, self.delivered):
            for key in [key for key in table if key < place]:
                del table[key]
        oldest = place if announced_from is None else min(place, (announced_from, 0))
        for key in [key for key in self.announced if key < oldest]:
            del self.announced[key]

    def announce(self, announce: Announce) -> None:
        """Note an announcement; of a neighbor that is far ahead (async pace) only the newest matter."""
        place = announce.round_index, announce.step
        self.announced[place] = announce
        if announce.total == 0:
            self.totals.pop(place, None)  # a new life passes: the rest of what the old one began to send does not come
        if len(self.announced) > ANNOUNCED_MAX:
            del self.announced[min(self.announced)]

    def newest(self, from_round: int = 0) -> Announce | None:
        """Return the newest announcement of a round from ``from_round`` on, one with a sketch before one without."""
        known = [a for a in self.announced.values() if a.round_index >= from_round]
        return max(known, key=lambda a: (bool(a.sketch), a.round_index, a.step), default=None)

    def selection(self) -> Announce | None:
        """Return the newest announcement of all: what an async neighbor is training now, as far as is known."""
        return self.announced[max(self.announced)] if self.announced else None
