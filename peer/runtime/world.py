"""The world of a real peer: asyncio, gRPC and threads. It decides nothing about the protocol.

One event loop feeds the host one event at a time. Training and evaluation run on the compute thread; encoding, screening and
folding on the fold thread, or, where they take less time than the way there and back, in the event loop; checkpoints on the
disk thread. Each posts an event when it is done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from coordinator_free_bootstrap.errors import (
    DivergedError,
    IdentityError,
    NeighborUnavailable,
    Refusal,
    RemoteProtocolError,
    StorageError,
)
from coordinator_free_bootstrap.strict_json import printable
from peer import failpoints
from peer.algorithms.model_tests import FIRST_STEP
from peer.algorithms.predictor import Best
from peer.core import effects as do
from peer.core import events as ev
from peer.core.arrivals import Arrival
from peer.core.averaging import Vector
from peer.core.checkpoint import Checkpoint
from peer.core.counters import COUNTING
from peer.core.encoding import MASKED
from peer.core.messages import Control, Heartbeat, ModelHeader, Outcome, PullRequest, PushReply
from peer.core.stages import Stage
from peer.runtime.about import about
from peer.runtime.assembly import Assembled
from peer.runtime.auditing import Auditing
from peer.runtime.edges import Edges
from peer.runtime.partials import PartialCheckpoints
from peer.runtime.progress import TrainingProgress
from peer.runtime.requests import Requests
from peer.runtime.results import start_fields, write_best, write_sent
from peer.runtime.signals import COMPUTE
from peer.store.forks import close_connections_in_children
from peer.store.history import HistoryWriter
from peer.store.records import ProcessStatus
from peer.wire.limits import WireLimits
from peer.wire.pacing import Pacing
from peer.wire.round_ring import RoundRing
from peer.wire.security import MutualTls
from peer.wire.server import PeerServer

log = logging.getLogger("peer")
SMALL_BYTES = 512 << 10  # folding it takes about 0.1 ms
GOODBYE_S = 2.0  # how long the last messages to neighbors may take
CLOSE_S = 10.0  # then a part of gRPC that does not end is left alone, so that the results are written


class AsyncioWorld:
    """Implements `peer.host.World`; `run` returns the end status of its peer, of `peer.core.effects.Status`.

    Args:
        parts: of the peer.
        tls: None is plaintext.
        limits: of what callers may send; default: those of every run.
    """

    def __init__(self, parts: Assembled, tls: MutualTls | None = None, limits: WireLimits | None = None) -> None:
        self.parts = parts
        self.host = parts.host
        self.manifest = parts.host.manifest
        self.peer_id = parts.host.peer_id
        self.limits = limits or WireLimits.of(self.manifest)
        rounds = RoundRing(parts.resumed_from or 0, clusters=parts.settings.options["tell_clusters"])
        self.audit = Auditing(parts.state_dir, self.host)
        self.requests = Requests(self.host, self.post, self._on_fold_thread, self._reached, rounds, self._about)
        self.history = HistoryWriter(parts.state_dir.history, incarnation=self.host.state.incarnation)
        self.observers: list[Callable[[str, dict[str, Any]], None]] = []
        self._tls = tls
        self.ends = tls.ends if tls else {}  # of the certificates
        if tls:
            tls.on_key = self.audit.key
        self.fingerprint = tls.fingerprint if tls else ""  # of the own key
        settings = parts.settings
        self._pacing = Pacing.of(self.host.state.graph, self.peer_id, settings.upload_limit, settings.download_limit)
        self._edges = Edges(self.peer_id, self.host.state.graph, tls, settings.proxy, self._pacing, self.audit.sent)
        self._links = self._edges.links
        self._sending: dict[int, asyncio.Task[object]] = {}  # the message in flight to each neighbor
        self._tasks: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped: asyncio.Future[str] | None = None
        self._stop_training = False
        self._change: ev.ChangeRequested | None = None
        self.began = False  # it listens, and its state belongs to its graph file
        self.on_began: Callable[[], None] = lambda: None
        self.progress = TrainingProgress(self.manifest.rounds)
        self.partials = PartialCheckpoints(
            parts.state_dir.trainings,
            parts.checkpoints,
            self.host.workspace.learner.meaning,
            60 * settings.options["checkpoint_minutes"],
            rounds=self.manifest.rounds,
            safe_round=self.host.state.disk.saved_round,
            on_resume=self.progress.resumed,
        )
        self._hurry = asyncio.Event()
        self._compute = ThreadPoolExecutor(1, COMPUTE)
        self._fold = ThreadPoolExecutor(1, "fold")
        self._disk = ThreadPoolExecutor(1, "disk")
        # A hop to the fold thread and back takes longer than to fold a small model, or to take a view of one.
        self._views = self.host.format.encoding in ("float32", MASKED)  # a masked model is made frame by frame
        small = self.host.format.whole_bytes <= SMALL_BYTES
        self._folds_here = self._views and small and self.host.receiving.screens_by_norm()
        self._wire_bytes_before = 0
        self._certificates_logged: set[tuple[int, str]] = set()
        self._slow_logged: set[int] = set()  # neighbors
        best = self.host.workspace.best
        self._best_round = best.round_index if best else None  # of the file, which `assemble` has written
        self._ended = False
        self.host.connect(self)

    # ---- the run --------------------------------------------------------------------------------------------------------

    async def run(self, on_listening: Callable[[int], None] | None = None) -> str:
        """Serve, take part until the end of the run or a request to leave, and return how it ended.

        Raises:
            ConfigError: the address cannot be bound.
            StorageError: the state directory cannot be written.
        """
        loop = asyncio.get_running_loop()
        self._stopped = loop.create_future()
        self.host.workspace.should_stop, self.host.workspace.partials = self._should_stop, self.partials
        server = PeerServer(
            self.requests,
            self.parts.settings.options["listen"] or self.host.state.graph.node(self.peer_id).address,
            limits=self.limits,
            timeouts=self.manifest.timeouts,
            credentials=self._tls.server_credentials() if self._tls else None,
            identify=self._tls.identify if self._tls else None,
            switchboard=self._edges.switchboard,
            local=self._edges.service,
            pacing=self._pacing,
            on_served=partial(self.audit.sent, pull=True),
        )
        try:
            port = await server.start()
            close_connections_in_children([port, *self._edges.ports])
            self._edges.open()
            self.parts.origin.write()
            self.began = True
            self.on_began()
            self.record("start", self._start_fields(port))
            policy = self.parts.settings.policy
            self.audit.start(self.fingerprint or None, policy.digest if policy else None)
            if on_listening:
                on_listening(port)
            self.post(ev.LeaveRequested() if self._stop_training else ev.Tick())
            if self._change is not None:
                self.post(self._change)
            return await self._stopped
        finally:
            await self._close(server)

    def _start_fields(self, port: int) -> dict[str, Any]:
        fields = start_fields(self.host, self.parts.task)
        fields["notes"] = notes = [*(fields["notes"] or ()), *self.parts.notes]
        for note in notes:
            log.warning(note)
        log.info(
            "%s at round %d of %d, %s, neighbors %s, incarnation %d",
            "resuming" if self.parts.resumed_from is not None else "starting",
            self.host.engine.round_index,
            self.manifest.rounds,
            f"listening on port {port}" if port else "listening on no port",
            list(self.host.state.neighbors),
            self.host.state.incarnation,
        )
        return {**fields, "port": port, "resumed_from": self.parts.resumed_from}

    def _about(self) -> ProcessStatus:
        return about(self.host, self._edges, self._stopped, clusters=self.parts.settings.options["tell_clusters"])

    def _reached(self, neighbor: int, incarnation: int) -> bool:
        failpoints.reach("hello.end")
        return self._edges.reached(neighbor, incarnation)

    def on_signal(self) -> None:
        """Leave; the second time, stop at once."""
        if self._stop_training:
            log.warning("asked to stop while leaving: stopping at once")
            self.stop_at_once()
            return
        log.info("asked to stop: telling the neighbors and writing a checkpoint; a second signal stops at once")
        self.leave()

    def leave(self) -> None:
        """Tell the neighbors, write a checkpoint, and end; `run` then returns ``left``."""
        self._stop_training = True
        if self._stopped is not None:  # else `run`, which has not begun, leaves at its start
            self.post(ev.LeaveRequested())

    def stop_at_once(self) -> None:
        """Tell the neighbors, and end without a checkpoint; the work under way is not waited for."""
        if self.began and not self.host.closed and self.host.engine.stage is not Stage.STOPPED:
            self.host.say_goodbye()
        self._hurry.set()
        self.stop("left")

    def change(self, from_round: int, *, removed: bool) -> None:
        """Stop between two rounds for another graph file; `run` then returns ``changed``, or ``removed`` of a former peer."""
        self._change = ev.ChangeRequested(from_round, removed=removed)
        if self.began:  # else `run` asks for it
            self.post(self._change)

    def _should_stop(self) -> bool:
        failpoints.reach("train.step")
        self.progress.step(self.host.workspace.round_index)
        return self._stop_training

    async def _close(self, server: PeerServer) -> None:
        if self._timer:
            self._timer.cancel()
        self._stop_training = True
        for task in self._sending.values():
            task.cancel()
        pending = [task for task in self._tasks if not task.done()]
        if pending:
            await asyncio.wait(pending, timeout=GOODBYE_S)
        await _ended("the server", server.stop(GOODBYE_S))
        for task in self._tasks:
            task.cancel()
        await _ended("a connection to a neighbor", self._edges.close())
        try:
            await self._work_ended()
        finally:
            for pool in (self._fold, self._disk):
                pool.shutdown(wait=True, cancel_futures=True)
            self.host.workspace.delivered.drop()
            self.history.close()
            self.audit.close()

    async def _work_ended(self) -> None:
        """Wait for the work under way; not at a second request to stop, since code of the task may never return."""
        last = self._compute.submit(int)  # begins when the work has ended
        hurried = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait((asyncio.wrap_future(last), hurried), return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurried.cancel()
            self._compute.shutdown(wait=last.done(), cancel_futures=True)

    # ---- events and tasks -----------------------------------------------------------------------------------------------

    def post(self, event: ev.Event) -> None:
        """Give the host an event; an error ends this peer, since it would stay alive with lost effects."""
        try:
            self.host.post(event)
        except Exception as error:
            self._fail(error)
            raise

    def _spawn(self, work: Coroutine[object, None, object]) -> asyncio.Task[object]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_exception(error)

    async def _on(self, pool: ThreadPoolExecutor, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)

    async def _on_fold_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self._on(self._fold, function, *arguments)

    def now(self) -> float:
        """Return the event loop's clock."""
        return asyncio.get_running_loop().time()

    def set_timer(self, at: float) -> None:
        """Set the timer; almost every event moves it a little later, and an early tick does no harm."""
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.post(ev.Tick())

    def stop(self, status: str) -> None:
        """End the run."""
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(status)

    # ---- messages -------------------------------------------------------------------------------------------------------

    def send_hello(self, neighbor: int) -> None:
        """Send a hello."""
        self._spawn(self._hello(neighbor))

    async def _hello(self, neighbor: int) -> None:
        failpoints.reach("hello.begin")
        try:
            reply = await self._edges.hello(neighbor, self.host.hello_to(neighbor))
        except NeighborUnavailable as error:
            self._log_certificates(neighbor)
            self.post(ev.HandshakeFailed(neighbor, str(error)))
        except RemoteProtocolError as error:
            self._log_certificates(neighbor)
            self.post(ev.HandshakeFailed(neighbor, error.refusal))
        else:
            failpoints.reach("hello.end")
            self.host.hello_answered(neighbor, reply)

    def _log_certificates(self, neighbor: int) -> None:
        """Log once where a certificate that ended during the run is why a call failed: TLS reports it to one end only."""
        problem = self._tls.problem_with(neighbor) if isinstance(self._tls, MutualTls) else ""
        if problem and (neighbor, problem) not in self._certificates_logged:
            self._certificates_logged.add((neighbor, problem))
            self.log(do.Log("error", f"peer {neighbor} cannot be called: {problem}", neighbor, "certificate"))

    def raise_incarnation(self, above: int) -> int | None:
        """Claim a higher incarnation on disk."""
        try:
            self.history.incarnation = self.parts.incarnations.claim(above=above)
        except (IdentityError, StorageError) as error:
            log.error("cannot persist an incarnation above %d, will retry: %s", above, error)
            return None
        return self.history.incarnation

    def send_heartbeat(self, neighbor: int, heartbeat: Heartbeat) -> None:
        """Send a heartbeat."""
        self._spawn(self._heartbeat(neighbor, heartbeat))

    async def _heartbeat(self, neighbor: int, heartbeat: Heartbeat) -> None:
        link = self._links[neighbor]
        moved_before, began = link.payload_bytes_sent + link.payload_bytes_received, self.now()
        try:
            self.post(ev.HeartbeatAnswered(neighbor, await link.heartbeat(heartbeat)))
        except NeighborUnavailable:
            # A slow relay has a whole small model in its buffers: no more bytes go out, and the heartbeat waits behind them.
            sending = neighbor in self._sending and not self._sending[neighbor].done()
            busy = sending or self.requests.heard_frame_since(neighbor, began)  # the answer waits behind its model
            moved = link.payload_bytes_sent + link.payload_bytes_received > moved_before
            moving = moved or (busy and self._pacing.is_limited(neighbor))
            self.post(ev.HeartbeatAnswered(neighbor, lost=True, moving=moving))
        except RemoteProtocolError as error:
            self.post(ev.HeartbeatAnswered(neighbor, error.refusal))

    def send_control(self, neighbor: int, message: Control) -> None:
        """Send a selection or a pass."""
        self._sending[neighbor] = self._spawn(self._deliver(neighbor, self._links[neighbor].control(message)))

    def push(self, neighbor: int, header: ModelHeader) -> None:
        """Send a model."""
        # Now: its snapshot may be freed before the fold thread is.
        message = self.host.sending.message_to(neighbor, header)
        self._sending[neighbor] = self._spawn(self._deliver(neighbor, self._push(neighbor, message)))

    async def _push(self, neighbor: int, message: Callable[[], Any]) -> ev.SendAnswered:
        header, payload = message() if self._views else await self._on(self._fold, message)
        in_time = False
        try:
            reply = await self._links[neighbor].push(header, payload)
            in_time = reply is not Outcome.UNUSED
        finally:  # also where the run ends meanwhile
            if not in_time and self._pacing.is_too_slow(neighbor, header.size_bytes, self.manifest.timeouts):
                self._log_slow_link(neighbor, "came too late")
        return self.host.sending.push_answered(neighbor, header, reply)

    async def _deliver(self, neighbor: int, call: Coroutine[object, None, ev.SendAnswered | Refusal | None]) -> None:
        try:
            answer = await call
        except NeighborUnavailable as error:
            event: ev.Event = ev.SendFailed(neighbor, str(error))
        except RemoteProtocolError as error:
            event = ev.SendAnswered(neighbor, error.refusal)
        else:
            event = answer if isinstance(answer, ev.SendAnswered) else ev.SendAnswered(neighbor, answer)
        if self._sending.get(neighbor) is asyncio.current_task():
            del self._sending[neighbor]
        self.post(event)

    def cancel_send(self, neighbor: int) -> None:
        """Cancel the message in flight."""
        task = self._sending.pop(neighbor, None)
        if task is None:
            return
        task.cancel()
        if self._links[neighbor].sends_model:
            self._log_slow_link(neighbor, "is given up on its way")

    def _log_slow_link(self, neighbor: int, what: str) -> None:
        """Log once what to do about a link that is too slow for a model."""
        advice = self._pacing.advice(neighbor, self.host.state.model_bytes, self.manifest.timeouts)
        if advice and neighbor not in self._slow_logged:
            self._slow_logged.add(neighbor)
            self.log(do.Log("warning", f"a model for peer {neighbor} {what}: {advice}", neighbor, "slow"))

    def retry_if_stalled(self, neighbor: int, quiet_s: float) -> None:
        """Cancel a push that only waits."""
        if self._links[neighbor].quiet_for_s() >= quiet_s + self._pacing.buffered_s(neighbor):
            self.cancel_send(neighbor)
            self.post(ev.SendStalled(neighbor))

    def pull(self, neighbor: int) -> None:
        """Ask for all slots."""
        self._spawn(self._pull(neighbor))

    async def _pull(self, neighbor: int) -> None:
        replies, limit_s = [], self._pull_limit_s(neighbor)
        try:
            async with asyncio.timeout(limit_s):
                for slot in range(self.host.algorithm.slots):
                    request = PullRequest(self.peer_id, self.host.state.incarnation, slot)
                    size_bytes = self.host.format.whole_bytes
                    replies.append(await self._links[neighbor].pull(request, size_bytes=size_bytes))
            self.post(self.host.receiving.pulled(neighbor, replies))
        except (NeighborUnavailable, RemoteProtocolError, TimeoutError) as error:
            about = {"neighbor": neighbor, "message_kind": "pull"}
            reason = str(error) or f"not complete within {limit_s:.1f} s"
            log.warning("pull from peer %d failed: %s", neighbor, reason, extra=about)
            self.post(ev.PullDone(neighbor, False, reason=reason))

    def _pull_limit_s(self, neighbor: int) -> float:
        """Return how long a pull of all slots may take: four times what the measured speed needs, if there is one.

        On a link that has not shown to be fast, as long as it continues steadily, which the link watches.
        """
        timeouts, size_bytes = self.manifest.timeouts, self.host.format.whole_bytes
        slots, speed = self.host.algorithm.slots, self.requests.bytes_per_second
        if self._pacing.is_unproven(neighbor):
            return timeouts.round_deadline_s
        one_s = self._pacing.transfer_limit_s(neighbor, size_bytes, timeouts)
        if speed and not self._pacing.is_limited(neighbor):
            one_s = 4 * size_bytes / speed
        return min(timeouts.round_deadline_s, timeouts.suspicion_s + slots * one_s)

    # ---- arrivals, work, disk -------------------------------------------------------------------------------------------

    def read_arrival(self, arrival: Arrival) -> None:
        """Let the server read a model."""
        self.requests.read(arrival)

    def answer_arrival(self, arrival: Arrival, reply: PushReply) -> None:
        """Answer a push."""
        self.requests.answer(arrival, reply)

    def take_snapshot(self, effect: do.TakeSnapshot) -> None:
        """Snapshot at once, and keep a file of it where the options say so; later steps relay models of others."""
        self.host.sending.take_snapshot(effect)
        if self.parts.settings.options["keep_sent"] and effect.step == FIRST_STEP:
            models = self.host.workspace.models.snapshots(effect.round_index, effect.step)
            self._spawn(self._keeping(effect.round_index, models))

    async def _keeping(self, round_index: int, models: dict[int, Vector]) -> None:
        try:
            await self._on(self._disk, write_sent, self.host, self.parts.state_dir, round_index, models)
        except StorageError as error:
            log.error("the models sent in round %d are not kept: %s", round_index + 1, error)

    def fold_arrival(self, effect: do.FoldArrival) -> None:
        """Fold: on the fold thread, or here at once."""
        self.requests.take(effect.arrival)
        if self._folds_here:
            _folded(self, effect)
            self.post(ev.ArrivalFolded(effect.arrival))
        else:
            self._spawn(self._folding(effect))

    async def _folding(self, effect: do.FoldArrival) -> None:
        await self._on(self._fold, _folded, self, effect)
        self.post(ev.ArrivalFolded(effect.arrival))

    def work(self, effect: do.Work) -> None:
        """Work on the compute thread."""
        self._spawn(self._working(effect))

    async def _working(self, effect: do.Work) -> None:
        try:
            done = await self._on(self._compute, _worked, self, effect)
        except Exception as error:  # of the task, above all
            if isinstance(error, DivergedError):
                self.partials.clear()  # else a next start would find the same model
            self.host.say_goodbye()
            raise
        self.post(done)

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write on the disk thread."""
        self._spawn(self._writing(checkpoint))

    async def _writing(self, checkpoint: Checkpoint) -> None:
        began, problem = time.monotonic(), ""
        arrays, round_index = checkpoint.arrays, checkpoint.round_index
        try:
            await self._on(self._disk, self._save, checkpoint)
        except StorageError as error:
            problem = str(error)
        size_bytes = sum(array.nbytes for array in arrays.values())
        fields = {"round_index": round_index, "seconds": time.monotonic() - began, "bytes": size_bytes}
        self.record("checkpoint", fields | {"error": problem or None})
        self.post(ev.CheckpointWritten(round_index, problem))

    def _save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then the file of its best model; after a crash in between, the next start writes that file."""
        self.parts.checkpoints.save(checkpoint.round_index, checkpoint.arrays, checkpoint.state)
        best = Best.of(checkpoint)
        if best is not None and best.round_index != self._best_round:
            write_best(self.host, self.parts.state_dir, best)
            self._best_round = best.round_index

    # ---- history and log ------------------------------------------------------------------------------------------------

    def record(self, kind: str, fields: dict[str, Any]) -> None:
        """Write a line of the history, and tell the observers; `leave` or `end` stays the last line."""
        if self._ended:
            return
        self._ended = kind in ("leave", "end")
        if kind in COUNTING:
            sent = sum(link.wire_bytes_sent for link in self._links.values())
            fields = fields | {"wire_bytes_sent": sent - self._wire_bytes_before}
            self.host.state.totals.wire_bytes_sent += sent - self._wire_bytes_before
            self._wire_bytes_before = sent
        if kind == "round":
            self._log_round(fields)
        self.audit.recorded(kind, fields)
        self.tell(kind, fields)
        line = self.history.stamped(kind, **fields)
        if kind == "round":
            self.requests.rounds.add(line)
        try:
            self.history.write(**line)
            self.host.history_error = ""
        except StorageError as error:
            if not self.host.history_error:
                log.error("%s; continuing without history", error)
            self.host.history_error = str(error)
            self.tell("disk", {"error": str(error)})

    def tell(self, kind: str, fields: dict[str, Any]) -> None:
        """Tell the observers, of a line of the history or of what has none."""
        for observer in self.observers:
            observer(kind, fields)

    def _log_round(self, fields: dict[str, Any]) -> None:
        value, metric = fields.get("metric_value"), self.host.metric
        shown = (
            ""
            if value is None
            else f", {printable(metric.name, 64)} {metric.text(value, 4)}, cluster {fields.get('cluster_index', 0)}"
        )
        missing = fields.get("missing") or "none"
        number, total = fields["round_index"] + 1, self.manifest.rounds
        log.info("round %d of %d done%s, folded %d, missing %s", number, total, shown, fields["models_folded"], missing)

    def log(self, line: do.Log) -> None:
        """Write a log line."""
        level = logging.getLevelNamesMapping()[line.level.upper()]
        log.log(level, line.message, extra={"neighbor": line.neighbor, "message_kind": line.kind})


async def _ended(part: str, ending: Awaitable[None]) -> None:
    """Wait for a part to end, `CLOSE_S` at most: a peer that is done must not hang while its connections close."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await ending
    except TimeoutError:
        log.warning("%s has not ended within %g s: going on without it", part, CLOSE_S)


def _folded(world: AsyncioWorld, effect: do.FoldArrival) -> None:
    failpoints.reach("fold.begin")
    world.host.receiving.fold(effect)
    failpoints.reach("fold.end")


def _worked(world: AsyncioWorld, effect: do.Work) -> ev.WorkDone:
    named = effect.kind in ("train", "close")
    if named:
        failpoints.reach(f"{effect.kind}.begin")
    world.progress.begin()
    world.partials.drop(world.host.state.disk.saved_round)
    done = world.host.work(effect)
    if named:
        failpoints.reach(f"{effect.kind}.end")
    return done
