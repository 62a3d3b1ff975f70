"""Listen to the peers of a real deployment as an observer, and write what they say as an ordinary run directory.

`peer report`, replay and the page read that directory like any other. A listener that is started again asks each peer for the
rounds after the last one that it has; what the peer does not keep any more is a ``gap`` line in ``watch.jsonl``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from coordinator_free_bootstrap.errors import NeighborUnavailable, RefusalCode, RemoteProtocolError, UsageError
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.graph_file import load_graph, save_graph
from coordinator_free_bootstrap.ordinary_file import ordinary_file
from coordinator_free_bootstrap.strict_json import dumps, loads, of_type, printable
from peer.core.metric import Metric
from peer.store.files import storage_errors, write_json
from peer.store.history import HistoryWriter
from peer.store.records import PeerStatus
from peer.store.state_dir import StateDir
from peer.view.live.ask import why_unusable
from peer.view.state.peer_state import values_in
from peer.view.state.peer_status import read_status
from peer.view.state.records import problem_of_line
from peer.view.state.tail import OBSERVED, PeerTail
from peer.wire.client import NeighborLink
from peer.wire.limits import WireLimits
from peer.wire.proxy import HttpProxy
from peer.wire.round_ring import OBSERVABLE_FIELDS, OBSERVABLE_STATE, RecordBatch
from peer.wire.security import MutualTls

INTERVAL_S = 1.0  # between two statuses of a peer
RETRY_S = 2.0  # after a peer that does not answer
STATUS_EVERY_S = 10.0  # an unchanged status is written that seldom
RECORD_CHARACTERS_MAX = 1 << 20
LINES = {"completed": "end", "left": "leave", "alone": "end"}  # ending -> kind of its line of the history


class PeerNotes:
    """What an observer writes about one peer.

    Args:
        directory: of the run.
        peer_id: the peer.
        write: appends a line to ``watch.jsonl``.

    Attributes:
        next_round: first round without a record here.
        incarnation: of the last answer; None before the first.
        ended: whether the peer said that its run is over; a new incarnation continues.
        completed: whether it has completed all rounds.
    """

    def __init__(self, directory: Path, peer_id: int, write: Callable[[dict[str, Any]], None]) -> None:
        self.peer_id = peer_id
        self.state_dir = StateDir.of_peer(directory, peer_id)
        self.state_dir.root.mkdir(parents=True, exist_ok=True)
        self.next_round, self.ended, self.completed = 0, False, False
        self.incarnation: int | None = None
        self._write = write
        self._neighbors: dict[str, str] = {}
        self._reported: tuple[Any, ...] = ()
        self._reported_at = 0.0
        self._silent = ""
        self._last: PeerStatus | None = None
        self._resume()
        self._history = HistoryWriter(self.state_dir.history)

    def close(self) -> None:
        """Close the file."""
        self._history.close()

    def _resume(self) -> None:
        for event in PeerTail(self.peer_id, self.state_dir).read_history():
            data = event.data
            if data["kind"] == "start":
                self.incarnation = data.get("incarnation")
            elif data["kind"] == "round":
                self.next_round = max(self.next_round, data["round_index"] + 1)
            elif data["kind"] == "neighbor":
                self._neighbors[str(data["neighbor"])] = data["state"]

    # ---- what the peer says ---------------------------------------------------------------------------------------------

    def hear(self, status: PeerStatus, batch: RecordBatch) -> None:
        """Write a status and the records that came with it.

        Raises:
            RemoteProtocolError: MALFORMED; a record is not valid.
            StorageError: a file cannot be written.
        """
        self._silent = ""
        if status["incarnation"] != self.incarnation:
            self.incarnation = status["incarnation"]
            metric, *more = (
                Metric.from_json(each).as_json() for each in (status["metric"], *status.get("more_metrics", ()))
            )
            extra = {"more_metrics": more} if more else {}
            self._line("start", peer_id=self.peer_id, metric=metric, true_cluster=status.get("true_cluster"), **extra)
            self.ended = self.completed = False
        if batch.rounds_from > self.next_round:
            rounds = {"from_round": self.next_round, "to_round": batch.rounds_from - 1}
            self._note("gap", **rounds)
            self.next_round = batch.rounds_from
        for text in batch.records:
            line = round_line(text)
            self.next_round = max(self.next_round, line["round_index"] + 1)
            self._line("round", **line)
        self._hear_neighbors(status["neighbors"])
        self._hear_place(status)
        self._last = status

    def silence(self, reason: str) -> None:
        """Write that the peer gives no usable answer, once for each reason."""
        if reason != self._silent and not self.ended:
            self._silent = reason
            self._note("silent", reason=printable(reason))

    def _hear_neighbors(self, neighbors: dict[str, str]) -> None:
        for neighbor, state in neighbors.items():
            if self._neighbors.get(neighbor) != state and (neighbor in self._neighbors or state != "unknown"):
                self._line("neighbor", neighbor=int(neighbor), state=state)
        self._neighbors = dict(neighbors)

    def _hear_place(self, status: PeerStatus) -> None:
        summary = (
            status["stage"],
            status["round_index"],
            status["waiting_for"],
            status["owed_to"],
            status["neighbors"],
        )
        now = asyncio.get_running_loop().time()
        if summary != self._reported or now - self._reported_at >= STATUS_EVERY_S:
            self._reported, self._reported_at = summary, now
            self._note("status", status=status)

    def end(self) -> bool:
        """Write the end of the run if the last status said so, now that the peer has stopped; return whether it did."""
        status = self._last
        word = ending_of(status) if status is not None else None
        if status is None or word is None:
            return False
        over = status["round_index"] >= status["rounds_total"]
        if word in LINES:
            self._line(LINES[word] if word != "alone" or over else "leave", rounds_completed=status["round_index"])
        summary = {
            "peer_id": self.peer_id,
            "status": word,
            "exit_code": status.get("exit_code"),
            "incarnation": status["incarnation"],
            "rounds_completed": status["round_index"],
            "metric": status["metric"],
            **({"metrics": values_in(more)} if (more := status.get("more_metrics")) else {}),
            "cluster_index": status["cluster_index"],
            "totals": status["totals"],
            "refusals": status["refusals"],
            "ended_at": _now(),
        }
        write_json(self.state_dir.summary, summary)
        self.ended, self.completed, self._last = True, word == "completed" or (word == "alone" and over), None
        return True

    def _line(self, kind: str, **fields: Any) -> None:
        self._history.write(kind, **({"incarnation": self.incarnation} | fields))

    def _note(self, kind: str, **fields: Any) -> None:
        self._write({"kind": kind, "time": _now(), "peer_id": self.peer_id, **fields})


class Listener:
    """Listens to all peers of a graph; `run` ends when every peer has ended.

    Args:
        graph: of the run.
        tls: an observer's identity; None: plaintext.
        directory: where the run directory is written; it may have an earlier part of the same run.
        interval_s: seconds between two statuses of a peer.
        proxy: dials the addresses of peers; default: they are dialed directly.

    Raises:
        UsageError: the directory has another run.
        StorageError: it cannot be written.
    """

    def __init__(
        self,
        graph: Graph,
        tls: MutualTls | None,
        directory: Path,
        *,
        interval_s: float = INTERVAL_S,
        proxy: HttpProxy | None = None,
    ) -> None:
        self.graph, self._tls, self._interval_s, self._proxy = graph, tls, interval_s, proxy
        self.directory = Path(directory)
        self._observed = self.directory / OBSERVED
        with storage_errors("create", self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._observed.touch()
        self._keep_graph()
        self.notes = {peer_id: PeerNotes(self.directory, peer_id, self._write) for peer_id in graph.ids}

    def _keep_graph(self) -> None:
        file = self.directory / "graph.json"
        if not file.is_file():
            save_graph(self.graph, file)
        elif load_graph(file).digest != self.graph.digest:
            raise UsageError(
                f"{self.directory}: expected an empty folder, or the same graph, got the run of another graph"
            )

    async def run(self) -> None:
        """Listen until every peer has ended; a cancellation ends it too."""
        try:
            async with asyncio.TaskGroup() as group:
                for peer_id in self.graph.ids:
                    group.create_task(self._listen(peer_id))
        finally:
            for notes in self.notes.values():
                notes.close()

    async def _listen(self, peer_id: int) -> None:
        notes = self.notes[peer_id]
        if not self.graph.node(peer_id).address:
            notes.silence(
                "the peer has no address in the graph file: it only dials its neighbors, and observers cannot reach it"
            )
            return
        while not (notes.completed or self._over):
            try:
                await self._hear(peer_id, notes)
            except NeighborUnavailable as error:
                notes.silence(str(error).partition(": WatchStatus: ")[2] or str(error))
            except RemoteProtocolError as error:
                notes.silence(why_unusable(error))
            if not notes.end():
                await asyncio.sleep(RETRY_S)

    @property
    def _over(self) -> bool:
        """Whether every peer that can be asked has ended: one that has left may come back as long as another runs."""
        return all(notes.ended for peer_id, notes in self.notes.items() if self.graph.node(peer_id).address)

    async def _hear(self, peer_id: int, notes: PeerNotes) -> None:
        """Watch one peer until its stream ends."""
        manifest = self.graph.manifest
        link = NeighborLink(
            peer_id,
            self.graph.node(peer_id).address,
            limits=WireLimits.of(manifest),
            timeouts=manifest.timeouts,
            security=self._tls.channel(peer_id) if self._tls else None,
            proxy=self._proxy,
        )
        try:
            if not await self._watch(link, notes, notes.next_round):
                await self._watch(link, notes, 0)
        finally:
            await link.close()

    async def _watch(self, link: NeighborLink, notes: PeerNotes, since: int) -> bool:
        """Hear one stream; return False if a new incarnation answers: it is asked again, for all of its rounds."""
        async for value, batch in link.watch_status(self._interval_s, since):
            status = read_status(value, notes.peer_id)
            if since and status["incarnation"] != notes.incarnation:
                return False
            notes.hear(status, batch)
        return True

    def _write(self, line: dict[str, Any]) -> None:
        with (
            storage_errors("append to", self._observed),
            open(ordinary_file(self._observed), "a", encoding="utf-8") as file,
        ):
            file.write(dumps(line) + "\n")


class ListenerThread:
    """A listener in a thread of its own, for the length of a block; its error is raised at the end of the block.

    Args:
        listener: of the run.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

    @property
    def running(self) -> bool:
        """Whether it listens: false once all peers have ended, or after an error."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            return
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()

    async def _main(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._started.set()
        await self._listener.run()

    def __enter__(self) -> ListenerThread:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._task is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
        if self._error is not None and kind is None:
            found = self._error
            raise found.exceptions[0] if isinstance(found, BaseExceptionGroup) else found


def ending_of(status: PeerStatus) -> str | None:
    """Return how a peer ended after its last status: as a summary names it; None if that status does not say so."""
    if (outcome := status.get("outcome")) is not None:
        return outcome  # else the peer continues, or its last reply was lost
    if status["phase"] not in ("finished", "leaving"):
        return None
    return "completed" if status["phase"] == "finished" or status["round_index"] >= status["rounds_total"] else "left"


def round_line(text: str) -> dict[str, Any]:
    """Return the fields of a foreign round record that are known here, validated.

    Raises:
        RemoteProtocolError: MALFORMED.
    """
    try:
        if len(text) > RECORD_CHARACTERS_MAX:
            raise ValueError(f"expected at most {RECORD_CHARACTERS_MAX} characters, got {len(text)}")
        value = loads(text)
        if not isinstance(value, dict):
            raise ValueError(f"expected a JSON object, got {of_type(value)}")
        line = {key: found for key, found in value.items() if key in OBSERVABLE_FIELDS}
        if isinstance(state := value.get("state"), dict):
            line["state"] = {key: found for key, found in state.items() if key in OBSERVABLE_STATE}
        if problem := problem_of_line({"kind": "round", **line}):
            raise ValueError(problem)
    except ValueError as error:
        raise RemoteProtocolError(
            RefusalCode.MALFORMED, f"not a valid round record: {printable(str(error))}"
        ) from error
    return line


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
