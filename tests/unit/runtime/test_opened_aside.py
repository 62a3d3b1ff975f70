"""Goal: a peer whose start is cancelled while a thread loads its data leaves its state directory free, in the same process."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer.runtime.process import opened_aside
from peer.store.identity_files import StateLock


def test_a_start_that_is_cancelled_while_data_are_loaded_leaves_the_directory_free(tmp_path: Path) -> None:
    loading, loaded, made = threading.Event(), threading.Event(), list[Any]()

    def opened() -> Any:
        lock = StateLock(tmp_path)
        lock.acquire()
        made.append(SimpleNamespace(parts=SimpleNamespace(lock=lock)))
        loading.set()
        loaded.wait()
        return made[0]

    async def cancelled() -> None:
        starting = asyncio.ensure_future(opened_aside(opened))
        await asyncio.to_thread(loading.wait)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        loaded.set()

    asyncio.run(cancelled())  # its end waits for the thread
    again = StateLock(tmp_path)
    again.acquire()
    again.release()
    assert len(made) == 1
