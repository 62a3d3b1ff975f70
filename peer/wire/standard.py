"""gRPC's standard services under the same access control as PeerService: health, and reflection where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2

from coordinator_free_bootstrap import Subject
from coordinator_free_bootstrap.errors import RefusalCode, RemoteProtocolError
from coordinator_free_bootstrap.manifest import Timeouts
from peer.wire.access import AccessControl, first_message
from peer.wire.calls import Context
from peer.wire.options import SERVICE

try:  # now, and not after a testbed has forked
    from grpc_reflection.v1alpha import reflection, reflection_pb2
except ModuleNotFoundError:  # of the extra `reflection`
    reflection = None


class StandardServices:
    """Handlers of health, and of reflection if the package of the extra ``reflection`` is installed.

    Args:
        access: of the server.
        timeouts: of the manifest.
        health_servicer: keeps the health status.
    """

    def __init__(self, access: AccessControl, timeouts: Timeouts, health_servicer: health.aio.HealthServicer) -> None:
        self._access = access
        self._timeouts = timeouts
        self._health = health_servicer

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """Return the services."""
        parse, serialize = health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
        methods = {
            "Check": grpc.stream_unary_rpc_method_handler(self.check, parse, serialize),
            "Watch": grpc.stream_stream_rpc_method_handler(self.watch, parse, serialize),
        }
        services = (grpc.method_handlers_generic_handler(health.SERVICE_NAME, methods),)
        return (*services, self._reflecting()) if reflection else services

    def _reflecting(self) -> grpc.GenericRpcHandler:
        self._reflection = reflection.aio.ReflectionServicer((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME))
        parse = reflection_pb2.ServerReflectionRequest.FromString
        serialize = reflection_pb2.ServerReflectionResponse.SerializeToString
        method = grpc.stream_stream_rpc_method_handler(self.reflect, parse, serialize)
        return grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, {"ServerReflectionInfo": method})

    async def check(self, _requests: object, context: Context) -> object:
        """Return the health status."""
        async with self._access.aborting(context):
            return await self._health.Check(await self._access.request(self._subject(context), context), context)

    async def watch(self, _requests: object, context: Context) -> None:
        """Send the health status whenever it changes."""
        async with self._access.aborting(context):
            with self._access.stream(self._subject(context), context):
                await self._health.Watch(await first_message(context, self._timeouts), context)

    async def reflect(self, requests: AsyncIterator[object], context: Context) -> None:
        """Describe the services, within the idle time for all requests of a stream together."""
        async with self._access.aborting(context):
            with self._access.stream(self._subject(context), context):
                try:
                    async with asyncio.timeout(self._timeouts.idle_transfer_s):
                        async for reply in self._reflection.ServerReflectionInfo(requests, context):
                            await context.write(reply)
                except TimeoutError as error:
                    limit = f"{self._timeouts.idle_transfer_s:g} s (set by timeouts.suspicion_s)"
                    raise RemoteProtocolError(
                        RefusalCode.TOO_SLOW, f"reflection: expected at most {limit} per stream, got more"
                    ) from error

    def _subject(self, context: Context) -> Subject | None:
        """Return the caller to count; None if it is no neighbor, as `peer health`, which calls as the peer itself."""
        try:
            return self._access.subject(context)
        except RemoteProtocolError:
            return None
