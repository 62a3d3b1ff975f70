"""The pause before another attempt, of everything that a peer repeats: messages, hellos and offers of tunnels. Pure."""

from __future__ import annotations

RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0
WARNED_AT = frozenset(1 << n for n in range(2, 32))  # failures in a row after which the operator is warned


def backoff_s(failures: int, jitter: float, longest_s: float = RETRY_MAX_S) -> float:
    """Return the pause after ``failures`` >= 1 in a row: exponential, capped, spread by ``jitter`` in [0, 1)."""
    return float(min(longest_s, RETRY_FIRST_S * 2 ** min(failures - 1, 16)) * (0.5 + jitter))
