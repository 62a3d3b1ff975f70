"""A run that the page shows: its growing files, the view of them, and the film."""

from __future__ import annotations

from pathlib import Path

from coordinator_free_bootstrap.strict_json import printable
from peer.view.page.film import Film
from peer.view.report.report import warnings
from peer.view.state.run_files import RunFiles
from peer.view.state.tail import RunTail
from peer.view.state.view import View


class RunSource:
    """The run in a directory; `refresh` reads what is new.

    Raises:
        UsageError: there is no such directory.
        GraphError: the graph file is not valid.
        StorageError: a file exists and cannot be read; `refresh` raises it too.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = printable(str(directory))
        self.tail = RunTail(directory)
        self.film = Film(View(self.tail.log, self.tail.graph))

    def refresh(self) -> bool:
        """Read what is new; return whether there was anything."""
        new = self.tail.refresh()
        if new:
            log = self.tail.log
            started = any(peer.lines for peer in log.peers.values())
            self.film.warnings = warnings(RunFiles.of(self.tail)) if started else log.problems
        return new
