"""Read what peers write while they write it: new lines of growing files, as events for the reducer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.graph_file import load_graph
from coordinator_free_bootstrap.ordinary_file import opened
from peer.store.files import storage_error
from peer.store.history import Unread, usable_lines
from peer.store.identity_files import held_by
from peer.store.lines import check_line, closed_part
from peer.store.records import KINDS
from peer.store.state_dir import StateDir
from peer.view.state.events import LoggedEvent, events_of, merged, seconds_of
from peer.view.state.peer_status import read_status
from peer.view.state.places import PLACES, listed, read_summary, state_directories
from peer.view.state.records import ExitLine, FaultLine, kept, problem_of, problem_of_line, problem_of_observed
from peer.view.state.reducer import EventLog

TIMELINE = (
    "chaos.jsonl"  # in a testbed's directory, one fault a line: time, do, text, peers, edges, groups, undo, result
)
OBSERVED = "watch.jsonl"  # in a directory that `peer watch` writes: what peers answered, and which rounds it missed
EXITS = "exits.jsonl"  # in a testbed's directory, one ended process a line: time, peer_id, exit_code
READ_BYTES_MAX = 1 << 22  # per file and read
HEAD_BYTES = 256  # of a file, which distinguish it from another one of this name


@dataclass
class FileTail:
    """The complete lines of a file that grows in parts (`peer.store.lines`), appears later, or is replaced by another.

    Attributes:
        offset: byte behind the last line that was read, in its part.
        replaced: how often another file replaced the one that was read.
        unread: the lines that `records` has left out.
    """

    path: Path
    offset: int = 0
    replaced: int = 0
    unread: Unread = field(init=False)
    _head: bytes = b""
    _lines: int = 0
    _closed: int = 0  # parts that are closed and read

    def __post_init__(self) -> None:
        self.unread = Unread(self.path)

    def records(self, problem_of: Callable[[dict[str, Any]], str]) -> Iterator[list[Any]]:
        """Yield the new lines that are valid, so records of a type, some at a time; the others are counted in `unread`.

        Args:
            problem_of: returns what is wrong with a line, "" if it is valid.

        Raises:
            StorageError: the file exists and cannot be read.
        """
        while data := self.read():
            before = self._lines
            self._lines += data.count(b"\n")
            yield list(usable_lines(data, before, self.unread, problem_of))

    def read(self, most: int = READ_BYTES_MAX) -> bytes:
        """Return the next complete lines, of about ``most`` bytes; b"" if there are none now.

        Raises:
            StorageError: the file exists and cannot be read.
        """
        while (part := closed_part(self.path, self._closed + 1)).exists():
            if data := self._read(part, most):
                return data
            self._closed, self.offset, self._head = self._closed + 1, 0, b""
        return self._read(self.path, most)

    def _read(self, part: Path, most: int) -> bytes:
        try:
            if part.stat().st_size == self.offset:
                return b""
            with opened(part) as file:
                return self._next(file, most)
        except FileNotFoundError:  # now; the next call tries again
            return b""
        except OSError as error:
            raise storage_error("read", part, error) from error

    def _next(self, file: BinaryIO, most: int) -> bytes:
        head = file.read(HEAD_BYTES)
        if self.offset and (os.fstat(file.fileno()).st_size < self.offset or not head.startswith(self._head)):
            self.offset, self._head, self._lines, self._closed = 0, b"", 0, 0
            self.unread = Unread(self.path)
            self.replaced += 1
            if closed_part(self.path, 1).exists():  # the next call begins with it
                return b""
        file.seek(self.offset)
        data = file.read(most)
        while data and b"\n" not in data and (more := file.read(most)):  # one line that is longer
            data += more
            check_line(len(data))
        complete = data[: data.rfind(b"\n") + 1]
        self.offset += len(complete)
        self._head = head[: self.offset]
        return complete


@dataclass
class PeerTail:
    """The events in one peer's state directory: its history, its summary, its process."""

    peer_id: int
    state_dir: StateDir
    at: float = 0.0
    _history: FileTail = field(init=False)
    _replaced: int = 0
    _summary: tuple[int, int] | None = None  # time and size of the summary that was read
    _summary_problems: list[str] = field(default_factory=list)
    _held: bool | None = None

    def __post_init__(self) -> None:
        self._history = FileTail(self.state_dir.history)

    @property
    def problems(self) -> list[str]:
        """A sentence about the lines that could not be read so far, and about a summary that is not used."""
        return self._history.unread.sentences() + self._summary_problems

    def read(self, *, processes: bool = True) -> Iterator[LoggedEvent]:
        """Yield what is new; ``processes`` also looks whether a process has the state directory."""
        held = held_by(self.state_dir.root) is not None if processes else None  # first: its last lines come after
        yield from self.read_history()
        yield from self._read_summary()
        if held != self._held:
            self._held = held
            yield LoggedEvent(self.at, self.peer_id, {"kind": "process", "held": held})

    def read_history(self) -> Iterator[LoggedEvent]:
        """Yield the new lines of the history."""
        for lines in self._history.records(problem_of_line):
            if self._replaced != self._history.replaced:
                self._replaced = self._history.replaced
                yield LoggedEvent(self.at, self.peer_id, {"kind": "lost"})
            known = (kept(line) for line in lines if line["kind"] in KINDS)  # a later version may write others
            for event in events_of(self.peer_id, known, self.at):
                self.at = event.at
                yield event

    def _read_summary(self) -> Iterator[LoggedEvent]:
        try:
            found = self.state_dir.summary.stat()
        except OSError:
            if self._summary is not None:  # a new run of this peer has removed it
                self._summary, self._summary_problems = None, []
                yield LoggedEvent(self.at, self.peer_id, {"kind": "summary", "summary": {}})
            return
        if (found.st_mtime_ns, found.st_size) == self._summary:
            return
        self._summary, self._summary_problems = (found.st_mtime_ns, found.st_size), []
        summary = read_summary(self.state_dir.summary, self._summary_problems)
        if summary:
            ended = summary.get("ended_at")
            self.at = max(self.at, seconds_of(ended)) if ended else self.at
            yield LoggedEvent(self.at, self.peer_id, {"kind": "summary", "summary": summary})


