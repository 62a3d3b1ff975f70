"""SIGTERM and SIGINT of a process that runs one peer ask it to leave; SIGHUP asks for a new graph file. None of them is lost.

This module imports nothing slow: `Signals.take` must run before the import of PyTorch, which takes seconds.
"""

from __future__ import annotations

import logging
import select
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from peer.store.system import StoppedBySignal

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

log = logging.getLogger("peer")
COMPUTE = "compute"  # begin of the names of threads in code of a task
_ENDING = (signal.SIGTERM, signal.SIGINT)
_HANGUP: int | None = getattr(signal, "SIGHUP", None)  # Windows has none


class Signals:
    """One handler for the whole life of a process. It notes each signal until somebody answers it.

    asyncio's handlers begin and end with the event loop, and lose what it has not read at its end.

    Before `in_loop`, SIGTERM and SIGINT end the process with code 0, by an exception that ends `peer.cli.main.main`. Without a
    handler the kernel ignores them for process 1, as in containers.

    Attributes:
        came: whether a SIGTERM or SIGINT has been answered.
        tell: answers them in the event loop: the one that is set at that moment.
        hangup: answers SIGHUP in the event loop.
    """

    def __init__(self) -> None:
        self.came = False
        self.tell: Callable[[], object] = lambda: None
        self.hangup: Callable[[], object] = _not_followed
        self._noted: deque[int] = deque()
        self._loop: AbstractEventLoop | None = None
        self._at_once = True

    def take(self) -> Self:
        """Take the signals of this process, from now on."""
        for number in (*_ENDING, *filter(None, [_HANGUP])):
            signal.signal(number, self._on_signal)
        return self

    def _on_signal(self, number: int, frame: object) -> None:
        self._noted.append(number)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._answer)
        elif self._at_once and number in _ENDING:
            raise StoppedBySignal

    def _answer(self) -> None:
        while self._noted:
            if self._noted.popleft() == _HANGUP:
                self.hangup()
            else:
                self.came = True
                self.tell()

    @contextmanager
    def in_loop(self) -> Iterator[None]:
        """Let the running event loop answer the signals of the block, and those that came before.

        Raises:
            StoppedBySignal: SIGTERM or SIGINT has come before, and Python has dropped the exception, as it does in ``__del__``.
        """
        from asyncio import get_running_loop

        loop = get_running_loop()
        with _woken() as receiver:
            loop.add_reader(receiver, receiver.recv, 4096)  # so that the loop wakes, and Python calls the handler
            if any(number in _ENDING for number in self._noted):
                raise StoppedBySignal
            self._at_once, self._loop = False, loop
            loop.call_soon(self._answer)
            try:
                yield
            finally:
                self._loop = None
                loop.remove_reader(receiver)

    def wait(self, reason: str) -> None:
        """Wait until SIGTERM or SIGINT has come, so that no supervisor restarts this peer, and its last log line stays visible.

        One that came while the peer ran counts. SIGHUP ends nothing: a new graph file needs another start.
        """
        self._at_once, self.tell, self.hangup = False, lambda: None, _ended
        with _woken() as receiver:
            self._answer()
            if not self.came:
                log.info("%s; waiting for SIGTERM", reason)
            while not self.came:
                select.select([receiver], [], [])
                receiver.recv(4096)
                self._answer()


def work_goes_on() -> bool:
    """Return whether code of a task runs that was not waited for: it may keep the process from its end for ever."""
    return any(thread.name.startswith(COMPUTE) for thread in threading.enumerate())


def _not_followed() -> None:
    log.warning("this peer reads its graph file only at its start")


def _ended() -> None:
    log.warning("this peer has ended; start it again, so that it takes a new graph file")


@contextmanager
def _woken() -> Iterator[socket.socket]:
    """Yield a socket that can be read once a signal has come, whichever thread it has reached: gRPC has several."""
    receiver, sender = socket.socketpair()
    with receiver, sender:
        receiver.setblocking(False)
        sender.setblocking(False)
        before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        try:
            yield receiver
        finally:
            signal.set_wakeup_fd(before)
