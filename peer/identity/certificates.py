"""Certificates: self-signed, P-256, with one SPIFFE URI; making them and reading their names and keys.

The one URI SAN is the name of a peer or observer. A client requires the DNS SAN of its server, so that under a common CA the
certificate of one peer is not accepted for another. P-256, because gRPC's TLS library accepts no Ed25519 certificates.
"""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coordinator_free_bootstrap.errors import IdentityError
from coordinator_free_bootstrap.identity import Subject, dns_name, parse_spiffe_id, spiffe_id
from coordinator_free_bootstrap.ordinary_file import unreadable

DAYS_DEFAULT = 730  # longer than a study; trust depends on the pin, not on the date
CLOCK_SKEW = timedelta(days=1)  # the clock of a device without a battery may be behind
# Errors of the library for bytes that it cannot read as a certificate; they have no common base class.
_UNREADABLE = (
    ValueError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True)
class Certificate:
    """A certificate with exactly one URI SAN, which is a SPIFFE id of this project's form.

    Raises:
        IdentityError: it has no URI SAN, several, or one of another form.
    """

    parsed: x509.Certificate

    @classmethod
    def from_pem(cls, data: bytes, source: str) -> Certificate:
        """Return the first certificate of a PEM text; ``source`` names the file in errors.

        Raises:
            IdentityError: there is no certificate, or its name has another form.
        """
        try:
            found = x509.load_pem_x509_certificate(data)
        except _UNREADABLE as error:
            fix = "Make one with `peer keygen`."
            raise IdentityError(unreadable(source, error, fix, "a certificate in PEM")) from error
        return cls._named(found, source)

    @classmethod
    def from_text(cls, text: str, source: str) -> Certificate:
        """Return the certificate of a base64 text in a graph file; ``source`` names it in errors.

        Raises:
            IdentityError: it is no certificate, or its name has another form.
        """
        try:
            found = x509.load_der_x509_certificate(base64.b64decode(text, validate=True))
        except _UNREADABLE as error:
            fix = "Write it with `peer graph pin`."
            raise IdentityError(unreadable(source, error, fix, "a certificate in DER")) from error
        return cls._named(found, source)

    @classmethod
    def _named(cls, found: x509.Certificate, source: str) -> Certificate:
        result = cls(found)
        try:
            _ = result.name, result.fingerprint, result.may_sign_others
        except (IdentityError, *_UNREADABLE) as error:  # extensions and keys are parsed on access
            raise IdentityError(f"{source}: {error}") from error
        return result

    @cached_property
    def name(self) -> tuple[str, Subject]:
        """Federation and subject (peer id or observer's name)."""
        try:
            names = self.parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            raise IdentityError(
                "expected exactly one URI name in the certificate, got no subject alternative name"
            ) from None
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        if len(uris) != 1:
            raise IdentityError(f"expected exactly one URI name in the certificate, got {len(uris)}")
        return parse_spiffe_id(uris[0])

    @property
    def subject(self) -> Subject:
        """Peer id or observer's name."""
        return self.name[1]

    @cached_property
    def fingerprint(self) -> str:
        """``sha256:`` and the digest of the public key (SubjectPublicKeyInfo), as graph files pin it."""
        key = self.parsed.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return f"sha256:{hashlib.sha256(key).hexdigest()}"

    @property
    def may_sign_others(self) -> bool:
        """Whether a TLS library would accept certificates signed with this certificate's key."""
        try:
            return self.parsed.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
        except x509.ExtensionNotFound:
            return True

    def pem(self) -> bytes:
        """Return the PEM text."""
        return self.parsed.public_bytes(serialization.Encoding.PEM)

    def text(self) -> str:
        """Return base64 of DER, for a graph file."""
        return base64.b64encode(self.parsed.public_bytes(serialization.Encoding.DER)).decode()

    def problem_at(self, now: datetime) -> str | None:
        """Return why the certificate is not valid at a time, or None."""
        if now < self.parsed.not_valid_before_utc:
            return f"valid only from {self.parsed.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; check this device's clock"
        if now > self.parsed.not_valid_after_utc:
            return f"expired on {self.parsed.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; make a new one with `peer keygen`"
        return None


def make_certificate(
    federation: str, subject: Subject, *, days: float = DAYS_DEFAULT, now: datetime | None = None
) -> tuple[bytes, Certificate]:
    """Make a key pair and its self-signed certificate; return the private key (PEM, PKCS #8, not encrypted) and the certificate.

    The key usage excludes signing certificates, so that no peer can issue a certificate for another. The X.509 subject has a
    random number, because TLS libraries find a trusted certificate by its subject, and one peer may have two certificates.

    Args:
        federation: of the manifest.
        subject: peer id, or an observer's name.
        days: of validity, from now on.
        now: start of the validity; default: the current time.

    Raises:
        IdentityError: the federation's name or the subject is not allowed in a certificate.
    """
    uri, key = spiffe_id(federation, subject), ec.generate_private_key(ec.SECP256R1())
    moment = now or datetime.now(UTC)
    host = dns_name(federation, subject)
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, host[:64]),
            x509.NameAttribute(NameOID.SERIAL_NUMBER, os.urandom(8).hex()),
        ]
    )
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign", "crl_sign"),
        False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - CLOCK_SKEW)
        .not_valid_after(moment + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri), x509.DNSName(host)]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, encipher_only=False, decipher_only=False, **usage), critical=True
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]), False)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, Certificate(builder.sign(key, hashes.SHA256()))
