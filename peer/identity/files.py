"""Key and certificate files: ``<name>.key`` (mode 0600) and ``<name>.pem``, written once, checked whenever they are read."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives import serialization

from coordinator_free_bootstrap.errors import IdentityError
from coordinator_free_bootstrap.identity import Subject
from peer.identity.certificates import DAYS_DEFAULT, Certificate, make_certificate
from peer.store.state_dir import StateDir

FILE_BYTES_MAX = 1 << 20
OBSERVER = "testbed"  # the name on the certificate with which a testbed's directory may be watched


def identity_files(directory: Path, subject: Subject) -> KeyFiles:
    """Return where a testbed keeps the keys of a peer, or of its observer."""
    home = StateDir.of_peer(directory, subject).root if isinstance(subject, int) else Path(directory)
    return KeyFiles.of(home / "identity", subject)


@dataclass(frozen=True)
class KeyPair:
    """A private key (PEM) and its certificate, with what stands behind it in its file (a CA's chain)."""

    private_key: bytes
    certificate: Certificate
    chain: bytes

    def __repr__(self) -> str:
        return f"KeyPair({self.certificate.subject}, {self.certificate.fingerprint})"  # never the key


@dataclass(frozen=True)
class KeyFiles:
    """Where the two files of one subject lie."""

    certificate: Path
    key: Path

    @classmethod
    def of(cls, directory: Path, subject: Subject) -> KeyFiles:
        """Return the names that `keygen` gives: ``peer-3.pem`` and ``peer-3.key``, or ``<observer>.pem`` and ``.key``."""
        stem = f"peer-{subject}" if isinstance(subject, int) else subject
        return cls(Path(directory) / f"{stem}.pem", Path(directory) / f"{stem}.key")

    def exist(self) -> bool:
        """Return whether any of the two is there."""
        return self.certificate.exists() or self.key.exists()


def keygen(directory: Path, federation: str, subject: Subject, *, days: float = DAYS_DEFAULT) -> KeyFiles:
    """Make a key pair and write its two files; existing ones are never overwritten.

    Raises:
        IdentityError: a file exists or cannot be written, or the name cannot stand in a certificate.
    """
    private, certificate = make_certificate(federation, subject, days=days)
    files = KeyFiles.of(directory, subject)
    if files.exist():
        raise IdentityError(f"{files.key} or .pem exists; to rotate a key, write the new one to another --out")
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        for path, data, mode in ((files.key, private, 0o600), (files.certificate, certificate.pem(), 0o644)):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
    except OSError as error:
        raise IdentityError(
            f"cannot write {error.filename or directory}: {error.strerror}; choose another --out"
        ) from error
    return files


def load_key_pair(files: KeyFiles) -> KeyPair:
    """Read a key pair and check all that can be checked without a graph: modes, form, that both belong together, dates.

    Raises:
        IdentityError: a sentence that names the file and the remedy.
    """
    chain = read_file(files.certificate, "certificate")
    certificate = Certificate.from_pem(chain, str(files.certificate))
    _check_mode(files.key)
    private = read_file(files.key, "private key")
    try:
        key = serialization.load_pem_private_key(private, None)
    except (ValueError, TypeError) as error:  # TypeError: it is encrypted
        raise IdentityError(f"{files.key}: no unencrypted PEM private key; make one with `peer keygen`") from error
    if key.public_key() != certificate.parsed.public_key():
        raise IdentityError(f"{files.key} is not the key of {files.certificate}; give both of one `peer keygen`")
    problem = certificate.problem_at(datetime.now(UTC))
    if problem:
        raise IdentityError(f"{files.certificate}: {problem}")
    return KeyPair(private, certificate, chain)


def read_file(path: Path, what: str) -> bytes:
    """Return a small file's content.

    Raises:
        IdentityError: it is missing, unreadable or too large.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise IdentityError(
            f"{path}: the {what} is missing; make one with `peer keygen`, name it with --cert and --key, or accept "
            "plaintext with --insecure"
        ) from None
    except (OSError, ValueError) as error:
        raise IdentityError(f"{path}: the {what} cannot be read ({error}); check owner and mode") from error
    if len(data) > FILE_BYTES_MAX:
        raise IdentityError(f"{path}: more than {FILE_BYTES_MAX} bytes; this is no {what}")
    return data


def mode_problem(mode: int, *, mounted: bool) -> str | None:
    """Return why a private key's file mode is too open, or None.

    Args:
        mode: permission bits.
        mounted: whether root owns the file and this process is another user: a mounted secret, which its group may read
            (the rule of PostgreSQL, made for the same secrets).
    """
    if mode & 0o077 & ~(0o040 if mounted else 0):
        return f"mode {mode:04o} lets others use the private key; allowed: 0600"
    return None


def _check_mode(path: Path) -> None:
    try:
        found = os.stat(path)
    except OSError:
        return  # `read_file` says it
    problem = mode_problem(stat.S_IMODE(found.st_mode), mounted=found.st_uid == 0 and os.geteuid() != 0)
    if problem:
        raise IdentityError(f"{path}: {problem}; run chmod 600 {path}")
