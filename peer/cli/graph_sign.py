"""`peer graph sign`: sign the graph file, for peers that take files of their owner only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def sign(
    path: Annotated[
        Path, typer.Argument(metavar="GRAPH.JSON", help="The graph file.", show_default=False, readable=False)
    ],
    key: Annotated[
        Path,
        typer.Option(help="The owner's key, with its certificate beside it: owner.key, owner.pem.", readable=False),
    ],
    next_owner: Annotated[
        list[Path] | None,
        typer.Option(metavar="CERT.PEM", help="Who may sign the next file, too. Repeatable.", readable=False),
    ] = None,
) -> None:
    """Sign the graph file, after its last change. Peers with --owner owner.pem take no other file.

    Make the owner's key with: peer keygen --observer owner --out keys

    Example: peer graph sign graph.json --key keys/owner.key
    """
    from coordinator_free_bootstrap import load_graph, save_graph
    from peer.identity.certificates import Certificate
    from peer.identity.files import KeyFiles, load_key_pair, read_file
    from peer.identity.signing import signed

    pair = load_key_pair(KeyFiles(key.with_suffix(".pem"), key))
    owners = [Certificate.from_pem(read_file(each, "certificate"), str(each)) for each in next_owner or ()]
    save_graph(signed(load_graph(path), pair, owners), path)
    typer.echo(f"signed {path} with {pair.certificate.fingerprint}", err=True)
