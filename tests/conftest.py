"""What all layers share."""

from __future__ import annotations

import os

import pytest

# One thread: tests compare bits, and the machines that run them have two cores. Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the hundreds of processes that tests start compile our modules once

from tools.fixtures import bed, warm_parent  # noqa: F401  after OMP_NUM_THREADS
from tools.http_proxies import proxies  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with real processes: their files are long, and at the end of a run short ones keep all workers busy."""
    items.sort(key=lambda item: item.get_closest_marker("process") is None)
