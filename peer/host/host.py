"""One peer without sockets, clock and threads: it gives the engine its events and executes the effects.

It answers what neighbors send: the sender is checked here, and each refusal counted. Tensors are handled by the parts
`Sending` and `Receiving`, which know no engine, and by the algorithm's work. All methods are synchronous; a world with threads
calls `work` on its compute thread, `sending.message_to(...)()`, the function of `answer_pull`, `receiving.screen` and
`receiving.fold` on its fold thread, and everything else on the thread of the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, assert_never

import numpy as np

from coordinator_free_bootstrap import Compared, check_hello, remarks, with_known
from coordinator_free_bootstrap.errors import Refusal, RefusalCode, RemoteProtocolError
from coordinator_free_bootstrap.handshake import seen_from_here
from coordinator_free_bootstrap.meaning import with_agreed
from peer.algorithms.base import Algorithm
from peer.algorithms.learner import SharedScaling
from peer.algorithms.saved_state import saved
from peer.algorithms.work import perform
from peer.algorithms.workspace import Workspace
from peer.core import effects as do
from peer.core import events as ev
from peer.core.arrivals import Arrival
from peer.core.averaging import Vector
from peer.core.checkpoint import Checkpoint
from peer.core.encoding import ModelFormat, Payload
from peer.core.engine import Engine, make_hello
from peer.core.messages import (
    Control,
    Heartbeat,
    Hello,
    HelloReply,
    ModelHeader,
    Numbers,
    Pass,
    PullRequest,
    Select,
    Statistics,
    SumMessage,
)
from peer.core.metric import Metric, MetricRecord
from peer.core.stages import Stage
from peer.host.divergence import DivergenceGuard
from peer.host.line_limits import CHANGES_PER_MINUTE_MAX, LineLimits
from peer.host.receiving import Receiving
from peer.host.sending import Sending
from peer.host.world import World
from peer.store.records import HostStatus


class Probe:
    """Watches every step of a host; a test overrides it."""

    def before(self, event: ev.Event) -> None:
        """An event is about to be given to the engine."""

    def stepped(self, event: ev.Event, effects: Sequence[do.Effect]) -> None:
        """The engine has answered; its effects are about to be executed."""

    def after(self, event: ev.Event, effects: Sequence[do.Effect]) -> None:
        """The effects are executed, or under way."""


class PeerHost:
    """One peer. Make it with `peer.host.build.build_host`, give it a world with `connect`, then `post` a `Tick`.

    Args:
        engine: at the start of an incarnation.
        algorithm: the same that the engine asks.
        workspace: with the models; changed from now on.
        model_format: how models travel.
        compared: what the handshake compares.
        clock: monotonic seconds, only to time phases.
        published: float32 [d], the last published models, of a checkpoint.
        scaling: the part of this peer in shared scaling; None: the run has none.
    """

    world: World

    def __init__(
        self,
        engine: Engine,
        algorithm: Algorithm,
        workspace: Workspace,
        model_format: ModelFormat,
        compared: Compared,
        clock: Callable[[], float],
        published: dict[str, Vector],
        scaling: SharedScaling | None = None,
    ) -> None:
        self.engine = engine
        self.state = engine.state
        self.algorithm = algorithm
        self.workspace = workspace
        self.format = model_format
        self.sending = Sending(engine.state, algorithm, workspace, model_format, published)
        self.receiving = Receiving(algorithm, workspace, model_format, clock, engine.state.sums)
        self.manifest = engine.state.manifest
        self.peer_id = engine.state.peer_id
        self.scaling = scaling
        self.compared = compared  # its meaning learns which classes neighbors know of
        self._remarks: dict[int, tuple[str, ...]] = {}  # of each neighbor, so that each is logged once
        self.notes: list[str] = []  # sentences for the operator, logged before the run
        self.more_metrics: tuple[Metric, ...] = ()
        self.probe = Probe()
        self.closed = False  # the process is gone: events are ignored
        self.last_round: dict[str, Any] = {}  # fields of the last round's record, and of the end's
        self._progress: tuple[Stage, int] | None = None  # stage and round, and when they last changed
        self._changed_at = 0.0
        self.history_error = self.audit_error = ""  # set by a world that cannot write the history, or the audit log
        self._clock = clock
        self._events: deque[ev.Event] = deque()
        self._stepping = False
        self._lines = LineLimits()
        self._guard = DivergenceGuard(workspace, range(algorithm.slots, algorithm.held))

    # ---- events ---------------------------------------------------------------------------------------------------------

    def connect(self, world: World) -> None:
        """Set the world that effects are executed with."""
        self.world = world

    def post(self, event: ev.Event) -> None:
        """Give the engine an event; its effects are executed before this returns, unless an effect posts it."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events and not self.closed:
                event = self._events.popleft()
                self.probe.before(event)
                effects = self.engine.step(event, self.world.now())
                self.probe.stepped(event, effects)
                self.execute(effects)
                self._note_change()
                self.probe.after(event, effects)
        finally:
            self._stepping = False

    def _note_change(self) -> None:
        progress = (self.state.stage, self.state.round.index)
        if progress != self._progress:
            self._progress, self._changed_at = progress, self.world.now()

    def execute(self, effects: Sequence[do.Effect]) -> None:  # noqa: PLR0912 - one case per effect
        """Execute effects in order: what concerns models is the host's, what leaves the peer is the world's."""
        world = self.world
        for effect in effects:
            match effect:
                case do.SendHello(neighbor):
                    world.send_hello(neighbor)
                case do.SendHeartbeat(neighbor, heartbeat):
                    world.send_heartbeat(neighbor, heartbeat)
                case do.SendControl(neighbor, message):
                    world.send_control(neighbor, message)
                case do.SendModel(neighbor, header):
                    world.push(neighbor, header)
                case do.CancelSend(neighbor):
                    world.cancel_send(neighbor)
                case do.RetryIfStalled(neighbor, quiet_s):
                    world.retry_if_stalled(neighbor, quiet_s)
                case do.Pull(neighbor):
                    world.pull(neighbor)
                case do.ReadArrival(arrival):
                    world.read_arrival(arrival)
                case do.AnswerArrival():
                    self.note_answer(effect)
                    world.answer_arrival(effect.arrival, effect.reply)
                case do.FoldArrival():
                    world.fold_arrival(effect)
                case do.TakeSnapshot():
                    world.take_snapshot(effect)
                case do.DropSnapshots(before_round):
                    self.drop_snapshots(before_round)
                case do.Work():
                    world.work(effect)
                case do.Agree(numbers):
                    self._agree(dict(numbers))
                case do.WriteCheckpoint():
                    world.write_checkpoint(self.checkpoint(effect))
                case do.Record(kind, fields):
                    self.record(kind, fields)
                case do.Log():
                    world.log(effect)
                case do.SetTimer(at):
                    world.set_timer(at)
                case do.Stop(status):
                    world.stop(status)
                case _:
                    assert_never(effect)

    # ---- handshakes -----------------------------------------------------------------------------------------------------

    def hello_to(self, neighbor: int) -> Hello:
        """Return this peer's hello to a neighbor, as of now."""
        return make_hello(self.engine, self.compared, neighbor)

    def answer_hello(self, hello: Hello) -> HelloReply:
        """Check a neighbor's hello and answer with the own one, also where it is refused.

        Raises:
            RemoteProtocolError: SHUTTING_DOWN; or NOT_A_NEIGHBOR, if this peer has none.
        """
        self._check_running()
        neighbors = self.state.neighbors
        known = neighbors.get(hello.sender)
        if not neighbors:
            raise RemoteProtocolError(RefusalCode.NOT_A_NEIGHBOR, f"peer {self.peer_id} has no neighbors")
        if known:
            self._learn_classes(hello)
        mine = self.hello_to(hello.sender if known else next(iter(neighbors)))
        problem = self._problem_of(mine, hello, known.incarnation if known else 0)
        if problem is not None:
            self.refuse(hello.sender, problem)
            if known:
                self.post(ev.HelloRefused(hello.sender, seen_from_here(problem)))
            return HelloReply(mine, problem)
        self._note_remarks(mine, hello)
        self.post(ev.HandshakeDone(hello, answered=False))
        return HelloReply(mine)  # made before: it names the caller's earlier incarnation

    def hello_answered(self, neighbor: int, reply: HelloReply) -> None:
        """Check a neighbor's reply to our hello."""
        self._learn_classes(reply.hello)
        known, mine = self.state.neighbors[neighbor].incarnation, self.hello_to(neighbor)
        problem = self._problem_of(mine, reply.hello, known)
        theirs = reply.refusal
        if theirs is not None and theirs.code is RefusalCode.OLD_INCARNATION:
            self._raise_incarnation(neighbor, reply.hello.seen_incarnation)
            self.post(ev.HandshakeFailed(neighbor, theirs.reason))
        elif theirs is not None:  # our own sentence has both values in full; theirs is cut
            full = seen_from_here(problem) if problem is not None else theirs
            full = full if full.code is theirs.code else theirs
            self.post(ev.HandshakeFailed(neighbor, full, reply.hello.round_index))
        else:
            if problem is not None:
                self.refuse(neighbor, problem)
            else:
                self._note_remarks(mine, reply.hello)
            failed = problem and ev.HandshakeFailed(neighbor, seen_from_here(problem), reply.hello.round_index)
            self.post(failed or ev.HandshakeDone(reply.hello, answered=True))

    def _problem_of(self, mine: Hello, theirs: Hello, last_incarnation: int) -> Refusal | None:
        """Return why a neighbor's hello is not acceptable."""
        return check_hello(
            mine,
            theirs,
            neighbors=self.state.neighbors,
            last_incarnation=last_incarnation,
            removed={each.id for each in self.state.graph.removed},
            one_graph=self._needs_one_graph,
        ) or self._problem_of_key(theirs)

    @property
    def _needs_one_graph(self) -> bool:
        """Whether peers with other edges exchange nothing: a coloring is of all edges, a sum of a neighbor's neighbors."""
        return self.algorithm.needs_one_graph or self.manifest.edges == "one" or self.state.sums is not None

    def _problem_of_key(self, theirs: Hello) -> Refusal | None:
        """Note the key of secure sums in a hello that is acceptable otherwise; return why it is not."""
        sums = self.state.sums
        return None if sums is None else sums.meets(theirs.sender, theirs.incarnation, theirs.sum_key)

    def _learn_classes(self, hello: Hello) -> None:
        """Take over the classes that a neighbor knows of, to name them in refusals and to tell other neighbors."""
        if hello.manifest_digest == self.compared.manifest_digest:
            self.compared = replace(self.compared, meaning=with_known(self.compared.meaning, hello.meaning))

    def _note_remarks(self, mine: Hello, theirs: Hello) -> None:
        """Log, once for each neighbor, how its task or data differ from ours in a way that may be meant."""
        sentences = remarks(mine, theirs)
        if sentences == self._remarks.get(theirs.sender, ()) or not self._lines.take(
            self.world.now(), theirs.sender, "meaning"
        ):
            return
        self._remarks[theirs.sender] = sentences
        for sentence in sentences:
            self.world.log(do.Log("warning", f"peer {theirs.sender}: {sentence}", theirs.sender, "meaning"))

    def _raise_incarnation(self, neighbor: int, seen: int) -> None:
        """A neighbor knows a higher incarnation of this peer, whose disk was lost: exceed it."""
        if seen < self.state.incarnation:
            return
        new = self.world.raise_incarnation(seen)
        if new is not None:
            message = f"peer {neighbor} knows incarnation {seen} of this peer: continuing as incarnation {new}"
            self.world.log(do.Log("warning", message, neighbor, "incarnation"))
            self.post(ev.IncarnationRaised(new))

    def _check_running(self) -> None:
        if self.engine.stage is Stage.STOPPED:
            raise RemoteProtocolError(RefusalCode.SHUTTING_DOWN, f"peer {self.peer_id} is leaving")

    # ---- control messages -----------------------------------------------------------------------------------------------

    def answer_heartbeat(self, heartbeat: Heartbeat) -> Refusal | None:
        """Take a heartbeat; a neighbor that is not alive to us is asked to say hello.

        If it cannot be reached it learns our round from the reply, and does not wait for models that cannot come.
        """
        rejection = self.engine.rejects_sender(heartbeat.sender, heartbeat.incarnation)
        if rejection is not None:
            return self._reject(heartbeat.sender, rejection)
        self.post(ev.HeartbeatReceived(heartbeat))
        if not self.engine.must_answer(heartbeat.sender):
            return None
        return Refusal(
            RefusalCode.NO_HANDSHAKE, f"peer {heartbeat.sender} does not answer hellos of peer {self.peer_id}"
        )

    def answer_control(self, message: Control) -> Refusal | None:
        """Take a selection, a pass, the numbers of sites or what opens a sum.

        Raises:
            RemoteProtocolError: SHUTTING_DOWN.
        """
        self._check_running()
        rejection = self.engine.rejects_control(message)
        if rejection is not None:
            return self._reject(message.sender, rejection)
        match message:
            case Select():
                self.post(ev.SelectReceived(message))
            case Pass():
                self.post(ev.PassReceived(message))
            case Statistics():
                self.post(ev.StatisticsReceived(message))
            case SumMessage():
                self.post(ev.SumReceived(message))
        return None

    def heartbeat_of(self, sender: int) -> Heartbeat:
        """Return the heartbeat that a frame of a neighbor's model stands for."""
        neighbor = self.state.neighbors[sender]
        return Heartbeat(sender, neighbor.incarnation, neighbor.round_index, neighbor.phase)

    # ---- refusals -------------------------------------------------------------------------------------------------------

    def refuse(self, sender: int | None, refusal: Refusal) -> None:
        """Count a refusal; log and record it, a few a minute of one kind and sender."""
        if (
            refusal.code is not RefusalCode.SHUTTING_DOWN
        ):  # a neighbor that still calls while we leave does nothing wrong
            self.state.refusals[refusal.code] += 1
            self.note_refusal(sender, refusal)

    def note_refusal(self, sender: int | None, refusal: Refusal) -> None:
        """Log and record a refusal that is counted already."""
        if not self._lines.take(self.world.now(), sender, refusal.code):
            return
        who = f"peer {sender}" if sender is not None else "a caller"
        self.world.log(do.Log("warning", f"refused {who}: {refusal}", sender, str(refusal.code)))
        self.world.record("refused", {"neighbor": sender, "code": str(refusal.code), "reason": refusal.reason})

    def _reject(self, sender: int, rejection: Refusal) -> Refusal:
        if rejection.code is not RefusalCode.NO_HANDSHAKE:  # a restarted peer causes it; it is no misbehavior
            self.refuse(sender, rejection)
        return rejection

    # ---- models of neighbors --------------------------------------------------------------------------------------------

    def rejects_offer(self, header: ModelHeader) -> Refusal | None:
        """Return why a model is refused before the engine sees its header; it is counted.

        Raises:
            RemoteProtocolError: SHUTTING_DOWN.
        """
        self._check_running()
        rejection = self.engine.rejects_sender(header.sender, header.incarnation)
        rejection = rejection or self.receiving.rejects_header(header)
        return None if rejection is None else self._reject(header.sender, rejection)

    def arrived(self, arrival: Arrival, rejection: Refusal | None) -> None:
        """Give the engine the result of screening a complete arrival."""
        if rejection is None:
            self.post(ev.ArrivalComplete(arrival))
        elif rejection.code is RefusalCode.NO_BASE:  # a restart causes it; the sender sends the whole model
            self.post(ev.ArrivalLost(arrival))
        else:
            self.post(ev.ArrivalLost(arrival, self._reject(arrival.sender, rejection)))

    def note_answer(self, effect: do.AnswerArrival) -> None:
        """Log and record an arrival that the engine refuses; it has counted it."""
        reply = effect.reply
        if isinstance(reply, Refusal) and reply.code is not RefusalCode.NO_HANDSHAKE:
            self.note_refusal(effect.arrival.sender, reply)

    def answer_pull(self, request: PullRequest) -> tuple[ModelHeader, Callable[[], Payload]] | Refusal:
        """Give a neighbor that catches up the present model of one slot: its header, and a function that encodes it."""
        rejection = self.engine.rejects_sender(request.sender, request.incarnation)
        slots = self.algorithm.slots
        if rejection is None and not 0 <= request.slot < slots:
            rejection = Refusal(RefusalCode.SLOT_OUT_OF_RANGE, f"slot {request.slot} of {slots} pulled")
        answer = self.sending.present(request.slot) if rejection is None else rejection
        return self._reject(request.sender, answer) if isinstance(answer, Refusal) else answer

    def drop_snapshots(self, before_round: int) -> None:
        """Free the snapshots and payloads of earlier rounds, and pulled models that were not adopted."""
        self.receiving.drop_pulled()
        self.sending.drop_snapshots(before_round)

    # ---- work, checkpoints, records -------------------------------------------------------------------------------------

    def work(self, effect: do.Work) -> ev.WorkDone:
        """Run one piece of the algorithm's work and return the event that answers it."""
        if self.scaling is not None:
            self.scaling.apply()
        self._guard.begin(effect)
        if effect.kind == "close":
            self.sending.publish(effect.round_index + 1, self.receiving.open_sum())
        done = perform(effect, self.algorithm, self.workspace, self._clock)
        done, line = self._guard.check(effect, done)
        if line is not None:
            self.world.log(line)
        if effect.kind == "assign":
            self.receiving.begin_round()
        return done

    def _agree(self, numbers: dict[int, Numbers]) -> None:
        """Take the numbers of all sites: later hellos have their digest, the history has them, the next work applies them."""
        if self.scaling is None:
            self.world.log(do.Log("info", f"all {len(numbers)} peers of the graph are there"))
            return
        fields = self.scaling.agree(numbers)
        self.compared = replace(self.compared, meaning=with_agreed(self.compared.meaning, fields["digest"]))
        total = sum(fields["samples"].values())
        agreed = f"shared scaling: {total} samples of {len(numbers)} sites, digest {fields['digest'][:16]}"
        self.world.log(do.Log("info", agreed))
        if numbers[self.peer_id] != self.scaling.numbers:
            changed = (
                "shared scaling: the data of this peer have changed since all sites agreed; what was agreed stands"
            )
            self.world.log(do.Log("warning", changed))
        self.world.record("scaling", fields)

    def say_goodbye(self) -> None:
        """Tell the neighbors that this peer leaves, without closing its round."""
        self.closed = True
        self.execute(self.engine.goodbye(self.world.now()))

    def checkpoint(self, effect: do.WriteCheckpoint) -> Checkpoint:
        """Return what a checkpoint keeps, as of now."""
        space, models = self.workspace, self.workspace.models
        values, own = saved(self.state.algorithm_state)
        arrays: dict[str, np.ndarray] = {f"slot/{slot}": models.share(slot) for slot in range(len(models))}
        arrays |= {f"published/{name}": model for name, model in self.sending.published_models().items()}
        arrays |= {f"state/{name}": array for name, array in own.items()}
        arrays |= {f"optimizer/{name}": array for name, array in space.optimizers.items()}
        if (sites := self.state.sites) is not None and sites.size:
            arrays |= {f"site/{peer}": numbers.array for peer, numbers in sites.known.items()}
        state: dict[str, Any] = {"algorithm_state": values, "restores": space.restores}
        if space.best is not None:
            arrays |= space.best.arrays()
            state["best"] = space.best.state()
        if space.model_tests:
            state["model_tests"] = space.model_tests
        return Checkpoint(effect.round_index, arrays, effect.state | state)

    def record(self, kind: str, fields: dict[str, Any]) -> None:
        """Complete a line of the history and pass it to the world."""
        now = self.world.now()
        if kind == "neighbor" and not self._lines.take(now, fields["neighbor"], "state", CHANGES_PER_MINUTE_MAX):
            return
        if kind == "round":
            seconds = fields["seconds"]
            fold_s = seconds.get("fold", 0.0) + self.receiving.take_fold_seconds()
            fields = fields | {"seconds": {**seconds, "fold": fold_s}}
            self.last_round = fields
        elif kind == "end":
            self.last_round = self.last_round | fields  # `final` has evaluated the personalized model
        self.world.record(kind, fields)

    @property
    def metric(self) -> Metric:
        """The metric of the task."""
        return self.workspace.metric

    def measured(self) -> MetricRecord:
        """Return the metric and its last value, None before the first evaluation."""
        return {**self.metric.as_json(), "value": self.last_round.get("metric_value")}

    def measured_more(self) -> list[MetricRecord]:
        """Return the task's other metrics and their last values."""
        values = self.last_round.get("metrics") or {}
        return [{**metric.as_json(), "value": values.get(metric.name)} for metric in self.more_metrics]

    def status(self) -> HostStatus:
        """Return what this peer is doing, as JSON-ready values."""
        state, now = self.state, self.world.now()
        waits = self.engine.waits
        waiting_for, owed_to = waits.waiting_for(now), waits.owed_to()
        neighbors = state.neighbors.items()
        met = {n: neighbor.liveness.silence_s(now) if neighbor.connected else None for n, neighbor in neighbors}
        status: HostStatus = {
            "peer_id": self.peer_id,
            "revision": len(state.graph.continues),
            "graph_file": self.compared.run_digest[:12],
            "incarnation": state.incarnation,
            "phase": str(self.engine.phase()),
            "stage": str(state.stage),
            "round_index": state.round.index,
            "rounds_total": self.manifest.rounds,
            "persisted_round": state.disk.saved_round,
            "waiting_for": waiting_for,
            "owed_to": owed_to,
            "unchanged_s": max(0.0, now - self._changed_at) if self._progress else 0.0,
            "waiting_s": max(0.0, now - waits.since()) if waiting_for or owed_to else 0.0,
            "deadline_s": max(0.0, waits.until() - now) if waiting_for or owed_to else None,
            "suspicion_s": self.manifest.timeouts.suspicion_s,
            "neighbors": {str(n): str(neighbor.liveness.state) for n, neighbor in neighbors},
            "neighbor_rounds": {str(n): neighbor.round_index for n, neighbor in neighbors},
            "silent_s": {str(n): silence_s for n, silence_s in met.items()},
            "metric": self.measured(),
            "cluster_index": self.last_round.get("cluster_index"),
            "totals": state.totals.as_json(),
            "refusals": {str(code): count for code, count in state.refusals.items()},
            "storage_error": state.disk.error or self.history_error or self.audit_error,
        }
        if self.more_metrics:
            status["more_metrics"] = self.measured_more()
        if (budget := state.budget) is not None:
            status |= {"epsilon": budget.spent, "epsilon_max": budget.terms.epsilon_max}
        if (best := self.workspace.best) is not None:
            status |= {"best_round": best.round_index, "metric_best": best.value}
        return status
