"""`peer run`: one peer, on a device."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Literal

import typer

LogLevel = Literal["debug", "info", "warning", "error"]


def run(
    peer_id: Annotated[int, typer.Option("--id", help="This device's node in the graph file.")],
    neighbors: Annotated[Path, typer.Option("--neighbors", help="The graph file that all peers share.")],
    state_dir: Annotated[
        Path | None, typer.Option(help="Checkpoints, history, models. Default: ./state/peer-<id>.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="host:port to bind; default: the own address in the graph.")
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where built-in data sets lie.")] = None,
    shard: Annotated[Path | None, typer.Option(help="This device's own data, a shard file or folder.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of PyTorch.")] = 1,
    download: Annotated[bool, typer.Option("--download", help="Let torchvision fetch a missing data set.")] = False,
    cert: Annotated[
        Path | None, typer.Option(help="Own certificate. Default: identity/peer-<id>.pem in the state directory.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="Own private key, mode 0600. Default: as --cert, .key.")] = None,
    certs: Annotated[
        Path | None, typer.Option(help="Folder of certificates: the own pair, and neighbors' that the graph lacks.")
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="Certificate authorities trusted to name peers, PEM.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plaintext; binds to loopback only.")] = False,
    insecure_anywhere: Annotated[
        bool, typer.Option("--insecure-anywhere", help="Plaintext on any address: anyone there can forge models.")
    ] = False,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Answer Prometheus at /metrics on this port, unencrypted.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address for --metrics-port.")] = "127.0.0.1",
    require_own_address: Annotated[
        bool, typer.Option("--require-own-address", help="Stop if the own address in the graph leads elsewhere.")
    ] = False,
    stay: Annotated[
        Literal["never", "completed", "error"],
        typer.Option(help="Wait for SIGTERM instead of exiting: after a completed run, or after an error."),
    ] = "never",
    log_level: Annotated[LogLevel, typer.Option(help="Least level of the lines that are shown.")] = "info",
    log_format: Annotated[Literal["text", "json"], typer.Option(help="text or json lines, on stderr.")] = "text",
) -> None:
    """Run one peer until the run is over, or until SIGTERM asks it to leave.

    Start it again with the same --state-dir and it goes on where it was.

    Example: peer run --id 3 --neighbors graph.json
    """
    from peer.deploy.ending import is_completed, leave_on_signals, stay_until_asked

    leave_on_signals()
    from coordinator_free_bootstrap import load_graph
    from coordinator_free_bootstrap.errors import PeerError
    from peer.assembly import LocalSettings
    from peer.observe.logs import setup_logging
    from peer.process import run_peer
    from peer.store.state_dir import StateDir

    setup_logging(peer_id, level=log_level, style=log_format)
    settings = LocalSettings(
        state_dir or Path("state") / f"peer-{peer_id}",
        listen=listen,
        data_root=data_root,
        shard=shard,
        device=device,
        threads=threads,
        cert=cert,
        key=key,
        certs=certs,
        ca=ca,
        insecure=insecure,
        insecure_anywhere=insecure_anywhere,
        download=download,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        require_own_address=require_own_address,
    )
    try:
        code = run_peer(peer_id, load_graph(neighbors), settings)
    except PeerError as error:
        logging.getLogger("peer").error("%s", error)
        code = error.exit_code
    if code and stay == "error":
        stay_until_asked("this peer takes no part: a restart alone would not help")
    elif not code and stay == "completed" and is_completed(StateDir(settings.state_dir)):
        stay_until_asked("the run is completed")
    raise typer.Exit(code)
