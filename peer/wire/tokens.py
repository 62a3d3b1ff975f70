"""A token bucket for bytes: whoever takes waits until the rate allows it."""

from __future__ import annotations

import asyncio

BURST_S = 0.25  # so many seconds of the rate may be taken at once after a pause


class TokenBucket:
    """Bytes per second, shared by all takers in the order of their calls.

    Args:
        bytes_per_second: the rate.
    """

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._due = 0.0  # when the bytes taken so far are paid for

    async def take(self, size_bytes: int) -> None:
        """Wait until so many bytes may pass."""
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now - BURST_S) + size_bytes / self._rate
        if self._due > now:
            await asyncio.sleep(self._due - now)