class RunTail:
    """The event log of a run in a directory, which grows with each `refresh`.

    Args:
        directory: a testbed's directory, one state directory, or a folder with state directories.
        graph: of the run; None: ``graph.json`` in the directory, if there is one.

    Attributes:
        log: the events so far, and what of the files could not be read.
        peers: by peer id, what was read of each.
        notes: which state directories are not used, as sentences.

    Raises:
        UsageError: there is no such directory, and no graph.
        GraphError: the graph file is not valid.
        StorageError: a file exists and cannot be read; `refresh` raises it too.
    """

    def __init__(self, directory: Path, graph: Graph | None = None) -> None:
        self.directory = Path(directory)
        if graph is None and not self.directory.is_dir():
            raise UsageError(f"{directory}: expected {PLACES}, got no such directory")
        file = self.directory / "graph.json"
        self.graph = graph or (load_graph(file) if file.is_file() else None)
        self.log = EventLog(self.graph.ids if self.graph else ())
        self.notes: list[str] = []
        self.peers: dict[int, PeerTail] = {}
        self._timeline = FileTail(self.directory / TIMELINE)
        self._exits = FileTail(self.directory / EXITS)
        self._observed = FileTail(self.directory / OBSERVED)
        self._find()

    @property
    def is_observed(self) -> bool:
        """Whether an observer wrote the directory: whether the processes of its peers run is not known here."""
        return self._observed.offset > 0

    def refresh(self) -> bool:
        """Read what is new; return whether there was anything, also of what cannot be read."""
        if self.graph is None:
            self._find()
        before = self.log.cursor, self.log.problems
        streams: list[Iterable[LoggedEvent]] = [list(self._read_observed()), list(self._read_timeline())]
        exits = list(self._read_exits())
        streams += [list(peer.read(processes=not self.is_observed)) for peer in self.peers.values()]
        self.log.append(merged([*streams, exits]))  # last: at equal times an end comes after its peer's lines
        tails = (self._timeline, self._exits, self._observed)
        self.log.problems = [problem for peer in self.peers.values() for problem in peer.problems]
        self.log.problems += [sentence for tail in tails for sentence in tail.unread.sentences()]
        return (self.log.cursor, self.log.problems) != before

    def _find(self) -> None:
        places = state_directories(self.directory, self.notes if not self.peers else None)
        if self.graph is not None:
            if strangers := [peer_id for peer_id in places if peer_id not in self.graph.ids]:
                self.notes.append(f"peer {listed(strangers)}: not in graph.json; not used")
            places = {i: places.get(i) or StateDir.of_peer(self.directory, i) for i in self.graph.ids}
        for peer_id, state_dir in places.items():
            if peer_id not in self.peers:
                self.peers[peer_id] = PeerTail(peer_id, state_dir)

    def _read_timeline(self) -> Iterator[LoggedEvent]:
        for lines in self._timeline.records(lambda line: problem_of(line, FaultLine)):
            yield from events_of(None, lines)

    def _read_exits(self) -> Iterator[LoggedEvent]:
        for lines in self._exits.records(lambda line: problem_of(line, ExitLine)):
            for line in lines:
                yield LoggedEvent(seconds_of(line["time"]), line["peer_id"], line)

    def _read_observed(self) -> Iterator[LoggedEvent]:
        for lines in self._observed.records(problem_of_observed):
            for line in lines:
                if line["kind"] == "status":
                    line["status"] = read_status(line["status"])
                yield LoggedEvent(seconds_of(line["time"]), line["peer_id"], line)
