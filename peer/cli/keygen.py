"""`peer keygen`: generate the key of a peer or an observer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def keygen(
    peer_id: Annotated[int | None, typer.Option("--id", min=0, help="Peer id.")] = None,
    observer: Annotated[
        str | None, typer.Option(help="Instead of --id: name of an observer, which may only read status.")
    ] = None,
    federation: Annotated[str, typer.Option(help="run.federation of the graph file.")] = "federation",
    out: Annotated[Path, typer.Option(help="Folder for the two files.", readable=False)] = Path("certs"),
) -> None:
    """Generate a private key (mode 0600, keep it on this device) and a certificate for `peer graph pin`, valid for 730 days.

    Example: peer keygen --id 3 --out certs
    """
    import re

    from coordinator_free_bootstrap.errors import ConfigProblem, Option, UsageError
    from coordinator_free_bootstrap.identity import FEDERATION, FEDERATION_FORM, OBSERVER, OBSERVER_FORM
    from peer.identity.certificates import Certificate
    from peer.identity.files import keygen as make_files
    from peer.identity.files import read_file

    subject = observer if peer_id is None else peer_id
    if subject is None or (peer_id is not None and observer is not None):
        got = "nothing" if subject is None else "both"
        raise UsageError(ConfigProblem(Option("peer_id"), "a number of a peer, or --observer NAME in its place", got))
    if not re.fullmatch(FEDERATION, federation):
        raise UsageError(ConfigProblem(Option("federation"), FEDERATION_FORM, repr(federation)))
    if isinstance(subject, str) and not re.fullmatch(OBSERVER, subject):
        raise UsageError(ConfigProblem(Option("observer"), OBSERVER_FORM, repr(subject)))
    files = make_files(out, federation, subject)
    certificate = Certificate.from_pem(read_file(files.certificate, "certificate"), str(files.certificate))
    typer.echo(certificate.fingerprint)
    typer.echo(
        f"private key: {files.key} (keep it secret); certificate: {files.certificate} (pin it in the graph file)",
        err=True,
    )
