"""A neighbor that mutates bytes: the peer neither dies, nor grows, nor changes state (benchmarks/abuse.py sends 100,000)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest
from hostile import channel_to, mutate
from target_process import TargetProcess

from peer.wire.options import SERVICE

pytestmark = pytest.mark.process
RUN = {"limits": {"requests_per_second": 1e6, "streams_per_neighbor": 64}}


def test_mutated_messages_change_nothing(tmp_path: Path) -> None:
    with TargetProcess(tmp_path, RUN) as target:
        asyncio.run(mutate(target, 500))  # buffers, caches and threads that any first caller brings
        before = target.ask()
        mutator = asyncio.run(mutate(target, 3000, seed=2))
        after = target.ask()
        assert mutator.sent >= 3000 and mutator.answers["a reply"] > 500
        assert after["digest"] == before["digest"] and after["stage"] == "exchanging"
        assert after["streams"] == after["buffers"] == 0
        assert len(after["refusals"]) >= 8, after["refusals"]  # the mutations reach many checks
        assert after["memory_bytes"] - before["memory_bytes"] < 32 << 20, (before, after)


def test_a_compression_bomb_is_refused_before_it_unfolds(tmp_path: Path) -> None:
    """What callers compress is unpacked by gRPC, and no further than 4 MiB, its limit of any message."""

    async def bomb(target: TargetProcess, megabytes: int) -> str:
        async with channel_to(target) as channel:
            call = channel.unary_unary(f"/{SERVICE}/Beat")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(bytes(megabytes << 20), timeout=60, compression=grpc.Compression.Gzip)
        return str(caught.value.code())

    with TargetProcess(tmp_path, RUN) as target:
        asyncio.run(mutate(target, 500))
        before = target.ask()
        assert asyncio.run(bomb(target, 200)) == "StatusCode.RESOURCE_EXHAUSTED"
        after = target.ask()
        assert after["digest"] == before["digest"] and after["stage"] == "exchanging"
        assert after["memory_bytes"] - before["memory_bytes"] < 32 << 20, (before, after)
