"""The heart of the shell: one event at a time to the engine, its effects in order; timers, records, log lines."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from coordinator_free_bootstrap.errors import Refusal, StorageError
from peer.assembly import Assembled
from peer.core import effects as do
from peer.core import events as ev
from peer.core.averaging import Vector
from peer.core.engine import make_hello
from peer.core.messages import Hello
from peer.core.model_store import SnapshotKey
from peer.neighbor_lines import CHANGES_PER_MINUTE_MAX, NeighborLines
from peer.store.history import HistoryWriter
from peer.wire.client import NeighborLink
from peer.wire.codec import ErrorFeedback, Payload
from peer.wire.security import MutualTls

log = logging.getLogger("peer")


class Loop:
    """What all parts of the shell share. Its subclasses handle the effects: `_do_<name of the effect>`."""

    def __init__(self, parts: Assembled, tls: MutualTls | None = None) -> None:
        self.parts = parts
        self.engine = parts.engine
        self.bench = parts.bench
        self.graph = parts.graph
        self.manifest = parts.graph.manifest
        self.peer_id = parts.engine.peer_id
        self._tls = tls
        self._events: deque[ev.Event] = deque()
        self._draining = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sending: dict[int, asyncio.Task[Any]] = {}
        self._links: dict[int, NeighborLink] = {}
        self._payloads: dict[SnapshotKey, Payload] = {}
        self._feedback: dict[int, ErrorFeedback] = {}
        self._own_norms: dict[int, float] = {}
        self._centers: dict[int, Vector] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stopped: asyncio.Future[str] | None = None
        self._leave_now = False
        self._compute = ThreadPoolExecutor(1, "compute")
        self._fold = ThreadPoolExecutor(1, "fold")
        self._disk = ThreadPoolExecutor(1, "disk")
        self._fold_seconds = 0.0
        self._wire_before = 0
        self._lines = NeighborLines()
        self.last_round: dict[str, Any] = {}
        self.history_error = ""
        self._ended = False
        self.history = HistoryWriter(parts.state_dir.history, incarnation=parts.engine.incarnation)
        self.observers: list[Callable[[str, dict[str, Any]], None]] = []

    def post(self, event: ev.Event) -> None:
        """Give the engine an event; effects are executed before this returns, unless it is called by one of them."""
        self._events.append(event)
        if self._draining:
            return
        self._draining = True
        try:
            while self._events:
                now = asyncio.get_running_loop().time()
                self._execute(self.engine.step(self._events.popleft(), now))
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._draining = False

    def _execute(self, effects: list[do.Effect]) -> None:
        for effect in effects:
            handler: Callable[[Any], None] = getattr(self, f"_do_{type(effect).__name__.lower()}")
            handler(effect)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End this peer with an error: with effects lost it would be alive and do nothing; started again it resumes."""
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_exception(error)

    async def _on(self, pool: ThreadPoolExecutor, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)

    def _do_settimer(self, effect: do.SetTimer) -> None:
        if self._timer is not None:
            if self._timer.when() <= effect.at:
                return  # almost every event moves the time a little later, and an early tick does no harm
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(effect.at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.post(ev.Tick())

    def _do_log(self, effect: do.Log) -> None:
        level = logging.getLevelNamesMapping()[effect.level.upper()]
        log.log(level, effect.message, extra={"neighbor": effect.neighbor, "message_kind": effect.kind})

    def _do_record(self, effect: do.Record) -> None:
        fields = effect.fields
        if effect.kind == "neighbor" and not self._lines.take(fields["neighbor"], "state", CHANGES_PER_MINUTE_MAX):
            return
        if effect.kind in ("round", "end", "leave"):
            wire = sum(link.wire_bytes_sent for link in self._links.values())
            fields = fields | {"wire_bytes_sent": wire - self._wire_before}
            self._wire_before = wire
        if effect.kind == "round":
            fields["seconds"] = {**fields["seconds"], "fold": fields["seconds"].get("fold", 0.0) + self._fold_seconds}
            self._fold_seconds = 0.0
            self.last_round = fields
            accuracy = fields.get("accuracy")
            log.info(
                "round %d of %d done%s, folded %d, missing %s",
                fields["round_index"] + 1,
                self.manifest.rounds,
                "" if accuracy is None else f", accuracy {accuracy:.4f}, cluster {fields.get('cluster_index', 0)}",
                fields["models_folded"],
                fields.get("missing") or "nobody",
            )
        elif effect.kind == "end":
            self.last_round = self.last_round | fields  # `final` has measured the personalized model
        self._record(effect.kind, fields)

    def _record(self, kind: str, fields: dict[str, Any]) -> None:
        if self._ended:
            return  # whoever calls while we leave: `leave` or `end` stays the last line
        self._ended = kind in ("leave", "end")
        for observer in self.observers:
            observer(kind, fields)
        try:
            self.history.write(kind, **fields)
        except StorageError as error:
            if not self.history_error:
                log.error("%s; going on without history", error)
            self.history_error = str(error)
        else:
            self.history_error = ""

    def _do_stop(self, effect: do.Stop) -> None:
        self._finish(effect.status)

    def _hello_for(self, neighbor: int) -> Hello:
        return make_hello(self.engine, self.parts.digests, self.parts.manifest_json, neighbor)

    def _on_refused(self, sender: int | None, code: Refusal, sentence: str) -> None:
        """Log and record a refusal; of one kind by one sender only a few a minute, so that nobody can fill the disk."""
        if code is Refusal.SHUTTING_DOWN or not self._lines.take(sender, code):
            return  # that a neighbor calls while we leave is no misbehavior; `leave` stays the last line
        who = f"peer {sender}" if sender is not None else "a caller"
        log.warning("refused %s: %s: %s", who, code, sentence, extra={"neighbor": who, "message_kind": code})
        self._record("refused", {"neighbor": sender, "code": str(code), "reason": sentence})

    def _finish(self, status: str) -> None:
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(status)
