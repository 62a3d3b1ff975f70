"""How many rounds a peer took part in, as its neighbors saw it: a run in which a peer was hardly there says so. Pure.

A neighbor took part in a round unless its models were missing when the round closed, the field ``missing`` of its record. They
are not missing where none are expected: it sits the round out (`run.participation`), or the edge is down (`run.edges`,
`run.dynamic_edges`).
"""

from __future__ import annotations

PRESENT_SHARE = 0.75  # below this share of the rounds a peer was hardly there, and the numbers of the run are doubtful


def was_hardly_there(took_part: int, rounds: int) -> bool:
    """Return whether a peer took part in so few of the rounds that a report warns."""
    return took_part < PRESENT_SHARE * rounds


def sentence(peer_id: int, took_part: int, rounds: int) -> str:
    """Return the warning.

    >>> sentence(3, 12, 20)
    'peer 3 took part in 12 of 20 rounds'
    """
    return f"peer {peer_id} took part in {took_part} of {rounds} rounds"
