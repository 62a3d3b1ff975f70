"""The secure sums of one peer: its key, its part as a sender in the sums of its neighbors, and its own sum of the present round.

Secrets are in memory only, for two rounds: a restarted peer has a new key, and opens nothing that it masked before. Pure; the
world gives it its signer and its random bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from typing_extensions import override

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.core.averaging import Vector
from peer.core.messages import Opening, SumMessage
from peer.core.sum_parts import SumParts
from peer.secure_sum.arithmetic import TAG_BYTES, Masked, add_masks, factor, masked, plain
from peer.secure_sum.keys import Announcement, Keys, Signer, unpacked
from peer.secure_sum.received import ReceivedSum
from peer.secure_sum.roster import Roster
from peer.secure_sum.sent import SentSum, joins

ROUNDS_KEPT = 2  # a receiver is one round behind at most


class SecureSums(SumParts):
    """Implements `peer.core.sum_parts.SumParts`.

    Args:
        peer_id: this peer.
        graph: its neighbors, and theirs.
        signer: with the own pinned key.
        random: returns random bytes of the operating system.
    """

    def __init__(self, peer_id: int, graph: Graph, signer: Signer, random: Callable[[int], bytes]) -> None:
        self._peer_id, self._graph, self._random = peer_id, graph, random
        self._bound = float(graph.manifest.secure_sum or 0)
        self._keys = Keys(graph, peer_id, signer, random)
        self._known: dict[int, Announcement] = {}  # by neighbor
        self._sent: dict[int, dict[int, SentSum | None]] = {
            n: {} for n in graph.neighbors(peer_id)
        }  # by receiver and round
        self._received: ReceivedSum | None = None

    # ---- keys -----------------------------------------------------------------------------------------------------------

    @override
    def announcement(self, incarnation: int) -> bytes:
        return self._keys.announcement(incarnation).packed()

    @override
    def meets(self, neighbor: int, incarnation: int, announcement: bytes) -> Refusal | None:
        try:
            found = unpacked(announcement)
        except ValueError as error:
            return Refusal(RefusalCode.MALFORMED, f"key of secure sums: {error}")
        if [(each.peer, each.incarnation) for each in found] != [(neighbor, incarnation)]:
            shown = [(each.peer, each.incarnation) for each in found]
            expected = f"the key of incarnation {incarnation} of peer {neighbor}"
            return Refusal(RefusalCode.MALFORMED, f"key of secure sums: expected {expected}, got those of {shown}")
        if not self._keys.is_signed(found[0]):
            problem = f"expected a signature of peer {neighbor}, by the key of the graph file, got another"
            return Refusal(RefusalCode.IDENTITY_MISMATCH, f"key of secure sums: {problem}")
        if not self._keys.gives_secret(found[0]):
            return Refusal(
                RefusalCode.MALFORMED, "key of secure sums: expected one of X25519, got one that gives no secret"
            )
        self._known[neighbor] = found[0]
        return None

    # ---- the sums of neighbors ------------------------------------------------------------------------------------------

    @override
    def rejects_roster(self, receiver: int, round_index: int, packed: bytes) -> Refusal | None:
        if not packed:
            return None
        try:
            Roster.read(self._keys, receiver, round_index, packed)
        except ValueError as error:
            return Refusal(RefusalCode.MALFORMED, f"peers of a secure sum: {error}")
        return None

    @override
    def join(self, receiver: int, round_index: int, packed: bytes, incarnation: int) -> str:
        sums = self._sent[receiver]
        if (known := sums.get(round_index)) is not None and known.roster.packed == packed:
            return ""
        if sums and round_index <= max(sums):
            return f"a sum of peer {receiver} in round {max(sums)} has been joined before"
        for old in sorted(sums)[: 1 - ROUNDS_KEPT]:
            del sums[old]
        roster = Roster.read(self._keys, receiver, round_index, packed)
        neighbors = frozenset(self._graph.neighbors(receiver))
        problem = joins(roster, self._keys.announcement(incarnation), neighbors)
        sums[round_index] = None if problem else SentSum(self._keys, roster, len(neighbors), self._random)
        return problem

    def _sum_of(self, receiver: int, round_index: int) -> SentSum | None:
        return self._sent.get(receiver, {}).get(round_index)

    @override
    def shares(self, receiver: int, round_index: int) -> bytes:
        joined = self._sum_of(receiver, round_index)
        return joined.shares if joined else b""

    @override
    def masked(
        self, receiver: int, round_index: int, weights: Mapping[int, float], model: Vector
    ) -> Callable[[], Masked]:
        joined = self._sum_of(receiver, round_index)
        assert joined is not None  # only a model for a sum that is joined is offered
        scale, streams = (
            factor(self._bound, len(weights)) * weights[self._peer_id] / sum(weights.values()),
            joined.streams(),
        )
        return lambda: masked(model, scale, streams)

    # ---- the own sum ----------------------------------------------------------------------------------------------------

    @override
    def begin(self, round_index: int, present: Iterable[tuple[int, int]]) -> bytes:
        known = [
            self._known[n]
            for n, incarnation in present
            if n in self._known and self._known[n].incarnation == incarnation
        ]
        roster = Roster.of(self._keys, self._peer_id, round_index, known)
        self._received = ReceivedSum(roster, self._graph.degree(self._peer_id))
        return roster.packed

    @override
    def fits(self, sender: int, round_index: int, shares: bytes) -> bool:
        own = self._own(round_index)
        return own is not None and own.fits(sender, shares)

    @override
    def delivered(self, sender: int, shares: bytes) -> None:
        assert self._received is not None
        self._received.delivered(sender, shares)

    @override
    def fix(self) -> list[tuple[int, Opening, bytes]]:
        if self._received is None:
            return []
        return self._named(self._received.roster, Opening.MEMBERS, self._received.fix())

    def _own(self, round_index: int) -> ReceivedSum | None:
        own = self._received
        return own if own is not None and own.roster.round_index == round_index else None

    @override
    def lose(self, member: int) -> None:
        if self._received is not None:
            self._received.lose(member)

    @override
    def give_up(self) -> None:
        if self._received is not None:
            self._received.give_up()

    @property
    @override
    def awaited(self) -> Mapping[int, int]:
        return {} if self._received is None else self._received.awaited

    @property
    @override
    def members(self) -> tuple[int, ...] | None:
        return None if self._received is None else self._received.members

    @property
    @override
    def is_open(self) -> bool:
        return self._received is not None and self._received.is_open

    @property
    @override
    def problem(self) -> str:
        return "" if self._received is None else self._received.problem

    @override
    def opened(self, total: Masked, weights: Mapping[int, float]) -> Vector:
        own = self._received
        assert own is not None and own.is_open  # the engine opens no other
        add_masks(total, own.masks())
        return plain(total, factor(self._bound, len(weights)) * own.share_of(weights))

    # ---- messages -------------------------------------------------------------------------------------------------------

    @override
    def rejects(self, message: SumMessage) -> Refusal | None:
        try:
            self._read(message, act=False)
        except ValueError as error:
            return Refusal(RefusalCode.MALFORMED, f"{message.kind} of the sum of round {message.round_index}: {error}")
        return None

    @override
    def take(self, message: SumMessage) -> list[tuple[int, Opening, bytes]]:
        return self._read(message, act=True)

    def _read(self, message: SumMessage, *, act: bool) -> list[tuple[int, Opening, bytes]]:
        """Check a message and, to ``act``, take it; return what to send. One of a sum that this peer does not know says nothing.

        Raises:
            ValueError: it cannot be right.
        """
        tag, data, sender = message.data[:TAG_BYTES], message.data[TAG_BYTES:], message.sender
        of_sender = message.kind in (Opening.MEMBERS, Opening.AGREED)
        part = self._sum_of(sender, message.round_index) if of_sender else self._own(message.round_index)
        if part is None or part.roster.tag != tag:
            return []
        match part, message.kind:
            case SentSum(), Opening.MEMBERS:
                part.members_of(data)
                return self._named(part.roster, Opening.AGREES, {sender: part.agree(data)}) if act else []
            case SentSum(), _:
                part.require_agreement(data)
                return self._named(part.roster, Opening.REVEALS, {sender: part.reveal()}) if act else []
            case ReceivedSum(), Opening.AGREES:
                part.check_tags(sender, data)
                return self._named(part.roster, Opening.AGREED, part.agreed(sender, data)) if act else []
            case ReceivedSum(), _:
                part.check_revealed(sender, data)
                if act:
                    part.revealed(sender, data)
        return []

    def _named(self, roster: Roster, kind: Opening, parts: dict[int, bytes]) -> list[tuple[int, Opening, bytes]]:
        return [(neighbor, kind, roster.tag + data) for neighbor, data in parts.items()]
