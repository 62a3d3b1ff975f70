"""Signatures of the keys of secure sums: ECDSA P-256 with the key that the graph file pins, checked with its certificates."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric import ec

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import ConfigProblem, IdentityError
from peer.identity import p256
from peer.identity.certificates import Certificate
from peer.identity.files import KeyPair


class PinnedSigner:
    """Signs with a peer's own pinned key; knows those of its neighbors and of theirs. Implements `peer.secure_sum.keys.Signer`.

    Args:
        graph: with the certificates of all these peers.
        peer_id: the own one.
        pair: its key and certificate.

    Raises:
        IdentityError: the own key is none of P-256, or the graph file has no certificate of a peer.
    """

    def __init__(self, graph: Graph, peer_id: int, pair: KeyPair) -> None:
        around = {peer_id, *graph.neighbors(peer_id)}
        around |= {other for n in graph.neighbors(peer_id) for other in graph.neighbors(n)}
        self._keys = {peer: _keys_of(graph, peer) for peer in sorted(around)}
        self._key = p256.signing_key(pair, "own key")

    def sign(self, text: bytes) -> bytes:
        """Return the signature of a text, DER."""
        return p256.sign(self._key, text)

    def is_signed(self, peer: int, text: bytes, signature: bytes) -> bool:
        """Return whether a peer has signed a text; False for one that is no neighbor, and none of a neighbor."""
        return any(p256.is_signed(key, text, signature) for key in self._keys.get(peer, ()))


def _keys_of(graph: Graph, peer: int) -> list[ec.EllipticCurvePublicKey]:
    node = graph.node(peer)
    certificates = [Certificate.from_text(text, f"graph file: peer {peer}") for text in node.certificates]
    pinned = (each for each in certificates if each.fingerprint in node.pins)
    found = [key for key in map(p256.checking_key, pinned) if key is not None]
    if not found:
        expected = "a certificate of each neighbor and of each of its neighbors, as run.secure_sum needs them"
        raise IdentityError(ConfigProblem("graph file", expected, f"none of peer {peer}", "Run `peer graph pin`."))
    return found
