"""Work of a peer's thread that the thread of a program does: the rounds of its loop, and calls of its functions.

Ctrl-C in the program loses none of it. An interrupt may come when a wait has just ended, so every wait is for a state, which
the next wait finds again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from peer.api.round import LocalRound


@dataclass
class Errand:
    """Work for the program's thread: a round of its loop, or a call of one of its functions."""

    budget: LocalRound | None = None
    call: Callable[[], Any] | None = None
    result: Any = None
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Handover:
    """The work between the two threads, one piece at a time.

    Attributes:
        given_up: whether the program does no more of it.
    """

    def __init__(self) -> None:
        self.given_up = False
        self._given, self._ended = threading.Event(), threading.Event()
        self._errand: Errand | None = None  # None: the end

    # ---- the program's thread -------------------------------------------------------------------------------------------

    def next(self) -> Errand | None:
        """Wait for work that is not done; return it, None at the end."""
        self._given.wait()
        return self._errand

    def done(self, errand: Errand) -> None:
        """Note that it is done."""
        self._given.clear()
        errand.done.set()

    def give_up(self) -> None:
        """Let the peer's thread go on without the program."""
        self.given_up = True
        if (errand := self._errand) is not None:
            errand.done.set()

    def wait_for_end(self) -> None:
        """Wait until no work comes any more."""
        self._ended.wait()

    @property
    def ended(self) -> bool:
        """Whether no work comes any more."""
        return self._ended.is_set()

    # ---- the peer's thread ----------------------------------------------------------------------------------------------

    def do(self, errand: Errand) -> bool:
        """Wait until work is done; return False if the program has given up."""
        self._errand = errand  # before `given_up` is read: the program writes it before it reads the errand
        self._given.set()
        if not self.given_up:
            errand.done.wait()
        return not self.given_up

    def end(self) -> None:
        """Give no more work."""
        self._errand = None
        self._ended.set()
        self._given.set()
