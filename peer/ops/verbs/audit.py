"""`peer audit`: check the audit log of a site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peer.cli.json_output import json_option, print_json

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.callback()
def audit() -> None:
    """What a site has told whom: its audit log, audit.jsonl in the state directory, is a chain of hashes."""


@app.command()
def verify(
    where: Annotated[Path, typer.Argument(help="A state directory, or its audit.jsonl.", readable=False)],
    holds: Annotated[
        str | None,
        typer.Option("--holds", metavar="HASH", help="The last hash of an earlier check must be in the log."),
    ] = None,
    json: Annotated[bool, json_option("Print the result as JSON.")] = False,
) -> None:
    """Check that no line was changed, removed or put in between; exit 1 if one was.

    Note the last hash in another place: with --holds, a later check shows that the end of the log is still there.

    Example: peer audit verify state/peer-3
    """
    from dataclasses import asdict

    from coordinator_free_bootstrap.errors import ConfigProblem, UsageError
    from coordinator_free_bootstrap.validation import counted
    from peer.store.audit import verify as verified
    from peer.store.lines import parts_of
    from peer.store.state_dir import StateDir

    path = StateDir(where).audit if where.is_dir() else where
    if not parts_of(path):
        fix = "Name the state directory of a peer that has run."
        raise UsageError(ConfigProblem("WHERE", "a state directory with audit.jsonl, or that file", str(where), fix))
    found = verified(path, holds or "")
    missing = bool(holds) and not found.found
    if json:
        print_json({**asdict(found), "holds": holds, "intact": not found.problem and not missing})
    elif found.problem:
        typer.echo(f"broken after {counted(found.lines, 'line')}: {found.problem}")
    elif missing:
        typer.echo(
            f"{counted(found.lines, 'line')} hold together, but {holds} is none of them: the end of the log was removed"
        )
    else:
        typer.echo(f"{counted(found.lines, 'line')} hold together; the last hash is {found.last}")
    if found.problem or missing:
        raise typer.Exit(1)
