"""`peer health`: the health check of containers and supervisors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peer.cli.declared import takes_options
from peer.runtime.local_options import LocalOptions


@takes_options("local", LocalOptions, "certs", "insecure")
def health(
    *,
    address: Annotated[str, typer.Option(help="host:port of the peer.")] = "127.0.0.1:7400",
    state_dir: Annotated[Path, typer.Option(help="The peer's state directory.", readable=False)] = Path(),
    local: LocalOptions,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the answer.")] = 4.0,
) -> None:
    """Query a peer through grpc.health.v1; exit 0 if it serves or its run is completed, else 40.

    Example: peer health --address 127.0.0.1:7400 --state-dir state/peer-3
    """
    from coordinator_free_bootstrap import split_address
    from coordinator_free_bootstrap.errors import ConfigProblem, NeighborUnavailable, Option, UsageError
    from peer.runtime.ending import is_completed
    from peer.store.state_dir import StateDir
    from peer.wire.health import check_health, own_key_files

    try:
        split_address(address)
    except ValueError as error:
        raise UsageError(ConfigProblem(Option("address"), str(error), repr(address))) from None
    place = StateDir(state_dir)
    try:
        keys = None if local.get("insecure") else own_key_files(Path(local.get("certs") or place.root / "identity"))
        check_health(address, keys, timeout)
    except NeighborUnavailable:
        if not is_completed(place):
            raise
        typer.echo("completed")
    else:
        typer.echo("serving")
