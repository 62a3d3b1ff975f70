"""gRPC's standard services, health and reflection, behind the same gate as our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from coordinator_free_bootstrap import Subject
from coordinator_free_bootstrap.errors import Refusal, RemoteProtocolError
from coordinator_free_bootstrap.manifest import Timeouts
from peer.wire.gate import Gate, first_message
from peer.wire.options import SERVICE


class StandardServices:
    """Handlers of health and reflection.

    Args:
        gate: the server's.
        timeouts: of the manifest.
        health: says what is told.
    """

    def __init__(self, gate: Gate, timeouts: Timeouts, health_servicer: health.aio.HealthServicer) -> None:
        self._gate = gate
        self._timeouts = timeouts
        self._health = health_servicer
        self._reflection = reflection.aio.ReflectionServicer((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME))

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """Return both services."""
        asked, said = health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
        methods = {
            "Check": grpc.stream_unary_rpc_method_handler(self.check, asked, said),
            "Watch": grpc.stream_stream_rpc_method_handler(self.watch, asked, said),
        }
        asked = reflection_pb2.ServerReflectionRequest.FromString
        said = reflection_pb2.ServerReflectionResponse.SerializeToString
        reflect = {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(self.reflect, asked, said)}
        return (
            grpc.method_handlers_generic_handler(health.SERVICE_NAME, methods),
            grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, reflect),
        )

    async def check(self, _requests: Any, context: Any) -> Any:
        """Say whether the peer serves."""
        async with self._gate.aborting(context):
            return await self._health.Check(await self._gate.request(self._whoever(context), context), context)

    async def watch(self, _requests: Any, context: Any) -> None:
        """Say so whenever it changes."""
        async with self._gate.aborting(context):
            with self._gate.stream(self._whoever(context), context):
                await self._health.Watch(await first_message(context, self._timeouts), context)

    async def reflect(self, requests: AsyncIterator[Any], context: Any) -> None:
        """Describe the services; who asks has the idle time for all questions together."""
        async with self._gate.aborting(context):
            with self._gate.stream(self._whoever(context), context):
                try:
                    async with asyncio.timeout(self._timeouts.idle_transfer_s):
                        async for reply in self._reflection.ServerReflectionInfo(requests, context):
                            await context.write(reply)
                except TimeoutError as error:
                    raise RemoteProtocolError(Refusal.TOO_SLOW, "reflection is for short questions") from error

    def _whoever(self, context: Any) -> Subject | None:
        """Return who is counted: `peer health` asks as the peer itself, which is no neighbor of its own."""
        try:
            return self._gate.subject(context)
        except RemoteProtocolError:
            return None
