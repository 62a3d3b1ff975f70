"""Certificates that `peer keygen` does not make: with several names or none, of an authority, signed by another key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Issuer:
    """A key that signs."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def authority(*uris: str) -> Issuer:
    """Return a certificate authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {id(key)}")])
    builder = _builder(key, name, name, 10).add_extension(x509.BasicConstraints(True, None), True)
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    builder = builder.add_extension(usage, True)
    if uris:
        builder = builder.add_extension(
            x509.SubjectAlternativeName(list(map(x509.UniformResourceIdentifier, uris))), False
        )
    return Issuer(key, builder.sign(key, hashes.SHA256()))


def issue(uris: list[str], host: str, *, by: Issuer | None = None, days: float = 10) -> tuple[bytes, bytes]:
    """Return key and certificate as PEM, signed by itself or by somebody else."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{host} {id(key)}")])
    alternatives = [*map(x509.UniformResourceIdentifier, uris), x509.DNSName(host)]
    builder = _builder(key, name, by.certificate.subject if by else name, days)
    builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
    certificate = builder.sign(by.key if by else key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    key: ec.EllipticCurvePrivateKey, name: x509.Name, issuer: x509.Name, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=20))
        .not_valid_after(now + timedelta(days=days))
    )
