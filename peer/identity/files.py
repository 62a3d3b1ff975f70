"""Key and certificate files: ``<name>.key`` (mode 0600) and ``<name>.pem``; never overwritten, checked when read."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from typing_extensions import override

from coordinator_free_bootstrap.errors import ConfigProblem, IdentityError, Option
from coordinator_free_bootstrap.identity import Subject
from coordinator_free_bootstrap.ordinary_file import content_of, unreadable, unwritable
from peer.identity.certificates import DAYS_DEFAULT, Certificate, make_certificate
from peer.store.state_dir import StateDir

FILE_BYTES_MAX = 1 << 20
OBSERVER = "testbed"  # the observer's name in a testbed


def identity_files(directory: Path, subject: Subject) -> KeyFiles:
    """Return the key files of a peer, or of the observer, in a testbed's directory."""
    home = StateDir.of_peer(directory, subject).root if isinstance(subject, int) else Path(directory)
    return KeyFiles.of(home / "identity", subject)


@dataclass(frozen=True)
class KeyPair:
    """A private key (PEM), its certificate, and the whole certificate file (with the chain of an authority, if any)."""

    private_key: bytes
    certificate: Certificate
    chain: bytes

    @override
    def __repr__(self) -> str:
        return f"KeyPair({self.certificate.subject}, {self.certificate.fingerprint})"  # never the key


@dataclass(frozen=True)
class KeyFiles:
    """Paths of the two files of one subject."""

    certificate: Path
    key: Path

    @classmethod
    def of(cls, directory: Path, subject: Subject) -> KeyFiles:
        """Return the paths that `keygen` writes: ``peer-3.pem`` and ``peer-3.key``, or ``<observer>.pem`` and ``.key``."""
        stem = f"peer-{subject}" if isinstance(subject, int) else subject
        return cls(Path(directory) / f"{stem}.pem", Path(directory) / f"{stem}.key")

    def exist(self) -> bool:
        """Return whether at least one of the two exists."""
        return self.certificate.exists() or self.key.exists()


def keygen(directory: Path, federation: str, subject: Subject, *, days: float = DAYS_DEFAULT) -> KeyFiles:
    """Make a key pair and write its two files; existing files are never overwritten.

    Raises:
        IdentityError: a file exists or cannot be written, or the name is not allowed in a certificate.
    """
    private, certificate = make_certificate(federation, subject, days=days)
    files = KeyFiles.of(directory, subject)
    if files.exist():
        fix = f"To rotate a key, write the new one to another {Option('out')}."
        raise IdentityError(
            ConfigProblem(f"{files.key}", "no file of this name", "an existing key or certificate", fix)
        )
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        for path, data, mode in ((files.key, private, 0o600), (files.certificate, certificate.pem(), 0o644)):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
    except OSError as error:
        raise IdentityError(
            unwritable(Option("out"), error.filename or directory, error, "Name another folder.")
        ) from error
    return files


def load_key_pair(files: KeyFiles) -> KeyPair:
    """Read a key pair; check file modes, form, that key and certificate match, and the certificate's dates.

    Raises:
        IdentityError: a check failed; the message names the file and what to do.
    """
    chain = read_file(files.certificate, "certificate")
    certificate = Certificate.from_pem(chain, str(files.certificate))
    _check_mode(files.key)
    private = read_file(files.key, "private key")
    try:
        key = serialization.load_pem_private_key(private, None)
    except (ValueError, TypeError) as error:  # TypeError: it is encrypted
        expected = "an unencrypted private key in PEM"
        raise IdentityError(unreadable(str(files.key), error, "Make one with `peer keygen`.", expected)) from error
    if key.public_key() != certificate.parsed.public_key():
        expected, fix = f"the key of {files.certificate}", "Give two files of the same `peer keygen`."
        raise IdentityError(ConfigProblem(str(files.key), expected, "another key", fix))
    problem = certificate.problem_at(datetime.now(UTC))
    if problem:
        raise IdentityError(f"{files.certificate}: {problem}")
    return KeyPair(private, certificate, chain)


def read_file(path: Path, what: str) -> bytes:
    """Return the content of a file of at most 1 MiB; ``what`` names it in errors.

    Raises:
        IdentityError: the file is missing, unreadable or too large.
    """
    try:
        return content_of(path, FILE_BYTES_MAX)
    except FileNotFoundError:
        fix = (
            f"Make one with `peer keygen`, give its folder with {Option('certs')}, or give {Option('insecure')} for plaintext. "
            "(docs/trouble.md#no-key)"
        )
        raise IdentityError(ConfigProblem(str(path), f"the {what}", "no file", fix)) from None
    except OSError as error:
        raise IdentityError(unreadable(str(path), error, "Check owner and mode of the file.", f"the {what}")) from error


def mode_problem(mode: int, *, mounted: bool) -> str | None:
    """Return why other users may access a private key's file, or None.

    Args:
        mode: permission bits.
        mounted: whether root owns the file and this process runs as another user. So it is for secrets mounted into a
            container; their group may read them (PostgreSQL has the same rule).
    """
    if mode & 0o077 & ~(0o040 if mounted else 0):
        return f"expected mode {'0640' if mounted else '0600'}, got {mode:04o}, with which other users can access the private key"
    return None


def _check_mode(path: Path) -> None:
    try:
        status = os.stat(path)
    except OSError:
        return  # `read_file` raises the error
    problem = mode_problem(stat.S_IMODE(status.st_mode), mounted=status.st_uid == 0 and os.geteuid() != 0)
    if problem:
        raise IdentityError(f"{path}: {problem}. Run chmod 600 {path}.")
