"""How much one caller may ask of a server at a time: open streams, and messages per second.

A caller is an authenticated peer, or a connection where the transport is plaintext. Time is a clock that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from coordinator_free_bootstrap.errors import Refusal, RemoteProtocolError
from coordinator_free_bootstrap.manifest import Limits

BURST_S = 5.0  # a caller that was silent may send this many seconds' worth of messages at once
CALLERS_MAX = 4096  # remembered callers; beyond it those without an open stream are forgotten


@dataclass(slots=True)
class _Caller:
    tokens: float
    refilled_at: float
    streams: int = 0


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

    @contextmanager
    def stream(self, key: int | str) -> Iterator[None]:
        """Hold one open stream; raises RemoteProtocolError TOO_MANY_STREAMS when the caller has all it may have."""
        self.message(key)
        caller = self._callers[key]
        if caller.streams >= self._limits.streams_per_neighbor:
            allowed = self._limits.streams_per_neighbor
            sentence = f"{allowed} streams are open already (limits.streams_per_neighbor)"
            raise RemoteProtocolError(Refusal.TOO_MANY_STREAMS, sentence)
        caller.streams += 1
        try:
            yield
        finally:
            caller.streams -= 1

    def _caller(self, key: int | str, now: float) -> _Caller:
        caller = self._callers.get(key)
        if caller is None:
            if len(self._callers) >= CALLERS_MAX:
                self._callers = {k: c for k, c in self._callers.items() if c.streams}
            caller = _Caller(self._limits.requests_per_second * BURST_S, now)
            self._callers[key] = caller
        return caller
