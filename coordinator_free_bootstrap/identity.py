"""Identity in a certificate (peer or observer), and the incarnation: the restart count of a peer. Pure.

An incarnation is on disk before it is used, and only grows. A peer without its state directory does not know its last
incarnation. It takes a random high part, which equals the earlier one with probability 2^-32. If a neighbor answers with
a higher incarnation, the peer adds a random step to it. One more is not enough: the neighbor may have missed the
latest restarts, and two restarts with one incarnation would send different models under one number.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from coordinator_free_bootstrap.errors import IdentityError

INCARNATION_MAX = (1 << 53) - 1  # readers of JSON that know only float64 still show it exactly
_RESTART_BITS = 20  # restarts with the same state directory, before the count reaches the next high part
_STEP_BITS = 24  # of the high part, which has 33 bits: room for hundreds of steps, and equal steps are rare
SEEN_MAX = 3 << 51  # honest peers stay below: 2^52 plus 256 average steps; a false claim must not use up the rest

Subject: TypeAlias = int | str  # of a certificate: the id of a peer or the name of an observer

FEDERATION = r"[a-z0-9][a-z0-9.-]{0,62}"
FEDERATION_FORM = "up to 63 of a-z, 0-9, . and -, the first a letter or digit"
OBSERVER = r"[a-z][a-z0-9-]{0,31}"
OBSERVER_FORM = "up to 32 of a-z, 0-9 and -, the first a letter"
_SPIFFE = re.compile(f"spiffe://({FEDERATION})/(?:peer/(0|[1-9][0-9]{{0,9}})|observer/({OBSERVER}))")


def next_incarnation(stored: int | None, seen: int, entropy: int) -> int:
    """Return the incarnation of a starting peer, higher than every known earlier one.

    It is the stored one plus 1, unless a higher one was seen: then the state directory lacks some restarts.

    Args:
        stored: the last incarnation in the state directory; None at the first start and after a lost disk.
        seen: the highest incarnation of this peer at its neighbors or in a checkpoint; 0 if none.
        entropy: random bits from the operating system; the low 32 are used if ``stored`` is None, else the low 24.

    Raises:
        IdentityError: ``stored`` or ``seen`` is negative or too high, ``seen`` is above `SEEN_MAX`, or none is left.
    """
    previous = stored if stored is not None else (entropy & 0xFFFFFFFF) << _RESTART_BITS
    result = previous + 1
    if seen > previous:
        step = 1 + (entropy & ((1 << _STEP_BITS) - 1))
        result = ((seen >> _RESTART_BITS) + step << _RESTART_BITS) + 1
    if min(previous, seen) < 0 or seen > max(previous, SEEN_MAX) or result > INCARNATION_MAX:
        raise IdentityError(
            f"incarnation: expected from 0 to {INCARNATION_MAX - 1} and {SEEN_MAX}, got {previous} in the state "
            f"directory and {seen} at a neighbor. If the neighbor is honest, give this peer a new id in the graph "
            "file."
        )
    return result


def restart_count(incarnation: int) -> int:
    """Return the number of starts since the state directory was new; for display, not for comparison."""
    return incarnation & ((1 << _RESTART_BITS) - 1)


def spiffe_id(federation: str, subject: Subject) -> str:
    """Return the URI in a certificate: ``spiffe://<federation>/peer/<peer_id>`` or ``.../observer/<name>``.

    Raises:
        IdentityError: the federation, the id or the name has a form that the URI does not allow.
    """
    text = f"spiffe://{federation}/{'peer' if isinstance(subject, int) else 'observer'}/{subject}"
    parse_spiffe_id(text)
    return text


def parse_spiffe_id(text: str) -> tuple[str, Subject]:
    """Return federation and subject (peer id or observer name) of a certificate URI.

    Raises:
        IdentityError: the text has neither of the two forms of `spiffe_id`.
    """
    match = _SPIFFE.fullmatch(text)
    if match is None:
        raise IdentityError(
            "certificate URI: expected spiffe://<federation>/peer/<peer_id>, or spiffe://<federation>/observer/<name> "
            f"with a name of lower-case letters, digits and -, got {text[:120]!a}. Make the certificate with `peer "
            "keygen`."
        )
    return match[1], int(match[2]) if match[2] else match[3]


def dns_name(federation: str, subject: Subject) -> str:
    """Return the DNS name in a certificate, such as ``peer-3.<federation>``; a channel to the peer requires it."""
    return f"peer-{subject}.{federation}" if isinstance(subject, int) else f"{subject}.observer.{federation}"
