"""`peer status`: query running peers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def status(
    where: Annotated[str, typer.Argument(help="Graph file, testbed directory, or host:port of one plaintext peer.")],
    certs: Annotated[
        Path | None,
        typer.Option(help="With a graph file: folder with an observer's key. Default: certs beside the file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answers as JSON.")] = False,
) -> None:
    """Show each running peer's round and neighbors, and what it waits for. Exit code 40 if a peer does not answer.

    Example: peer status graph.json --certs certs
    """
    import json

    from peer.observe.ask import graph_statuses, plaintext_status, sentence, testbed_statuses

    if Path(where).is_dir():
        found = testbed_statuses(Path(where))
    elif Path(where).is_file():
        found = graph_statuses(Path(where), certs)
    else:
        one = plaintext_status(where)
        found = {one["peer_id"]: one}
    if as_json:
        typer.echo(json.dumps({str(peer_id): answer for peer_id, answer in found.items()}, indent=2))
    else:
        for peer_id, answer in found.items():
            typer.echo(f"peer {peer_id}: {answer if isinstance(answer, str) else sentence(answer)}")
    if any(isinstance(answer, str) for answer in found.values()):
        raise typer.Exit(40)
