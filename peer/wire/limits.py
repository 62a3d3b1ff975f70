"""Limits of one caller: messages per second, open streams, requests that are being received.

A caller is an authenticated peer or observer, or a connection where the transport is plaintext.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from coordinator_free_bootstrap.errors import RefusalCode, RemoteProtocolError
from coordinator_free_bootstrap.manifest import Limits

BURST_S = 5.0  # the token bucket holds this many seconds of `limits.requests_per_second`
REQUESTS_MAX = 16  # a neighbor has at most a hello, a heartbeat, a control message and a status in flight, and retries
CALLERS_MAX = 4096  # callers kept; beyond it those with nothing open are dropped


@dataclass(slots=True)
class _Caller:
    tokens: float
    refilled_at: float
    open: Counter[str] = field(default_factory=Counter)


class CallerLimits:
    """Count the messages and open streams of each caller.

    Args:
        limits: of the manifest.
        clock: monotonic seconds.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._callers: dict[int | str, _Caller] = {}

    def message(self, key: int | str) -> None:
        """Count one message; raises RemoteProtocolError RATE_LIMITED if the caller's token bucket is empty."""
        rate, now = self._limits.requests_per_second, self._clock()
        caller = self._caller(key, now)
        caller.tokens = min(rate * BURST_S, caller.tokens + rate * (now - caller.refilled_at))
        caller.refilled_at = now
        if caller.tokens < 1:
            sentence = f"expected at most {rate:g} messages per second (limits.requests_per_second), got more. Send again later."
            raise RemoteProtocolError(RefusalCode.RATE_LIMITED, sentence)
        caller.tokens -= 1

    def stream(self, key: int | str) -> AbstractContextManager[None]:
        """Count one message, and one open stream until the context ends.

        Raises:
            RemoteProtocolError: RATE_LIMITED, or TOO_MANY_STREAMS beyond the limit.
        """
        self.message(key)
        return self._count(key, "open streams", self._limits.streams_per_neighbor)

    def request(self, key: int | str) -> AbstractContextManager[None]:
        """Count one message, and one request while it is received (gRPC may keep 4 MiB of it); raises as `stream` does."""
        self.message(key)
        return self._count(key, "requests in flight", REQUESTS_MAX)

    def discard(self, key: int | str) -> AbstractContextManager[None]:
        """Count one refused stream while its frames are discarded; raises TOO_MANY_STREAMS beyond the limit."""
        return self._count(key, "refused streams", self._limits.streams_per_neighbor)

    @contextmanager
    def _count(self, key: int | str, what: str, allowed: int) -> Iterator[None]:
        open_now = self._caller(key, self._clock()).open
        if open_now[what] >= allowed:
            source = "" if what == "requests in flight" else " (limits.streams_per_neighbor)"
            sentence = f"expected at most {allowed} {what}{source}, got more. Send again later."
            raise RemoteProtocolError(RefusalCode.TOO_MANY_STREAMS, sentence)
        open_now[what] += 1
        try:
            yield
        finally:
            open_now[what] -= 1

    def _caller(self, key: int | str, now: float) -> _Caller:
        caller = self._callers.get(key)
        if caller is None:
            if len(self._callers) >= CALLERS_MAX:
                self._callers = {k: c for k, c in self._callers.items() if c.open.total()}
            caller = _Caller(self._limits.requests_per_second * BURST_S, now)
            self._callers[key] = caller
        return caller
