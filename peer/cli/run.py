"""`peer run`: run one peer."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coordinator_free_bootstrap.validation import refuse_without
from peer.cli.problem import Amp, DataRoot, Download, Exports
from peer.cli.proxy import ThroughProxy
from peer.cli.trace import traceback_wanted
from peer.runtime.imports import importing
from peer.runtime.slow_start import told

if TYPE_CHECKING:
    from peer.observe.metrics_page import MetricsPage

LogLevel = Literal["debug", "info", "warning", "error"]


def run(
    peer_id: Annotated[int, typer.Option("--id", help="Id of this peer in the graph file.")],
    neighbors: Annotated[Path, typer.Option("--neighbors", help="Graph file that all peers share.", readable=False)],
    state_dir: Annotated[
        Path | None, typer.Option(help="Folder for state and models. Default: ./state/peer-<id>.", readable=False)
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            help="host:port to listen on; [::]:7400: all IPv4 and IPv6 addresses. Default: as in the graph file."
        ),
    ] = None,
    data_root: DataRoot = None,
    shard: Annotated[
        Path | None, typer.Option(help="Shard file or folder with this peer's data.", readable=False)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    amp: Amp = None,
    threads: Annotated[int, typer.Option(min=1, help="PyTorch threads on the CPU.")] = 1,
    download: Download = False,
    cert: Annotated[
        Path | None,
        typer.Option(help="Own certificate. Default: identity/peer-<id>.pem in --state-dir.", readable=False),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="Own private key, mode 0600. Default: --cert with .key.", readable=False)
    ] = None,
    certs: Annotated[
        Path | None,
        typer.Option(help="Folder with the own key, and certificates that the graph file lacks.", readable=False),
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="Certificate authorities of peers, PEM.", readable=False)] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plaintext, on loopback only.")] = False,
    insecure_anywhere: Annotated[
        bool,
        typer.Option("--insecure-anywhere", help="Plaintext on any address: other hosts can forge models."),
    ] = False,
    upload_limit: Annotated[
        str | None,
        typer.Option(
            help="Bytes per second to all neighbors together, such as 2MB or 250kB. Default: as in the graph file."
        ),
    ] = None,
    download_limit: Annotated[
        str | None, typer.Option(help="Bytes per second from all neighbors together. Default: as in the graph file.")
    ] = None,
    proxy: ThroughProxy = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Serve Prometheus metrics on this port, unencrypted."),
    ] = None,
    metrics_host: Annotated[
        str | None, typer.Option(help="Address to serve metrics on.", show_default="127.0.0.1")
    ] = None,
    tell_clusters: Annotated[
        bool,
        typer.Option(
            "--tell-clusters",
            help="Also tell observers the mixture of clusters, the true cluster, and the chosen collaborators of this peer. "
            "They say how its data are distributed.",
        ),
    ] = False,
    require_own_address: Annotated[
        bool,
        typer.Option(
            "--require-own-address", help="Exit if this peer's address in the graph file leads to another host or port."
        ),
    ] = False,
    discard_state: Annotated[
        bool,
        typer.Option(
            "--discard-state",
            help="If --state-dir has the state of another run, move it to discarded-N in it and start at round 0. The state of "
            "this run is resumed.",
        ),
    ] = False,
    when: Annotated[
        list[str] | None,
        typer.Option(
            help="Work only at this time of day: HH:MM-HH:MM, and a time zone if it is not this machine's: "
            "'22:00-06:00 Europe/Berlin'. Repeat it for more windows.",
            metavar="WINDOW",
        ),
    ] = None,
    when_command: Annotated[
        str | None,
        typer.Option(help="Work only while this command exits with 0; it is run every 2 s.", metavar="COMMAND"),
    ] = None,
    stay: Annotated[
        Literal["never", "completed", "error"],
        typer.Option(help="Wait for SIGTERM instead of exiting, after a completed run or after an error."),
    ] = "never",
    exports: Exports = None,
    log_level: Annotated[LogLevel, typer.Option(help="Lowest level of log lines.")] = "info",
    log_format: Annotated[Literal["text", "json"], typer.Option(help="Format of log lines on stderr.")] = "text",
) -> None:
    """Run one peer until the run is completed or SIGTERM asks it to leave.

    With the same --state-dir it resumes from its last checkpoint; the state of another run is refused. Before the start it
    trains one step and evaluates, so that a fault of the task is reported at once. Outside the windows of --when and
    --when-command it leaves with a goodbye: its neighbors wait once, for the suspicion time, and it resumes in the next window.
    Exit code 51: it has trained alone.

    Example: peer run --id 3 --neighbors graph.json
    """
    from peer.observe.logs import setup_logging
    from peer.runtime.ending import exit_on_signals, is_completed, wait_for_signal

    exit_on_signals()
    setup_logging(peer_id, level=log_level, style=log_format)
    with told("importing PyTorch and gRPC"), importing():
        from coordinator_free_bootstrap import load_graph
        from coordinator_free_bootstrap.errors import AloneError, PeerError
        from coordinator_free_bootstrap.rates import parse_rate
        from peer.runtime.assembly import LocalSettings
        from peer.runtime.process import run_peer
        from peer.runtime.schedule import Schedule, parse_window
        from peer.runtime.windows import run_peer_in_windows
        from peer.store.state_dir import StateDir
        from peer.tasks.given_keys import warn_without_effect
        from peer.view.trackers.export import LiveExport
        from peer.wire.proxy import HttpProxy

    plaintext = insecure or insecure_anywhere
    settings = LocalSettings(
        state_dir or Path("state") / f"peer-{peer_id}",
        listen=listen,
        data_root=data_root,
        shard=shard,
        device=device,
        amp=amp,
        threads=threads,
        cert=cert,
        key=key,
        certs=certs,
        ca=ca,
        insecure=insecure,
        insecure_anywhere=insecure_anywhere,
        download=download,
        require_own_address=require_own_address,
        tell_clusters=tell_clusters,
        discard_state=discard_state,
        check_task=True,
        traceback=traceback_wanted(),
    )
    serving = ExitStack()
    try:
        refuse_without("with --metrics-port", metrics_port is not None, metrics_host=metrics_host)
        refuse_without("without plaintext", not plaintext, cert=cert, key=key, certs=certs, ca=ca)
        settings = replace(
            settings,
            upload_limit=parse_rate(upload_limit, "--upload-limit") if upload_limit else None,
            download_limit=parse_rate(download_limit, "--download-limit") if download_limit else None,
        )
        metrics = _metrics_page(serving, metrics_port, metrics_host)
        settings = replace(settings, proxy=HttpProxy.chosen(proxy), metrics=metrics)
        if settings.proxy:
            logging.getLogger("peer").info("dialing neighbors through the HTTP proxy %s", settings.proxy)
        graph = load_graph(neighbors)
        warn_without_effect(graph.manifest, [], logging.getLogger("peer").warning)
        with LiveExport(settings.state_dir, exports or ()) as live:
            if when or when_command:
                schedule = Schedule([parse_window(text) for text in when or ()], when_command or "")
                code = run_peer_in_windows(peer_id, graph, settings, schedule)
            else:
                code = run_peer(peer_id, graph, settings)
        if live.problem:
            logging.getLogger("peer").warning(live.problem)
    except PeerError as error:
        logging.getLogger("peer").error("%s", error, exc_info=settings.traceback)
        code = error.exit_code
        if settings.metrics:
            settings.metrics.set_state("failed")
    with serving:  # a peer that stays still answers /metrics
        if code and stay == "error":
            wait_for_signal("stopped by an error that a restart does not repair")
        elif code in (0, AloneError.exit_code) and stay == "completed" and is_completed(StateDir(settings.state_dir)):
            wait_for_signal("run completed")
    raise typer.Exit(code)


def _metrics_page(serving: ExitStack, port: int | None, host: str | None) -> MetricsPage | None:
    """Serve the metrics until the stack is closed; None without a port."""
    if port is None:
        return None
    from peer.observe.metrics_page import metrics_page  # here: a peer without metrics need not import their library

    return serving.enter_context(metrics_page(port, host or "127.0.0.1"))
