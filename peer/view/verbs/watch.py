"""`peer watch`: a page of a run, or a full screen of a terminal, while it runs and afterwards."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from peer.cli.declared import takes_options
from peer.cli.proxy import ThroughProxy
from peer.view.options import PageOptions, page_options


def no_run_yet(directory: Path) -> bool:
    """Return whether a directory exists and has nothing of a run."""
    from peer.view.state.places import state_directories

    return directory.is_dir() and not (directory / "graph.json").exists() and not state_directories(directory)


@takes_options("page", PageOptions)
def watch(
    *,
    where: Annotated[
        Path,
        typer.Argument(
            help="The --out of a testbed, one state directory, or a folder with several; running or ended. Or the graph file "
            "of peers on other machines: the command then asks them, with an observer's key.",
            readable=False,
        ),
    ],
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Show the run in this terminal instead of a page; in a pipe, as lines.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="With a graph file: folder for what the peers say. Default: watched beside the file.", readable=False
        ),
    ] = None,
    certs: Annotated[
        Path | None,
        typer.Option(
            help="With a graph file: folder with an observer's key. Default: certs beside the file.", readable=False
        ),
    ] = None,
    page: PageOptions,
    proxy: ThroughProxy = False,
) -> None:
    r"""Serve a page of a run until Ctrl-C: graph, accuracy, clusters, waits, times, traffic, faults, and replay.

    The page only reads; peers do not know of it. It needs pip install 'coordinator-free\[page]'.
    It prints a link. A link works once; when it is used up, the next one is printed.
    From another machine: ssh -L PORT:127.0.0.1:PORT, and the link as printed.

    With a graph file, what the peers say becomes a run directory (--out), which peer report and peer watch read like any other.
    Started again with the same folder, the command asks for the rounds that it does not have. A peer keeps its last 512.

    Example: peer watch graph.json --certs certs --terminal
    """
    from coordinator_free_bootstrap.options import refuse_given

    host, port, names = page_options(page)
    asked = where.is_file()
    if not asked:
        refuse_given("no graph file is given", out=out, certs=certs, proxy=proxy)
    directory = (out or where.parent / "watched") if asked else where
    with ExitStack() as stack:
        going_on = None
        if asked:
            from peer.view.live.ask import observer_of
            from peer.view.live.listen import Listener, ListenerThread
            from peer.wire.proxy import HttpProxy

            listener = Listener(*observer_of(where, certs), directory, proxy=HttpProxy.chosen(proxy))
            listening = stack.enter_context(ListenerThread(listener))
            typer.echo(f"writing what the peers say to {directory}", err=True)

            def going_on() -> bool:
                return listening.running

        elif no_run_yet(directory):
            typer.echo(
                f"{directory}: no graph.json and no history of a peer yet; waiting for a run to start there", err=True
            )

        if terminal:
            from rich.console import Console

            from peer.view.live.watch import follow

            follow(directory, Console(highlight=False, markup=False), going_on)
            return
        from peer.view.page.process import watch_directory

        watch_directory(directory, typer.echo, host=host, port=port, names=names)
