"""A neighbor that sends mutated messages: the peer keeps running, its memory and state do not change.

benchmarks/security.py sends 100,000 of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import grpc.aio
import pytest
from hostile import channel_to, mutate
from target_process import TargetProcess

from peer.wire.limits import WireLimits
from peer.wire.options import SERVICE

pytestmark = pytest.mark.process
# Refusals of checks that mutated messages reach in every run; rarer ones depend on the order of the calls.
REACHED = {"malformed", "not_a_neighbor", "identity_mismatch", "wrong_size", "digest_mismatch"}
LIMITS = WireLimits(requests_per_second=1e6, streams_per_neighbor=64)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetProcess]:
    with TargetProcess(tmp_path_factory.mktemp("target"), LIMITS) as target:
        asyncio.run(mutate(target, 500))  # allocates the buffers, caches and threads that every caller needs
        yield target


def test_mutated_messages_change_nothing(target: TargetProcess) -> None:
    before = target.ask()
    mutator = asyncio.run(mutate(target, 3000, seed=2))
    after = target.ask()
    assert mutator.sent >= 3000 and mutator.answers["a reply"] > 500
    assert after["digest"] == before["digest"] and after["stage"] == "exchanging"
    assert after["streams"] == after["buffers"] == 0
    assert after["refusals"].keys() >= REACHED, after["refusals"]
    assert after["memory_bytes"] - before["memory_bytes"] < 32 << 20, (before, after)


def test_compression_bomb_is_refused_at_the_message_limit(target: TargetProcess) -> None:
    """GRPC decompresses a message up to its limit of 4 MiB and then refuses it."""

    async def bomb(megabytes: int) -> str:
        async with channel_to(target) as channel:
            call = channel.unary_unary(f"/{SERVICE}/Heartbeat")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(bytes(megabytes << 20), timeout=60, compression=grpc.Compression.Gzip)
        return str(caught.value.code())

    before = target.ask()
    assert asyncio.run(bomb(200)) == "StatusCode.RESOURCE_EXHAUSTED"
    after = target.ask()
    assert after["digest"] == before["digest"] and after["stage"] == "exchanging"
    assert after["memory_bytes"] - before["memory_bytes"] < 32 << 20, (before, after)
