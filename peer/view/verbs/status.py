"""`peer status`: query running peers, and show what finished peers left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peer.cli.json_output import json_option, print_json
from peer.cli.proxy import ThroughProxy


def status(
    where: Annotated[str, typer.Argument(help="Graph file, testbed directory, or host:port of one plaintext peer.")],
    certs: Annotated[
        Path | None,
        typer.Option(
            help="With a graph file: folder with an observer's key. Default: certs beside the file.", readable=False
        ),
    ] = None,
    as_json: Annotated[bool, json_option("Print the answers as JSON.")] = False,
    proxy: ThroughProxy = False,
) -> None:
    """Show each peer's phase, round and metric, what it waits for, its live neighbors, and the time since its last change.

    A peer that has finished is shown from its state directory, if that is in the testbed's directory or beside the graph file,
    else as its neighbors report it.
    Exit code 40 if a peer neither answers nor has finished.

    Again and again, until all peers have ended: peer watch graph.json --terminal

    Example: peer status graph.json
    """
    from rich.console import Console

    from peer.view.live.ask import ask, has_no_answer, in_json
    from peer.view.live.status_table import status_table
    from peer.wire.proxy import HttpProxy

    view = ask(where, certs, HttpProxy.chosen(proxy))
    if as_json:
        print_json({str(peer_id): in_json(peer) for peer_id, peer in view.log.peers.items()}, indent=2)
    else:
        Console(highlight=False).print(status_table(view))
    for problem in view.log.problems:  # what of the files of peers could not be read
        typer.echo(f"warning: {problem}", err=True)
    if any(map(has_no_answer, view.log.peers.values())):
        raise typer.Exit(40)
