"""A peer's gRPC server: binding, starting and stopping around the handlers of `service` and `standard`."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2

from coordinator_free_bootstrap.manifest import Limits, Timeouts
from peer.wire import security
from peer.wire.gate import Gate
from peer.wire.identity import Identify
from peer.wire.inbound import Inbound
from peer.wire.memory import keep_frame_memory
from peer.wire.options import SERVICE, server_options
from peer.wire.service import PeerService
from peer.wire.standard import StandardServices


class PeerServer:
    """Serves one peer to its neighbors and observers.

    Args:
        inbound: the runtime.
        listen: ``host:port``; port 0 takes any free one.
        limits: of the manifest.
        timeouts: of the manifest.
        credentials: gRPC server credentials; None serves plaintext (see `security.require_loopback_or`).
        identify: reads the authenticated peer id or observer's name from a call's context, or raises
            RemoteProtocolError (NOT_A_NEIGHBOR, ...); without it every caller is None.
    """

    def __init__(
        self,
        inbound: Inbound,
        listen: str,
        *,
        limits: Limits,
        timeouts: Timeouts,
        credentials: grpc.ServerCredentials | None = None,
        identify: Identify | None = None,
    ) -> None:
        self._inbound = inbound
        self._listen = listen
        self._limits = limits
        self._timeouts = timeouts
        self._credentials = credentials
        self._identify = identify
        self._health = health.aio.HealthServicer()
        self._stopping = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Bind, serve and say SERVING; return the bound port.

        Raises:
            ConfigError: the address cannot be bound.
        """
        keep_frame_memory()
        server = grpc.aio.server(options=server_options(self._timeouts, self._limits))
        gate = Gate(self._limits, self._timeouts, self._identify, self._inbound.refused)
        service = PeerService(
            self._inbound, gate=gate, limits=self._limits, timeouts=self._timeouts, stopping=self._stopping
        )
        standard = StandardServices(gate, self._timeouts, self._health)
        server.add_generic_rpc_handlers((service.handlers(), *standard.handlers()))
        port = security.bind(server, self._listen, self._credentials)
        await server.start()
        self._server = server
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return port

    async def stop(self, grace_s: float) -> None:
        """Say NOT_SERVING, take no new calls, let open ones end for ``grace_s`` seconds, then cut them."""
        self._stopping.set()
        await self._health.enter_graceful_shutdown()
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None
