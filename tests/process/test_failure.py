"""A peer that loses effects of an event to an error of its own ends with that error: alive, it would stand still for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coordinator_free_bootstrap import make_graph, parse_manifest
from peer.assembly import LocalSettings, assemble
from peer.core import events as ev
from peer.runtime import PeerRuntime

pytestmark = pytest.mark.process


def test_an_error_in_a_callback_of_the_loop_ends_the_peer(tmp_path: Path) -> None:
    graph = make_graph("ring", 3, manifest=parse_manifest({}, "test"))
    parts = assemble(0, graph, LocalSettings(tmp_path, listen="127.0.0.1:0", insecure=True))
    runtime = PeerRuntime(parts)

    def broken(_effect: Any) -> None:
        del runtime._do_settimer  # once: what comes later would go well again
        raise RuntimeError("an effect that nobody foresaw")

    def break_it(_port: int) -> None:
        runtime._do_settimer = broken  # type: ignore[method-assign]
        asyncio.get_running_loop().call_soon(runtime.post, ev.Tick())

    async def run() -> str:
        async with asyncio.timeout(20):
            return await runtime.run(lambda port: asyncio.get_running_loop().call_later(0, break_it, port))

    with pytest.raises(RuntimeError, match="nobody foresaw"):
        asyncio.run(run())
    parts.lock.release()
