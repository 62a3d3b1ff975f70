"""Limits of a caller, gRPC options, plaintext only on loopback, reconnects, generated stubs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from coordinator_free_bootstrap import Manifest, parse_manifest
from coordinator_free_bootstrap.errors import ConfigError, RefusalCode, RemoteProtocolError
from coordinator_free_bootstrap.manifest import Timeouts
from peer.wire import access as caller_limits
from peer.wire.access import CallerLimits
from peer.wire.client import RECONNECTS_MAX, NeighborLink
from peer.wire.limits import WireLimits
from peer.wire.memory import keep_frame_memory
from peer.wire.options import channel_options, server_options
from peer.wire.security import require_loopback_or

ROOT = Path(__file__).resolve().parents[3]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def refused(call: object) -> RefusalCode | None:
    try:
        call()  # type: ignore[operator]
    except RemoteProtocolError as error:
        return error.refusal.code
    return None


def test_limits_of_a_run_are_those_of_every_run_but_for_its_largest_model() -> None:
    run = parse_manifest({"limits": {"model_bytes_max": 1000}}, "test")
    assert WireLimits.of(run) == replace(WireLimits(), model_bytes_max=1000)
    assert WireLimits.of(Manifest()) == WireLimits() != WireLimits.of(run)


def test_caller_is_rate_limited_after_its_burst() -> None:
    clock = Clock()
    callers = CallerLimits(WireLimits(requests_per_second=2.0), clock)
    assert [refused(lambda: callers.message(1)) for _ in range(11)] == [None] * 10 + [RefusalCode.RATE_LIMITED]
    assert refused(lambda: callers.message(2)) is None  # another caller has its own
    clock.now = 1.0
    assert [refused(lambda: callers.message(1)) for _ in range(3)] == [None, None, RefusalCode.RATE_LIMITED]
    clock.now = 1000.0
    assert [refused(lambda: callers.message(1)) for _ in range(11)] == [None] * 10 + [RefusalCode.RATE_LIMITED]


def test_open_streams_are_limited_and_closed_ones_are_not_counted() -> None:
    callers = CallerLimits(WireLimits(streams_per_neighbor=2), Clock())
    with callers.stream(1), callers.stream(1):
        with pytest.raises(RemoteProtocolError, match="at most 2 open streams, got more") as caught, callers.stream(1):
            pass
        assert caught.value.refusal.code is RefusalCode.TOO_MANY_STREAMS
        with callers.stream(2):
            pass
    with callers.stream(1), callers.stream(1):
        pass


@pytest.mark.parametrize(("hold", "allowed"), [("request", caller_limits.REQUESTS_MAX), ("discard", 2)])
def test_requests_and_refused_streams_are_counted_separately(hold: str, allowed: int) -> None:
    callers = CallerLimits(WireLimits(streams_per_neighbor=2), Clock())
    with ExitStack() as open_now:
        for key in ("one", "other"):
            for _ in range(allowed):
                open_now.enter_context(getattr(callers, hold)(key))
        assert refused(lambda: getattr(callers, hold)("one").__enter__()) is RefusalCode.TOO_MANY_STREAMS
        with callers.stream("one"), callers.stream("one"):
            pass
    with getattr(callers, hold)("one"):
        pass


def test_callers_with_open_streams_are_kept_when_others_are_dropped() -> None:
    callers = CallerLimits(WireLimits(streams_per_neighbor=1), Clock())
    with callers.stream("held"):
        for number in range(caller_limits.CALLERS_MAX + 1):
            callers.message(f"passing {number}")
        assert refused(lambda: callers.stream("held").__enter__()) is RefusalCode.TOO_MANY_STREAMS


@pytest.mark.parametrize(("suspicion_s", "ping_s"), [(1.0, 1), (9.0, 3), (60.0, 20), (600.0, 20)])
def test_connections_with_tunnels_never_idle_as_long_as_translators_remember(suspicion_s: float, ping_s: int) -> None:
    """The patience with the answer grows with the suspicion time all the same."""
    timeouts = Timeouts(suspicion_s=suspicion_s)
    options = dict(channel_options(timeouts, keeps_tunnels=True))
    assert options["grpc.keepalive_time_ms"] == 1000 * ping_s < 30_000
    assert options["grpc.keepalive_timeout_ms"] == max(1000, round(suspicion_s / 3 * 1000))


def test_keepalive_is_set_on_both_sides_and_unary_calls_are_retried() -> None:
    timeouts = Timeouts(suspicion_s=8.0)
    channel, server = dict(channel_options(timeouts)), dict(server_options(timeouts, WireLimits()))
    for options in (channel, server):
        assert options["grpc.keepalive_time_ms"] == 8000
        assert options["grpc.keepalive_permit_without_calls"] == 1
        assert options["grpc.http2.max_pings_without_data"] == 0
        assert not any("message_length" in name for name in options)  # gRPC's 4 MiB receive limit stays
    assert server["grpc.http2.min_ping_interval_without_data_ms"] < channel["grpc.keepalive_time_ms"]
    assert 0 < channel["grpc.initial_reconnect_backoff_ms"] < channel["grpc.max_reconnect_backoff_ms"] <= 10_000
    retried = {name["method"] for name in json.loads(channel["grpc.service_config"])["methodConfig"][0]["name"]}
    assert retried == {"Heartbeat", "Select", "Pass", "Statistics", "Sum", "Status"}  # the engine retries hellos itself


@pytest.mark.parametrize(("suspicion_s", "longest_ms"), [(5.0, 2_000), (150.0, 30_000)])
def test_reconnect_backoff_is_at_most_the_heartbeat_interval(suspicion_s: float, longest_ms: int) -> None:
    timeouts = Timeouts(suspicion_s=suspicion_s)
    assert dict(channel_options(timeouts))["grpc.max_reconnect_backoff_ms"] == longest_ms


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.9.9.9:50051", "[::1]:50051", "localhost:1"])
def test_plaintext_on_loopback_is_allowed(listen: str) -> None:
    require_loopback_or(False, listen)


@pytest.mark.parametrize("listen", ["0.0.0.0:50051", "[::]:50051", "192.168.1.5:1", "peer-1:50051", "127.0.0.1.evil:1"])
def test_plaintext_on_a_network_requires_the_option(listen: str) -> None:
    with pytest.raises(ConfigError, match="set insecure_anywhere"):
        require_loopback_or(False, listen)
    require_loopback_or(True, listen)


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_malloc_thresholds_are_set() -> None:
    assert keep_frame_memory()


def test_generated_stubs_match_the_proto() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools (extra dev) generates the stubs")
    subprocess.run([sys.executable, ROOT / "proto/generate.py", "--check"], check=True, timeout=60)


def test_reconnects_are_limited_during_a_flood_of_hellos(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    async def flood() -> None:
        link = NeighborLink(1, "127.0.0.1:1", limits=WireLimits(), timeouts=Timeouts())
        original = link._open

        def counted() -> None:
            original()
            monkeypatch.setattr(link._channel, "get_state", lambda: grpc.ChannelConnectivity.TRANSIENT_FAILURE)
            opened.append(link._channel)

        monkeypatch.setattr(link._channel, "get_state", lambda: grpc.ChannelConnectivity.TRANSIENT_FAILURE)
        monkeypatch.setattr(link, "_open", counted)
        for _ in range(100):
            link.reconnect()
        await link.close()

    asyncio.run(flood())
    assert len(opened) == RECONNECTS_MAX
