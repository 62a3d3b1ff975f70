"""One start of one peer: the world that its host sees, on the virtual clock.

The compute, fold and disk threads are durations; where a thread may touch tensors at any time of a duration, the simulator
draws whether it does so at its beginning or its end. A process that is paused keeps its calls and timers for later.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import Refusal, RefusalCode, RemoteProtocolError
from peer.algorithms.base import Algorithm
from peer.algorithms.workspace import Workspace
from peer.core import effects as do
from peer.core import events as ev
from peer.core.arrivals import Arrival
from peer.core.checkpoint import Checkpoint
from peer.core.constants import DEFAULTS
from peer.core.encoding import view_of
from peer.core.engine import Engine
from peer.core.messages import Control, Heartbeat, Hello, HelloReply, ModelHeader, Outcome, PullRequest, PushReply
from peer.host import Probe, build_host
from tests.simulation.network import LIMITS, Push
from tests.simulation.sums import SummedChecker, sums_of

if TYPE_CHECKING:
    from tests.simulation.world import Machine, World


class Process(Probe):
    """A peer between its start and its end; `alive` says whether it still runs. Implements `peer.host.World`."""

    def __init__(self, world: World, machine: Machine) -> None:
        self.world, self.machine, self.network = world, machine, world.network
        self.peer_id, self.graph = machine.peer_id, machine.graph
        self.alive, self.ended_as = True, ""
        self.paused, self.backlog = False, deque[tuple[Callable[..., None], tuple[Any, ...]]]()
        self.started_at = self.resumed_at = world.now
        self._rng = machine.rng
        self._timer = 0
        self._sending: dict[int, Push | int] = {}
        self._retried: set[tuple[int, ModelHeader]] = set()
        self._calls = 0
        self._next_stream = 0
        self.streams: dict[int, Push] = {}
        self.arrivals: dict[int, Arrival] = {}
        self._reading: set[int] = set()
        self._verdicts: dict[int, PushReply] = {}
        self.effect_present: tuple[int, ...] = ()
        self._fold_free_at = self._disk_free_at = 0.0
        incarnation = machine.disk.claim()
        self.checkpoint = machine.disk.load()
        self.lineage: set[tuple[int, int, int, int]] = set(self.checkpoint.lineage if self.checkpoint else ())
        saved = self.checkpoint
        resume = Checkpoint(saved.round_index, saved.arrays, saved.state) if saved else None
        self.host = build_host(
            self.peer_id,
            self.graph,
            machine.learner,
            incarnation,
            resume,
            clock=lambda: self.world.now,
            constants=world.options.constants,
            scaling=machine.scaling(),
            sums=sums_of(world, self.peer_id, machine.lives),
        )
        self.host.connect(self)
        self.host.probe = self
        world.checker.watch(self)

    @property
    def engine(self) -> Engine:
        """The host's engine."""
        return self.host.engine

    @property
    def algorithm(self) -> Algorithm:
        """The host's algorithm."""
        return self.host.algorithm

    @property
    def workspace(self) -> Workspace:
        """The host's models and the algorithm's arrays."""
        return self.host.workspace

    # ---- time -----------------------------------------------------------------------------------------------------

    def later(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Do something in this process after a while, if it still runs."""
        self.world.after(delay_s, self.soon, action, *arguments)

    def soon(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do something in this process now, or when it is no longer paused."""
        if self.alive and self.paused:
            self.backlog.append((action, arguments))
        elif self.alive:
            action(*arguments)

    def start(self) -> None:
        """The server listens; the engine gets its first event."""
        self.world.checker.begins(self)
        self.host.post(ev.Tick())

    def resume(self) -> None:
        """Continue after a pause: everything that waited happens now."""
        self.paused, self.resumed_at = False, self.world.now
        while self.backlog and self.alive and not self.paused:
            action, arguments = self.backlog.popleft()
            action(*arguments)

    def end(self, how: str) -> None:
        """Terminate the process."""
        if self.alive:
            self.alive, self.ended_as = False, how
            self.host.closed = True
            self.network.ended(self)
            self.world.checker.ended(self)

    def now(self) -> float:
        """Return the virtual clock."""
        return self.world.now

    def set_timer(self, at: float) -> None:
        """Set the timer."""
        self._timer += 1
        self.later(at - self.world.now, self._tick, self._timer)

    def _tick(self, timer: int) -> None:
        if timer == self._timer:
            self.host.post(ev.Tick())

    # ---- `Probe` --------------------------------------------------------------------------------------------------

    def before(self, event: ev.Event) -> None:
        """An event is about to be given to the engine."""
        self.world.checker.before(self, event)

    def stepped(self, event: ev.Event, effects: Sequence[do.Effect]) -> None:
        """The engine has answered."""
        self.world.note(self, event, list(effects))

    def after(self, event: ev.Event, effects: Sequence[do.Effect]) -> None:
        """The effects are under way."""
        self.world.checker.after(self, event, list(effects))

    # ---- operator -------------------------------------------------------------------------------------------------

    def log(self, line: do.Log) -> None:
        """Keep the line for a test."""
        self.world.checker.logged.append((line.level, line.message))

    def record(self, kind: str, fields: dict[str, Any]) -> None:
        """Give a line of the history to the checker."""
        self.world.checker.record(self, kind, fields)

    def stop(self, status: str) -> None:
        """End soon: the last messages are under way."""
        self.later(0.2, self.end, status)

    # ---- handshakes and heartbeats ----------------------------------------------------------------------------------

    def send_hello(self, neighbor: int) -> None:
        """Send a hello."""
        hello = self.host.hello_to(neighbor)

        def answered(reply: HelloReply | None) -> None:
            if reply is None:
                self.host.post(ev.HandshakeFailed(neighbor, "no answer"))
            else:
                self.host.hello_answered(neighbor, reply)

        self.network.call(self, neighbor, lambda process: process.hello(hello), answered)

    def hello(self, hello: Hello) -> HelloReply | None:
        """Answer a handshake; None if this peer is leaving."""
        try:
            return self.host.answer_hello(hello)
        except RemoteProtocolError:
            return None

    def raise_incarnation(self, above: int) -> int | None:
        """Claim a higher incarnation on disk."""
        self.world.checker.mark("incarnation raised")
        return self.machine.disk.claim(above)

    def send_heartbeat(self, neighbor: int, heartbeat: Heartbeat) -> None:
        """Send a heartbeat; a liar claims to be far ahead."""
        if self.machine.lies:
            self.world.fired["claim"] += 1
            heartbeat = replace(heartbeat, round_index=heartbeat.round_index + self._rng.choice((2, 5, 1000)))

        def answered(reply: tuple[Refusal | None] | None) -> None:
            refusal = reply[0] if reply else None
            self.host.post(ev.HeartbeatAnswered(neighbor, refusal, lost=reply is None))

        self.network.call(self, neighbor, lambda process: (process.host.answer_heartbeat(heartbeat),), answered)

    # ---- sending ----------------------------------------------------------------------------------------------------

    def send_control(self, neighbor: int, message: Control) -> None:
        """Send a selection or a pass."""
        if isinstance(self.world.checker, SummedChecker):
            self.world.checker.tells(self, neighbor, message)
        self._calls += 1
        number = self._sending[neighbor] = self._calls

        def answered(reply: tuple[Refusal | None] | None) -> None:
            if self._sending.get(neighbor) != number:
                return  # cancelled
            del self._sending[neighbor]
            if reply is None:
                self.host.post(ev.SendFailed(neighbor, "no answer"))
            else:
                self.host.post(ev.SendAnswered(neighbor, reply[0]))

        self.network.call(self, neighbor, lambda process: process.control(message), answered)

    def control(self, message: Control) -> tuple[Refusal | None] | None:
        """Take a selection or a pass; None if this peer is leaving."""
        try:
            refusal = self.host.answer_control(message)
        except RemoteProtocolError:
            return None
        if refusal is not None:
            self.world.checker.mark(f"refused {refusal.code}")
        return (refusal,)

    def push(self, neighbor: int, header: ModelHeader) -> None:
        """Send a model."""
        header, encoded = self.host.sending.message_to(neighbor, header)()
        payload = np.frombuffer(view_of(encoded)[:], np.uint8)
        self.world.checker.sends(self, neighbor, header, payload)
        self._sending[neighbor] = self.network.push(self, neighbor, header, payload)

    def answered(self, push: Push, reply: PushReply | None) -> None:
        """A push of ours is over: answered, or broken (None)."""
        if self._sending.get(push.target) is not push:
            return
        del self._sending[push.target]
        if reply is None:
            self.host.post(ev.SendFailed(push.target, "broken"))
        else:
            self.host.post(self.host.sending.push_answered(push.target, push.header, reply))

    def cancel_send(self, neighbor: int) -> None:
        """Cancel the message in flight."""
        sending = self._sending.pop(neighbor, None)
        if isinstance(sending, Push):
            self.network.cancel(sending)

    def retry_if_stalled(self, neighbor: int, quiet_s: float) -> None:
        """Cancel a push that has only waited for so long."""
        sending, now = self._sending.get(neighbor), self.world.now
        if isinstance(sending, Push) and sending.quiet_since is not None and now - sending.quiet_since >= quiet_s:
            settings, model = self.world.manifest, (neighbor, replace(sending.header, incarnation=0))
            patience_s = DEFAULTS.retry_after_suspicions * settings.timeouts.suspicion_s
            late = (
                model not in self._retried and now - sending.sent_at > 2.5 * patience_s
            )  # bytes may have moved in the first half
            self._retried.add(model)
            self.world.checker.mark("push retried late" if late else "push retried")
            self.cancel_send(neighbor)
            self.host.post(ev.SendStalled(neighbor))

    def take_snapshot(self, effect: do.TakeSnapshot) -> None:
        """Snapshot at once."""
        self.host.sending.take_snapshot(effect)

    # ---- arrivals ---------------------------------------------------------------------------------------------------

    def offered(self, push: Push) -> None:
        """A neighbor opened a stream."""
        open_streams = sum(1 for other in self.network.pushes if other.receiver is self and other.source == push.source)
        if open_streams > LIMITS.streams_per_neighbor:
            self.world.checker.mark(f"refused {RefusalCode.TOO_MANY_STREAMS}")
            self.network.reply(push, Refusal(RefusalCode.TOO_MANY_STREAMS))
            return
        try:
            rejection = self.host.rejects_offer(push.header)
        except RemoteProtocolError as error:
            self.network.reply(push, error.refusal)
            return
        if rejection is not None:
            self.world.checker.mark(f"refused {rejection.code}")
            self.network.reply(push, rejection)
            return
        self._next_stream += 1
        push.stream = self._next_stream
        self.streams[push.stream] = push
        arrival = self.arrivals[push.stream] = Arrival(push.header, stream=push.stream)
        self.host.post(ev.ArrivalOffered(arrival))

    def read_arrival(self, arrival: Arrival) -> None:
        """Let the bytes flow into a buffer whose content would be noticed before it is complete."""
        self.host.receiving.reserve(arrival)
        arrival.buffer.fill(0xFF)  # NaN in every encoding that has one
        self._reading.add(arrival.stream)
        self.network.transfer(self.streams[arrival.stream])

    def complete(self, push: Push, payload: NDArray[np.uint8]) -> None:
        """All bytes are here."""
        if push.receiver_done:
            return
        if push.stream not in self.streams:
            self.network.reply(push, self._verdicts.pop(push.stream))
            return
        arrival = self.arrivals[push.stream]
        np.copyto(arrival.buffer, payload)
        rejection = self.host.receiving.screen(arrival)
        self.world.checker.screens(self, arrival, rejection)
        if rejection is not None:
            self.world.checker.mark(f"refused {rejection.code}")
            del self.streams[push.stream]
            self.network.reply(push, rejection)
        self._reading.discard(push.stream)
        self.host.arrived(arrival, rejection)

    def refused_bytes(self, push: Push, refusal: Refusal) -> None:
        """The bytes are not what they should be."""
        if push.receiver_done:
            return
        self.world.checker.mark(f"refused {refusal.code}")
        if self.streams.pop(push.stream, None) is not None:
            stalled = refusal.code is RefusalCode.TOO_SLOW
            self.host.post(ev.ArrivalLost(self.arrivals[push.stream], stalled=stalled))
        self.network.reply(push, refusal)

    def cut(self, push: Push) -> None:
        """A stream broke off."""
        if self.streams.pop(push.stream, None) is not None:
            self.world.checker.mark("stream cut")
            self.host.post(ev.ArrivalLost(self.arrivals[push.stream]))

    def answer_arrival(self, arrival: Arrival, reply: PushReply) -> None:
        """Answer a push."""
        stream = arrival.stream
        push = self.streams.get(stream)
        self.world.checker.replies(self, reply, push)
        if push is None:
            return
        if reply is not Outcome.FOLDED:
            del self.streams[stream]
        if stream in self._reading:
            self._verdicts[stream] = reply  # its sender hears when all bytes have come, as over gRPC
        else:
            self.network.reply(push, reply)

    def fold_arrival(self, effect: do.FoldArrival) -> None:
        """Fold after a while, one arrival at a time."""
        del self.streams[effect.arrival.stream]
        self._fold_free_at = max(self.world.now, self._fold_free_at) + self._rng.uniform(0.0001, 0.002)
        self.later(self._fold_free_at - self.world.now, self._fold, effect)

    def _fold(self, effect: do.FoldArrival) -> None:
        self.world.checker.folds(self, effect)
        self.host.receiving.fold(effect)
        self.world.checker.has_folded(self, effect)
        self.host.post(ev.ArrivalFolded(effect.arrival))

    # ---- work, pulls, disk ------------------------------------------------------------------------------------------

    def work(self, effect: do.Work) -> None:
        """Work for a while."""
        duration, early = self.machine.duration_s(effect.kind), self._rng.random() < 0.5
        shadow = self.world.checker.shadows[self]
        busy = effect.kind != "train"

        def done() -> None:
            event = performed or self._perform(effect)
            shadow.tensors_busy = False
            self.host.post(event)

        performed = self._perform(effect) if early else None
        shadow.tensors_busy = busy
        self.later(duration, done)
        self.later(duration / 2, self.world.nemesis.works, self.machine)

    def _perform(self, effect: do.Work) -> ev.WorkDone:
        self.effect_present = effect.present
        self.world.checker.works(self, effect)
        done = self.host.work(effect)
        self.world.checker.worked(self, effect)
        return done

    def pull(self, neighbor: int) -> None:
        """Ask for all slots, in one call."""
        incarnation = self.host.state.incarnation
        requests = [PullRequest(self.peer_id, incarnation, slot) for slot in range(self.host.algorithm.slots)]

        def answered(replies: list[Any] | None) -> None:
            found = [reply for reply in replies or () if isinstance(reply, tuple)]
            if len(found) < len(requests):
                self.host.post(ev.PullDone(neighbor, False, reason="no answer"))
                return
            try:
                self.host.post(self.host.receiving.pulled(neighbor, found))
            except RemoteProtocolError as error:
                self.world.checker.mark(f"refused a pulled model: {error.refusal.code}")
                self.host.post(ev.PullDone(neighbor, False, reason=error.refusal.reason))

        self.network.call(self, neighbor, lambda process: [process.answer_pull(r) for r in requests], answered)

    def answer_pull(self, request: PullRequest) -> tuple[ModelHeader, bytes] | Refusal:
        """Give a neighbor that catches up one of the present models; a liar refuses."""
        if self.machine.lies:
            self.world.fired["pull refused"] += 1
            return Refusal(RefusalCode.RATE_LIMITED)
        answer = self.host.answer_pull(request)
        found = (answer[0], bytes(view_of(answer[1]())[:])) if isinstance(answer, tuple) else answer
        if isinstance(self.world.checker, SummedChecker):
            self.world.checker.pulls(self, request, found)
        return found

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write for a while, one checkpoint at a time."""
        state, lineage = json.loads(json.dumps(checkpoint.state)), frozenset(self.lineage)
        latency = self._rng.uniform(0.001, 0.02) * self.machine.disk_slowness
        before = max(0.0, self._disk_free_at - self.world.now)
        self._disk_free_at = self.world.now + before + latency
        begin = before + self._rng.random() * latency
        self.later(begin, self._write, checkpoint.round_index, state, checkpoint.arrays, lineage)
        self.later(before + latency, self._written, checkpoint.round_index)

    def _write(self, *checkpoint: Any) -> None:
        self.machine.disk.begin(*checkpoint)
        self.world.nemesis.writes(self.machine)

    def _written(self, round_index: int) -> None:
        error = self.machine.disk.end()
        self.world.checker.mark("checkpoint failed" if error else "checkpoint written")
        self.host.post(ev.CheckpointWritten(round_index, error))
