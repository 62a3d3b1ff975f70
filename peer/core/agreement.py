"""The part of the engine that spreads the numbers of all sites before the first round, each unchanged, to every peer. Pure.

Every peer sends each neighbor the numbers of all sites that it knows, its own first, as soon as it knows them; so they reach
each peer over any path, however late it starts and whoever dies on the way. There is no step to keep up with and no sum on the
way: a set that only grows is the same at all peers once it is complete. A peer begins its first round only then, and when the
neighbors that it can reach have accepted all of it. So no two neighbors that are alive begin with different numbers of a site. A
site whose numbers have not come at the start deadline ends the run of this peer: without them others might scale in another way.

A run that begins with everyone or not at all spreads numbers of length 0: that each peer is there.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.core import effects as do
from peer.core.messages import NUMBERS_MAX, Numbers, Statistics
from peer.core.neighbor import Neighbor
from peer.core.sites import Sites
from peer.core.stages import Stage
from peer.core.state import State

FINAL = frozenset({RefusalCode.MALFORMED, RefusalCode.MEANING_MISMATCH})  # refusals of numbers that no retry cures


class Agreement:
    """Which numbers each neighbor has been sent, and whether this peer may begin."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._told: dict[int, tuple[int, set[int]]] = {}  # by neighbor: its incarnation, and the sites that it was sent
        self._deadline = 0.0
        self._refusal = ""  # why a neighbor does not accept the numbers that this peer knows
        self._announced = False

    def begin(self, now: float) -> None:
        """Note the first event."""
        if not self._deadline:
            self._deadline = now + self._state.manifest.start.deadline_s
            self._announce()

    # ---- numbers of neighbors -------------------------------------------------------------------------------------------

    def rejects(self, message: Statistics) -> Refusal | None:
        """Return why numbers cannot be believed; nothing changes."""
        sites = self._state.sites
        if sites is None:
            return Refusal(
                RefusalCode.MALFORMED, "statistics: expected none in a run that needs none of sites, got some"
            )
        if not message.numbers or len(message.numbers) % (1 + sites.size):
            expected = f"a peer and its {sites.size} numbers, for each site"
            return Refusal(
                RefusalCode.MALFORMED, f"statistics: expected {expected}, got {len(message.numbers)} numbers"
            )
        known = dict(sites.known)
        for number, numbers in _entries(sites, message.numbers):
            if number not in sites.peers:
                return Refusal(RefusalCode.MALFORMED, f"statistics: expected a peer of the graph file, got {number:g}")
            site = int(number)
            if problem := sites.problem(numbers):
                return Refusal(RefusalCode.MALFORMED, f"statistics of peer {site}: {problem}")
            if known.setdefault(site, numbers) != numbers:
                return Refusal(
                    RefusalCode.MEANING_MISMATCH,
                    f"statistics of peer {site}: expected those that it gave before, got others; give it the data of its "
                    "first start, or start all peers anew",
                )
        return None

    def take(self, message: Statistics) -> None:
        """Note numbers that are not rejected."""
        sites = self._state.sites
        assert sites is not None  # rejected otherwise
        sites.known |= {int(site): numbers for site, numbers in _entries(sites, message.numbers)}
        self._announce()

    def _announce(self) -> None:
        sites = self._state.sites
        if sites is not None and not sites.missing and not self._announced:
            self._announced = True
            self._state.emit(do.Agree(tuple(sorted(sites.known.items()))))

    # ---- numbers for neighbors ------------------------------------------------------------------------------------------

    def due(self, neighbor: Neighbor) -> Statistics | None:
        """Return the next numbers to queue for a neighbor, as many as a message carries; None: none, or some are queued."""
        state, sites = self._state, self._state.sites
        assert sites is not None  # not asked otherwise
        if neighbor.outbox.has_statistics or not (unsent := self._unsent(neighbor)):
            return None
        first = sorted(unsent, key=lambda site: (site != state.peer_id, site))
        chosen = first[: NUMBERS_MAX // (1 + sites.size)]
        self._told_to(neighbor).update(chosen)
        numbers = Numbers(b"".join(Numbers.of(site).data + sites.known[site].data for site in chosen))
        return Statistics(state.peer_id, state.incarnation, numbers)

    def _unsent(self, neighbor: Neighbor) -> set[int]:
        """Return the sites whose numbers a neighbor was not sent yet; two peers past their first round have agreed."""
        state = self._state
        if state.sites is None or (neighbor.round_index > 0 and state.round.index > 0):
            return set()
        return state.sites.known.keys() - self._told_to(neighbor)

    def _told_to(self, neighbor: Neighbor) -> set[int]:
        incarnation, told = self._told.get(neighbor.id, (0, set()))
        if incarnation != neighbor.incarnation:  # a restarted neighbor may have lost them
            told = set()
            self._told[neighbor.id] = (neighbor.incarnation, told)
        return told

    def refused_by(self, neighbor: Neighbor, refusal: Refusal) -> None:
        """Note that a neighbor does not accept what this peer knows."""
        if refusal.code in FINAL:
            self._refusal = f"peer {neighbor.id} refused the numbers that this peer knows: {refusal}"

    # ---- the start ------------------------------------------------------------------------------------------------------

    def may_begin(self, now: float) -> bool:
        """Return whether the numbers of all sites are known, and accepted by the neighbors that can be reached."""
        sites = self._state.sites
        if sites is None:
            return True
        if sites.missing or self._refusal:
            return False
        return now >= self._deadline or all(map(self._has_all, self._state.neighbors.values()))

    def _has_all(self, neighbor: Neighbor) -> bool:
        if not neighbor.is_reachable:
            return True
        return not neighbor.outbox.has_statistics and not self._unsent(neighbor)

    def given_up(self, now: float) -> do.Status | None:
        """Return how this peer ends that waits for its first round; None: it goes on waiting; log why."""
        state, sites = self._state, self._state.sites
        if sites is None or state.stage is not Stage.JOINING:
            return None
        if self._refusal:
            state.log("error", f"shared scaling: {self._refusal}")
            return "refused"
        if not sites.missing or now < self._deadline:
            return None
        wait_s = state.manifest.start.deadline_s
        if not sites.size:
            why = f"in {wait_s:g} s, and run.start.wait_for is everyone. Start them, or make a graph file without them."
            state.log("error", f"not started: peers {sites.missing}, beyond the neighbors, were not there {why}")
            return "alone"
        state.log(
            "error",
            f"shared scaling: expected the numbers of all {len(sites.peers)} sites in {wait_s:g} s (run.start.deadline_s), got "
            f"none of peers {sites.missing}. Start them, or make a graph file without them.",
        )
        return "alone"

    def next_time(self, now: float) -> Iterator[float]:
        """Yield the time at which something is due here by itself."""
        if self._state.sites is not None and self._deadline > now:
            yield self._deadline


def _entries(sites: Sites, numbers: Numbers) -> Iterator[tuple[float, Numbers]]:
    """Yield site and numbers of each entry of a message whose length is right."""
    step = 8 * (1 + sites.size)
    for start in range(0, len(numbers.data), step):
        yield Numbers(numbers.data[start : start + 8])[0], Numbers(numbers.data[start + 8 : start + step])
