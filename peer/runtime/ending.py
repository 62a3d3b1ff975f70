"""Start and end of a supervised process: SIGTERM during the imports, and waiting for SIGTERM after the end.

This module imports nothing slow: `exit_on_signals` must run before the import of PyTorch, which takes seconds.
"""

from __future__ import annotations

import json
import logging
import signal
import socket

from coordinator_free_bootstrap.ordinary_file import content_of
from peer.store.state_dir import StateDir
from peer.store.system import raise_on_signal

log = logging.getLogger("peer")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def exit_on_signals() -> None:
    """Exit with code 0 on SIGTERM and SIGINT, by an exception that ends `peer.cli.main.main`; SIGHUP ends nothing.

    Without a handler the kernel ignores them for process 1, as in containers.
    """
    for number in _SIGNALS:
        signal.signal(number, raise_on_signal)
    if hasattr(signal, "SIGHUP"):  # the graph file is read later
        signal.signal(signal.SIGHUP, lambda *_: None)


def wait_for_signal(reason: str) -> None:
    """Wait for SIGTERM or SIGINT, so that a supervisor does not restart this peer, and its last log line stays visible.

    A signal may reach any thread, and gRPC has several; the wakeup file descriptor wakes this one in each case. SIGHUP ends
    nothing: a new graph file needs another start.
    """
    hangup = getattr(signal, "SIGHUP", None)
    receiver, sender = socket.socketpair()
    with receiver, sender:
        sender.setblocking(False)
        signal.set_wakeup_fd(sender.fileno())
        for number in (*_SIGNALS, *filter(None, [hangup])):
            signal.signal(number, lambda *_: None)
        log.info("%s; waiting for SIGTERM", reason)
        while receiver.recv(1)[0] == hangup:
            log.warning("this peer has ended; start it again, so that it takes a new graph file")
        signal.set_wakeup_fd(-1)


def is_completed(state_dir: StateDir) -> bool:
    """Return whether the summary of a state directory says that all rounds are done; False if it cannot be read."""
    try:
        summary = json.loads(content_of(state_dir.summary))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(summary, dict):
        return False
    rounds = summary.get("rounds_completed")
    return summary.get("status") == "completed" or (
        summary.get("status") == "alone" and rounds is not None and rounds == summary.get("rounds_total")
    )
