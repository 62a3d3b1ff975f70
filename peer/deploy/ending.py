"""The two ends of a supervised process: hearing SIGTERM before everything is up, and staying when all is over.

Imports nothing heavy: `leave_on_signals` must come before the seconds that importing PyTorch takes.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import sys
from types import FrameType

from peer.store.state_dir import StateDir

log = logging.getLogger("peer")
_ASKED = (signal.SIGTERM, signal.SIGINT)


def leave_on_signals() -> None:
    """Exit at once when asked to, until the runtime takes the signals over. The kernel spares process 1 default actions."""
    for number in _ASKED:
        signal.signal(number, _leave)


def stay_until_asked(why: str) -> None:
    """Do nothing until SIGTERM or SIGINT, so that a supervisor neither restarts this peer nor forgets why it ended.

    A signal may reach any thread, of which gRPC has some; the byte that Python then writes wakes this one in any case.
    """
    receiver, sender = socket.socketpair()
    with receiver, sender:
        sender.setblocking(False)
        signal.set_wakeup_fd(sender.fileno())
        for number in _ASKED:
            signal.signal(number, lambda *_: None)
        log.info("%s; waiting for SIGTERM", why)
        receiver.recv(1)
        signal.set_wakeup_fd(-1)


def is_completed(place: StateDir) -> bool:
    """Return whether the run of a state directory is over; False for a summary that cannot be read."""
    try:
        summary = json.loads(place.summary.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and summary.get("status") == "completed"


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)
