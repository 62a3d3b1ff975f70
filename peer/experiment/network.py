"""A virtual, fault-free network: the effects of many engines, executed in one process in a fixed order, at once.

The engine, the algorithms, the model store and `perform` are those of real peers; only the shell differs. Messages arrive
at once and in the order in which they were sent; the clock moves only when nothing else is left to do. Work on tensors
waits until every peer has said what it wants, so that all local trainings of a round lie side by side (`Together`).

A model travels by reference: what is offered in a step is never mutated, so one array serves all receivers.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import LocalProtocolError, Refusal
from peer.algorithms.base import Algorithm, Bench, FoldedArrival
from peer.algorithms.work import perform
from peer.core import effects as do
from peer.core import events as ev
from peer.core.averaging import Vector, norm_squared
from peer.core.decisions import Rejection
from peer.core.engine import Engine, make_hello
from peer.core.messages import ModelHeader, Outcome
from peer.core.model_store import SnapshotKey
from peer.core.schema import Schema
from peer.core.screening import check_norm, clip
from peer.experiment.recording import Recording
from peer.store.state_dir import StateDir
from peer.wire.codec import ErrorFeedback, decode, encode

log = logging.getLogger("peer.simulated")
Performed = list[ev.WorkDone]
PerformAll = Callable[[Sequence[tuple["SimulatedPeer", do.Work]]], Performed]
IDLE_STEPS_MAX = 10_000  # moves of the clock in a row without any other event: a run that hangs


@dataclass
class SimulatedPeer:
    """One peer of a simulated run: what `peer.assembly.Assembled` is to a process."""

    graph: Graph
    algorithm: Algorithm
    bench: Bench
    schema: Schema
    engine: Engine
    digests: dict[str, str]
    manifest_json: str
    recording: Recording
    true_cluster: int | None = None
    state_dir: StateDir = field(default_factory=lambda: StateDir(Path()))  # set when the results are written
    status: str = ""
    last_round: dict[str, Any] = field(default_factory=dict)
    timer: float = float("inf")
    folds: list[tuple[do.Fold, Vector]] = field(default_factory=list)
    fold_seconds: float = 0.0
    streams: dict[int, Arriving] = field(default_factory=dict)
    sent: dict[SnapshotKey, tuple[Vector, float]] = field(default_factory=dict)  # model as received, squared norm
    feedback: dict[int, ErrorFeedback] = field(default_factory=dict)
    centers: dict[int, Vector] = field(default_factory=dict)
    own_norms: dict[int, float] = field(default_factory=dict)

    def fold_all(self) -> None:
        """Fold the arrivals that wait, in the order in which the engine took them."""
        began = time.perf_counter()
        for effect, model in self.folds:
            slot, radius, arrival = effect.header.slot, self.engine.manifest.screening.clip, model
            clipped = radius is not None and slot in self.centers
            if clipped or not effect.targets:  # it will be changed or kept, and others receive the same array
                arrival = model.copy()
            if clipped:
                clip(arrival, self.centers[slot], radius or 0.0)
            for target in effect.targets:
                self.bench.models.fold(target.slot, arrival, target.weight)
            self.bench.arrivals.append(FoldedArrival(effect.header, None if effect.targets else arrival))
        self.folds.clear()
        self.fold_seconds += time.perf_counter() - began

    def note_round_start(self) -> None:
        """Remember what screening compares with: the models at the start of a round."""
        screening, models = self.engine.manifest.screening, self.bench.models
        if screening.norm_bound is not None:
            self.own_norms = {slot: norm_squared(models.model(slot)) for slot in range(len(models))}
        if screening.clip is not None:
            self.centers = {slot: models.share(slot) for slot in range(len(models))}


@dataclass(frozen=True, slots=True)
class Arriving:
    """A model on its way: as the receiver will see it, and its squared norm."""

    header: ModelHeader
    model: Vector
    norm_squared: float


def perform_in_turn(works: Sequence[tuple[SimulatedPeer, do.Work]]) -> Performed:
    """Do one piece of work after another."""
    return [perform(work, peer.algorithm, peer.bench, time.perf_counter) for peer, work in works]


class VirtualNetwork:
    """All peers of a run, and what is under way between them.

    Args:
        peers: by id.
        perform_all: does the work of many peers, in the given order.
        on_record: told each history line as it is written: peer, kind, fields.
        fold_threads: threads that fold at the same time, each for another receiver.
    """

    def __init__(
        self,
        peers: dict[int, SimulatedPeer],
        *,
        perform_all: PerformAll = perform_in_turn,
        on_record: Callable[[SimulatedPeer, str, dict[str, Any]], None] = lambda peer, kind, fields: None,
        fold_threads: int = 1,
    ) -> None:
        self.peers = peers
        self.now = 1.0
        self._perform_all = perform_all
        self._on_record = on_record
        self._calls: deque[Callable[[], None]] = deque()
        self._works: list[tuple[SimulatedPeer, do.Work]] = []
        self._next_stream = 0
        self._fold_threads = fold_threads

    def run(self) -> None:
        """Run until every peer has ended.

        Raises:
            LocalProtocolError: nothing happens any more, though peers are left.
        """
        for peer_id in self.peers:
            self._post(peer_id, ev.Tick())
        idle = 0
        with ThreadPoolExecutor(self._fold_threads) as pool:
            while any(not peer.status for peer in self.peers.values()):
                if self._calls:
                    self._calls.popleft()()
                    continue
                if self._works:
                    self._work(pool)
                    idle = 0
                    continue
                idle += 1
                self._advance_clock(idle)

    def _work(self, pool: ThreadPoolExecutor) -> None:
        works, self._works = self._works, []
        waiting = [peer for peer, _ in works if peer.folds]
        if self._fold_threads > 1:
            list(pool.map(SimulatedPeer.fold_all, waiting))
        else:
            for peer in waiting:
                peer.fold_all()
        for (peer, work), done in zip(works, self._perform_all(works), strict=True):
            if work.kind == "assign":
                peer.note_round_start()
            self._post(peer.engine.peer_id, done)

    def _advance_clock(self, idle: int) -> None:
        left = [peer for peer in self.peers.values() if not peer.status]
        if idle > IDLE_STEPS_MAX:
            stages = {peer.engine.peer_id: str(peer.engine.stage) for peer in left[:8]}
            raise LocalProtocolError(
                f"the simulated run hangs in rounds {[p.engine.round_index for p in left]}: {stages}"
            )
        self.now = max(self.now, min(peer.timer for peer in left))
        for peer in left:
            if peer.timer <= self.now:
                peer.timer = float("inf")
                self._post(peer.engine.peer_id, ev.Tick())

    def _post(self, peer_id: int, event: ev.Event) -> None:
        self._calls.append(partial(self._step, peer_id, event))

    def _step(self, peer_id: int, event: ev.Event) -> None:
        peer = self.peers[peer_id]
        for effect in peer.engine.step(event, self.now):
            handler: Callable[[SimulatedPeer, Any], None] = getattr(self, f"_do_{type(effect).__name__.lower()}")
            handler(peer, effect)

    # ---- handshakes and words -----------------------------------------------------------------------------------

    def _do_greet(self, peer: SimulatedPeer, effect: do.Greet) -> None:
        self._calls.append(partial(self._greet, peer, self.peers[effect.neighbor]))

    def _greet(self, peer: SimulatedPeer, other: SimulatedPeer) -> None:
        mine, theirs = peer.engine.peer_id, other.engine.peer_id
        if other.status:
            self._post(mine, ev.GreetFailed(theirs, None, "it has ended"))
            return
        self._post(
            theirs, ev.Greeted(make_hello(peer.engine, peer.digests, peer.manifest_json, theirs), answered=False)
        )
        self._post(mine, ev.Greeted(make_hello(other.engine, other.digests, other.manifest_json, mine), answered=True))

    def _do_sendbeat(self, peer: SimulatedPeer, effect: do.SendBeat) -> None:
        self._calls.append(partial(self._beat, peer.engine.peer_id, effect))

    def _beat(self, sender: int, effect: do.SendBeat) -> None:
        other = self.peers[effect.neighbor]
        rejection = other.engine.admits(sender, effect.beat.incarnation)
        if rejection is None:
            self._post(effect.neighbor, ev.Heard(effect.beat))
        refusal = rejection.code if rejection else other.engine.answer_to_beat(sender)
        self._post(sender, ev.BeatAnswered(effect.neighbor, refusal, lost=bool(other.status)))

    def _do_sendannounce(self, peer: SimulatedPeer, effect: do.SendAnnounce) -> None:
        self._calls.append(partial(self._announce, peer.engine.peer_id, effect))

    def _announce(self, sender: int, effect: do.SendAnnounce) -> None:
        other = self.peers[effect.neighbor]
        if other.status:
            self._post(sender, ev.SendFailed(effect.neighbor, "it has ended"))
            return
        rejection = other.engine.check_announce(effect.announce)
        if rejection is None:
            self._post(effect.neighbor, ev.Announced(effect.announce))
            self._post(sender, ev.Sent(effect.neighbor, Outcome.FOLDED))
        else:
            self._refuse(other, rejection)
            self._post(sender, ev.Sent(effect.neighbor, Outcome.REFUSED, rejection.code, rejection.reason))

    # ---- models -------------------------------------------------------------------------------------------------

    def _do_snapshot(self, peer: SimulatedPeer, effect: do.Snapshot) -> None:
        peer.fold_all()
        for slot in effect.slots:
            key = SnapshotKey(effect.round_index, effect.step, slot)
            peer.bench.models.snapshot(key, peer.algorithm.outgoing(peer.bench, slot))

    def _do_forgetsnapshots(self, peer: SimulatedPeer, effect: do.ForgetSnapshots) -> None:
        peer.bench.models.forget_snapshots(effect.before_round)
        for key in [key for key in peer.sent if key.round_index < effect.before_round]:
            del peer.sent[key]

    def _do_sendmodel(self, peer: SimulatedPeer, effect: do.SendModel) -> None:
        key = SnapshotKey(effect.header.round_index, effect.header.step, effect.header.slot)
        if key not in peer.sent:
            model = _received(peer, key)
            peer.sent[key] = (model, norm_squared(model))
        self._calls.append(partial(self._offer, effect.neighbor, Arriving(effect.header, *peer.sent[key])))

    def _offer(self, neighbor: int, arriving: Arriving) -> None:
        other, header = self.peers[neighbor], arriving.header
        if other.status:
            self._post(header.sender, ev.SendFailed(neighbor, "it has ended"))
            return
        rejection = other.engine.admits(header.sender, header.incarnation)
        if rejection is not None:
            self._refuse(other, rejection)
            self._post(header.sender, ev.Sent(neighbor, Outcome.REFUSED, rejection.code, rejection.reason))
            return
        self._next_stream += 1
        other.streams[self._next_stream] = arriving
        self._post(neighbor, ev.Offered(self._next_stream, header))

    def _do_admit(self, peer: SimulatedPeer, effect: do.Admit) -> None:
        arriving, peer_id = peer.streams[effect.stream], peer.engine.peer_id
        rejection = _screened(peer, arriving)
        if rejection is None:
            self._post(peer_id, ev.Arrived(effect.stream))
            return
        del peer.streams[effect.stream]
        self._refuse(peer, rejection)
        self._post(peer_id, ev.Cut(effect.stream, rejection.code))
        answer = ev.Sent(peer_id, Outcome.REFUSED, rejection.code, rejection.reason)
        self._post(arriving.header.sender, answer)

    def _do_reply(self, peer: SimulatedPeer, effect: do.Reply) -> None:
        arriving = peer.streams.get(effect.stream)
        if arriving is None:
            return
        if effect.outcome is not Outcome.FOLDED:
            del peer.streams[effect.stream]
        answer = ev.Sent(peer.engine.peer_id, effect.outcome, effect.refusal, effect.reason)
        self._post(arriving.header.sender, answer)

    def _do_fold(self, peer: SimulatedPeer, effect: do.Fold) -> None:
        peer.folds.append((effect, peer.streams.pop(effect.stream).model))
        self._post(peer.engine.peer_id, ev.Folded(effect.stream))

    def _do_cancelsend(self, peer: SimulatedPeer, effect: do.CancelSend | do.SendAgain) -> None:
        """Nothing stays in flight here, and nothing is lost."""

    _do_sendagain = _do_cancelsend

    def _refuse(self, peer: SimulatedPeer, rejection: Rejection) -> None:
        if rejection.code is not Refusal.NO_HANDSHAKE:
            peer.engine.refusals[rejection.code] += 1
            peer.recording.add("refused", {"code": str(rejection.code), "reason": rejection.reason})

    # ---- work, disk and words to the operator -------------------------------------------------------------------

    def _do_work(self, peer: SimulatedPeer, effect: do.Work) -> None:
        self._works.append((peer, effect))

    def _do_pull(self, peer: SimulatedPeer, effect: do.Pull) -> None:
        other = self.peers[effect.neighbor]
        published = [other.algorithm.published(other.bench, slot) for slot in range(len(other.bench.models))]
        peer.bench.pulled[effect.neighbor] = published
        self._post(peer.engine.peer_id, ev.Pulled(effect.neighbor, True, other.engine.round_index))

    def _do_persist(self, peer: SimulatedPeer, effect: do.Persist) -> None:
        self._post(peer.engine.peer_id, ev.Persisted(effect.round_index))

    def _do_record(self, peer: SimulatedPeer, effect: do.Record) -> None:
        fields = dict(effect.fields)
        if effect.kind == "round":
            seconds = fields["seconds"]
            fields["seconds"] = {**seconds, "fold": seconds.get("fold", 0.0) + peer.fold_seconds}
            peer.fold_seconds = 0.0
            peer.last_round = fields
        elif effect.kind == "end":
            peer.last_round = peer.last_round | fields
        peer.recording.add(effect.kind, fields)
        self._on_record(peer, effect.kind, fields)

    def _do_log(self, peer: SimulatedPeer, effect: do.Log) -> None:
        level = logging.getLevelNamesMapping()[effect.level.upper()]
        log.log(level, "peer %d: %s", peer.engine.peer_id, effect.message)

    def _do_settimer(self, peer: SimulatedPeer, effect: do.SetTimer) -> None:
        peer.timer = effect.at

    def _do_stop(self, peer: SimulatedPeer, effect: do.Stop) -> None:
        peer.status = effect.status


def _received(peer: SimulatedPeer, key: SnapshotKey) -> Vector:
    """Return an offered model as its receivers see it: through the run's encoding and back."""
    model, encoding = peer.bench.models.offered(key), peer.engine.manifest.encoding
    if encoding == "float32":
        return model
    if encoding == "int8":
        feedback = peer.feedback.setdefault(key.slot, ErrorFeedback(peer.schema))
        return decode(feedback.encode(model, encoding), peer.schema, encoding)
    return decode(encode(model, peer.schema, encoding), peer.schema, encoding)


def _screened(peer: SimulatedPeer, arriving: Arriving) -> Rejection | None:
    header, bound = arriving.header, peer.engine.manifest.screening.norm_bound
    rejection = check_norm(arriving.norm_squared, peer.own_norms.get(header.slot, 0.0), bound)
    if rejection is None and peer.algorithm.inspects_arrivals:
        rejection = peer.algorithm.screen_arrival(peer.bench, header, arriving.model)
    return rejection
