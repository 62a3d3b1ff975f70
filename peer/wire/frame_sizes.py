"""Frame sizes to neighbors, learned from how fast their links are.

A frame is the smallest thing that a receiver notices. On a slow or lossy link one of 1 MiB takes longer than the idle time of a
transfer, or than the suspicion time, although bytes arrive all the time. So the first frames to a neighbor are small. They grow
to what passes in `WANTED_S`, as far as a rate is proven: by the arrival of a frame, by a reply, or by more bytes than the
buffers of both ends take at once.
"""

from __future__ import annotations

from coordinator_free_bootstrap.rates import FRAME_BYTES_MIN

LEAST_BYTES = 512  # in `WANTED_S`: no slower link is expected
FIRST_BYTES = 8 << 10  # a second at 64 kbit/s
BUFFERED_BYTES = 8 << 20  # more than the kernel and HTTP/2 take at once without any of it being sent
QUEUED_BYTES = 256 << 10  # what they take of a slow link
WANTED_S = 0.5
# in `WANTED_S`: 17 Mbit/s, at which what the buffers take at once passes in a heartbeat interval or two
FAST_BYTES = 1 << 20
GROWTH_MAX = 4.0  # from one frame to the next: a link may take a few kilobytes at once and be slow all the same


class FrameSizes:
    """The payload bytes of the next frame to each neighbor."""

    def __init__(self) -> None:
        self._bytes: dict[int, float] = {}  # that pass in `WANTED_S`

    def begin(self, receiver: int, size_bytes: int) -> None:
        """Begin with frames of another size, if they are smaller."""
        self._bytes[receiver] = min(FIRST_BYTES, size_bytes)

    def next(self, receiver: int, most: int) -> int:
        """Return the size of the next frame, a multiple of 4."""
        return min(most, max(FRAME_BYTES_MIN, int(self._bytes.get(receiver, FIRST_BYTES)))) & ~3

    def is_fast(self, receiver: int) -> bool:
        """Return whether the link has proven that what its buffers hold passes soon."""
        return self._bytes.get(receiver, FIRST_BYTES) >= FAST_BYTES

    def bytes_per_second(self, receiver: int) -> float:
        """Return the rate that is proven or assumed."""
        return self._bytes.get(receiver, FIRST_BYTES) / WANTED_S

    def buffered_s(self, receiver: int) -> float:
        """Return how long full buffers take to be sent; 0 on a fast link."""
        if self.is_fast(receiver):
            return 0.0
        return QUEUED_BYTES / self.bytes_per_second(receiver)

    def arrived(self, receiver: int, size_bytes: int, seconds: float) -> None:
        """Note how long a frame took that was alone on its way, apart from the latency of the link."""
        wanted, present = WANTED_S * size_bytes / max(seconds, 1e-3), self._bytes.get(receiver, FIRST_BYTES)
        grown = min(max(wanted, present), GROWTH_MAX * present)
        self._bytes[receiver] = max(LEAST_BYTES, wanted) if seconds > WANTED_S else grown

    def wrote(self, receiver: int, size_bytes: int, seconds: float) -> None:
        """Note how many bytes of a transfer were written, and how long that took so far."""
        if size_bytes > BUFFERED_BYTES:
            self._raise(receiver, size_bytes - BUFFERED_BYTES, seconds)

    def answered(self, receiver: int, size_bytes: int, seconds: float) -> None:
        """Note how long a transfer took with its reply: it was at least so fast."""
        self._raise(receiver, size_bytes, seconds)

    def failed(self, receiver: int) -> None:
        """Note that a transfer stopped, was too slow for the receiver, or lost its connection: the rate is unknown again."""
        self._bytes[receiver] = max(FRAME_BYTES_MIN, min(FIRST_BYTES, self._bytes.get(receiver, FIRST_BYTES) / 2))

    def _raise(self, receiver: int, size_bytes: int, seconds: float) -> None:
        wanted = WANTED_S * size_bytes / max(seconds, 1e-3)
        self._bytes[receiver] = max(wanted, self._bytes.get(receiver, FIRST_BYTES))
