"""The part of a sender in the sum of a receiver and round: mask a model, agree to one set of members, reveal what opens it. Pure.

A sender agrees to one set, and reveals only when two thirds of the receiver's neighbors have agreed to the same. It reveals for
each of them one of two things: for a member a share of its self mask, for another the seed of the mask that the two share. With
both the receiver could read a model; for both it would need two thirds of its neighbors twice.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from peer.secure_sum.arithmetic import SECRET_BYTES, SEED_BYTES, TAG_BYTES, Mask, derived, new_secret, shares_of
from peer.secure_sum.keys import Announcement, Keys
from peer.secure_sum.roster import Roster, members_min, threshold

SEALED_BYTES = SECRET_BYTES + 16  # a share under AES-GCM; its key seals nothing else, so the nonce is constant
_NONCE = bytes(12)


def pair_seed(shared: bytes, roster: Roster) -> bytes:
    """Return the seed of the mask that two peers share in a sum."""
    return derived(shared, "mask", roster.digest, size=SEED_BYTES)


def self_seed(secret: bytes, roster: Roster, peer: int) -> bytes:
    """Return the seed of a peer's self mask."""
    return derived(secret, "self", roster.digest, _number(peer), size=SEED_BYTES)


def proof_of(secret: bytes, roster: Roster, peer: int) -> bytes:
    """Return what shows whether shares give the right secret of a peer; it says nothing about the secret."""
    return derived(secret, "proof", roster.digest, _number(peer), size=TAG_BYTES)


def _number(peer: int) -> bytes:
    return peer.to_bytes(8, "big")


