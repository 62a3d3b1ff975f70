"""Frame sizes to neighbors, learned from how fast their links are.

A frame is the smallest thing that a receiver notices. On a slow or lossy link one of 1 MiB takes longer than the idle time of a
transfer, or than the suspicion time, although bytes arrive all the time. So the first frames to a neighbor are small. They grow to
what passes in `WANTED_S`, as far as a rate is proven: by a reply, or by more bytes than the buffers of both ends take at once.
"""

from __future__ import annotations

from coordinator_free_bootstrap.rates import FRAME_BYTES_MIN

FIRST_BYTES = 8 << 10  # a second at 64 kbit/s
BUFFERED_BYTES = 256 << 10  # what may be written at once without any of it being sent
WANTED_S = 0.5
FAST_BYTES = 64 << 10  # in `WANTED_S`: 1 Mbit/s
FAILED = 4  # by this much frames are smaller after a transfer that was too slow


class FrameSizes:
    """The payload bytes of the next frame to each neighbor."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}

    def next(self, receiver: int, most: int) -> int:
        """Return the size of the next frame, a multiple of 4."""
        return min(most, self._bytes.get(receiver, FIRST_BYTES))

    def is_fast(self, receiver: int) -> bool:
        """Return whether the link has proven that what its buffers hold passes soon."""
        return self._bytes.get(receiver, FIRST_BYTES) >= FAST_BYTES

    def buffered_s(self, receiver: int) -> float:
        """Return how long full buffers take to be sent; 0 on a fast link."""
        if self.is_fast(receiver):
            return 0.0
        return WANTED_S * BUFFERED_BYTES / self._bytes.get(receiver, FIRST_BYTES)

    def wrote(self, receiver: int, size_bytes: int, seconds: float) -> None:
        """Note how many bytes of a transfer were written, and how long that took so far."""
        sent_bytes = size_bytes - BUFFERED_BYTES
        if sent_bytes > 0:
            self._set(receiver, WANTED_S * sent_bytes / max(seconds, 1e-3))

    def answered(self, receiver: int, size_bytes: int, seconds: float) -> None:
        """Note how long a transfer took with its reply: it was at least so fast."""
        wanted = WANTED_S * size_bytes / max(seconds, 1e-3)
        self._set(receiver, max(wanted, self._bytes.get(receiver, FIRST_BYTES)))

    def failed(self, receiver: int) -> None:
        """Note that a transfer stopped, or was too slow for the receiver."""
        self._set(receiver, self._bytes.get(receiver, FIRST_BYTES) / FAILED)

    def _set(self, receiver: int, size_bytes: float) -> None:
        self._bytes[receiver] = max(FRAME_BYTES_MIN, int(size_bytes)) & ~3
