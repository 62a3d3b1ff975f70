"""What all layers share."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import settings

# One thread: tests compare bits, and the machines that run them have two cores. Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the hundreds of processes that tests start compile our modules once

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # whose scripts import each other by bare names

from tools.fixtures import bed, earlier, run_in_this_process, signals, warm_parent  # noqa: F401  after OMP_NUM_THREADS
from tools.http_proxies import proxies  # noqa: F401
from tools.ports import keep_to_own_ports

from peer.core.engine import Engine  # after OMP_NUM_THREADS
from peer.store.garbage import freeze_for_life

settings.register_profile("any load", deadline=None)  # a busy machine may need seconds for an example
settings.load_profile("any load")
keep_to_own_ports()
Engine.validate = True
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell without job control starts tests that ignore it

# The files that last longest, in either layer: each begins while there is other work for the other workers.
LONGEST = ("test_ray_cluster", "test_lora_example", "test_tunnels", "test_nat", "test_simulation", "test_planted_bugs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, then with real processes: at the end of a run short files keep all workers busy."""

    def place(item: pytest.Item) -> tuple[int, bool]:
        name = item.path.stem
        short = item.get_closest_marker("process") is None and item.get_closest_marker("chaos") is None
        return (LONGEST.index(name) if name in LONGEST else len(LONGEST)), short

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Keep the collected tests and imported modules out of garbage collections."""
    gc.collect()
    freeze_for_life()


@pytest.fixture
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let nothing be out of garbage collections, as in a process that imports as usual."""
    monkeypatch.setattr("peer.store.garbage._for_life", Event())
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    """Refuse a test that leaves a signal handler or a log handler behind: the next test of the worker would meet it."""
    before = _handlers()
    yield
    after = _handlers()
    for number, handler in before[0].items():
        signal.signal(number, handler)
    for handler in after[1] - before[1]:
        logging.getLogger().removeHandler(handler)
    assert after == before, "a test changed the handlers of its process"


def _handlers() -> tuple[dict[int, Any], set[logging.Handler]]:
    """Return the handlers of signals, and of log lines without those of pytest."""
    own = {each for each in logging.getLogger().handlers if not type(each).__module__.startswith("_pytest")}
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}, own