class SentSum:
    """One sender's secrets of one sum; they are in memory only, and a restart loses them.

    Args:
        keys: of this peer.
        roster: this peer is in it.
        neighbors: of the receiver, in the graph file.
        random: returns random bytes, as many as it is asked for.

    Attributes:
        shares: what goes with the model: tag of the roster, proof of the secret, and the sealed share of each other peer of the
            roster, ascending.
        agreed: the members that this peer has agreed to; None: none yet.
    """

    def __init__(self, keys: Keys, roster: Roster, neighbors: int, random: Callable[[int], bytes]) -> None:
        self._own, self.roster = keys.peer_id, roster
        self._members_min, self._threshold = members_min(neighbors), threshold(neighbors)
        self._shared = {each.peer: keys.shared_with(each) for each in roster.peers if each.peer != self._own}
        self._secret = new_secret(random)
        places = [roster.place(peer) for peer in roster.ids]
        shares = shares_of(self._secret, places, threshold(neighbors), random)
        self._own_share = shares[roster.place(self._own)]
        self._received: dict[int, bytes] = {}  # shares of the members' self masks
        sealed = [self._seal(peer, shares[roster.place(peer)]) for peer in self._shared]
        self.shares = b"".join((roster.tag, proof_of(self._secret, roster, self._own), *sealed))
        self.agreed: tuple[int, ...] | None = None

    # ---- the model ------------------------------------------------------------------------------------------------------

    def streams(self) -> list[Mask]:
        """Return the masks of this peer's model."""
        own = self_seed(self._secret, self.roster, self._own), 1
        return [own, *((self._mask(peer), 1 if peer > self._own else -1) for peer in self._shared)]

    def _mask(self, peer: int) -> bytes:
        return pair_seed(self._shared[peer], self.roster)

    def _seal(self, peer: int, share: bytes) -> bytes:
        return AESGCM(self._sealing(self._own, peer)).encrypt(_NONCE, share, None)

    def _opened(self, peer: int, sealed: bytes) -> bytes:
        try:
            return AESGCM(self._sealing(peer, self._own)).decrypt(_NONCE, sealed, None)
        except InvalidTag:
            raise ValueError(f"a share that peer {peer} has not sealed for this sum") from None

    def _sealing(self, sender: int, receiver: int) -> bytes:
        other = receiver if sender == self._own else sender
        return derived(self._shared[other], "share", self.roster.digest, _number(sender), _number(receiver))

    # ---- the members ----------------------------------------------------------------------------------------------------

    def members_of(self, data: bytes) -> dict[int, bytes]:
        """Return the members of a sum that this peer is asked to agree to, ascending, each with its share for this peer.

        Args:
            data: the members as bits, then the sealed share of each other member for this peer, ascending.

        Raises:
            ValueError: there are too few, this peer is none, it has agreed to others, or a share is not this member's.
        """
        bits, sealed = data[: self.roster.bits_bytes], data[self.roster.bits_bytes :]
        members = self.roster.of_bits(bits)
        if self._own not in members or len(members) < self._members_min:
            raise ValueError(
                f"members: expected {self._members_min} or more with peer {self._own}, got {list(members)}"
            )
        if self.agreed is not None and self.agreed != members:
            raise ValueError(f"members: expected {list(self.agreed)}, as before, got {list(members)}")
        if len(sealed) != SEALED_BYTES * (len(members) - 1):
            raise ValueError(f"{len(sealed)} bytes of sealed shares of {len(members) - 1} members")
        parts = (sealed[at : at + SEALED_BYTES] for at in range(0, len(sealed), SEALED_BYTES))
        return {peer: self._own_share if peer == self._own else self._opened(peer, next(parts)) for peer in members}

    def agree(self, data: bytes) -> bytes:
        """Agree to the members of `members_of`, and return for each other one, ascending, a tag that only it can check."""
        self._received = self.members_of(data)
        self.agreed = members = tuple(self._received)
        return b"".join(self._agreement(self._own, peer, members) for peer in members if peer != self._own)

    def require_agreement(self, data: bytes) -> None:
        """Check that enough members have agreed to what this peer has agreed to.

        Args:
            data: other members as bits, then for each of them, ascending, its tag for this peer.

        Raises:
            ValueError: they have not, or this peer has agreed to nothing.
        """
        if self.agreed is None:
            raise ValueError("expected members to agree to, got what they agree to")
        bits, tags = data[: self.roster.bits_bytes], data[self.roster.bits_bytes :]
        signers = self.roster.of_bits(bits)
        if len(tags) != TAG_BYTES * len(signers) or not {*signers} <= {*self.agreed} - {self._own}:
            raise ValueError(f"{len(tags)} bytes of tags of members {list(signers)}")
        for at, peer in enumerate(signers):
            tag = tags[TAG_BYTES * at : TAG_BYTES * (at + 1)]
            if not hmac.compare_digest(tag, self._agreement(peer, self._own, self.agreed)):
                raise ValueError(f"a tag by which peer {peer} does not agree to members {list(self.agreed)}")
        if len(signers) + 1 < self._threshold:
            raise ValueError(f"agreement: expected that of {self._threshold} members, got that of {len(signers) + 1}")

    def reveal(self) -> bytes:
        """Return what opens the sum: a share of the self mask of each member, and the seed shared with each other peer."""
        members = self.agreed or ()
        seeds = (self._mask(peer) for peer in self.roster.ids if peer not in members)
        return b"".join((*(self._received[peer] for peer in members), *seeds))

    def _agreement(self, sender: int, receiver: int, members: tuple[int, ...]) -> bytes:
        other = receiver if sender == self._own else sender
        context = (self.roster.digest, _number(sender), _number(receiver), self.roster.as_bits(members))
        return derived(self._shared[other], "members", *context, size=TAG_BYTES)


def joins(roster: Roster, own: Announcement, neighbors: frozenset[int]) -> str:
    """Return why a peer does not take part in a sum, "" if it does.

    Args:
        roster: as its receiver announces it.
        own: the key of this peer.
        neighbors: of the receiver, in the graph file.
    """
    if strangers := {*roster.ids} - neighbors:
        return f"peers {sorted(strangers)} are no neighbors of peer {roster.receiver}"
    if len(roster.ids) < (needed := members_min(len(neighbors))):
        return f"a sum of peer {roster.receiver} needs {needed} of its neighbors, and {len(roster.ids)} are there"
    if not any((each.peer, each.key) == (own.peer, own.key) for each in roster.peers):
        return "this peer's present key is not among those of the sum"
    return ""
