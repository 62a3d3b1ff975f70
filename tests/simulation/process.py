"""One life of one peer: executes the engine's effects as `peer.runtime` does, on the virtual clock.

The compute, fold and disk threads are durations; where a thread may touch tensors at any time of a duration, the simulator
draws whether it does so at its beginning or its end. A process that is paused keeps its calls and timers for later.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator_free_bootstrap.errors import Refusal
from coordinator_free_bootstrap.handshake import check_hello
from peer.algorithms.base import Bench, FoldedArrival
from peer.algorithms.registry import algorithm_named
from peer.algorithms.work import perform
from peer.core import effects as do
from peer.core import events as ev
from peer.core.averaging import Vector, norm_squared
from peer.core.engine import Engine, make_hello
from peer.core.messages import Announce, Beat, Hello, HelloReply, Outcome, PushReply
from peer.core.model_store import ModelStore, SnapshotKey
from peer.core.screening import check_norm
from tests.simulation.network import Push

if TYPE_CHECKING:
    from tests.simulation.world import Machine, World


class Process:
    """A peer between its start and its end; `alive` says whether it still runs."""

    def __init__(self, world: World, machine: Machine) -> None:
        self.world, self.machine, self.network = world, machine, world.network
        self.peer_id = machine.peer_id
        self.alive, self.ended_as = True, ""
        self.paused, self.backlog = False, deque[tuple[Callable[..., None], tuple[Any, ...]]]()
        self.started_at = self.resumed_at = world.now
        self._rng = machine.rng
        self._events: deque[ev.Event] = deque()
        self._draining = False
        self._timer = 0
        self._sending: dict[int, Push | int] = {}
        self._calls = 0
        self._next_stream = 0
        self.streams: dict[int, Push] = {}
        self.buffers: dict[int, Vector] = {}
        self._whole: set[int] = set()
        self._verdicts: dict[int, PushReply] = {}
        self.effect_present: tuple[int, ...] = ()
        self._fold_free_at = self._disk_free_at = 0.0
        self._assemble()

    def _assemble(self) -> None:
        graph, manifest, machine = self.world.graph, self.world.manifest, self.machine
        self.algorithm = algorithm_named(manifest.algorithm)(manifest, self.peer_id, graph)
        incarnation = machine.disk.claim()
        initial, _ = self.algorithm.initial_models(machine.learner)
        self.checkpoint = machine.disk.load()
        self.lineage: set[tuple[int, int, int, int]] = set(self.checkpoint.lineage if self.checkpoint else ())
        self.bench = Bench(
            manifest=manifest,
            peer_id=self.peer_id,
            graph=graph,
            learner=machine.learner,
            models=ModelStore(
                self.checkpoint.models if self.checkpoint else initial, batch=manifest.aggregation == "batch"
            ),
            facts={},
        )
        self.bench.arrays = self.checkpoint.arrays if self.checkpoint else {}
        self.bench.facts = dict(self.checkpoint.state["facts"]) if self.checkpoint else self.algorithm.begin(self.bench)
        self._watch_merges()
        self.engine: Engine = self.world.bugs.engine(
            self.peer_id,
            graph,
            self.algorithm,
            incarnation,
            model_bytes=4 * self.bench.models.size,
            facts=dict(self.bench.facts),
            resume=self.checkpoint.state if self.checkpoint else None,
        )

    def _watch_merges(self) -> None:
        """Where a close does more to the models than to average them, the averages are judged in between."""
        if self.algorithm.name == "fedspd":
            merge = self.algorithm.merge

            def watched(bench: Bench) -> None:
                merge(bench)
                self.world.checker.merged(self)

            self.algorithm.merge = watched

    # ---- time -----------------------------------------------------------------------------------------------------

    def later(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Do something in this process after a while, if it is still there."""
        self.world.after(delay_s, self.soon, action, *arguments)

    def soon(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do something in this process now, or when it runs again."""
        if self.alive and self.paused:
            self.backlog.append((action, arguments))
        elif self.alive:
            action(*arguments)

    def start(self) -> None:
        """The server listens; the engine gets its first event."""
        self.world.checker.begins(self)
        self.post(ev.Tick())

    def resume(self) -> None:
        """Go on after a pause: everything that waited happens now."""
        self.paused, self.resumed_at = False, self.world.now
        while self.backlog and self.alive and not self.paused:
            action, arguments = self.backlog.popleft()
            action(*arguments)

    def end(self, how: str) -> None:
        """Stop to exist."""
        if self.alive:
            self.alive, self.ended_as = False, how
            self.network.ended(self)
            self.world.checker.ended(self)

    # ---- events and effects -----------------------------------------------------------------------------------------

    def post(self, event: ev.Event) -> None:
        """Give the engine an event and execute what it wants done."""
        self._events.append(event)
        if self._draining:
            return
        self._draining = True
        while self._events and self.alive:
            event = self._events.popleft()
            self.world.checker.before(self, event)
            effects = self.engine.step(event, self.world.now)
            self.world.note(self, event, effects)
            for effect in effects:
                getattr(self, f"_do_{type(effect).__name__.lower()}")(effect)
            self.world.checker.after(self, event, effects)
        self._draining = False

    def _do_settimer(self, effect: do.SetTimer) -> None:
        self._timer += 1
        self.later(effect.at - self.world.now, self._tick, self._timer)

    def _tick(self, timer: int) -> None:
        if timer == self._timer:
            self.post(ev.Tick())

    def _do_log(self, effect: do.Log) -> None:
        pass

    def _do_record(self, effect: do.Record) -> None:
        self.world.checker.record(self, effect)

    def _do_stop(self, effect: do.Stop) -> None:
        self.later(0.2, self.end, effect.status)  # time for the last words

    # ---- handshakes and beats -----------------------------------------------------------------------------------------

    def _hello_for(self, neighbor: int) -> Hello:
        return make_hello(self.engine, self.world.digests, self.world.manifest_json, neighbor)

    def _do_greet(self, effect: do.Greet) -> None:
        hello = self._hello_for(effect.neighbor)
        self.network.call(
            self, effect.neighbor, lambda process: process.hello(hello), lambda reply: self._greeted(effect, reply)
        )

    def hello(self, hello: Hello) -> HelloReply:
        """Answer a handshake (`peer.shell.inbound.InboundCalls.hello`)."""
        known, mine = self.engine.views[hello.sender].last_incarnation, self._hello_for(hello.sender)
        problem = check_hello(mine, hello, neighbors=self.engine.neighbors, last_incarnation=known)
        if problem is not None:
            self.world.checker.mark(f"refused {problem[0]}")
            return HelloReply(mine, *problem)
        self.post(ev.Greeted(hello, answered=False))
        return HelloReply(mine)

    def _greeted(self, effect: do.Greet, reply: HelloReply | None) -> None:
        if reply is None:
            self.post(ev.GreetFailed(effect.neighbor, None, "no answer"))
        elif reply.refusal is Refusal.OLD_INCARNATION:
            if reply.hello.seen_incarnation >= self.engine.incarnation:
                self.post(ev.Outgrown(self.machine.disk.claim(reply.hello.seen_incarnation)))
                self.world.checker.mark("outgrew an old life")
            self.post(ev.GreetFailed(effect.neighbor, None, reply.reason))
        elif reply.refusal is not None:
            self.post(ev.GreetFailed(effect.neighbor, reply.refusal, reply.reason))
        else:
            known = self.engine.views[effect.neighbor].last_incarnation
            mine = self._hello_for(effect.neighbor)
            problem = check_hello(mine, reply.hello, neighbors=self.engine.neighbors, last_incarnation=known)
            self.post(ev.GreetFailed(effect.neighbor, *problem) if problem else ev.Greeted(reply.hello, answered=True))

    def _do_sendbeat(self, effect: do.SendBeat) -> None:
        def answered(reply: Refusal | str | None) -> None:
            refusal = reply if isinstance(reply, Refusal) else None
            self.post(ev.BeatAnswered(effect.neighbor, refusal, lost=reply is None))

        self.network.call(self, effect.neighbor, lambda process: process.beat(effect.beat), answered)

    def beat(self, beat: Beat) -> Refusal | str:
        """Note a sign of life."""
        rejection = self.engine.admits(beat.sender, beat.incarnation)
        if rejection is not None:
            self.world.checker.mark(f"refused {rejection.code}")
            return rejection.code
        self.post(ev.Heard(beat))
        return self.engine.answer_to_beat(beat.sender) or "ok"

    # ---- sending ------------------------------------------------------------------------------------------------------

    def _do_sendannounce(self, effect: do.SendAnnounce) -> None:
        self._calls += 1
        number = self._sending[effect.neighbor] = self._calls

        def answered(reply: Refusal | str | None) -> None:
            if self._sending.get(effect.neighbor) != number:
                return  # cancelled
            del self._sending[effect.neighbor]
            if reply is None:
                self.post(ev.SendFailed(effect.neighbor, "no answer"))
            elif isinstance(reply, Refusal):
                self.post(ev.Sent(effect.neighbor, Outcome.REFUSED, reply))
            else:
                self.post(ev.Sent(effect.neighbor, Outcome.FOLDED))

        self.network.call(self, effect.neighbor, lambda process: process.announce(effect.announce), answered)

    def announce(self, announce: Announce) -> Refusal | str:
        """Note what a neighbor will deliver."""
        rejection = self.engine.check_announce(announce)
        if rejection is not None:
            self.world.checker.mark(f"refused {rejection.code}")
            return rejection.code
        self.post(ev.Announced(announce))
        return "ok"

    def _do_sendmodel(self, effect: do.SendModel) -> None:
        header = effect.header
        payload = self.bench.models.offered(SnapshotKey(header.round_index, header.step, header.slot))
        self.world.checker.sends(self, effect.neighbor, header, payload)
        self._sending[effect.neighbor] = self.network.push(self, effect.neighbor, header, payload)

    def answered(self, push: Push, reply: PushReply | None) -> None:
        """A push of ours is over: answered, or broken (None)."""
        if self._sending.get(push.target) is not push:
            return
        del self._sending[push.target]
        if reply is None:
            self.post(ev.SendFailed(push.target, "broken"))
        else:
            self.post(ev.Sent(push.target, reply.outcome, reply.refusal, reply.reason))

    def _do_cancelsend(self, effect: do.CancelSend) -> None:
        sending = self._sending.pop(effect.neighbor, None)
        if isinstance(sending, Push):
            self.network.cancel(sending)

    def _do_sendagain(self, effect: do.SendAgain) -> None:
        sending = self._sending.get(effect.neighbor)
        if isinstance(sending, Push) and not sending.moving:
            self.world.checker.mark("sent again")
            self._do_cancelsend(do.CancelSend(effect.neighbor))
            self.post(ev.Unanswered(effect.neighbor))

    def _do_snapshot(self, effect: do.Snapshot) -> None:
        for slot in effect.slots:
            key = SnapshotKey(effect.round_index, effect.step, slot)
            self.bench.models.snapshot(key, self.algorithm.outgoing(self.bench, slot))

    def _do_forgetsnapshots(self, effect: do.ForgetSnapshots) -> None:
        self.bench.models.forget_snapshots(effect.before_round)

    # ---- arrivals -----------------------------------------------------------------------------------------------------

    def offered(self, push: Push) -> None:
        """A neighbor opened a stream (`peer.shell.inbound.InboundCalls.offered`)."""
        header = push.header
        rejection = self.engine.admits(header.sender, header.incarnation)
        code = rejection.code if rejection else None
        open_streams = sum(1 for other in self.network.pushes if other.receiver is self and other.source == push.source)
        if open_streams > self.world.manifest.limits.streams_per_neighbor:
            code = Refusal.TOO_MANY_STREAMS
        if code is not None:
            self.world.checker.mark(f"refused {code}")
            self.network.reply(push, PushReply(Outcome.REFUSED, code))
            return
        self._next_stream += 1
        push.stream = self._next_stream
        self.streams[push.stream] = push
        self.post(ev.Offered(push.stream, header))

    def _do_admit(self, effect: do.Admit) -> None:
        buffer = self.bench.models.reserve()
        buffer.fill(np.nan)  # whoever reads it before it is complete will be seen
        self.buffers[effect.stream] = buffer
        self.network.transfer(self.streams[effect.stream])

    def complete(self, push: Push, payload: Vector) -> None:
        """All bytes are here (`InboundCalls.arrived`)."""
        if push.receiver_done:
            return
        if push.stream not in self.streams:
            self.network.reply(push, self._verdicts.pop(push.stream))
            return
        buffer = self.buffers[push.stream]
        np.copyto(buffer, payload)
        if check_norm(norm_squared(buffer), 0.0, None) is not None:
            self.refused_bytes(push, Refusal.NON_FINITE)
            return
        if self.algorithm.inspects_arrivals:
            rejection = self.algorithm.screen_arrival(self.bench, push.header, buffer)
            if rejection is not None:
                self.refused_bytes(push, rejection.code)
                return
        self._whole.add(push.stream)
        self.post(ev.Arrived(push.stream))

    def refused_bytes(self, push: Push, code: Refusal) -> None:
        """The bytes are not what they should be."""
        if push.receiver_done:
            return
        self.world.checker.mark(f"refused {code}")
        if self.streams.pop(push.stream, None) is not None:
            self.post(ev.Cut(push.stream, None if code is Refusal.DIGEST_MISMATCH else code))
        self.network.reply(push, PushReply(Outcome.REFUSED, code))

    def cut(self, push: Push) -> None:
        """A stream broke off."""
        if self.streams.pop(push.stream, None) is not None:
            self.world.checker.mark("stream cut")
            self.post(ev.Cut(push.stream))

    def _do_reply(self, effect: do.Reply) -> None:
        push = self.streams.get(effect.stream)
        self.world.checker.replies(self, effect, push)
        if push is None:
            return
        verdict = PushReply(effect.outcome, effect.refusal, effect.reason)
        if effect.outcome is not Outcome.FOLDED:
            del self.streams[effect.stream]
        being_read = effect.stream in self.buffers and effect.stream not in self._whole
        if being_read:  # its sender hears when all bytes have come, as over gRPC
            self._verdicts[effect.stream] = verdict
        else:
            self.network.reply(push, verdict)

    def _do_fold(self, effect: do.Fold) -> None:
        push, buffer = self.streams.pop(effect.stream), self.buffers.pop(effect.stream)
        self._fold_free_at = max(self.world.now, self._fold_free_at) + self._rng.uniform(0.0001, 0.002)
        self.later(self._fold_free_at - self.world.now, self._folded, effect, push, buffer)

    def _folded(self, effect: do.Fold, push: Push, buffer: Vector) -> None:
        self.world.checker.folds(self, effect, push, buffer)
        for target in effect.targets:
            self.bench.models.fold(target.slot, buffer, target.weight)
        self.bench.arrivals.append(FoldedArrival(effect.header, None if effect.targets else buffer))
        if effect.targets:
            self.bench.models.give_back(buffer)
        self.post(ev.Folded(effect.stream))

    # ---- work, pulls, disk ----------------------------------------------------------------------------------------------

    def _do_work(self, effect: do.Work) -> None:
        duration, early = self.machine.duration_s(effect.kind), self._rng.random() < 0.5
        shadow = self.world.checker.shadows[self]
        busy = effect.kind != "train"

        def done() -> None:
            event = performed or self._perform(effect)
            shadow.tensors_busy = shadow.working = False
            self.post(event)

        performed = self._perform(effect) if early else None
        shadow.tensors_busy, shadow.working = busy, True
        self.later(duration, done)
        self.later(duration / 2, self.world.nemesis.works, self.machine)

    def _perform(self, effect: do.Work) -> ev.WorkDone:
        self.effect_present = effect.present
        self.world.checker.works(self, effect)
        done = perform(effect, self.algorithm, self.bench, lambda: self.world.now)
        self.world.checker.worked(self, effect)
        return done

    def _do_pull(self, effect: do.Pull) -> None:
        def answered(reply: tuple[int, list[Vector]] | Refusal | None) -> None:
            if isinstance(reply, tuple):
                self.bench.pulled[effect.neighbor] = [model.copy() for model in reply[1]]
                self.post(ev.Pulled(effect.neighbor, True, reply[0]))
            else:
                self.post(ev.Pulled(effect.neighbor, False, reason="no answer"))

        asks = self.engine.incarnation
        self.network.call(self, effect.neighbor, lambda process: process.pull(self.peer_id, asks), answered)

    def pull(self, sender: int, incarnation: int) -> tuple[int, list[Vector]] | Refusal:
        """Give a neighbor that catches up the present models."""
        rejection = self.engine.admits(sender, incarnation)
        if rejection is not None:
            return rejection.code
        return self.engine.round_index, [
            self.algorithm.published(self.bench, slot) for slot in range(len(self.bench.models))
        ]

    def _do_persist(self, effect: do.Persist) -> None:
        models = [self.bench.models.share(slot) for slot in range(len(self.bench.models))]
        arrays = {name: array.copy() for name, array in self.bench.arrays.items()}
        state, lineage = json.loads(json.dumps(effect.state)), frozenset(self.lineage)
        latency = self._rng.uniform(0.001, 0.02) * self.machine.disk_slowness
        before = max(0.0, self._disk_free_at - self.world.now)
        self._disk_free_at = self.world.now + before + latency
        begin = before + self._rng.random() * latency
        self.later(begin, self._write, effect.round_index, state, models, arrays, lineage)
        self.later(before + latency, self._persisted, effect.round_index)

    def _write(self, *checkpoint: Any) -> None:
        self.machine.disk.begin(*checkpoint)
        self.world.nemesis.writes(self.machine)

    def _persisted(self, round_index: int) -> None:
        error = self.machine.disk.end()
        self.world.checker.mark("checkpoint failed" if error else "checkpoint written")
        self.post(ev.Persisted(round_index, error))
