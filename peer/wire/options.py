"""gRPC channel and server options: keepalive on both sides, reconnect backoff, retries of unary calls, connection limits.

gRPC's default receive limit of 4 MiB per message is deliberately left in place.
"""

from __future__ import annotations

import json
import math

from coordinator_free_bootstrap.manifest import Timeouts
from peer.wire.limits import WireLimits
from peer.wire.proxy import HttpProxy
from peer.wire.security import ChannelOptions

SERVICE = "peer.v1.PeerService"
RETRIED = (
    "Heartbeat",
    "Select",
    "Pass",
    "Statistics",
    "Sum",
    "Status",
)  # unary calls that gRPC retries: repeating them changes nothing
UNARY = ("Hello", *RETRIED)
TUNNELS = ("OfferTunnel", "UseTunnel")
# Reach a neighbor soon after it starts or restarts; each attempt to a dead one costs a refused connection.
RECONNECT_MS_FIRST, RECONNECT_MS_MAX = 100, 2_000
# A name is resolved again before each attempt to reconnect, at this interval at most; gRPC's default is 30 s.
RESOLVE_MS_MIN = 2_000
CONNECT_MS = 5_000  # how long one attempt may take (gRPC names it min_reconnect_backoff)
TRANSLATION_IDLE_S = 20.0  # address translators may forget a connection that was idle for 30 s
KEEPALIVE_MS_MIN = 1_000  # gRPC allows less, but on a loaded machine pings would time out
STREAMS_SPARE = 16  # for unary calls and watches, beside a neighbor's model streams
TLS_HANDSHAKE_MS_MAX = 10_000  # with gRPC's default of 120 s an unauthenticated client could keep sockets open for long
CONNECTIONS_MAX = 512  # half of the usual limit of open files; existing connections stay when new ones are refused


def channel_options(
    timeouts: Timeouts, proxy: HttpProxy | None = None, *, keeps_tunnels: bool = False
) -> ChannelOptions:
    """Return the options of a channel to one neighbor, which it dials through a proxy or directly.

    Where neighbors call this peer over the channel's connection, a loss that no packet reports, such as an expired entry of an
    address translator, is noticed within the suspicion time; the pings also keep such an entry alive.
    """
    return [
        *(
            _keepalive(timeouts.suspicion_s / 3, TRANSLATION_IDLE_S)
            if keeps_tunnels
            else _keepalive(timeouts.suspicion_s)
        ),
        ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS_FIRST),
        ("grpc.min_reconnect_backoff_ms", CONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", max(RECONNECT_MS_MAX, round(timeouts.heartbeat_s * 1000))),
        # so that `NeighborLink.reconnect` does not inherit the old channel's backoff
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.dns_min_time_between_resolutions_ms", RESOLVE_MS_MIN),
        *_proxying(proxy),
        ("grpc.service_config", _service_config()),
    ]


def server_options(timeouts: Timeouts, limits: WireLimits) -> ChannelOptions:
    """Return the options of a peer's server."""
    return [
        *_keepalive(timeouts.suspicion_s),
        # Neighbors ping without data while their streams are open; with gRPC's default the server would close the connection.
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS_MIN // 2),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_concurrent_streams", 2 * limits.streams_per_neighbor + STREAMS_SPARE),
        ("grpc.server_handshake_timeout_ms", TLS_HANDSHAKE_MS_MAX),
        ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
        ("grpc.so_reuseport", 0),  # a second peer on the same port must be an error
    ]


def _proxying(proxy: HttpProxy | None) -> ChannelOptions:
    """Name the proxy, so that gRPC reads no variable but no_proxy, whose rules are those of `HttpProxy.serves`."""
    if proxy is None:
        return [("grpc.enable_http_proxy", 0)]
    return [("grpc.enable_http_proxy", 1), ("grpc.http_proxy", proxy.url)]


def _keepalive(seconds: float, idle_s: float = math.inf) -> ChannelOptions:
    """Ping after a number of seconds, or ``idle_s`` if that is less, and wait as long for the answer."""
    return [
        ("grpc.keepalive_time_ms", max(KEEPALIVE_MS_MIN, round(min(seconds, idle_s) * 1000))),
        ("grpc.keepalive_timeout_ms", max(KEEPALIVE_MS_MIN, round(seconds * 1000))),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _service_config() -> str:
    """Return gRPC's retry policy for `RETRIED`; the engine retries hellos and transfers itself."""
    retry = {
        "maxAttempts": 3,
        "initialBackoff": "0.1s",
        "maxBackoff": "1s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    methods = [{"service": SERVICE, "method": method} for method in RETRIED]
    return json.dumps({"methodConfig": [{"name": methods, "retryPolicy": retry}]})
