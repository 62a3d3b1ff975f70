"""How much one caller may ask of a server at a time: open streams, requests that are still coming, messages per second.

A caller is an authenticated peer, or a connection where the transport is plaintext. Time is a clock that it is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from coordinator_free_bootstrap.errors import Refusal, RemoteProtocolError
from coordinator_free_bootstrap.manifest import Limits

BURST_S = 5.0  # a caller that was silent may send this many seconds' worth of messages at once
REQUESTS_MAX = 16  # a neighbor has at most a hello, a beat, an announcement and a status under way, and repeats of them
CALLERS_MAX = 4096  # remembered callers; beyond it those with nothing open are forgotten


@dataclass(slots=True)
class _Caller:
    tokens: float
    refilled_at: float
    open: Counter[str] = field(default_factory=Counter)


class CallerLimits:
    """Counts the open streams and the recent messages of every caller.

    Args:
        limits: of the manifest.
        clock: monotonic seconds.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._callers: dict[int | str, _Caller] = {}

    def message(self, key: int | str) -> None:
        """Count one message; raises RemoteProtocolError RATE_LIMITED when the caller's bucket is empty."""
        rate, now = self._limits.requests_per_second, self._clock()
        caller = self._caller(key, now)
        caller.tokens = min(rate * BURST_S, caller.tokens + rate * (now - caller.refilled_at))
        caller.refilled_at = now
        if caller.tokens < 1:
            sentence = f"more than {rate:g} messages per second (limits.requests_per_second); wait"
            raise RemoteProtocolError(Refusal.RATE_LIMITED, sentence)
        caller.tokens -= 1

    def stream(self, key: int | str) -> AbstractContextManager[None]:
        """Hold one open stream; raises RemoteProtocolError TOO_MANY_STREAMS when the caller has all it may have."""
        self.message(key)
        allowed = self._limits.streams_per_neighbor
        return self._hold(key, "streams", allowed, f"{allowed} streams are open already (limits.streams_per_neighbor)")

    def request(self, key: int | str) -> AbstractContextManager[None]:
        """Hold one request while it is coming, for which gRPC may keep 4 MiB; raises as `stream` does."""
        self.message(key)
        return self._hold(key, "requests", REQUESTS_MAX, f"{REQUESTS_MAX} requests are on their way already")

    def drain(self, key: int | str) -> AbstractContextManager[None]:
        """Hold one refused stream while it is read away; raises as `stream` does."""
        allowed = self._limits.streams_per_neighbor
        return self._hold(key, "drains", allowed, f"{allowed} refused streams are being read away already")

    @contextmanager
    def _hold(self, key: int | str, what: str, allowed: int, sentence: str) -> Iterator[None]:
        open_now = self._caller(key, self._clock()).open
        if open_now[what] >= allowed:
            raise RemoteProtocolError(Refusal.TOO_MANY_STREAMS, sentence)
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
