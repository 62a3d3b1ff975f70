"""Exceptions of a user's code as one sentence, with the file and line of that code."""

from __future__ import annotations

import random
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from coordinator_free_bootstrap.errors import PeerError, TaskError
from coordinator_free_bootstrap.extras import missing_package
from coordinator_free_bootstrap.seeds import derive_seed
from peer.tasks.process_settings import users_settings
from peer.tasks.shard import Shard
from peer.tasks.task import Task

LENGTH_MAX = 300  # characters of an exception's text in a sentence
USER_ERRORS = (Exception, SystemExit)  # that code of a user may raise; Ctrl-C is not its own
GENERATORS = threading.RLock()  # of random numbers, which belong to the process: one thread at a time seeds and draws
_PROJECT = Path(__file__).parents[1]
_PACKAGES = {"site-packages", "dist-packages"}  # also those of another environment, as in PYTHONPATH
_LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(_PROJECT),
    str(_PROJECT.with_name("coordinator_free_bootstrap")),
    "<",  # frozen modules and generated code
)


def described(error: BaseException) -> str:
    """Return ``KeyError: 'x' (my_task.py, line 12)``: the innermost line outside of Python, its packages and this project.

    The text is one line of at most `LENGTH_MAX` characters. A SyntaxError names its place itself.
    """
    text = " ".join(str(error).split())
    if len(text) > LENGTH_MAX:
        text = f"{text[:LENGTH_MAX]}... ({len(text)} characters)"
    found = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if missing := missing_package(error):
        found = f"{found}; {missing}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    if not frames or isinstance(error, SyntaxError):
        return found
    return f"{found} ({frames[-1].filename}, line {frames[-1].lineno})"


def line_of(function: Callable[..., Any]) -> str:
    """Return where a function of a user's code begins, as " (my_task.py, line 12)"; "" for another function."""
    code = getattr(function, "__code__", None)
    return f" ({code.co_filename}, line {code.co_firstlineno})" if code and _is_own(code.co_filename) else ""


def present_line() -> str:
    """Return the innermost line of a user's code that is being executed, as `line_of` does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f" ({frame.f_code.co_filename}, line {frame.f_lineno})"


def _is_own(filename: str) -> bool:
    return not filename.startswith(_LIBRARIES) and not _PACKAGES.intersection(Path(filename).parts)


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """Run code of a user with its settings of the process; raise TaskError for its exceptions, also for ``sys.exit()``.

    Errors of this project pass unchanged.

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
        raise TaskError(f"{what}: found {described(error)}; correct the task") from error


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
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


def shard_of(task: Task, peer_id: int) -> Shard:
    """Return the shard of a peer from ``load_shard``; a loader that draws random numbers draws the same in every call.

    Otherwise a restarted peer would have other test samples than before, some of which it has trained on.

    Raises:
        TaskError: it raises an exception, or returns something else than a `Shard`.
    """
    with user_code(f"load_shard({peer_id})"), _seeded(derive_seed(0, "load_shard", peer_id)):
        found: object = task.load_shard(peer_id)
    if not isinstance(found, Shard):
        shown = "None" if found is None else f"a {type(found).__name__}"
        raise TaskError(f"load_shard({peer_id}): found {shown}; allowed: a Shard")
    return found
