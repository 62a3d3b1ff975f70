"""The keys of secure sums: one X25519 key for each incarnation of a peer, signed with the key that the graph file pins. Pure.

Neighbors of a receiver need not be neighbors of each other, so the receiver passes their keys around. It cannot put itself
between them: each key is signed for this graph file, peer and incarnation, and the graph file has the certificates of all peers.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from coordinator_free_bootstrap import Graph
from peer.secure_sum.arithmetic import derived

KEY_BYTES = 32
_HEAD = struct.Struct(">QQ32sH")  # peer, incarnation, key, bytes of the signature that follows
SIGNATURE_BYTES_MAX = 80  # ECDSA P-256 in DER takes 72
KEYS_CACHED = 4096  # checked announcements, and pair keys; more than the neighbors of all neighbors


class Signer(Protocol):
    """Signs with the own pinned key, and checks the signatures of other peers."""

    def sign(self, text: bytes) -> bytes:
        """Return the signature of a text, `SIGNATURE_BYTES_MAX` bytes at most."""

    def is_signed(self, peer: int, text: bytes, signature: bytes) -> bool:
        """Return whether a peer of the graph file has signed a text."""


class Unsigned:
    """Signs nothing and believes all: for peers of one process, which cannot deceive each other."""

    def sign(self, text: bytes) -> bytes:
        """Return no signature."""
        return b""

    def is_signed(self, peer: int, text: bytes, signature: bytes) -> bool:
        """Return that a key is the peer's."""
        return True


@dataclass(frozen=True, slots=True)
class Announcement:
    """The public key of one incarnation of a peer, with its signature."""

    peer: int
    incarnation: int
    key: bytes
    signature: bytes

    def packed(self) -> bytes:
        """Return it as bytes, as in hellos and rosters."""
        return _HEAD.pack(self.peer, self.incarnation, self.key, len(self.signature)) + self.signature


def unpacked(data: bytes) -> list[Announcement]:
    """Return announcements that follow each other.

    Raises:
        ValueError: the bytes have another form.
    """
    found, at = [], 0
    while at < len(data):
        if at + _HEAD.size > len(data):
            raise ValueError(f"{len(data) - at} bytes at the end of the keys")
        peer, incarnation, key, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        signature = data[at : at + length]
        if length > SIGNATURE_BYTES_MAX or len(signature) < length:
            raise ValueError(f"a signature of {length} bytes, of which {len(signature)} are there")
        found.append(Announcement(peer, incarnation, key, signature))
        at += length
    return found


def context_of(graph: Graph) -> bytes:
    """Return what all keys and masks are bound to: the peers, edges and settings of the run."""
    return hashlib.sha256(f"secure sums\n{graph.run_digest}".encode()).digest()


class Keys:
    """The key of this incarnation, and the keys of other peers.

    Args:
        graph: binds keys to this run.
        peer_id: this peer.
        signer: for the announcements.
        random: returns random bytes, as many as it is asked for.
    """

    def __init__(self, graph: Graph, peer_id: int, signer: Signer, random: Callable[[int], bytes]) -> None:
        self.peer_id = peer_id
        self.context = context_of(graph)
        self._signer = signer
        self._private = X25519PrivateKey.from_private_bytes(random(KEY_BYTES))
        self.public = self._private.public_key().public_bytes_raw()
        self.announcement = lru_cache(1)(self._announcement)
        self.is_signed = lru_cache(KEYS_CACHED)(self._is_signed)
        self.shared_with = lru_cache(KEYS_CACHED)(self._shared_with)

    def _announcement(self, incarnation: int) -> Announcement:
        """Return the own key, signed for an incarnation."""
        text = self._text(self.peer_id, incarnation, self.public)
        return Announcement(self.peer_id, incarnation, self.public, self._signer.sign(text))

    def _is_signed(self, announcement: Announcement) -> bool:
        """Return whether an announcement has the signature of its peer."""
        text = self._text(announcement.peer, announcement.incarnation, announcement.key)
        return self._signer.is_signed(announcement.peer, text, announcement.signature)

    def gives_secret(self, announcement: Announcement) -> bool:
        """Return whether a secret can be agreed on with a key: not with one of the few points of small order, which give zero."""
        try:
            self.shared_with(announcement)
        except ValueError:
            return False
        return True

    def _text(self, peer: int, incarnation: int, key: bytes) -> bytes:
        return b"".join((b"secure sum key", self.context, _HEAD.pack(peer, incarnation, key, 0)))

    def _shared_with(self, other: Announcement) -> bytes:
        """Return the secret of this peer and another.

        Raises:
            ValueError: the other key gives none, see `gives_secret`.
        """
        secret = self._private.exchange(X25519PublicKey.from_public_bytes(other.key))
        return derived(secret, "pair", self.context, *sorted((self.public, other.key)))


def in_order(announcements: Iterable[Announcement]) -> tuple[Announcement, ...]:
    """Return announcements by peer, ascending: the order of a roster."""
    return tuple(sorted(announcements, key=lambda each: each.peer))
