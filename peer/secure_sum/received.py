"""The part of a receiver in the sum of one round: who has delivered, who has agreed, and what opens the sum. Pure."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from peer.secure_sum.arithmetic import SECRET_BYTES, SEED_BYTES, TAG_BYTES, Mask, secret_of
from peer.secure_sum.roster import Roster, members_min, threshold
from peer.secure_sum.sent import SEALED_BYTES, proof_of, self_seed


class ReceivedSum:
    """The sum of one round at its receiver, from the first model to its opening.

    Args:
        roster: as announced.
        neighbors: of this peer, in the graph file.

    Attributes:
        members: the peers whose models are in the sum, once they are fixed; None before.
        problem: why the sum cannot be opened, "" while it can.
    """

    def __init__(self, roster: Roster, neighbors: int) -> None:
        self.roster = roster
        self._members_min, self._threshold = members_min(neighbors), threshold(neighbors)
        self._shares: dict[int, bytes] = {}  # what came with each model
        self.members: tuple[int, ...] | None = None
        self._tags: dict[int, bytes] = {}  # by member that has agreed
        self._revealed: dict[int, bytes] = {}  # by member
        self._lost: set[int] = set()
        self._secrets: dict[int, bytes] = {}  # of the self masks
        self.problem = ""

    # ---- models ---------------------------------------------------------------------------------------------------------

    def fits(self, sender: int, shares: bytes) -> bool:
        """Return whether what came with a model is for this sum; members that are fixed take no more."""
        size = 2 * TAG_BYTES + SEALED_BYTES * (len(self.roster.ids) - 1)
        known = sender in self.roster.ids and self.members is None
        return known and len(shares) == size and shares[:TAG_BYTES] == self.roster.tag

    def delivered(self, sender: int, shares: bytes) -> None:
        """Note a model that is added to the sum."""
        self._shares[sender] = shares

    # ---- members --------------------------------------------------------------------------------------------------------

    def fix(self) -> dict[int, bytes]:
        """Fix the members: all that have delivered. Return what each is asked to agree to; {} if they are too few."""
        self.members = tuple(peer for peer in self.roster.ids if peer in self._shares)
        if len(self.members) < self._members_min:
            delivered = f"expected {self._members_min} or more, got {len(self.members)}"
            self.problem = (
                f"models of neighbors: {delivered} of the {len(self.roster.ids)} that were there when the round began"
            )
            return {}
        bits = self.roster.as_bits(self.members)
        return {n: bits + b"".join(self._share(m, n) for m in self.members if m != n) for n in self.members}

    def _share(self, sender: int, receiver: int) -> bytes:
        others = [peer for peer in self.roster.ids if peer != sender]
        at = 2 * TAG_BYTES + SEALED_BYTES * others.index(receiver)
        return self._shares[sender][at : at + SEALED_BYTES]

    def check_tags(self, sender: int, data: bytes) -> None:
        """Check the tags of a member.

        Raises:
            ValueError: the sender is no member, or the tags have another size.
        """
        members = self._members(sender)
        if len(data) != TAG_BYTES * (len(members) - 1):
            raise ValueError(f"{len(data)} bytes of tags of {len(members)} members")

    def agreed(self, sender: int, data: bytes) -> dict[int, bytes]:
        """Take the tags of a member. Return what each is asked to reveal, once enough have agreed; {} before and after."""
        if len(self._tags) < self._threshold:
            self._tags[sender] = data
            if len(self._tags) == self._threshold:
                members = self._members(sender)
                return {n: self._tags_for(n, members) for n in members}
        return {}

    def _tags_for(self, receiver: int, members: tuple[int, ...]) -> bytes:
        signers = [peer for peer in sorted(self._tags) if peer != receiver]
        tags = []
        for signer in signers:
            at = TAG_BYTES * [peer for peer in members if peer != signer].index(receiver)
            tags.append(self._tags[signer][at : at + TAG_BYTES])
        return self.roster.as_bits(signers) + b"".join(tags)

    def _members(self, sender: int) -> tuple[int, ...]:
        if self.members is None or sender not in self.members:
            raise ValueError(f"peer {sender} is no member of the sum of round {self.roster.round_index}")
        return self.members

    # ---- opening --------------------------------------------------------------------------------------------------------

    def check_revealed(self, sender: int, data: bytes) -> None:
        """Check what a member reveals.

        Raises:
            ValueError: the sender is no member, or it reveals more or less than the sum needs.
        """
        members, dead = self._members(sender), self._dead
        if len(data) != SECRET_BYTES * len(members) + SEED_BYTES * len(dead):
            raise ValueError(f"{len(data)} bytes reveal the masks of {len(members)} members and {len(dead)} others")

    def revealed(self, sender: int, data: bytes) -> None:
        """Take what a member reveals; find the secrets of the self masks once there are enough shares."""
        if not self.is_over:
            self._revealed[sender] = data
            if len(self._revealed) >= self._needed:
                self._find_secrets(self._members(sender))

    def lose(self, member: int) -> None:
        """Note that a member will reveal no more."""
        self._lost.add(member)
        left = {*(self.members or ())} - self._lost | self._revealed.keys()
        if not self.is_over and len(left) < self._needed:
            why = "" if not self._dead else f", all of them as peers {list(self._dead)} have delivered nothing"
            self.problem = f"members that reveal masks: expected {self._needed}{why}, got {len(left)}"

    def give_up(self) -> None:
        """Note that nothing more is waited for."""
        if not self.is_over:
            answered = self._revealed if len(self._tags) >= self._threshold else self._tags
            silent = [member for member in self.members or () if member not in answered]
            self.problem = f"members {silent} did not answer in time"

    @property
    def awaited(self) -> dict[int, int]:
        """The members that may still reveal what the sum needs, each with the incarnation that has delivered."""
        if self.is_over or self.members is None:
            return {}
        left = {*self.members} - self._revealed.keys() - self._lost
        return {each.peer: each.incarnation for each in self.roster.peers if each.peer in left}

    @property
    def is_over(self) -> bool:
        """Whether the sum can be opened, or never."""
        return bool(self._secrets or self.problem)

    @property
    def is_open(self) -> bool:
        """Whether the sum can be opened."""
        return bool(self._secrets)

    @property
    def _dead(self) -> tuple[int, ...]:
        members = self.members or ()
        return tuple(peer for peer in self.roster.ids if peer not in members)

    @property
    def _needed(self) -> int:
        """How many members must reveal: the mask that a member shares with a peer that is none, is known to the two alone."""
        return len(self.members or ()) if self._dead else self._threshold

    def _find_secrets(self, members: tuple[int, ...]) -> None:
        places = {peer: self.roster.place(peer) for peer in self._revealed}
        secrets = {}
        for at, member in enumerate(members):
            shares = {
                places[n]: data[SECRET_BYTES * at : SECRET_BYTES * (at + 1)] for n, data in self._revealed.items()
            }
            secrets[member] = secret = secret_of(shares)
            proof = self._shares[member][TAG_BYTES : 2 * TAG_BYTES]
            if not hmac.compare_digest(proof, proof_of(secret, self.roster, member)):
                self.problem = (
                    f"the shares that members {sorted(self._revealed)} revealed do not give the mask of peer {member}"
                )
                return
        self._secrets = secrets

    def masks(self) -> list[Mask]:
        """Return the masks to add to the sum so that none is left."""
        return [*((self_seed(secret, self.roster, n), -1) for n, secret in self._secrets.items()), *self._pair_masks()]

    def _pair_masks(self) -> list[Mask]:
        """Return those that members share with peers that are none: a member added it where the other id is higher."""
        found, dead = [], self._dead
        for member, data in self._revealed.items():
            seeds = data[SECRET_BYTES * len(self.members or ()) :]
            for at, other in enumerate(dead):
                seed = seeds[SEED_BYTES * at : SEED_BYTES * (at + 1)]
                found.append((seed, -1 if other > member else 1))
        return found

    def share_of(self, weights: Mapping[int, float]) -> float:
        """Return the members' share of the weights of all neighbors."""
        return sum(weights[n] for n in self.members or ()) / sum(weights.values())
