"""Access control of calls: the caller's identity, its rate limit and its open streams, checked before its request is read.

gRPC reads the request of a unary method before it calls the handler, and keeps up to 4 MiB of it for an unlimited time. So
all methods are served as methods with a request stream, which looks the same to a caller.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import grpc
import grpc.aio

from coordinator_free_bootstrap import Subject
from coordinator_free_bootstrap.errors import LocalProtocolError, Refusal, RefusalCode, RemoteProtocolError
from coordinator_free_bootstrap.manifest import Timeouts
from coordinator_free_bootstrap.strict_json import printable
from peer.wire.calls import Context
from peer.wire.limits import WireLimits

Identify: TypeAlias = Callable[[Context], Subject | None]
CANCEL_DELAY_S = 0.1  # gRPC reports a broken connection as the end of the stream and cancels the call a moment later
REFUSAL_TRAILER = "peer-refusal"
_STATUS = {
    RefusalCode.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    RefusalCode.NOT_A_NEIGHBOR: grpc.StatusCode.PERMISSION_DENIED,
    RefusalCode.REMOVED: grpc.StatusCode.PERMISSION_DENIED,
    RefusalCode.IDENTITY_MISMATCH: grpc.StatusCode.PERMISSION_DENIED,
    RefusalCode.TOO_MANY_STREAMS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RefusalCode.RATE_LIMITED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RefusalCode.TOO_SLOW: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class AccessControl:
    """Access control of one server.

    Args:
        limits: of messages and streams.
        timeouts: of the manifest.
        identify: see `PeerServer`.
        refused: counts a refusal; the caller is None where it is unknown.
    """

    def __init__(
        self,
        limits: WireLimits,
        timeouts: Timeouts,
        identify: Identify | None,
        refused: Callable[[int | None, Refusal], None],
    ) -> None:
        self._callers = CallerLimits(limits, asyncio.get_running_loop().time)
        self._timeouts = timeouts
        self._identify = identify
        self._refused = refused

    def subject(self, context: Context) -> Subject | None:
        """Return the authenticated caller; None where the transport is plaintext."""
        return self._identify(context) if self._identify else None

    def stream(self, caller: Subject | None, context: Context) -> AbstractContextManager[None]:
        """Count one open stream of a caller; see `CallerLimits.stream`."""
        return self._callers.stream(_key(caller, context))

    def discard(self, caller: Subject | None, context: Context) -> AbstractContextManager[None]:
        """Count one refused stream of a caller; see `CallerLimits.discard`."""
        return self._callers.discard(_key(caller, context))

    async def request(self, caller: Subject | None, context: Context) -> bytes:
        """Read the request of a unary call, or the first message of a tunnel; see `CallerLimits.request`."""
        with self._callers.request(_key(caller, context)):
            return await first_message(context, self._timeouts)

    async def abort(self, context: Context, caller: int | None, error: RemoteProtocolError) -> NoReturn:
        """Count a refusal and end the call with its status."""
        self._refused(caller, error.refusal)
        await abort(context, error.refusal)

    @asynccontextmanager
    async def aborting(self, context: Context) -> AsyncIterator[None]:
        """Count a RemoteProtocolError that is raised inside for the caller, and end the call with its status."""
        try:
            yield
        except RemoteProtocolError as error:
            await self.abort(context, None, error)

    @asynccontextmanager
    async def peer(self, context: Context) -> AsyncIterator[int | None]:
        """Yield the calling peer, as `require_peer`; do as `aborting` does, and count the refusal as the peer's."""
        caller: int | None = None
        try:
            caller = require_peer(self.subject(context))
            yield caller
        except RemoteProtocolError as error:
            await self.abort(context, caller, error)


def require_peer(caller: Subject | None) -> int | None:
    """Return the caller's peer id; None where the transport is plaintext.

    Raises:
        RemoteProtocolError: NOT_A_NEIGHBOR for an observer.
    """
    if isinstance(caller, str):
        raise RemoteProtocolError(
            RefusalCode.NOT_A_NEIGHBOR, f"caller: expected a peer, got observer {caller}, which may only read status"
        )
    return caller


def require_sender(caller: int | None, sender: int) -> None:
    """Refuse a message whose ``sender`` is not the authenticated caller.

    Raises:
        RemoteProtocolError: IDENTITY_MISMATCH.
    """
    if caller is not None and sender != caller:
        sentence = f"sender: expected the authenticated caller, peer {caller}, got peer {sender}"
        raise RemoteProtocolError(RefusalCode.IDENTITY_MISMATCH, sentence)


async def first_message(context: Context, timeouts: Timeouts) -> bytes:
    """Read the first message of a call; of a unary call it is the only one that is read.

    Raises:
        RemoteProtocolError: TOO_SLOW if it is incomplete after the idle time, MALFORMED if the call has no message.
    """
    try:
        async with asyncio.timeout(timeouts.idle_transfer_s):
            message = await context.read()
    except TimeoutError as error:
        sentence = f"no complete message within {timeouts.idle_transfer_s:g} s (set by timeouts.suspicion_s)"
        raise RemoteProtocolError(RefusalCode.TOO_SLOW, sentence) from error
    if message is grpc.aio.EOF:
        await asyncio.sleep(CANCEL_DELAY_S)
        raise RemoteProtocolError(RefusalCode.MALFORMED, "the call has no message")
    return message


async def abort(context: Context, refusal: Refusal) -> NoReturn:
    """End a call with the status of a refusal, and its code in the trailing metadata."""
    status = _STATUS.get(refusal.code, grpc.StatusCode.FAILED_PRECONDITION)
    await context.abort(status, str(refusal), trailing_metadata=((REFUSAL_TRAILER, refusal.code.value),))
    raise LocalProtocolError("a call continued after it was aborted")


def refusal_of(error: grpc.aio.AioRpcError) -> Refusal | None:
    """Return the refusal with which `abort` ended a call, its reason safe to print; None for any other error."""
    code = dict(error.trailing_metadata() or ()).get(REFUSAL_TRAILER)
    if code not in set(RefusalCode):
        return None
    return Refusal(RefusalCode(code), printable((error.details() or "").removeprefix(f"{code}: ")))


def _key(caller: Subject | None, context: Context) -> Subject:
    """Return what limits are counted by: the authenticated caller, or the connection where the transport is plaintext."""
    return context.peer() if caller is None else caller


BURST_S = 5.0  # the token bucket holds this many seconds of `WireLimits.requests_per_second`
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
        limits: of messages and streams.
        clock: monotonic seconds.
    """

    def __init__(self, limits: WireLimits, clock: Callable[[], float]) -> None:
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
            sentence = f"expected at most {rate:g} messages per second, got more. Send again later."
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
            sentence = f"expected at most {allowed} {what}, got more. Send again later."
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
