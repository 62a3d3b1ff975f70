"""A neighbor that mutates bytes: the peer neither dies, nor grows, nor changes state (benchmarks/abuse.py sends 100,000)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hostile import mutate
from target_process import TargetProcess

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
