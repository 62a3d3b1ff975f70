"""Ctrl-C during a simulation: the first lets the peers leave, the second interrupts at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """SIGINT in a block of the main thread; elsewhere, and where the program has its own handler, nothing changes.

    Args:
        leave: called by the first one; it only sets a flag.

    Attributes:
        seen: how many have come.
        held: whether Ctrl-C waits, since files are being written.
    """

    def __init__(self, leave: Callable[[], None]) -> None:
        self.seen = 0
        self.held = False
        self._leave = leave
        self._installed = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.seen += 1
        if self.seen == 1:
            self._leave()
        elif not self.held:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if usual and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._on_signal)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
