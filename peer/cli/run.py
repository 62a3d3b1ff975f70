"""`peer run`: run one peer."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from coordinator_free_bootstrap.errors import AloneError, PeerError
from coordinator_free_bootstrap.options import fields_of
from peer.cli.declared import takes_options
from peer.cli.trace import traceback_wanted
from peer.rings import part
from peer.runtime.imports import importing
from peer.runtime.local_options import IN_FILE, LocalOptions, complete_options, log_form, metrics_of
from peer.runtime.options_file import options_in, written_in
from peer.runtime.signals import Signals, work_goes_on
from peer.runtime.slow_start import log_while

ON_THE_LINE = tuple(name for name in fields_of(LocalOptions) if name not in IN_FILE)


@takes_options("options", LocalOptions, *ON_THE_LINE)
def run(
    peer_id: Annotated[int, typer.Option("--id", help="Id of this peer in the graph file.")],
    neighbors: Annotated[Path, typer.Option("--neighbors", help="Graph file that all peers share.", readable=False)],
    options: LocalOptions,
    watch_graph: Annotated[
        bool, typer.Option("--watch-graph", help="Take a new graph file as soon as it is there; without, on SIGHUP.")
    ] = False,
    owner: Annotated[
        Path | None,
        typer.Option(
            help="Certificate of the owner, who must have signed the graph file (peer graph sign).", readable=False
        ),
    ] = None,
    options_file: Annotated[
        Path | None,
        typer.Option(
            "--options",
            help="File of options, such as threads = 2 (TOML); options on the command line win. Only there: "
            f"{', '.join(IN_FILE)}.",
            readable=False,
        ),
    ] = None,
) -> None:
    """Run one peer until the run is completed or SIGTERM asks it to leave.

    With the same --state-dir it resumes from its last checkpoint; the state of another run is refused. Before the start it
    trains one step and evaluates, so that a fault of the task is reported at once. Outside the windows of --when
    it leaves with a goodbye: its neighbors wait once, for the suspicion time, and it resumes in the next window.
    On SIGHUP it takes the next graph file between two rounds. Exit code 51: it has trained alone; 52: it was removed from the
    federation; 53: its graph file is too old for its neighbors.

    Example: peer run --id 3 --neighbors graph.json
    """
    signals = Signals().take()
    in_file = {} if options_file is None else options_in(options_file)
    with written_in(options_file, in_file.keys() - options.keys()):
        code = _run(peer_id, neighbors, {**in_file, **options}, signals, watch=watch_graph, owner=owner)
    if work_goes_on():
        logging.shutdown()
        os._exit(code)
    raise typer.Exit(code)


def _run(
    peer_id: int, neighbors: Path, given: Mapping[str, object], signals: Signals, *, watch: bool, owner: Path | None
) -> int:
    """Run one peer with the options that the user gave; return the exit code."""
    from peer.observe.logs import setup_logging
    from peer.runtime.ending import is_completed

    setup_logging(peer_id)
    serving, metrics, stay = ExitStack(), None, given.get("stay")
    try:
        options = complete_options(peer_id, given)
        level, style = log_form(options["log"])
        setup_logging(peer_id, level=level, style=style)
        with log_while("importing PyTorch and gRPC"), importing():
            from peer.runtime.assembly import LocalSettings
            from peer.runtime.graph_changes import SharedFile, run_peer_with_file
            from peer.runtime.process import refusals_audited, require_allowed
            from peer.runtime.schedule import schedule_of
            from peer.store.state_dir import StateDir
            from peer.tasks.given_keys import warn_without_effect

        metrics = serving.enter_context(metrics_of(options))
        settings = LocalSettings(options, metrics, part("Alerts"), check_task=True, traceback=traceback_wanted())
        if settings.proxy:
            logging.getLogger("peer").info("dialing neighbors through the HTTP proxy %s", settings.proxy)
        file = SharedFile(neighbors, watch=watch, owner=owner)
        with refusals_audited(settings):
            require_allowed(peer_id, file.graph, settings)  # before a file of the run is executed
        warn_without_effect(file.graph.manifest, [], logging.getLogger("peer").warning)
        with part("LiveExport")(settings.state_dir, options["export"]) as live:
            code = run_peer_with_file(peer_id, file, settings, signals, schedule_of(options, settings.policy))
        if live.problem:
            logging.getLogger("peer").warning(live.problem)
    except PeerError as error:
        logging.getLogger("peer").error("%s", error, exc_info=traceback_wanted())
        code = error.exit_code
        if metrics:
            metrics.set_state("failed")
    with serving:  # a peer that stays still answers /metrics
        if code and stay == "error":
            signals.wait("stopped by an error that a restart does not repair")
        elif code in (0, AloneError.exit_code) and stay == "completed" and is_completed(StateDir(settings.state_dir)):
            signals.wait("run completed")
    return code
