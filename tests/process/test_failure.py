"""An error while effects are executed ends the peer with that error: effects were lost, and it could wait forever."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coordinator_free_bootstrap import make_graph, parse_manifest
from peer.core import events as ev
from peer.runtime.assembly import LocalSettings, assemble
from peer.runtime.world import AsyncioWorld

pytestmark = pytest.mark.process


def test_error_in_a_callback_of_the_event_loop_ends_the_peer(tmp_path: Path) -> None:
    graph = make_graph("ring", 3, manifest=parse_manifest({}, "test"))
    parts = assemble(0, graph, LocalSettings.at(tmp_path, listen="127.0.0.1:0", insecure=True))
    world = AsyncioWorld(parts)

    def fails_once(_at: float) -> None:
        del world.set_timer  # type: ignore[misc]  # later timers work again
        raise RuntimeError("an unexpected error of an effect")

    def inject(_port: int) -> None:
        world.set_timer = fails_once  # type: ignore[method-assign]
        asyncio.get_running_loop().call_soon(world.post, ev.Tick())

    async def run() -> str:
        async with asyncio.timeout(20):
            return await world.run(lambda port: asyncio.get_running_loop().call_later(0, inject, port))

    with pytest.raises(RuntimeError, match="an unexpected error of an effect"):
        asyncio.run(run())
    parts.lock.release()
