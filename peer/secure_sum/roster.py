"""Who takes part in one sum: the receiver's neighbors of a round with their keys, and how many of them it takes. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from coordinator_free_bootstrap.graph import SUMMED
from peer.secure_sum.arithmetic import TAG_BYTES
from peer.secure_sum.keys import Announcement, Keys, in_order, unpacked


def members_min(neighbors: int) -> int:
    """Return how many of a receiver's n neighbors in the graph file a sum has at least: three, and `threshold`."""
    return max(SUMMED[0], threshold(neighbors))


def threshold(neighbors: int) -> int:
    """Return how many members must agree on who they are, and how many shares give a self mask: two thirds of n, rounded up.

    Any two groups of so many neighbors have 2 ceil(2n/3) - n in common. With fewer colluders than that, one of the common ones is
    honest, and it agrees to one set of members only. Of three neighbors all are members, so there is one set.
    """
    return -(-2 * neighbors // 3)


@dataclass(frozen=True)
class Roster:
    """The peers of one sum. What is derived for it is bound to `digest`, so to its receiver, round, peers and keys.

    Attributes:
        receiver: whose sum it is.
        round_index: of the models.
        peers: by id, ascending.
        packed: as the receiver announces it.
        digest: of all this, and of the run.
    """

    receiver: int
    round_index: int
    peers: tuple[Announcement, ...]
    packed: bytes
    digest: bytes

    @classmethod
    def of(cls, keys: Keys, receiver: int, round_index: int, announcements: Iterable[Announcement]) -> Roster:
        """Return the roster of announcements, in any order."""
        peers = in_order(announcements)
        packed = b"".join(each.packed() for each in peers)
        head = b"".join(number.to_bytes(8, "big") for number in (receiver, round_index))
        return cls(receiver, round_index, peers, packed, hashlib.sha256(keys.context + head + packed).digest())

    @classmethod
    def read(cls, keys: Keys, receiver: int, round_index: int, packed: bytes) -> Roster:
        """Return the roster of a receiver's announcement.

        Raises:
            ValueError: its form, order, signatures or keys are wrong.
        """
        peers = unpacked(packed)
        ids = [each.peer for each in peers]
        if ids != sorted({*ids}):
            raise ValueError(f"{len(ids)} peers in another order, or twice")
        for each in peers:  # the first wrong one ends it: a lie costs one look at a signature
            if not keys.is_signed(each):
                raise ValueError(f"a key of peer {each.peer} that this peer has not signed for this graph file")
            if not keys.gives_secret(each):
                raise ValueError(f"a key of peer {each.peer} that gives no secret")
        return cls.of(keys, receiver, round_index, peers)

    @property
    def tag(self) -> bytes:
        """What messages name it by."""
        return self.digest[:TAG_BYTES]

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """The peers, ascending."""
        return tuple(each.peer for each in self.peers)

    def place(self, peer: int) -> int:
        """Return the place of a peer's share, from 1."""
        return self.ids.index(peer) + 1

    def as_bits(self, peers: Iterable[int]) -> bytes:
        """Return some of the peers as a bit for each."""
        bits = sum(1 << (self.place(peer) - 1) for peer in peers)
        return bits.to_bytes(self.bits_bytes, "little")

    def of_bits(self, data: bytes) -> tuple[int, ...]:
        """Return the peers of `as_bits`, ascending.

        Raises:
            ValueError: a bit is of no peer.
        """
        bits = int.from_bytes(data, "little")
        if bits >> len(self.ids):
            raise ValueError("a bit of no peer of the roster")
        return tuple(peer for place, peer in enumerate(self.ids) if bits >> place & 1)

    @property
    def bits_bytes(self) -> int:
        """Bytes of `as_bits`."""
        return -(-len(self.ids) // 8)
