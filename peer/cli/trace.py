"""The option ``--traceback`` of every verb: show the whole trace of an error."""

from __future__ import annotations

from typing import Annotated, Any

import typer.main
from typer.core import TyperGroup

_wanted = {"traceback": False}  # of the verb that runs


def add_traceback_option(command: Any) -> None:
    """Give the option to a verb, or to every verb of a group."""
    carrier = typer.Typer(add_completion=False)
    carrier.command()(_option)
    _add(command, typer.main.get_command(carrier).params[0])


def traceback_wanted() -> bool:
    """Return whether the verb that runs was called with ``--traceback``."""
    return _wanted["traceback"]


def _add(command: Any, option: Any) -> None:
    if isinstance(command, TyperGroup):
        for verb in command.commands.values():
            _add(verb, option)
    else:
        command.params.append(option)


def _remember(value: bool) -> bool:
    _wanted["traceback"] = value
    return value


def _option(
    traceback: Annotated[
        bool,
        typer.Option(
            "--traceback",
            help="Show the whole trace of an error, for example in your own task.",
            callback=_remember,
            expose_value=False,
        ),
    ] = False,
) -> None:
    """Carry the option; typer makes options only from the parameters of a function."""
