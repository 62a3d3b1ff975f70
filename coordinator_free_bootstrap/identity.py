"""Who a peer or an observer is, as a certificate states it; and the incarnation, the number of a peer's current life. Pure.

An incarnation is persisted before it is used and only grows. A peer that has lost its disk cannot know its last one: it
takes a random high part, which differs from that of a former life (but for one chance in 2^32), and if a neighbor
answers that it has seen a higher one, goes above that by a random step. One more than what was seen would not do: the
neighbor may have missed the last lives, and two lives with one number would send different models under one name.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from coordinator_free_bootstrap.errors import IdentityError

INCARNATION_MAX = (1 << 53) - 1  # readers of JSON that know only float64 still show it exactly
_LIVES_BITS = 20  # restarts with a disk before the next random part would be reached
_STEP_BITS = 24  # of the high part: 2^33 has room for hundreds of such steps, and a step seldom meets another
SEEN_MAX = 3 << 51  # honest lives stay below: 2^52 and 256 lost disks of average steps; a liar must not use up the rest

Subject: TypeAlias = int | str  # whom a certificate is about: a peer's id, or an observer's name

_FEDERATION = r"spiffe://([a-z0-9][a-z0-9.-]{0,62})"
_SPIFFE = re.compile(_FEDERATION + r"/(?:peer/(0|[1-9][0-9]{0,9})|observer/([a-z][a-z0-9-]{0,31}))")


def next_incarnation(stored: int | None, seen: int, entropy: int) -> int:
    """Return the incarnation of a life that begins, above all former ones that are known.

    It is one more than the stored one, if nobody has seen a higher one; else lives are missing from the state directory.

    Args:
        stored: the last incarnation in the state directory; None if there is none (first start, or a lost disk).
        seen: the highest incarnation of this peer that its neighbors or a checkpoint know of; 0 if none.
        entropy: a random number from the operating system; 32 bits of it are used if ``stored`` is None, else 24.

    Raises:
        IdentityError: ``stored`` or ``seen`` is out of range, ``seen`` is above `SEEN_MAX`, or no number is left.
    """
    former = stored if stored is not None else (entropy & 0xFFFFFFFF) << _LIVES_BITS
    result = former + 1
    if seen > former:
        step = 1 + (entropy & ((1 << _STEP_BITS) - 1))
        result = ((seen >> _LIVES_BITS) + step << _LIVES_BITS) + 1
    if min(former, seen) < 0 or seen > max(former, SEEN_MAX) or result > INCARNATION_MAX:
        raise IdentityError(
            f"incarnation: found {former} in the state directory and {seen} at a neighbor; allowed: from 0 to "
            f"{INCARNATION_MAX - 1} and {SEEN_MAX}; if the neighbor is right, give this peer a new id in the graph file"
        )
    return result


def life(incarnation: int) -> int:
    """Return the how-manieth life since the state directory was new; for people, not for comparisons."""
    return incarnation & ((1 << _LIVES_BITS) - 1)


def spiffe_id(federation: str, subject: Subject) -> str:
    """Return the one URI of a certificate: ``spiffe://<federation>/peer/<peer_id>`` or ``.../observer/<name>``.

    Raises:
        IdentityError: the federation's name, the id or the name cannot stand in such a URI.
    """
    text = f"spiffe://{federation}/{'peer' if isinstance(subject, int) else 'observer'}/{subject}"
    parse_spiffe_id(text)
    return text


def parse_spiffe_id(text: str) -> tuple[str, Subject]:
    """Return (federation, peer id or observer's name) of a certificate's URI.

    Raises:
        IdentityError: it has not exactly one of the two forms of `spiffe_id`.
    """
    match = _SPIFFE.fullmatch(text)
    if match is None:
        raise IdentityError(
            f"certificate URI: found {text[:120]!a}; allowed: spiffe://<federation>/peer/<peer_id>, or "
            "spiffe://<federation>/observer/<name> with a name of lower-case letters, digits and -"
        )
    return match[1], int(match[2]) if match[2] else match[3]


def dns_name(federation: str, subject: Subject) -> str:
    """Return the DNS name of a certificate, which a channel to this peer insists on: ``peer-3.<federation>``."""
    return f"peer-{subject}.{federation}" if isinstance(subject, int) else f"{subject}.observer.{federation}"
