"""Signatures by keys of P-256, as `peer keygen` makes them: ECDSA with SHA-256, in DER."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator_free_bootstrap.errors import ConfigProblem, IdentityError
from peer.identity.certificates import Certificate
from peer.identity.files import KeyPair

_ALGORITHM = ec.ECDSA(hashes.SHA256())


def signing_key(pair: KeyPair, what: str) -> ec.EllipticCurvePrivateKey:
    """Return the private key of a pair; ``what`` names it in errors.

    Raises:
        IdentityError: it is of another kind.
    """
    key = serialization.load_pem_private_key(pair.private_key, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(ConfigProblem(what, "one of P-256, as peer keygen makes it", type(key).__name__))
    return key


def sign(key: ec.EllipticCurvePrivateKey, text: bytes) -> bytes:
    """Return the signature of a text."""
    return key.sign(text, _ALGORITHM)


def checking_key(certificate: Certificate) -> ec.EllipticCurvePublicKey | None:
    """Return the key that checks the signatures of a certificate's owner; None if it is of another kind."""
    key = certificate.parsed.public_key()
    return key if isinstance(key, ec.EllipticCurvePublicKey) else None


def is_signed(key: ec.EllipticCurvePublicKey, text: bytes, signature: bytes) -> bool:
    """Return whether the owner of a key has signed a text."""
    try:
        key.verify(signature, text, _ALGORITHM)
    except InvalidSignature:
        return False
    return True
