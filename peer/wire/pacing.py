"""The pace of one peer's transfers: its own limits, and what it may expect of its neighbors."""

from __future__ import annotations

import asyncio
import math

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.manifest import Timeouts
from coordinator_free_bootstrap.rates import FRAME_BYTES_MAX, RATE_EXPECTED, bytes_ahead, expected_rate, frame_bytes
from coordinator_free_bootstrap.routes import relay_of
from peer.wire.frame_sizes import FrameSizes
from peer.wire.security import ChannelOptions

RATE_STEADY = 2 << 10  # bytes/s, 16 kbit/s: a transfer of at least this average continues until the round deadline
BURST_S = 0.25  # after a pause, a burst of this many seconds of the rate may pass at once


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
        """Wait until this number of bytes may pass."""
        if self.limited and (wait_s := self.spend(size_bytes, asyncio.get_running_loop().time())) > 0:
            await asyncio.sleep(wait_s)


class Pacing:
    """Two token buckets over all neighbors, and frame sizes and time limits by neighbor; without limits nothing waits.

    Attributes:
        upload: of models that this peer sends.
        download: of models that this peer receives.
    """

    def __init__(self) -> None:
        self.upload, self.download = TokenBucket(), TokenBucket()
        self.learned: FrameSizes | None = None  # None: all frames have the size that they may have
        self._fixed: dict[int, int] = {}  # frame bytes to neighbors that a declared limit makes slow, and not very slow
        self._ahead: dict[int, int] = {}  # most frame bytes to neighbors behind a slow relay: frames go one by one
        self._rates: dict[int, float] = {}  # the lower one of both directions
        self._declared: set[int] = set()  # neighbors with limits, or behind a relay

    @classmethod
    def of(cls, graph: Graph, peer_id: int, upload: int | None = None, download: int | None = None) -> Pacing:
        """Return the pacing of a peer.

        Args:
            graph: with the declared limits of all peers.
            peer_id: of this peer.
            upload: own limit, bytes per second; default: the declared one.
            download: own limit, bytes per second; default: the declared one.
        """
        pacing, node = cls(), graph.node(peer_id)
        pacing.learned = FrameSizes()
        upload, download = upload or node.upload_limit, download or node.download_limit
        pacing.upload = TokenBucket(upload) if upload else pacing.upload
        pacing.download = TokenBucket(download) if download else pacing.download
        for neighbor in graph.neighbors(peer_id):
            there, relay = graph.node(neighbor), relay_of(graph, peer_id, neighbor)
            if there.upload_limit or there.download_limit or relay is not None:
                pacing._declared.add(neighbor)
            sending = expected_rate(graph, peer_id, neighbor)
            rate = min(sending, expected_rate(graph, neighbor, peer_id))
            own = upload / (2 * graph.degree(peer_id)) if upload else RATE_EXPECTED
            declared = frame_bytes(graph, peer_id, neighbor, upload)
            if (ahead := bytes_ahead(graph, relay)) is not None:
                pacing._ahead[neighbor] = ahead
                pacing.learned.begin(neighbor, declared)
            elif sending < min(own, RATE_EXPECTED):  # an own limit needs no proof: its bucket spaces the frames
                pacing.learned.begin(neighbor, declared)
            elif declared < FRAME_BYTES_MAX:
                pacing._fixed[neighbor] = declared
            pacing._rates[neighbor] = rate
        return pacing

    def frame_bytes(self, receiver: int, most: int) -> int:
        """Return the payload bytes of the next frame to a neighbor."""
        if self.learned is None or receiver in self._fixed:
            return min(most, self._fixed.get(receiver, most))
        return self.learned.next(receiver, min(most, self._ahead.get(receiver, most)))

    def is_unproven(self, receiver: int) -> bool:
        """Return whether frames to a neighbor have to arrive one by one: behind a slow relay, or until it is known as fast."""
        if self.learned is None or receiver in self._fixed:
            return False
        return receiver in self._ahead or not self.learned.is_fast(receiver)

    def arrived(self, receiver: int, size_bytes: int, seconds: float) -> None:
        """Note how long a frame took that was alone on its way, apart from the latency of the link."""
        if self.learned is not None:
            self.learned.arrived(receiver, size_bytes, seconds)

    def wrote(self, receiver: int, size_bytes: int, seconds: float) -> None:
        """Note how many bytes of a transfer were written, and how long that took so far."""
        if self.learned is not None:
            self.learned.wrote(receiver, size_bytes, seconds)

    def answered(self, receiver: int, size_bytes: int, seconds: float) -> None:
        """Note how long a transfer took with its reply."""
        if self.learned is not None:
            self.learned.answered(receiver, size_bytes, seconds)

    def failed(self, receiver: int) -> None:
        """Note that a transfer to a neighbor stopped, or was too slow for it."""
        if self.learned is not None:
            self.learned.failed(receiver)

    def transfer_limit_s(self, neighbor: int, size_bytes: int, timeouts: Timeouts) -> float:
        """Return the time limit of a whole transfer, seconds; it also ends a transfer of many tiny chunks."""
        rate = self._rates.get(neighbor, RATE_EXPECTED)
        return min(timeouts.round_deadline_s, timeouts.idle_transfer_s + size_bytes / rate)

    def may_last_s(self, neighbor: int, size_bytes: int, received_bytes: int, timeouts: Timeouts) -> float:
        """Return the time limit of a transfer of which some bytes have come: longer than planned on a slow link."""
        planned_s = self.transfer_limit_s(neighbor, size_bytes, timeouts)
        steady_s = timeouts.idle_transfer_s + received_bytes / RATE_STEADY
        return min(timeouts.round_deadline_s, max(planned_s, steady_s))

    def is_limited(self, neighbor: int) -> bool:
        """Return whether transfers with a neighbor have a limit, an own one or one that the neighbor or a relay declares."""
        return self.upload.limited or self.download.limited or neighbor in self._declared

    def buffered_s(self, neighbor: int) -> float:
        """Return how long written bytes may wait in buffers before they are sent; 0 on a link that is known as fast."""
        return 0.0 if self.learned is None else self.learned.buffered_s(neighbor)

    def is_too_slow(self, neighbor: int, size_bytes: int, timeouts: Timeouts) -> bool:
        """Return whether a model takes most of a round deadline at the rate that the link has shown."""
        return self.learned is not None and 2 * size_bytes > timeouts.round_deadline_s * self.learned.bytes_per_second(
            neighbor
        )

    def advice(self, neighbor: int, size_bytes: int, timeouts: Timeouts) -> str:
        """Return what to do about a model that did not pass in time; "" where the link is fast, or a limit is declared."""
        if self.learned is None or self.learned.is_fast(neighbor) or neighbor in self._declared or self.upload.limited:
            return ""
        rate, deadline_s = self.learned.bytes_per_second(neighbor), timeouts.round_deadline_s
        return (
            f"the link to peer {neighbor} has shown {rate:.0f} bytes/s, at which {size_bytes} bytes take "
            f"{size_bytes / rate:.0f} s; run.timeouts.round_deadline_s is {deadline_s:g}: raise it, choose a smaller "
            "run.encoding, or declare upload_limit or download_limit of the link's slow end in the graph file"
        )

    def options(self) -> ChannelOptions:
        """Return options of channels and servers: gRPC reads no megabytes ahead of a peer that limits its downloads."""
        return [("grpc.http2.bdp_probe", 0)] if self.download.limited else []


UNLIMITED = Pacing()
