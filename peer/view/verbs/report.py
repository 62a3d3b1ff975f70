"""`peer report`: warnings, metric and costs of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peer.cli.json_output import json_option, print_json
from peer.cli.problem import Exports


def report(
    directory: Annotated[
        Path,
        typer.Argument(
            help="The --out of a testbed, one state directory, or a folder with several; graph.json if there is one.",
            readable=False,
        ),
    ],
    against: Annotated[
        Path | None,
        typer.Argument(help="Another run, whose curve is drawn over this one's in --out FILE.html.", readable=False),
    ] = None,
    json: Annotated[bool, json_option("Print the report as JSON; pictures only with --out.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for the pictures, or FILE.html: the run as one file that needs nothing else; see peer watch.",
            show_default="DIRECTORY/report",
            readable=False,
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option("--target", help="Also report when the mean of the task's metric reached this value."),
    ] = None,
    exports: Exports = None,
) -> None:
    """Report the task's metric, clusters, bytes and seconds of a finished, running or interrupted run.

    Diverged peers, refused messages and peers that were alone come first.

    Example: peer report out --json

    Example: peer report out --out page.html
    """
    from coordinator_free_bootstrap.errors import UsageError
    from coordinator_free_bootstrap.extras import is_installed, missing
    from peer.view.report.matrix import save_matrix
    from peer.view.report.report import build_report

    html = out if out is not None and out.suffix == ".html" else None
    if against is not None and html is None:
        raise UsageError("peer report: expected --out FILE.html with another run to draw over this one, got none.")
    found = build_report(directory, target)
    if exports:
        from peer.view.trackers.export import export

        export(found, exports)
    if json:
        print_json(found.values, indent=2)
    else:
        from rich.console import Console

        from peer.view.report.tables import report_view

        Console().print(report_view(found.values))
    if html is not None:
        from peer.view.page.single_file import write_single_file

        typer.echo(f"wrote {write_single_file(directory, html, against)}", err=True)
        return
    if out is None and json:
        return
    place = out or directory / "report"
    for path in save_matrix(found.run, place):
        typer.echo(f"wrote {path}", err=True)
    if out is None and not is_installed("matplotlib"):
        typer.echo(f"no pictures: {missing('matplotlib')}", err=True)
    else:
        from peer.view.report.faults import save_fault_picture
        from peer.view.report.plots import save_plots

        for path in [*save_plots(found.run, place), *save_fault_picture(found.run, place)]:
            typer.echo(f"wrote {path}", err=True)
