"""The option ``--json`` of every verb that has it: stdout gets one JSON object, and nothing else.

A task, its libraries and the processes that they start may print at any time. With ``--json`` all of that goes to stderr, also
what C code and other processes write to descriptor 1.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, TextIO

import typer

from coordinator_free_bootstrap.strict_json import dumps

_kept: dict[str, TextIO] = {}  # "stdout": of the verb that runs with --json


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Print a value as JSON to the stdout that the verb was started with."""
    typer.echo(dumps(value, indent=indent), file=_kept.get("stdout"))


def _keep_stdout(context: typer.Context, wanted: bool) -> bool:
    before: TextIO | None = sys.stdout
    original = before is sys.__stdout__
    if not wanted or context.resilient_parsing or before is None:
        return wanted
    if original:  # until the process ends, since code of a user may also run at its exit
        before.flush()
        _kept["stdout"] = open(os.dup(1), "w", encoding=before.encoding, errors=before.errors)  # noqa: SIM115
        os.dup2(2, 1)
    else:  # a caller has replaced it
        _kept["stdout"], sys.stdout = before, sys.stderr
        context.call_on_close(lambda: _give_back(before))
    return wanted


def _give_back(before: TextIO) -> None:
    sys.stdout = before
    _kept.clear()


def json_option(meaning: str) -> object:
    """Return the option ``--json``, which keeps stdout for `print_json`."""
    return typer.Option("--json", help=meaning, callback=_keep_stdout)


AsJson = Annotated[bool, json_option("Print the result as one JSON object.")]
