"""`peer --traceback`: show the whole trace of an error, of every verb."""

from __future__ import annotations

from typing import Annotated

import typer

_wanted = {"traceback": False}


def _remember(value: bool) -> bool:
    _wanted["traceback"] = value
    return value


Traceback = Annotated[
    bool,
    typer.Option(
        "--traceback",
        callback=_remember,
        help="Show the whole trace of an error, for example in your own task: peer --traceback VERB.",
    ),
]


def traceback_wanted() -> bool:
    """Return whether `peer` was called with ``--traceback``."""
    return _wanted["traceback"]
