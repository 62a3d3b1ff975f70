"""Errors name what the reader wrote: options on the command line (``--data-root``), arguments in Python (``data_root``).

Messages name an `Option`. What a Python program calls is wrapped in `named_in_python`, which changes nothing in a verb of the
command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path

from coordinator_free_bootstrap.errors import ConfigProblem, Option, PeerError, TaskError, UsageError, face, names_for
from coordinator_free_bootstrap.extras import named_packages
from coordinator_free_bootstrap.strict_json import of_type, shortened
from peer.api.notebook import show_one_sentence


def given_path(name: str, value: object) -> Path:
    """Return an argument that names a file or a folder.

    Raises:
        UsageError: it is no path.
    """
    if not isinstance(value, str | PathLike):
        raise UsageError(ConfigProblem(Option(name), "a path", _shown(value)))
    return Path(value)


def refuse_unless(
    fits: bool, name: str, expected: str, value: object, kind: type[UsageError | TaskError] = UsageError
) -> None:
    """Refuse the value of an argument that does not fit.

    Raises:
        UsageError, TaskError: of class ``kind``: it does not.
    """
    if not fits:
        raise kind(ConfigProblem(Option(name), expected, _shown(value)))


def _shown(value: object) -> str:
    """Return a short form of a value: an array, for example, is shown as its type."""
    plain = value is None or isinstance(value, bool | int | float | str)
    return shortened(repr(value)) if plain else of_type(value)


@contextmanager
def named_by_argument(arguments: Mapping[str, str]) -> Iterator[None]:
    """Name a manifest key in an error of a block as the argument that gave it: ``{"run.task": "task"}``."""
    try:
        yield
    except PeerError as error:
        key, colon, rest = str(error).partition(":")
        if key in arguments:
            option = Option(arguments[key])
            error.args = (f"{option}{colon}{rest}",)
            error.problem = error.problem and replace(error.problem, key=option)
        raise


@contextmanager
def named_in_python() -> Iterator[None]:
    """Name arguments of Python in the errors of a block, or of a function that it decorates; a missing package is one of them."""
    with names_for("python"):
        try:
            with named_packages():
                yield
        except PeerError as error:
            if face() == "python":
                if error.problem is not None:  # it may come from a thread, which does not know the face
                    error.args = (str(error.problem),)
                show_one_sentence(error)
            raise
