"""Read what peers write while they write it: new lines of growing files, as events for the reducer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.graph_file import load_graph
from coordinator_free_bootstrap.ordinary_file import opened
from peer.store.files import storage_error
from peer.store.history import check_line, parse_lines
from peer.store.identity_files import held_by
from peer.store.state_dir import StateDir
from peer.view.state.events import Event, events_of, merged, observed, seconds_of
from peer.view.state.places import PLACES, listed, read_summary, state_directories
from peer.view.state.records import ExitLine, TimelineLine, problem_of, usable
from peer.view.state.reducer import EventLog

TIMELINE = (
    "chaos.jsonl"  # in a testbed's directory, one fault a line: time, do, text, peers, edges, groups, undo, result
)
OBSERVED = "watch.jsonl"  # in a directory that `peer watch` writes: what peers answered, and which rounds it missed
EXITS = "exits.jsonl"  # in a testbed's directory, one ended process a line: time, peer_id, exit_code
READ_BYTES_MAX = 1 << 22  # per file and read
HEAD_BYTES = 256  # of a file, which tell it from another one with its name


@dataclass
class FileTail:
    """The complete lines of a file that grows, appears later, or is replaced by another.

    Attributes:
        offset: byte behind the last line that was read.
        replaced: how often another file took the place of the one that was read.
    """

    path: Path
    offset: int = 0
    replaced: int = 0
    _head: bytes = b""

    def read(self, most: int = READ_BYTES_MAX) -> bytes:
        """Return the next complete lines, of about ``most`` bytes; b"" if there are none now.

        Raises:
            StorageError: the file exists and cannot be read.
        """
        try:
            if self.path.stat().st_size == self.offset:
                return b""
            with opened(self.path) as file:
                return self._next(file, most)
        except FileNotFoundError:  # now; the next call tries again
            return b""
        except OSError as error:
            raise storage_error("read", self.path, error) from error

    def _next(self, file: BinaryIO, most: int) -> bytes:
        head = file.read(HEAD_BYTES)
        if self.offset and (os.fstat(file.fileno()).st_size < self.offset or not head.startswith(self._head)):
            self.offset, self._head = 0, b""
            self.replaced += 1
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
    """The events in one peer's state directory: its history, its summary, its process.

    Attributes:
        problems: a sentence for each of the first lines that are not used, and for a summary that is not.
    """

    peer_id: int
    place: StateDir
    problems: list[str] = field(default_factory=list)
    at: float = 0.0
    _history: FileTail = field(init=False)
    _summary: tuple[int, int] | None = None  # time and size of the summary that was read
    _held: bool | None = None

    def __post_init__(self) -> None:
        self._history = FileTail(self.place.history)

    def read(self, *, processes: bool = True) -> Iterator[Event]:
        """Yield what is new; ``processes`` also looks whether a process has the state directory."""
        held = held_by(self.place.root) is not None if processes else None  # first: its last lines come after
        yield from self.read_history()
        yield from self._read_summary()
        if held != self._held:
            self._held = held
            yield Event(self.at, self.peer_id, "process", {"held": held})

    def read_history(self) -> Iterator[Event]:
        """Yield the new lines of the history."""
        replaced = self._history.replaced
        while data := self._history.read():
            if replaced != self._history.replaced:
                replaced = self._history.replaced
                yield Event(self.at, self.peer_id, "lost", {})
            lines = usable(str(self.place.history), parse_lines(data), self.problems)
            for event in events_of(self.peer_id, lines, self.at):
                self.at = event.at
                yield event

    def _read_summary(self) -> Iterator[Event]:
        try:
            found = self.place.summary.stat()
        except OSError:
            if self._summary is not None:  # a new run of this peer has removed it
                self._summary = None
                yield Event(self.at, self.peer_id, "summary", {})
            return
        if (found.st_mtime_ns, found.st_size) == self._summary:
            return
        self._summary = found.st_mtime_ns, found.st_size
        summary = read_summary(self.place.summary, self.problems)
        if summary:
            ended = summary.get("ended_at")
            self.at = max(self.at, seconds_of(ended)) if ended else self.at
            yield Event(self.at, self.peer_id, "summary", summary)


class RunTail:
    """The event log of a run in a directory, which grows with each `refresh`.

    Args:
        directory: a testbed's directory, one state directory, or a folder with state directories.
        graph: of the run; None: ``graph.json`` in the directory, if there is one.

    Attributes:
        log: the events so far.
        peers: by peer id, what was read of each.
        notes: what is not used, as sentences.

    Raises:
        UsageError: there is no such directory, and no graph.
        GraphError: the graph file is not valid.
        StorageError: a file exists and cannot be read; `refresh` raises it too.
    """

    def __init__(self, directory: Path, graph: Graph | None = None) -> None:
        self.directory = Path(directory)
        if graph is None and not self.directory.is_dir():
            raise UsageError(f"{directory}: found no such directory; allowed: {PLACES}")
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
        """Read what is new; return whether there was anything."""
        if self.graph is None:
            self._find()
        before = self.log.cursor
        streams: list[Iterable[Event]] = [list(self._read_observed()), list(self._read_timeline())]
        exits = list(self._read_exits())
        streams += [list(peer.read(processes=not self.is_observed)) for peer in self.peers.values()]
        self.log.append(merged([*streams, exits]))  # last: at equal times an end comes after its peer's lines
        return self.log.cursor > before

    def _find(self) -> None:
        places = state_directories(self.directory, self.notes if not self.peers else None)
        if self.graph is not None:
            if strangers := [peer_id for peer_id in places if peer_id not in self.graph.ids]:
                self.notes.append(f"peer {listed(strangers)}: not in graph.json; not used")
            places = {i: places.get(i) or StateDir.of_peer(self.directory, i) for i in self.graph.ids}
        for peer_id, place in places.items():
            if peer_id not in self.peers:
                self.peers[peer_id] = PeerTail(peer_id, place)

    def _read_timeline(self) -> Iterator[Event]:
        while data := self._timeline.read():
            lines = (line for line in parse_lines(data) if not problem_of(line, TimelineLine))
            yield from events_of(None, lines)

    def _read_exits(self) -> Iterator[Event]:
        while data := self._exits.read():
            for line in parse_lines(data):
                if not problem_of(line, ExitLine):
                    yield Event(seconds_of(line["time"]), line["peer_id"], "exit", line)

    def _read_observed(self) -> Iterator[Event]:
        while data := self._observed.read():
            yield from (event for line in parse_lines(data) if (event := observed(line)) is not None)
