"""`peer report`: warnings, metric and costs of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    directory: Annotated[
        Path,
        typer.Argument(
            help="The --out of a testbed, one state directory, or a folder with several; graph.json if there is one."
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON; pictures only with --out.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the pictures.", show_default="DIRECTORY/report")
    ] = None,
    target: Annotated[
        float | None,
        typer.Option("--target", help="Also report when the mean of the task's metric reached this value."),
    ] = None,
) -> None:
    """Report the task's metric, clusters, bytes and seconds of a finished, running or interrupted run.

    Diverged peers, refused messages and peers that were alone come first.

    Example: peer report out --json
    """
    from peer.observe.report import build_report

    found = build_report(directory, target)
    if json:
        from coordinator_free_bootstrap.strict_json import dumps

        typer.echo(dumps(found.as_json(), indent=2))
    else:
        from rich.console import Console

        from peer.observe.tables import report_view

        Console().print(report_view(found.values))
    if out is not None or not json:
        from peer.observe.faults import save_fault_picture
        from peer.observe.plots import save_plots

        place = out or directory / "report"
        for path in [*save_plots(found.run, place), *save_fault_picture(found.run, place)]:
            typer.echo(f"wrote {path}", err=True)
