"""`peer graph pin`: pin keys in the graph file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def pin(
    path: Annotated[
        Path, typer.Argument(metavar="GRAPH.JSON", help="The graph file.", show_default=False, readable=False)
    ],
    certificates: Annotated[
        list[Path], typer.Argument(metavar="CERT.PEM...", help="Certificates of peers and observers.", readable=False)
    ],
    rotate: Annotated[
        bool,
        typer.Option(
            "--rotate", help="Keep the present pins beside the new ones; a later pin without it removes them."
        ),
    ] = False,
    pins_only: Annotated[
        bool, typer.Option("--pins-only", help="Omit the certificates; peers then need them with --certs.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="File to write. Default: the graph file.", readable=False)] = None,
) -> None:
    """Pin each certificate and the fingerprint of its key at the peer or observer that it names; observers are added.

    Example: peer graph pin graph.json certs/*.pem
    """
    from dataclasses import replace

    from coordinator_free_bootstrap import load_graph, save_graph
    from coordinator_free_bootstrap.validation import counted
    from peer.identity.certificates import Certificate
    from peer.identity.files import read_file
    from peer.identity.pinning import pin as pinned

    read = [Certificate.from_pem(read_file(each, "certificate"), str(each)) for each in certificates]
    graph = pinned(load_graph(path), read, rotate=rotate)
    if pins_only:
        nodes = tuple(replace(node, certificates=()) for node in graph.nodes)
        graph = replace(graph, nodes=nodes, observers=tuple(replace(each, certificates=()) for each in graph.observers))
    save_graph(graph, out or path)
    missing = [node.id for node in graph.nodes if not node.pins]
    rest = f"; peers without a pin: {', '.join(map(str, missing))}" if missing else ""
    typer.echo(f"pinned {counted(len(read), 'key')} in {out or path}{rest}", err=True)
