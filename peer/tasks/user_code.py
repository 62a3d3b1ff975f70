"""Exceptions of a user's code as one sentence, with the file and line of that code."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch

from coordinator_free_bootstrap.errors import PeerError, TaskError
from coordinator_free_bootstrap.seeds import derive_seed
from coordinator_free_bootstrap.strict_json import of_type
from coordinator_free_bootstrap.user_file import USER_ERRORS, described, is_users
from peer.tasks.process_settings import users_settings
from peer.tasks.shard import Shard
from peer.tasks.task import Task

GENERATORS = threading.RLock()  # of random numbers, which belong to the process: one thread at a time seeds and draws


def line_of(function: Callable[..., object]) -> str:
    """Return where a function of a user's code begins, as " (my_task.py, line 12)"; "" for another function."""
    code = getattr(function, "__code__", None)
    return f" ({code.co_filename}, line {code.co_firstlineno})" if code and is_users(code.co_filename) else ""


def present_line() -> str:
    """Return the innermost line of a user's code that is being executed, as `line_of` does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f" ({frame.f_code.co_filename}, line {frame.f_lineno})"


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """Run code of a user with its settings of the process; raise TaskError for its exceptions, also for ``sys.exit()``.

    Errors of this project pass unchanged, and Ctrl-C, also where the code has made ``sys.exit()`` of it.

    Args:
        what: the step that failed, for example ``load_shard(3)``.

    Raises:
        TaskError: the exception, with file and line of the user's code.
    """
    try:
        with users_settings():
            yield
    except PeerError:
        raise
    except USER_ERRORS as error:
        if isinstance(error, SystemExit) and isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from error  # Ctrl-C ends a Trainer of Lightning so
        raise TaskError(f"{what}: {described(error)}. Correct the task.") from error


@contextmanager
def libraries_seeded(seed: int) -> Iterator[None]:
    """Seed the generators of Python, NumPy and torch for one block, then restore their state."""
    with GENERATORS:
        python, numpy, torchs = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            torch.default_generator.set_state(torchs)


def data_of(task: Task, peer_id: int) -> Any:
    """Return the data of a peer: its shard, or what an own ``load_data`` returns, drawn as in `shard_of`.

    Raises:
        TaskError: it raises an exception.
    """
    if "load_data" not in task.own:
        return shard_of(task, peer_id)
    with user_code(f"load_data({peer_id})"), libraries_seeded(derive_seed(0, "load_shard", peer_id)):
        return task.load_data(peer_id)


def shard_of(task: Task, peer_id: int) -> Shard:
    """Return the shard of a peer from ``load_shard``; a loader that draws random numbers draws the same in every call.

    Otherwise a restarted peer would have other test samples than before, some of which it has trained on.

    Raises:
        TaskError: it raises an exception, or returns something else than a `Shard`.
    """
    with user_code(f"load_shard({peer_id})"), libraries_seeded(derive_seed(0, "load_shard", peer_id)):
        shard: object = task.load_shard(peer_id)
    if not isinstance(shard, Shard):
        raise TaskError(f"load_shard({peer_id}): expected a Shard, got {of_type(shard)}")
    return shard
