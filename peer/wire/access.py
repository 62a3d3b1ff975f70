"""Access control of calls: the caller's identity, its rate limit and its open streams, checked before its request is read.

gRPC reads the request of a unary method before it calls the handler, and keeps up to 4 MiB of it for an unlimited time. So
all methods are served as methods with a request stream, which looks the same to a caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio

from coordinator_free_bootstrap import Subject
from coordinator_free_bootstrap.errors import LocalProtocolError, Refusal, RefusalCode, RemoteProtocolError
from coordinator_free_bootstrap.manifest import Limits, Timeouts
from peer.wire.limits import CallerLimits

Identify: TypeAlias = Callable[[Any], Subject | None]
CANCEL_DELAY_S = 0.1  # gRPC reports a broken connection as the end of the stream and cancels the call a moment later
REFUSAL_TRAILER = "peer-refusal"
_STATUS = {
    RefusalCode.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    RefusalCode.NOT_A_NEIGHBOR: grpc.StatusCode.PERMISSION_DENIED,
    RefusalCode.IDENTITY_MISMATCH: grpc.StatusCode.PERMISSION_DENIED,
    RefusalCode.TOO_MANY_STREAMS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RefusalCode.RATE_LIMITED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RefusalCode.TOO_SLOW: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class AccessControl:
    """Access control of one server.

    Args:
        limits: of the manifest.
        timeouts: of the manifest.
        identify: see `PeerServer`.
        refused: counts a refusal; the caller is None where it is unknown.
    """

    def __init__(
        self,
        limits: Limits,
        timeouts: Timeouts,
        identify: Identify | None,
        refused: Callable[[int | None, Refusal], None],
    ) -> None:
        self._callers = CallerLimits(limits, asyncio.get_running_loop().time)
        self._timeouts = timeouts
        self._identify = identify
        self._refused = refused

    def subject(self, context: Any) -> Subject | None:
        """Return the authenticated caller; None where the transport is plaintext."""
        return self._identify(context) if self._identify else None

    def stream(self, caller: Subject | None, context: Any) -> AbstractContextManager[None]:
        """Count one open stream of a caller; see `CallerLimits.stream`."""
        return self._callers.stream(_key(caller, context))

    def discard(self, caller: Subject | None, context: Any) -> AbstractContextManager[None]:
        """Count one refused stream of a caller; see `CallerLimits.discard`."""
        return self._callers.discard(_key(caller, context))

    async def request(self, caller: Subject | None, context: Any) -> Any:
        """Read the request of a unary call, or the first message of a tunnel; see `CallerLimits.request`."""
        with self._callers.request(_key(caller, context)):
            return await first_message(context, self._timeouts)

    async def abort(self, context: Any, caller: int | None, error: RemoteProtocolError) -> NoReturn:
        """Count a refusal and end the call with its status."""
        self._refused(caller, error.refusal)
        await abort(context, error.refusal)

    @asynccontextmanager
    async def aborting(self, context: Any) -> AsyncIterator[None]:
        """Count a RemoteProtocolError that is raised inside, and end the call with its status."""
        try:
            yield
        except RemoteProtocolError as error:
            await self.abort(context, None, error)


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


async def first_message(context: Any, timeouts: Timeouts) -> Any:
    """Read the first message of a call; of a unary call it is the only one that is read.

    Raises:
        RemoteProtocolError: TOO_SLOW if it is incomplete after the idle time, MALFORMED if the call has no message.
    """
    try:
        async with asyncio.timeout(timeouts.idle_transfer_s):
            message = await context.read()
    except TimeoutError as error:
        sentence = f"no complete message within {timeouts.idle_transfer_s:g} s (timeouts.idle_transfer_s)"
        raise RemoteProtocolError(RefusalCode.TOO_SLOW, sentence) from error
    if message is grpc.aio.EOF:
        await asyncio.sleep(CANCEL_DELAY_S)
        raise RemoteProtocolError(RefusalCode.MALFORMED, "the call has no message")
    return message


async def abort(context: Any, refusal: Refusal) -> NoReturn:
    """End a call with the status of a refusal, and its code in the trailing metadata."""
    status = _STATUS.get(refusal.code, grpc.StatusCode.FAILED_PRECONDITION)
    await context.abort(status, str(refusal), trailing_metadata=((REFUSAL_TRAILER, refusal.code.value),))
    raise LocalProtocolError("a call continued after it was aborted")


def _key(caller: Subject | None, context: Any) -> Subject:
    """Return what limits are counted by: the authenticated caller, or the connection where the transport is plaintext."""
    return str(context.peer()) if caller is None else caller
