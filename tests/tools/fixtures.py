"""Fixtures: one process per session forks the testbeds of all tests with real peers."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tools import warm_parent as forking
from tools.beds import Bed
from tools.warm_parent import WarmParent

from peer.runtime.signals import Signals


@pytest.fixture(scope="session")
def warm_parent() -> WarmParent:
    return forking.warm_parent()


@pytest.fixture
def bed(warm_parent: WarmParent, tmp_path: Path) -> Iterator[Callable[..., Bed]]:
    """Return a function that starts testbeds; they are stopped after the test."""
    beds: list[Bed] = []

    def make(name: str = "bed", **options: Any) -> Bed:
        beds.append(Bed(warm_parent, tmp_path / name, **options))
        beds[-1].start()
        return beds[-1]

    yield make
    for each in beds:
        each.stop()


@pytest.fixture
def run_in_this_process(monkeypatch):
    """Let `peer run` be called in the process of the test: without handlers of signals, and afterwards without its log lines."""
    monkeypatch.setattr("peer.runtime.signals.Signals.take", lambda signals: signals)
    log = logging.getLogger()
    before, level = list(log.handlers), log.level
    yield
    log.handlers[:], log.level = before, level


@pytest.fixture
def signals() -> Iterator[Signals]:
    """The signals of this process, taken as by `peer run`."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield Signals().take()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The packages of an earlier commit of this wire version, in a folder."""
    from earlier import earlier_commit, write_packages  # of benchmarks

    if (commit := earlier_commit()) is None:
        pytest.skip("no earlier commit of this wire version: a shallow clone, or no git repository")
    return write_packages(commit, tmp_path / "earlier")
