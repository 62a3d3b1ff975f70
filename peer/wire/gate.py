"""What every call passes before a byte of it is read: who calls, how often, and how much of the caller's is open already.

gRPC reads the request of a unary method before it calls the handler, keeps up to 4 MiB of it for as long as it takes, and
asks nobody who sends it. So all methods are served as if requests were streams, which their callers cannot see.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, NoReturn

import grpc
import grpc.aio

from coordinator_free_bootstrap import Subject
from coordinator_free_bootstrap.errors import LocalProtocolError, Refusal, RemoteProtocolError
from coordinator_free_bootstrap.manifest import Limits, Timeouts
from peer.wire.identity import Identify, caller_key
from peer.wire.limits import CallerLimits

CUT_GRACE_S = 0.1  # gRPC reads a broken connection as the end of the stream and cancels the call a moment later
REFUSAL_TRAILER = "peer-refusal"
_STATUS = {
    Refusal.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    Refusal.NOT_A_NEIGHBOR: grpc.StatusCode.PERMISSION_DENIED,
    Refusal.IDENTITY_MISMATCH: grpc.StatusCode.PERMISSION_DENIED,
    Refusal.TOO_MANY_STREAMS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Refusal.RATE_LIMITED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Refusal.TOO_SLOW: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class Gate:
    """Lets calls in, or refuses them.

    Args:
        limits: of the manifest.
        timeouts: of the manifest.
        identify: see `PeerServer`.
        refused: counts a refusal of a caller, if it is known.
    """

    def __init__(
        self,
        limits: Limits,
        timeouts: Timeouts,
        identify: Identify | None,
        refused: Callable[[int | None, Refusal, str], None],
    ) -> None:
        self._callers = CallerLimits(limits, asyncio.get_running_loop().time)
        self._timeouts = timeouts
        self._identify = identify
        self._refused = refused

    def subject(self, context: Any) -> Subject | None:
        """Return who calls; None where the transport is plaintext."""
        return self._identify(context) if self._identify else None

    def stream(self, caller: Subject | None, context: Any) -> AbstractContextManager[None]:
        """Hold one open stream of a caller."""
        return self._callers.stream(caller_key(caller, context))

    def drain(self, caller: Subject | None, context: Any) -> AbstractContextManager[None]:
        """Hold one refused stream of a caller while it is read away."""
        return self._callers.drain(caller_key(caller, context))

    async def request(self, caller: Subject | None, context: Any) -> Any:
        """Read the request of a small call, of which a caller may have few on their way."""
        with self._callers.request(caller_key(caller, context)):
            return await first_message(context, self._timeouts)

    async def abort(self, context: Any, caller: int | None, error: RemoteProtocolError) -> NoReturn:
        """Count a refusal and end the call with its status."""
        self._refused(caller, error.code, error.sentence)
        await abort(context, error.code, error.sentence)

    @asynccontextmanager
    async def aborting(self, context: Any) -> AsyncIterator[None]:
        """End the call with the status of a refusal that is raised inside."""
        try:
            yield
        except RemoteProtocolError as error:
            await self.abort(context, None, error)


async def first_message(context: Any, timeouts: Timeouts) -> Any:
    """Read the first message of a call, which may be its only one; what follows it is for others, or left unread.

    Raises:
        RemoteProtocolError: TOO_SLOW if it is not whole after the idle time, MALFORMED if there is none.
    """
    try:
        async with asyncio.timeout(timeouts.idle_transfer_s):
            message = await context.read()
    except TimeoutError as error:
        allowed = f"{timeouts.idle_transfer_s:g} s (timeouts.idle_transfer_s)"
        raise RemoteProtocolError(Refusal.TOO_SLOW, f"no whole message came; allowed are {allowed}") from error
    if message is grpc.aio.EOF:
        await asyncio.sleep(CUT_GRACE_S)
        raise RemoteProtocolError(Refusal.MALFORMED, "the call holds no message")
    return message


async def abort(context: Any, code: Refusal, sentence: str) -> NoReturn:
    """End a call with the status of a refusal, and the code in its trailing metadata."""
    status = _STATUS.get(code, grpc.StatusCode.FAILED_PRECONDITION)
    await context.abort(status, f"{code}: {sentence}", trailing_metadata=((REFUSAL_TRAILER, code.value),))
    raise LocalProtocolError("an aborted call went on")
