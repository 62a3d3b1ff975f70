"""`peer keygen`: the key pair of a peer or of an observer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def keygen(
    peer_id: Annotated[int | None, typer.Option("--id", min=0, help="The peer that the key is for.")] = None,
    observer: Annotated[
        str | None, typer.Option(help="Instead of --id: the name of an observer, who may read status only.")
    ] = None,
    federation: Annotated[str, typer.Option(help="run.federation of the graph file.")] = "federation",
    days: Annotated[int, typer.Option(min=1, max=36500, help="Days until the certificate expires.")] = 730,
    out: Annotated[Path, typer.Option(help="Folder for the two files.")] = Path("certs"),
) -> None:
    """Make a key (mode 0600, stays on this device) and a certificate, to be pinned with `peer graph pin`.

    Example: peer keygen --id 3 --out certs
    """
    from coordinator_free_bootstrap.errors import UsageError
    from peer.identity.certificates import Certificate
    from peer.identity.files import keygen as make_files
    from peer.identity.files import read_file

    subject = observer if peer_id is None else peer_id
    if subject is None or (peer_id is not None and observer is not None):
        raise UsageError("keygen: give either --id N for a peer or --observer NAME")
    files = make_files(out, federation, subject, days=days)
    certificate = Certificate.from_pem(read_file(files.certificate, "certificate"), str(files.certificate))
    typer.echo(certificate.fingerprint)
    typer.echo(f"private key: {files.key} (keep it here); certificate: {files.certificate} (give it away)", err=True)
