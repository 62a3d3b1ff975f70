"""No signal of a peer is lost: before, during and after its event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading

import pytest

from peer.runtime.signals import Signals
from peer.store.system import StoppedBySignal


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_before_the_loop_a_signal_ends_the_process(signals: Signals, number: int) -> None:
    with pytest.raises(StoppedBySignal):
        send(number)


def test_a_signal_whose_exception_python_drops_ends_the_process_later(
    signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dropping:
        def __del__(self) -> None:
            send(signal.SIGTERM)

    async def run() -> None:
        with signals.in_loop():
            raise AssertionError("it has begun")

    dropped: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: dropped.append(found.exc_type))
    Dropping()
    assert dropped == [StoppedBySignal]
    with pytest.raises(StoppedBySignal):
        asyncio.run(run())


def test_in_the_loop_each_signal_is_told_once_in_its_order(signals: Signals) -> None:
    told: list[str] = []

    async def run() -> None:
        done = asyncio.Event()

        def tell() -> None:
            told.append("leave")
            if told.count("leave") == 2:
                done.set()

        signals.tell, signals.hangup = tell, lambda: told.append("graph file")
        with signals.in_loop():
            assert not signals.came
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                send(number)
            await done.wait()

    send(signal.SIGHUP)  # while the peer is made ready
    asyncio.run(run())
    assert told == ["graph file", "leave", "graph file", "leave"]
    assert signals.came


def test_a_sleeping_loop_wakes_when_another_thread_gets_the_signal(signals: Signals) -> None:
    async def run() -> None:
        told = asyncio.Event()
        signals.tell = told.set
        with signals.in_loop():
            to_itself = asyncio.to_thread(lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
            await asyncio.gather(to_itself, told.wait())

    asyncio.run(run())
    assert signals.came


@pytest.mark.parametrize("moment", ["last step of the loop", "after the loop"])
def test_a_peer_that_was_told_to_stop_at_its_end_does_not_wait(
    signals: Signals, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        with signals.in_loop():
            if moment == "last step of the loop":
                send(signal.SIGTERM)

    asyncio.run(run())
    if moment == "after the loop":
        send(signal.SIGTERM)
    signals.wait("run completed")  # returns
    assert said(caplog) == []


def test_sighup_is_answered_by_a_line_and_sigterm_ends_the_wait(
    signals: Signals, caplog: pytest.LogCaptureFixture
) -> None:
    class Answering(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            send(signal.SIGHUP if "waiting" in record.getMessage() else signal.SIGTERM)

    log, answering = logging.getLogger("peer"), Answering()
    caplog.set_level(logging.INFO, "peer")
    log.addHandler(answering)
    try:
        signals.wait("run completed")
    finally:
        log.removeHandler(answering)
    assert said(caplog) == [
        "run completed; waiting for SIGTERM",
        "this peer has ended; start it again, so that it takes a new graph file",
    ]
