"""What code of a user may change in the whole process, kept apart from what this program relies on.

A loader may change the working directory, as Hydra does; a task file may set torch's default type. Each such setting has two
values: the user's, while code of the user runs, and this program's. So relative paths mean the same from the start to the end,
and a task finds again what it has set. Others have this program's value alone: those that decide results (threads, gradients,
NumPy's errors), those by which it is stopped (signals), and those through which it says what happens (logging, ``sys.argv``).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from coordinator_free_bootstrap.errors import Option

log = logging.getLogger("peer")


@dataclass(frozen=True)
class _Setting:
    """One setting of the process.

    Attributes:
        read: returns its value.
        write: sets it.
        shared: whether code of the user finds again what it has set; else it is reset and, with a `name`, a warning logged.
        name: what it sets, for the warning.
        option: of the peer, to use instead.
    """

    read: Callable[[], Any]
    write: Callable[[Any], object]
    shared: bool = True
    name: str = ""
    option: Option | None = None


def _directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return None


def _enter(directory: str | None) -> None:
    if directory is not None:
        os.chdir(directory)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _device() -> torch.device | None:
    device = torch.get_default_device()
    return None if device.type == "cpu" else device


def _handlers() -> tuple[Any, ...]:
    return tuple(map(signal.getsignal, _SIGNALS))


def _handle(handlers: tuple[Any, ...]) -> None:
    if threading.current_thread() is threading.main_thread():  # no other thread can have changed them
        for number, handler in zip(_SIGNALS, handlers, strict=True):
            if handler is not None:  # None: not set from Python
                signal.signal(number, handler)


def _logging() -> tuple[Any, ...]:
    return logging.root.manager.disable, log.disabled, log.propagate, tuple(logging.root.handlers)


def _log_again(value: tuple[Any, ...]) -> None:
    logging.disable(value[0])
    log.disabled, log.propagate = value[1:3]
    for handler in value[3]:
        logging.root.addHandler(handler)  # no effect for one that is there


def _set_argv(value: list[str]) -> None:
    sys.argv[:] = value


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SETTINGS = (
    _Setting(_directory, _enter),
    _Setting(torch.get_default_dtype, torch.set_default_dtype),
    _Setting(
        torch.get_num_threads,
        torch.set_num_threads,
        shared=False,
        name="as the number of threads",
        option=Option("threads"),
    ),
    _Setting(_device, torch.set_default_device, shared=False, name="as the default device", option=Option("device")),
    _Setting(_umask, os.umask, shared=False),
    _Setting(np.geterr, lambda value: np.seterr(**value), shared=False),
    _Setting(torch.is_grad_enabled, torch.set_grad_enabled, shared=False),
    _Setting(_handlers, _handle, shared=False),
    _Setting(_logging, _log_again, shared=False),
    _Setting(lambda: list(sys.argv), _set_argv, shared=False),
)


class _Process:
    """The two values of each setting; of several threads in code of a user, the first sets its values, the last resets them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._ours: list[Any] = []
        self._theirs: dict[
            int, tuple[Any, Any]
        ] = {}  # number of a setting -> our value when they changed it, and theirs

    def enter(self) -> None:
        """Set the values of the user, unless this program's have changed since: it is the user's program that did it."""
        with self._lock:
            self._inside += 1
            if self._inside > 1:
                return
            self._ours = [setting.read() for setting in _SETTINGS]
            for number, (ours, theirs) in self._theirs.items():
                if self._ours[number] == ours:
                    _SETTINGS[number].write(theirs)

    def forget(self) -> None:
        """Begin with this program's values: another task is loaded."""
        with self._lock:
            self._theirs.clear()

    def leave(self) -> None:
        """Note what the user's code has changed, and set the values of this program."""
        with self._lock:
            self._inside -= 1
            if self._inside:
                return
            for number, (setting, ours) in enumerate(zip(_SETTINGS, self._ours, strict=True)):
                theirs = setting.read()
                if theirs == ours:
                    self._theirs.pop(number, None)
                    continue
                setting.write(ours)
                if setting.shared:
                    self._theirs[number] = (ours, theirs)
                elif setting.name:
                    log.warning(
                        "the task sets %s %s; give it with %s; used: %s",
                        theirs,
                        setting.name,
                        setting.option,
                        ours or "cpu",
                    )


_process = _Process()


@contextmanager
def users_settings(*, new: bool = False) -> Iterator[None]:
    """Run a block of a user's code with the settings of the process that it has made before; afterwards restore our own.

    Args:
        new: whether the code is that of another task, which has made none.
    """
    if new:
        _process.forget()
    _process.enter()
    try:
        yield
    finally:
        _process.leave()
