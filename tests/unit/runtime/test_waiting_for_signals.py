"""A peer that has ended stays until SIGTERM; SIGHUP does not end it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from peer.runtime import ending


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_sighup_is_answered_by_a_line_and_sigterm_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Log:
        def info(self, text: str, reason: str) -> None:
            said.append(text % reason)
            os.kill(os.getpid(), signal.SIGHUP)

        def warning(self, text: str) -> None:
            said.append(text)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(ending, "log", Log())
    ending.wait_for_signal("run completed")
    assert said == [
        "run completed; waiting for SIGTERM",
        "this peer has ended; start it again, so that it takes a new graph file",
    ]
