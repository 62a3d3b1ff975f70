"""Wait for the peers of a run by reading their state directories, and copy their results to one folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from coordinator_free_bootstrap import load_graph
from coordinator_free_bootstrap.errors import StorageError
from peer.runtime.ending import is_completed
from peer.store.identity_files import held_by
from peer.store.lines import parts_of
from peer.store.scratch import temporary_folder
from peer.store.state_dir import StateDir
from peer.view.report.report import Report, build_report

POLL_S = 1.0


def wait_for_completion(directory: Path, patience_s: float) -> None:
    """Wait until every peer has completed the run, or no peer has been running for ``patience_s`` seconds.

    Args:
        directory: with ``graph.json`` and ``peer-<id>/``; it is only read.
        patience_s: longer than a peer needs to start or restart.
    """
    places = [StateDir.of_peer(directory, peer_id) for peer_id in load_graph(directory / "graph.json").ids]
    idle_since = time.monotonic()
    while True:
        running = any(held_by(place.root) is not None for place in places)
        if running:
            idle_since = time.monotonic()
        elif all(map(is_completed, places)) or time.monotonic() - idle_since > patience_s:
            return
        time.sleep(POLL_S)


def collect(directory: Path, out: Path, via: Path | None = None) -> Report:
    """Copy graph file, summaries, histories and models to ``out``, add report and pictures, and return the report.

    Args:
        directory: of the run; it is only read.
        out: folder for the results; created if missing.
        via: a program that copies like ``cp -r`` with more permissions than this process; None: ``cp``.

    Raises:
        StorageError: the results cannot be written.
    """
    from peer.view.report.matrix import save_matrix
    from peer.view.report.plots import save_plots

    found = build_report(directory)
    with TemporaryDirectory(dir=temporary_folder()) as name:
        stage = Path(name)
        shutil.copy(directory / "graph.json", stage)
        for peer in found.run.peers:
            _copy_peer(peer.state_dir, stage / f"peer-{peer.peer_id}")
        (stage / "report.json").write_text(json.dumps(found.values, indent=2, allow_nan=False) + "\n")
        save_plots(found.run, stage / "report")
        save_matrix(found.run, stage / "report")
        entries = sorted(map(str, stage.iterdir()))
        try:
            if via is None:
                out.mkdir(parents=True, exist_ok=True)
            copier = str(via) if via else "cp"
            subprocess.run([copier, "-r", "--", *entries, str(out)], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            words = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
            raise StorageError(
                f"--out {out}: results cannot be written ({words}). Make the folder writable."
            ) from error
    return found


def _copy_peer(state_dir: StateDir, target: Path) -> None:
    target.mkdir()
    for path in (state_dir.summary, *parts_of(state_dir.history)):
        if path.exists():
            shutil.copy(path, target)
    if state_dir.models.exists():
        shutil.copytree(state_dir.models, target / "models")
