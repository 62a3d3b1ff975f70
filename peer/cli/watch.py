"""`peer watch`: a page of a run, while it runs and afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def watch(
    directory: Annotated[
        Path,
        typer.Argument(help="The --out of a testbed, one state directory, or a folder with several; running or ended."),
    ],
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of the page; 0: any free one.")] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen on. The page is plain HTTP: keep it on this machine.")
    ] = ("127.0.0.1"),
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="Another host name under which a browser may ask for the page. Repeatable."),
    ] = None,
) -> None:
    """Serve a page of a run until Ctrl-C: graph, accuracy, clusters, waits, times, traffic, faults, and replay.

    The page only reads; peers do not know of it. It needs pip install 'coordinator-free[page]'.
    It prints a link. A link works once; when it is used up, the next one is printed.
    From another machine: ssh -L PORT:127.0.0.1:PORT, and the link as printed.

    Example: peer watch out
    """
    from peer.page.process import watch_directory

    watch_directory(directory, typer.echo, host=host, port=port, names=tuple(name or ()))
