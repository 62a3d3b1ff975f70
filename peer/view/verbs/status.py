"""`peer status`: query running peers, and show what finished peers left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peer.cli.json_output import json_option, print_json
from peer.cli.proxy import ThroughProxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from peer.view.state.hearsay import Hearsay
    from peer.view.state.view import View

WATCH_S = 2.0
GONE_S = 60.0  # without any answer after the first: no peer is left to report how the last ones ended


def status(
    where: Annotated[str, typer.Argument(help="Graph file, testbed directory, or host:port of one plaintext peer.")],
    certs: Annotated[
        Path | None,
        typer.Option(
            help="With a graph file: folder with an observer's key. Default: certs beside the file.", readable=False
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Ask every 2 s until Ctrl-C, until all peers have finished, or until none has answered for 60 s.",
        ),
    ] = False,
    as_json: Annotated[bool, json_option("Print the answers as JSON.")] = False,
    proxy: ThroughProxy = False,
) -> None:
    """Show each peer's phase, round and metric, what it waits for, its live neighbors, and the time since its last change.

    A peer that has finished is shown from its state directory, if that is in the testbed's directory or beside the graph file,
    else as its neighbors report it.
    Exit code 40 if a peer neither answers nor has finished.

    Example: peer status graph.json --watch
    """
    from rich.console import Console

    from coordinator_free_bootstrap.errors import UsageError
    from peer.view.live.ask import ask, has_no_answer, in_json
    from peer.view.live.status_table import status_table
    from peer.view.state.hearsay import Hearsay
    from peer.wire.proxy import HttpProxy

    if watch and as_json:
        raise UsageError("peer status: expected --watch or --json, got both")
    dialer = HttpProxy.chosen(proxy)
    heard = Hearsay()
    view = ask(where, certs, dialer, heard)
    if as_json:
        print_json({str(peer_id): in_json(peer) for peer_id, peer in view.log.peers.items()}, indent=2)
    elif watch:
        view = _watch(lambda: ask(where, certs, dialer, heard), heard, view)
    else:
        Console(highlight=False).print(status_table(view))
    if not watch:
        _warn(view, set())
    if any(map(has_no_answer, view.log.peers.values())):
        raise typer.Exit(40)


def _watch(again: Callable[[], View], heard: Hearsay, view: View) -> View:
    """Show new answers until Ctrl-C or the end of all peers: a live table on a terminal, else a line per changed peer.

    Peers that end at the same time leave none that could say so; then the watch ends `GONE_S` after the last answer.
    """
    import time

    from rich.console import Console
    from rich.live import Live

    from peer.view.live.ask import ENDED
    from peer.view.live.status_table import status_table

    console = Console(highlight=False)
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    last: dict[int, str] = {}
    told: set[str] = set()
    answered_at = time.monotonic()
    try:
        if live:
            live.start()
        while True:
            if live:
                live.update(status_table(view), refresh=True)
            else:
                last = _print_changes(view, last)
            _warn(view, told)
            peers = view.log.peers.values()
            if not heard.anyone or any(peer.answered for peer in peers):
                answered_at = time.monotonic()
            if all(peer.status in ENDED for peer in peers) or time.monotonic() - answered_at > GONE_S:
                return view
            time.sleep(WATCH_S)
            view = again()
    except KeyboardInterrupt:
        return view
    finally:
        if live:
            live.stop()


def _warn(view: View, told: set[str]) -> None:
    """Print on stderr, once, what of the files of peers could not be read."""
    for problem in view.log.problems:
        if problem not in told:
            told.add(problem)
            typer.echo(f"warning: {problem}", err=True)


def _print_changes(view: View, last: dict[int, str]) -> dict[int, str]:
    from peer.view.live.status_table import sentence

    state = view.log.state()
    lines = {peer_id: sentence(view, state, peer) for peer_id, peer in state.peers.items()}
    for peer_id, line in lines.items():
        if last.get(peer_id) != line:
            typer.echo(f"peer {peer_id}: {line}")
    return lines
