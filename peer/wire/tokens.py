"""A token bucket for bytes: whoever takes waits until the rate allows it."""

from __future__ import annotations

import asyncio
import math

BURST_S = 0.25  # so many seconds of the rate may be taken at once after a pause


class TokenBucket:
    """Bytes per second, shared by all takers in the order of their calls.

    Args:
        bytes_per_second: the rate; default: no limit.
    """

    def __init__(self, bytes_per_second: float = math.inf) -> None:
        self._rate = bytes_per_second
        self._due = 0.0  # when the bytes taken so far are paid for

    def bytes_in(self, seconds: float) -> float:
        """Return how many bytes the rate lets pass in some seconds; infinite without a rate."""
        return self._rate * seconds

    @property
    def limited(self) -> bool:
        """Whether there is a rate."""
        return self._rate < math.inf

    def spend(self, size_bytes: int, now: float) -> float:
        """Take bytes at a time (monotonic seconds); return how many seconds to wait before they may pass."""
        self._due = max(self._due, now - BURST_S) + size_bytes / self._rate
        return max(0.0, self._due - now)

    def count(self, size_bytes: int) -> None:
        """Take bytes that do not wait: heartbeats and other short messages."""
        if self.limited:
            self.spend(size_bytes, asyncio.get_running_loop().time())

    async def take(self, size_bytes: int) -> None:
        """Wait until so many bytes may pass."""
        if self.limited and (wait_s := self.spend(size_bytes, asyncio.get_running_loop().time())) > 0:
            await asyncio.sleep(wait_s)
