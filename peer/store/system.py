"""What differs between Linux, macOS and Windows, in one place; nothing that one of them lacks is imported at load time."""

from __future__ import annotations

import os
import signal
import sys
import threading

from coordinator_free_bootstrap.errors import UsageError

OPEN_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)  # of every `os.open`
START_METHOD = "fork" if sys.platform == "linux" else "spawn"  # of the processes of a testbed
_PR_SET_PDEATHSIG = 1


def require_unix(what: str) -> None:
    """Refuse what needs signals, file locks and sockets in the file system.

    Raises:
        UsageError: this system has no file locks of Unix.
    """
    try:
        import fcntl  # noqa: F401
    except ImportError:
        raise UsageError(
            f"{what}: expected Linux or macOS, got {sys.platform}, which lacks the file locks and signals that a "
            "peer needs. peer.simulate, peer report and peer status work here."
        ) from None


def try_lock(handle: int, *, shared: bool = False) -> bool:
    """Lock an open file, until the process ends; return False if another process holds the lock.

    A shared lock fails only beside an exclusive one. On a system without these locks no peer can hold one.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def read_at(handle: int, size: int, offset: int) -> bytes:
    """Return up to `size` bytes of an open file from `offset` on; `os.pread`, which Windows lacks."""
    os.lseek(handle, offset, os.SEEK_SET)
    return os.read(handle, size)


class StoppedBySignal(BaseException):
    """SIGTERM or SIGINT has come before the peer could answer it: the process ends with code 0."""


def raise_on_signal(number: int, frame: object) -> None:
    """Raise `StoppedBySignal`; a handler for `signal.signal`."""
    raise StoppedBySignal


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Arrange that this process, a child of `multiprocessing`, gets a signal when its parent has ended; leave its group.

    On Linux the kernel sends it; elsewhere a thread waits for the end of the parent.
    """
    os.setpgid(0, 0)  # Ctrl-C in a terminal goes to the parent only
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    else:
        threading.Thread(target=_wait_for_parent, args=(number,), daemon=True, name="parent").start()


def _wait_for_parent(number: int) -> None:
    from multiprocessing import parent_process

    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), number)
