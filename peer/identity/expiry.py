"""When the certificates of a federation end, and which end soon: their neighbors refuse a peer from that moment on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.identity import Subject
from coordinator_free_bootstrap.validation import counted
from peer.identity.certificates import Certificate

SOON = timedelta(days=30)


def last_end(certificates: Iterable[Certificate]) -> datetime | None:
    """Return when the last of a subject's certificates ends: while a key is rotated there are two; None without any."""
    return max((certificate.parsed.not_valid_after_utc for certificate in certificates), default=None)


def ends_in(graph: Graph) -> dict[Subject, datetime]:
    """Return when the certificates of a graph file end, by peer id or observer's name; those without one are left out.

    Raises:
        IdentityError: a certificate cannot be read.
    """
    entries: dict[Subject, tuple[str, ...]] = {node.id: node.certificates for node in graph.nodes}
    entries |= {observer.name: observer.certificates for observer in graph.observers}
    ends = {
        subject: last_end(Certificate.from_text(text, f"graph file: {_named(subject)}") for text in texts)
        for subject, texts in entries.items()
    }
    return {subject: end for subject, end in ends.items() if end is not None}


def ending_soon(ends: Mapping[Subject, datetime], now: datetime | None = None) -> list[str]:
    """Return a sentence for each certificate that has ended or ends within `SOON`, the earliest first.

    Args:
        ends: by peer id or observer's name.
        now: default: the current time.
    """
    moment = now or datetime.now(UTC)
    soon = sorted((end, str(subject), subject) for subject, end in ends.items() if end - moment <= SOON)
    return [_sentence(subject, end, moment) for end, _, subject in soon]


def _sentence(subject: Subject, end: datetime, now: datetime) -> str:
    option = f"--id {subject}" if isinstance(subject, int) else f"--observer {subject}"
    days = (end - now) / timedelta(days=1)
    when = f"ended on {end:%Y-%m-%d %H:%M} UTC"
    if days >= 0:
        when = f"ends on {end:%Y-%m-%d %H:%M} UTC, in {counted(round(days), 'day')}"
    return (
        f"the certificate of {_named(subject)} {when}; make a new key with peer keygen {option} --out new, pin it with "
        "peer graph pin --rotate, and give all peers the new graph file"
    )


def _named(subject: Subject) -> str:
    return f"peer {subject}" if isinstance(subject, int) else f"observer {subject}"
