"""SIGTERM and SIGINT of a process that runs one peer ask it to leave; SIGHUP asks for a new graph file."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable


class Signals:
    """What the process does on SIGTERM or SIGINT: the callback set at that moment is called. SIGHUP: `hangup`, if it is set.

    One handler stays for the whole life of the event loop. A handler that is exchanged loses the signal that came before the
    exchange and that the loop has not read yet.
    """

    def __init__(self) -> None:
        self.came = False
        self.tell: Callable[[], object] = lambda: None
        self.hangup: Callable[[], object] | None = None

    def install(self) -> Signals:
        """Take the signals of this process, as long as the running event loop lives."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        if self.hangup is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.hangup)
        return self

    def _on_signal(self) -> None:
        self.came = True
        self.tell()
