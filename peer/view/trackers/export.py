"""Export the rounds of a run: at once from what it left, or while it continues, in a process of its own.

``python -m peer.view.trackers.export DIRECTORY EXPORT...`` follows a directory until its stdin ends: a tracker that blocks,
starts threads or fails never disturbs a peer.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import methodcaller
from pathlib import Path
from types import TracebackType

from coordinator_free_bootstrap.errors import Option, PeerError, StorageError
from peer.store.files import storage_errors
from peer.view.report.report import Report, build_report
from peer.view.trackers.feed import Feed
from peer.view.trackers.tracker import Tracker, check, opened

LOG = "export.log"
PAUSE_S = 1.0  # between two reads of the files of a run that continues
CLOSE_S = 60.0  # how long trackers may take to write the rest


def export(report: Report, exports: Sequence[str]) -> None:
    """Give a finished, running or interrupted run to trackers.

    Raises:
        UsageError: a tracker is unknown or not installed.
        StorageError: a tracker cannot write.
    """
    check(exports)
    feed = Feed(report.run.directory)
    rows = feed.read()
    about, everyone = feed.about(rows), list(feed.everyone.completed(ended=True))
    for each in exports:
        with tracked(each):
            tracker = opened(each)
            tracker.begin(about)
            tracker.take(rows, everyone)
            tracker.close(report)


@contextlib.contextmanager
def tracked(name: str) -> Iterator[None]:
    """Convert the errors of a tracker's package to a `StorageError` that names it."""
    try:
        yield
    except PeerError:
        raise
    except Exception as error:  # code of another package; it may raise any exception
        raise StorageError(
            f"{Option('export')}: {name}: {type(error).__name__}: {error}. Correct the destination or leave it out."
        ) from error


class LiveExport:
    """A block in which a process exports what peers write to a directory; `problem` says what went wrong.

    Args:
        directory: of the run; it may appear later.
        exports: values of ``--export``; none: nothing happens.

    Raises:
        UsageError: a tracker is unknown or not installed.
    """

    def __init__(self, directory: Path, exports: Iterable[str]) -> None:
        self._directory, self._exports, self._started_in = directory.absolute(), tuple(exports), Path.cwd()
        self._process: subprocess.Popen[bytes] | None = None
        self.problem = ""
        check(self._exports)

    def start(self) -> None:
        """Start the process."""
        if not self._exports:
            return
        with storage_errors("make", self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            log = open(self._directory / LOG, "wb")  # noqa: SIM115  closed below; the child has its own
        command = [sys.executable, "-m", "peer.view.trackers.export", str(self._directory), *self._exports]
        with log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, cwd=self._started_in
            )

    def finish(self) -> None:
        """Wait until the trackers have written the rest."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code:
            log = self._directory / LOG
            lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
            last = lines[-1] if lines else f"its process ended with code {code}"
            self.problem = (
                f"the export is incomplete: {last}; see {log}; repeat it: peer report {self._directory} --export ..."
            )

    def __enter__(self) -> LiveExport:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()


def follow(directory: Path, exports: Sequence[str]) -> None:
    """Export new rows until stdin ends, then the report. A tracker that fails ends; the others continue.

    Raises:
        PeerError: the first error of a tracker, at the end.
    """
    trackers: dict[str, Tracker] = {}
    failed: list[PeerError] = []

    def attempt(name: str, step: Callable[..., object], *arguments: object) -> None:
        try:
            with tracked(name):
                step(*arguments)
        except PeerError as error:
            print(error, file=sys.stderr, flush=True)
            failed.append(error)
            trackers.pop(name, None)

    def each(step: Callable[[Tracker], object]) -> None:
        for name, tracker in [*trackers.items()]:
            attempt(name, step, tracker)

    for name in exports:
        attempt(name, lambda name: trackers.update({name: opened(name)}), name)
    feed, begun, ended = Feed(directory), False, False
    while not ended:
        ended = bool(select.select([0], [], [], PAUSE_S)[0])
        rows = feed.read()
        if not begun and (rows or ended):
            about, begun = feed.about(rows), True
            each(methodcaller("begin", about))
        everyone = list(feed.everyone.completed(ended=ended))
        if rows or everyone:
            each(methodcaller("take", rows, everyone))
    for problem in feed.problems:
        print(f"warning: {problem}", file=sys.stderr, flush=True)
    report = build_report(directory)
    each(methodcaller("close", report))
    if failed:
        raise failed[0]


def main() -> None:
    """Follow the directory of the command line."""
    try:
        follow(Path(sys.argv[1]), sys.argv[2:])
    except PeerError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
