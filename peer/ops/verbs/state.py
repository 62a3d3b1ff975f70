"""`peer state`: what state directories hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.callback()
def state() -> None:
    """The folders in which peers keep checkpoints, history and models."""


@app.command()
def prune(
    directory: Annotated[Path, typer.Argument(help="A state directory, or a folder with some.", readable=False)],
    days: Annotated[
        float | None,
        typer.Option(
            "--older-than",
            metavar="DAYS",
            min=0,
            help="Also the rounds in closed parts of the history whose last line is older. Reports then begin later.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; without, only list it.")] = False,
) -> None:
    """List, and with --yes remove, what no run needs: folders discarded-N, and old rounds on request.

    Checkpoints, models, keys and the audit log stay. What a running peer has may be pruned too.

    Example: peer state prune state/peer-3 --older-than 90 --yes
    """
    from coordinator_free_bootstrap.errors import ConfigProblem, UsageError
    from peer.ops.pruning import prunable
    from peer.view.state.places import state_directories

    places = state_directories(directory)
    if not places:
        raise UsageError(ConfigProblem("DIRECTORY", "a state directory, or a folder with some", str(directory)))
    found = [each for place in places.values() for each in prunable(place, days)]
    for each in found:
        typer.echo(f"{each.size_bytes / 1e6:10.1f} MB  {each.path}  {each.what}")
        if yes:
            each.remove()
    total = sum(each.size_bytes for each in found) / 1e6
    if not found:
        typer.echo("nothing to remove")
    else:
        typer.echo(f"{total:10.1f} MB  {'removed' if yes else 'in all. Add --yes to remove it.'}")
