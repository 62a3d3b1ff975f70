"""One peer without sockets, clock and threads: the only place that builds and runs the tensor half of a peer.

A host holds engine, algorithm, models and encodings. It checks what neighbors send, gives the engine its events, and executes
the engine's effects with the help of a `World`. Its methods are synchronous; a world with threads calls `work` on its compute
thread, `message_to(...)()`, `screen` and `fold` on its fold thread, and everything else on the thread of the engine.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap import Graph, canonical_json, check_hello, digest
from coordinator_free_bootstrap.errors import ConfigError, LocalProtocolError, Refusal, RemoteProtocolError
from peer.algorithms.base import Algorithm
from peer.algorithms.learner import Learner
from peer.algorithms.registry import algorithm_named
from peer.algorithms.work import perform
from peer.algorithms.workspace import FoldedArrival, Workspace
from peer.core import effects as do
from peer.core import events as ev
from peer.core.averaging import Vector, norm_squared
from peer.core.decisions import Rejection
from peer.core.deltas import Received, Sent
from peer.core.encoding import DELTAS, FULL, ErrorFeedback, Payload, decode, encode, payload_size
from peer.core.engine import Engine, make_hello
from peer.core.messages import (
    WIRE_VERSION,
    Control,
    Heartbeat,
    Hello,
    HelloReply,
    ModelHeader,
    PullRequest,
    PushReply,
    Select,
)
from peer.core.metric import Metric
from peer.core.model_store import SPARE_BUFFERS_MAX, ModelStore, SnapshotKey
from peer.core.schema import Schema
from peer.core.screening import check_norm, clip
from peer.core.stages import Stage
from peer.core.state import State
from peer.host.divergence import DivergenceGuard
from peer.host.line_limits import CHANGES_PER_MINUTE_MAX, LineLimits
from peer.host.world import Checkpoint, World, execute


@dataclass(frozen=True)
class InitialModels:
    """The models of a peer that has not trained yet; ``digest`` is "" where each peer draws its own."""

    models: list[Vector]
    digest: str

    @classmethod
    def of(cls, algorithm: Algorithm, learner: Learner) -> InitialModels:
        """Draw them."""
        models, common = algorithm.initial_models(learner)
        state = hashlib.sha256()
        for model in models[: algorithm.slots] if common else ():
            state.update(model.data.cast("B"))
        return cls(models, state.hexdigest() if common else "")


@dataclass(eq=False)
class ReceivedModel:
    """The buffer of one arrival.

    Attributes:
        payload: uint8 [size_bytes], the encoded model.
        model: float32 [d], if it is decoded; for encoding float32 a view of ``payload``. A read-only one is shared with other
            receivers, and copied before it is changed or kept.
    """

    payload: NDArray[np.uint8]
    model: Vector | None = None


def check_kept_memory(algorithm: Algorithm, travelling: Schema) -> None:
    """Check that the arrivals which wait for the close of a step fit the limit: the algorithm's own, and a trimmed mean's.

    Raises:
        ConfigError: they take more than run.limits.kept_bytes_max.
    """
    manifest = algorithm.manifest
    trimmed = algorithm.slots * algorithm.degree if manifest.screening.trimmed_mean else 0
    count = algorithm.kept_models() + trimmed
    needed, most = count * 4 * travelling.size, manifest.limits.kept_bytes_max
    if needed > most:
        raise ConfigError(
            f"run.limits.kept_bytes_max: found {most}, but peer {algorithm.peer_id} keeps up to {count} arrivals until a step "
            f"closes (algorithm '{manifest.algorithm}', trimmed mean {manifest.screening.trimmed_mean}), {needed} bytes; raise "
            "the limit, or take a graph with fewer neighbors or a smaller model"
        )


class Probe:
    """Watches every step of a host; a test overrides it."""

    def before(self, event: ev.Event) -> None:
        """An event is about to be given to the engine."""

    def stepped(self, event: ev.Event, effects: Sequence[do.Effect]) -> None:
        """The engine has answered; its effects are about to be executed."""

    def after(self, event: ev.Event, effects: Sequence[do.Effect]) -> None:
        """The effects are executed, or under way."""


class PeerHost:
    """One peer. Make it with `build`, give it a world with `connect`, then `post` a `Tick`."""

    world: World

    def __init__(
        self,
        engine: Engine,
        workspace: Workspace,
        digests: dict[str, str],
        clock: Callable[[], float],
        published: dict[int, Vector] | None = None,
    ) -> None:
        self.engine = engine
        self.state = engine.state
        self.workspace = workspace
        self.manifest = engine.state.manifest
        self.peer_id = engine.state.peer_id
        self.algorithm: Algorithm = engine.state.algorithm  # type: ignore[assignment]
        self.schema = self.algorithm.travelling(workspace.learner.schema)
        self.digests = digests
        self.metric = Metric()  # of the task; its world sets it
        self.more_metrics: tuple[Metric, ...] = ()
        self.manifest_json = canonical_json(self.manifest)
        self.probe = Probe()
        self.closed = False  # the process is gone: events are ignored
        self.last_round: dict[str, Any] = {}  # fields of the last round's record, and of the end's
        self._place: tuple[Stage, int] | None = None  # stage and round, and when they last changed
        self._changed_at = 0.0
        self.history_error = ""  # set by a world that cannot write the history
        self._clock = clock
        self._events: deque[ev.Event] = deque()
        self._stepping = False
        self._lines = LineLimits()
        self._guard = DivergenceGuard(workspace, range(self.algorithm.slots, self.algorithm.held))
        self._payloads: dict[SnapshotKey, Payload] = {}
        self._feedback: dict[int, ErrorFeedback] = {}
        self._deltas = self.manifest.encoding in DELTAS
        self._whole = FULL if self._deltas else self.manifest.encoding  # encoding of a model without a base
        self.whole_bytes = payload_size(self.schema, self._whole)
        self._sent = Sent(self.schema, self.manifest.encoding, published or {})
        self._kept = Received(self.schema)
        self._own_norms: dict[int, float] = {}  # squared norms and models at the start of the round, for screening
        self._centers: dict[int, Vector] = {}
        self._fold_seconds = 0.0

    @classmethod
    def build(
        cls,
        peer_id: int,
        graph: Graph,
        learner: Learner,
        incarnation: int,
        checkpoint: Checkpoint | None = None,
        *,
        clock: Callable[[], float],
        initial: InitialModels | None = None,
        spare_buffers: int = SPARE_BUFFERS_MAX,
    ) -> PeerHost:
        """Return a peer in the state of a checkpoint, or a new one.

        Args:
            peer_id: a node of ``graph``.
            graph: neighbors and manifest.
            learner: trains and evaluates on the peer's shard.
            incarnation: of this start, persisted already.
            checkpoint: what to resume from; its arrays are owned by the host from now on.
            clock: monotonic seconds, only to time phases.
            initial: the initial models, if they are drawn already; never mutated.
            spare_buffers: model buffers kept for reuse; many hosts in one process can do without.

        Raises:
            ConfigError: the manifest's options or limits do not fit.
        """
        manifest = graph.manifest
        algorithm = algorithm_named(manifest.algorithm)(manifest, peer_id, graph)
        schema = algorithm.travelling(learner.schema)
        model_bytes = payload_size(schema, manifest.encoding)
        whole_bytes = payload_size(schema, FULL) if manifest.encoding in DELTAS else model_bytes
        if whole_bytes > manifest.limits.model_bytes_max:
            raise ConfigError(
                f"run.limits.model_bytes_max: {manifest.limits.model_bytes_max}, but one model of task '{manifest.task}' "
                f"takes {whole_bytes} bytes; raise the limit or take a smaller model"
            )
        check_kept_memory(algorithm, schema)
        first = initial or InitialModels.of(algorithm, learner)
        slots = [checkpoint.arrays[f"slot/{i}"] for i in range(algorithm.held)] if checkpoint else list(first.models)
        store = ModelStore(
            slots,
            batch=manifest.aggregation == "batch",
            trim=manifest.screening.trimmed_mean,
            spare_max=spare_buffers,
        )
        if initial is not None and checkpoint is None:
            for slot in range(len(store)):
                store.share(slot)
        workspace = Workspace(manifest, peer_id, graph, learner, store, {}, true_cluster=learner.true_cluster)
        if checkpoint:
            arrays = checkpoint.arrays.items()
            workspace.arrays = {name[len("array/") :]: array for name, array in arrays if name.startswith("array/")}
            workspace.state = dict(checkpoint.state["algorithm_state"])
        else:
            workspace.state = algorithm.begin(workspace)
        engine = Engine(
            State(
                peer_id,
                graph,
                algorithm,
                incarnation,
                model_bytes=model_bytes,
                algorithm_state=dict(workspace.state),
                resume=checkpoint.state if checkpoint else None,
            )
        )
        digests = {
            "wire_version": str(WIRE_VERSION),
            "manifest": digest(manifest),
            "graph": graph.digest,
            "schema": schema.digest,
            "frozen": learner.frozen_digest,
            "initial_models": first.digest,
        }
        saved = (
            {name: array for name, array in checkpoint.arrays.items() if name.startswith("published/")}
            if checkpoint
            else {}
        )
        published = {int(name.removeprefix("published/")): array for name, array in saved.items()}
        return cls(engine, workspace, digests, clock, published)

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
                execute(effects, self, self.world)
                self._note_change()
                self.probe.after(event, effects)
        finally:
            self._stepping = False

    def _note_change(self) -> None:
        place = (self.state.stage, self.state.round.index)
        if place != self._place:
            self._place, self._changed_at = place, self.world.now()

    # ---- handshakes -----------------------------------------------------------------------------------------------------

    def hello_to(self, neighbor: int) -> Hello:
        """Return this peer's hello to a neighbor, as of now."""
        return make_hello(self.engine, self.digests, self.manifest_json, neighbor)

    def answer_hello(self, hello: Hello) -> HelloReply:
        """Check a neighbor's hello and answer with the own one, also where it is refused.

        Raises:
            RemoteProtocolError: SHUTTING_DOWN; or NOT_A_NEIGHBOR, if this peer has none.
        """
        self._check_running()
        neighbors = self.state.neighbors
        known = neighbors.get(hello.sender)
        if not neighbors:
            raise RemoteProtocolError(Refusal.NOT_A_NEIGHBOR, f"peer {self.peer_id} has no neighbors")
        mine = self.hello_to(hello.sender if known else next(iter(neighbors)))
        problem = check_hello(mine, hello, neighbors=neighbors, last_incarnation=known.incarnation if known else 0)
        if problem is not None:
            self.refuse(hello.sender, *problem)
            return HelloReply(mine, *problem)
        self.post(ev.HandshakeDone(hello, answered=False))
        return HelloReply(mine)  # made before: it names the caller's earlier incarnation

    def hello_answered(self, neighbor: int, reply: HelloReply) -> None:
        """Check a neighbor's reply to our hello."""
        known, mine = self.state.neighbors[neighbor].incarnation, self.hello_to(neighbor)
        problem = check_hello(mine, reply.hello, neighbors=self.state.neighbors, last_incarnation=known)
        if reply.refusal is Refusal.OLD_INCARNATION:
            self._raise_incarnation(neighbor, reply.hello.seen_incarnation)
            self.post(ev.HandshakeFailed(neighbor, None, reply.reason))
        elif reply.refusal is not None:  # our own sentence has both values in full; theirs is cut
            reason = problem[1] if problem is not None and problem[0] is reply.refusal else reply.reason
            self.post(ev.HandshakeFailed(neighbor, reply.refusal, reason))
        else:
            if problem is not None:
                self.refuse(neighbor, *problem)
            answered = ev.HandshakeDone(reply.hello, answered=True)
            self.post(answered if problem is None else ev.HandshakeFailed(neighbor, *problem))

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
            raise RemoteProtocolError(Refusal.SHUTTING_DOWN, f"peer {self.peer_id} is leaving")

    # ---- control messages -----------------------------------------------------------------------------------------------

    def answer_heartbeat(self, heartbeat: Heartbeat) -> Refusal | None:
        """Take a heartbeat; a neighbor that is not alive to us is told to say hello.

        If it cannot be reached it learns our round from the reply, and does not wait for models that cannot come.
        """
        rejection = self.engine.rejects_sender(heartbeat.sender, heartbeat.incarnation)
        if rejection is not None:
            return self._reject(heartbeat.sender, rejection)
        self.post(ev.HeartbeatReceived(heartbeat))
        return Refusal.NO_HANDSHAKE if self.engine.must_answer(heartbeat.sender) else None

    def answer_control(self, message: Control) -> Refusal | None:
        """Take a selection or a pass.

        Raises:
            RemoteProtocolError: SHUTTING_DOWN.
        """
        self._check_running()
        rejection = self.engine.rejects_control(message)
        if rejection is not None:
            return self._reject(message.sender, rejection)
        self.post(ev.SelectReceived(message) if isinstance(message, Select) else ev.PassReceived(message))
        return None

    def heartbeat_of(self, sender: int) -> Heartbeat:
        """Return the heartbeat that a frame of a neighbor's model stands for."""
        neighbor = self.state.neighbors[sender]
        return Heartbeat(sender, neighbor.incarnation, neighbor.round_index, neighbor.phase)

    # ---- refusals -------------------------------------------------------------------------------------------------------

    def refuse(self, sender: int | None, code: Refusal, sentence: str) -> None:
        """Count a refusal; log and record it, a few a minute of one kind and sender."""
        if code is not Refusal.SHUTTING_DOWN:  # a neighbor that still calls while we leave does nothing wrong
            self.state.refusals[code] += 1
            self.note_refusal(sender, code, sentence)

    def note_refusal(self, sender: int | None, code: Refusal, sentence: str) -> None:
        """Log and record a refusal that is counted already."""
        if not self._lines.take(self.world.now(), sender, code):
            return
        who = f"peer {sender}" if sender is not None else "a caller"
        self.world.log(do.Log("warning", f"refused {who}: {code}: {sentence}", sender, str(code)))
        self.world.record("refused", {"neighbor": sender, "code": str(code), "reason": sentence})

    def _reject(self, sender: int, rejection: Rejection) -> Refusal:
        if rejection.code is not Refusal.NO_HANDSHAKE:  # a restarted peer causes it; it is no misbehavior
            self.refuse(sender, rejection.code, rejection.reason)
        return rejection.code

    # ---- sending --------------------------------------------------------------------------------------------------------

    def take_snapshot(self, effect: do.TakeSnapshot) -> None:
        """Keep the present models of some slots as a step's offers."""
        for slot in effect.slots:
            key = SnapshotKey(effect.round_index, effect.step, slot)
            self.workspace.models.take_snapshot(key, self.algorithm.outgoing(self.workspace, slot))
            if self._deltas:
                self._sent.offer(key, self.workspace.models.get_snapshot(key))

    def drop_snapshots(self, before_round: int) -> None:
        """Free the snapshots and payloads of earlier rounds, and pulled models that were not adopted."""
        self.workspace.pulled.clear()
        self.workspace.models.drop_snapshots(before_round)
        self._sent.drop(before_round)
        for key in [key for key in self._payloads if key.round_index < before_round]:
            del self._payloads[key]

    def message_to(self, neighbor: int, header: ModelHeader) -> Callable[[], tuple[ModelHeader, Payload]]:
        """Return a function that gives the header to send and encodes the offered model, once for all neighbors.

        The snapshot is taken now. The header differs from the given one where a whole model is sent in place of a delta.
        """
        key = SnapshotKey(header.round_index, header.step, header.slot)
        if (payload := self._payloads.get(key)) is not None:
            return lambda: (header, payload)
        snapshot, incarnation = self.workspace.models.get_snapshot(key), self.state.neighbors[neighbor].incarnation
        if self._deltas:
            published = self._sent.published(key)
            return lambda: self._sent.message(neighbor, incarnation, header, published())
        return lambda: (header, self._encoded(key, snapshot))

    def push_answered(self, neighbor: int, header: ModelHeader, reply: PushReply) -> ev.SendAnswered:
        """Note a neighbor's answer to a model of `message_to`, with the header that was sent; return the engine's event."""
        if self._deltas:
            self._sent.answered(neighbor, self.state.neighbors[neighbor].incarnation, header, reply)
        return ev.SendAnswered(neighbor, reply.outcome, reply.refusal, reply.reason, header.size_bytes)

    def _encoded(self, key: SnapshotKey, snapshot: Vector) -> Payload:
        if key not in self._payloads:
            encoding = self.manifest.encoding
            if encoding == "int8":
                feedback = self._feedback.setdefault(key.slot, ErrorFeedback(self.schema))
                self._payloads[key] = feedback.encode(snapshot, encoding)
            else:
                self._payloads[key] = encode(snapshot, self.schema, encoding)
        return self._payloads[key]

    def answer_pull(self, request: PullRequest) -> tuple[ModelHeader, Callable[[], Payload]] | Refusal:
        """Give a neighbor that catches up the present model of one slot: what the algorithm publishes, encoded on call."""
        rejection = self.engine.rejects_sender(request.sender, request.incarnation)
        slots = self.algorithm.slots
        if rejection is None and not 0 <= request.slot < slots:
            rejection = Rejection(Refusal.SLOT_OUT_OF_RANGE, f"slot {request.slot} of {slots} pulled")
        if rejection is not None:
            return self._reject(request.sender, rejection)
        header = ModelHeader(
            sender=self.peer_id,
            incarnation=self.state.incarnation,
            round_index=self.engine.round_index,
            step=0,
            slot=request.slot,
            index=0,
            total=1,
            sample_count=int(self.state.algorithm_state.get("sample_count", 1)),  # as in offers: 1 in private runs
            mass=1.0,
            scalars=(),
            size_bytes=self.whole_bytes,
            encoding=self._whole,
        )
        return header, lambda: self._published(request.slot)

    def _published(self, slot: int) -> Payload:
        return encode(self.algorithm.published(self.workspace, slot), self.schema, self._whole)

    # ---- receiving ------------------------------------------------------------------------------------------------------

    def rejects_offer(self, header: ModelHeader) -> Rejection | None:
        """Return why a model is refused before the engine sees its header; it is counted.

        Raises:
            RemoteProtocolError: SHUTTING_DOWN.
        """
        self._check_running()
        rejection = self.engine.rejects_sender(header.sender, header.incarnation) or self._rejects_size(header)
        if rejection is not None:
            self._reject(header.sender, rejection)
        return rejection

    def _rejects_size(self, header: ModelHeader) -> Rejection | None:
        if header.encoding not in (self.manifest.encoding, self._whole):
            found = f"encoding {header.encoding!r}; the encoding of this run is {self.manifest.encoding}"
            return Rejection(Refusal.WRONG_ENCODING, found)
        expected = self.state.model_bytes if header.encoding == self.manifest.encoding else self.whole_bytes
        if header.size_bytes != expected:
            found = f"a model of {header.size_bytes} bytes; a model of this schema takes {expected}"
            return Rejection(Refusal.WRONG_SIZE, found)
        if (header.base != 0) != (header.encoding in DELTAS):
            return Rejection(Refusal.MALFORMED, f"base {header.base:016x} with encoding {header.encoding}")
        return None

    def reserve(self, header: ModelHeader) -> ReceivedModel:
        """Return a buffer for one arrival."""
        if header.encoding != "float32":
            return ReceivedModel(np.empty(header.size_bytes, np.uint8))
        model = self.workspace.models.acquire_buffer()
        return ReceivedModel(model.view(np.uint8), model)

    def screens_by_norm(self) -> bool:
        """Return whether an arrival whose norm is known needs no look at its values."""
        return self.manifest.screening.norm_bound is None and not self.algorithm.inspects_arrivals

    def screen(self, header: ModelHeader, received: ReceivedModel, known_norm: float | None = None) -> Rejection | None:
        """Return why a complete model is not taken: its values, its norm, or the algorithm's own check.

        Args:
            header: of the model.
            received: its buffer; read only.
            known_norm: the squared norm, if it is known.
        """
        bound = self.manifest.screening.norm_bound
        if known_norm is not None and self.screens_by_norm():
            return check_norm(known_norm, 0.0, None)
        try:
            model = self._model_of(header, received)
        except RemoteProtocolError as error:
            return Rejection(error.code, error.sentence)
        found = norm_squared(model) if known_norm is None else known_norm
        rejection = check_norm(found, self._own_norms.get(header.slot, 0.0), bound)
        if rejection is None and self.algorithm.inspects_arrivals:
            rejection = self.algorithm.screen_arrival(self.workspace, header, model)
        return rejection

    def arrived(self, stream: int, sender: int, rejection: Rejection | None) -> None:
        """Tell the engine what screening found about a complete arrival."""
        if rejection is None:
            self.post(ev.ArrivalComplete(stream))
        elif rejection.code is Refusal.NO_BASE:  # a restart causes it; the sender sends the whole model
            self.post(ev.ArrivalLost(stream))
        else:
            self._reject(sender, rejection)
            self.post(ev.ArrivalLost(stream, rejection.code))

    def note_answer(self, effect: do.AnswerArrival) -> None:
        """Log and record an arrival that the engine refuses; it has counted it."""
        if effect.refusal is not None and effect.refusal is not Refusal.NO_HANDSHAKE:
            self.note_refusal(effect.sender, effect.refusal, effect.reason)

    def fold(self, effect: do.FoldArrival, received: ReceivedModel) -> None:
        """Clip an arrival and fold it into its targets, or keep it until the round closes."""
        began = self._clock()
        arrival = self._model_of(effect.header, received)
        if self._deltas:
            self._kept.keep(effect.header, arrival)
        radius, center = self.manifest.screening.clip, self._centers.get(effect.header.slot)
        clips = radius is not None and center is not None
        if not arrival.flags.writeable and (clips or not effect.targets):
            arrival = arrival.copy()
        if radius is not None and center is not None:
            clip(arrival, center, radius)
        if not effect.targets:
            kept = sum(other.model is not None for other in self.workspace.arrivals)
            if kept >= self.algorithm.kept_models():
                raise LocalProtocolError(
                    f"algorithm '{self.algorithm.name}' keeps arrival {kept + 1} of a step; its kept_models says "
                    f"{self.algorithm.kept_models()}"
                )
        for target in effect.targets:
            self.workspace.models.fold(target.slot, arrival, target.weight)
        self.workspace.arrivals.append(FoldedArrival(effect.header, None if effect.targets else arrival))
        if effect.targets and arrival.flags.writeable:
            self.workspace.models.release_buffer(arrival)
        self._fold_seconds += self._clock() - began

    def pulled(self, neighbor: int, replies: Sequence[tuple[ModelHeader, Payload]]) -> None:
        """Take the models of all slots that a neighbor was asked for, if every one of them passes.

        Raises:
            RemoteProtocolError: one of them does not; none is used.
        """
        models = []
        for slot, (header, payload) in enumerate(replies):
            if header.encoding != self._whole:
                raise RemoteProtocolError(Refusal.WRONG_ENCODING, f"a pulled model has encoding {header.encoding!r}")
            model = decode(payload, self.schema, header.encoding)
            own = norm_squared(self.workspace.models.model(slot))
            rejection = check_norm(norm_squared(model), own, self.manifest.screening.norm_bound)
            if rejection is not None:
                raise RemoteProtocolError(rejection.code, f"a pulled model: {rejection.reason}")
            models.append(model)
        self.workspace.pulled[neighbor] = models
        self.post(ev.PullDone(neighbor, True, max((header.round_index for header, _ in replies), default=0)))

    def _model_of(self, header: ModelHeader, received: ReceivedModel) -> Vector:
        if received.model is None and header.encoding in DELTAS:
            received.model = self._kept.restore(header, received.payload)
        return decode(received.payload, self.schema, header.encoding) if received.model is None else received.model

    # ---- work, checkpoints, records -------------------------------------------------------------------------------------

    def work(self, effect: do.Work) -> ev.WorkDone:
        """Run one piece of the algorithm's work and return the event that answers it."""
        self._guard.begin(effect)
        done = perform(effect, self.algorithm, self.workspace, self._clock)
        done, restored = self._guard.check(effect, done)
        if restored:
            self.world.log(do.Log("warning", restored, None, "restored"))
        if effect.kind == "assign":
            models, screening = self.workspace.models, self.manifest.screening
            if screening.norm_bound is not None:
                self._own_norms = {slot: norm_squared(models.model(slot)) for slot in range(self.algorithm.slots)}
            if screening.clip is not None:
                self._centers = {slot: models.share(slot) for slot in range(self.algorithm.slots)}
        return done

    def say_goodbye(self) -> None:
        """Tell the neighbors that this peer leaves, without closing its round."""
        self.closed = True
        execute(self.engine.goodbye(self.world.now()), self, self.world)

    def checkpoint(self, effect: do.WriteCheckpoint) -> Checkpoint:
        """Return what a checkpoint keeps, as of now."""
        models = self.workspace.models
        arrays: dict[str, NDArray[Any]] = {f"slot/{slot}": models.share(slot) for slot in range(len(models))}
        if self._deltas:
            arrays |= {f"published/{slot}": model for slot, model in self._sent.models().items()}
        arrays |= {f"array/{name}": array.copy() for name, array in self.workspace.arrays.items()}
        return Checkpoint(effect.round_index, arrays, effect.state)

    def record(self, kind: str, fields: dict[str, Any]) -> None:
        """Complete a line of the history and pass it to the world."""
        now = self.world.now()
        if kind == "neighbor" and not self._lines.take(now, fields["neighbor"], "state", CHANGES_PER_MINUTE_MAX):
            return
        if kind == "round":
            seconds = fields["seconds"]
            fields = fields | {"seconds": {**seconds, "fold": seconds.get("fold", 0.0) + self._fold_seconds}}
            self._fold_seconds = 0.0
            self.last_round = fields
        elif kind == "end":
            self.last_round = self.last_round | fields  # `final` has evaluated the personalized model
        self.world.record(kind, fields)

    def measured(self) -> dict[str, Any]:
        """Return the metric and its last value, None before the first evaluation."""
        return self.metric.as_json() | {"value": self.last_round.get("accuracy")}

    def measured_more(self) -> list[dict[str, Any]]:
        """Return the task's other metrics and their last values."""
        values = self.last_round.get("metrics") or {}
        return [metric.as_json() | {"value": values.get(metric.name)} for metric in self.more_metrics]

    def status(self) -> dict[str, Any]:
        """Return what this peer is doing, as JSON-ready values."""
        run, now = self.state, self.world.now()
        waiting_for, owed_to = self.engine.pace.waiting_for(), self.engine.pace.owed_to()
        neighbors = run.neighbors.items()
        met = {n: neighbor.liveness.silence_s(now) if neighbor.connected else None for n, neighbor in neighbors}
        return {
            "peer_id": self.peer_id,
            "incarnation": run.incarnation,
            "phase": str(self.engine.phase()),
            "stage": str(run.stage),
            "round_index": run.round.index,
            "rounds_total": self.manifest.rounds,
            "persisted_round": run.persisted_round,
            "waiting_for": waiting_for,
            "owed_to": owed_to,
            "unchanged_s": max(0.0, now - self._changed_at) if self._place else 0.0,
            "waiting_s": max(0.0, now - run.round.exchange_began_at) if waiting_for or owed_to else 0.0,
            "deadline_s": max(0.0, run.deadline - now) if waiting_for or owed_to else None,
            "suspicion_s": self.manifest.timeouts.suspicion_s,
            "neighbors": {str(n): str(neighbor.liveness.state) for n, neighbor in neighbors},
            "neighbor_rounds": {str(n): neighbor.round_index for n, neighbor in neighbors},
            "silent_s": {str(n): silence_s for n, silence_s in met.items()},
            "metric": self.measured(),
            **({"more_metrics": self.measured_more()} if self.more_metrics else {}),
            "cluster_index": self.last_round.get("cluster_index"),
            "totals": dict(run.totals),
            "refusals": {str(code): count for code, count in run.refusals.items()},
            "storage_error": run.storage_error or self.history_error,
        }
