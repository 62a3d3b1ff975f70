"""A fault-free virtual network: the hosts of all peers of a run in one process, in a fixed order.

Messages arrive at once and in the order in which they were sent; the clock moves only when nothing else is left to do. Work on
tensors waits until every peer has asked for it, so that all local trainings of a round can run as one stack (`Together`).

A model travels by reference: what is offered in a step never changes, so one array serves all receivers.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import LocalProtocolError, RemoteProtocolError
from peer.core import effects as do
from peer.core import events as ev
from peer.core.arrivals import Arrival
from peer.core.averaging import Vector, norm_squared
from peer.core.checkpoint import Checkpoint
from peer.core.encoding import Payload, Sliced, decode, view_of
from peer.core.messages import Control, Heartbeat, ModelHeader, Outcome, PullRequest, PushReply
from peer.core.model_store import SnapshotKey
from peer.core.stages import Stage
from peer.host import PeerHost
from peer.lab.recording import Recording
from peer.store.garbage import frozen_objects

log = logging.getLogger("peer.simulated")
Performed = list[ev.WorkDone]
PerformAll = Callable[[Sequence[tuple["SimulatedPeer", do.Work]]], Performed]
IDLE_STEPS_MAX = 10_000  # moves of the clock in a row without any other event: a run that hangs
ENDED = "it has ended"


@dataclass(frozen=True, slots=True)
class Sent:
    """A model on its way: the same decoded, read-only array for all receivers, and its squared norm; a delta is not decoded."""

    payload: NDArray[np.uint8]
    model: Vector | None
    norm_squared: float | None


@dataclass
class SimulatedPeer:
    """One peer of a simulated run, and its world."""

    host: PeerHost
    network: VirtualNetwork
    recording: Recording = field(default_factory=Recording)
    status: str = ""
    timer: float = float("inf")
    queued: float = float("inf")  # the first time at which the network looks at the timer
    folds: list[do.FoldArrival] = field(default_factory=list)
    arrivals: set[Arrival] = field(default_factory=set)
    sent: dict[SnapshotKey, Sent] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None  # the last one, if the network keeps them

    @property
    def peer_id(self) -> int:
        """This peer."""
        return self.host.peer_id

    def fold_all(self) -> None:
        """Fold the arrivals that wait, in the order in which the engine took them."""
        for effect in self.folds:
            self.host.receiving.fold(effect)
        self.folds.clear()

    # ---- `World`: messages ------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the virtual clock."""
        return self.network.now

    def send_hello(self, neighbor: int) -> None:
        """Exchange hellos."""
        self.network.later(self._hello, self.network.peers[neighbor])

    def _hello(self, other: SimulatedPeer) -> None:
        if other.status:
            self.host.post(ev.HandshakeFailed(other.peer_id, ENDED))
        else:
            self.host.hello_answered(other.peer_id, other.host.answer_hello(self.host.hello_to(other.peer_id)))

    def send_heartbeat(self, neighbor: int, heartbeat: Heartbeat) -> None:
        """Send a heartbeat."""
        self.network.later(self._heartbeat, self.network.peers[neighbor], heartbeat)

    def _heartbeat(self, other: SimulatedPeer, heartbeat: Heartbeat) -> None:
        """Also to one that has just ended: its goodbye is on the way, and a process answers until it has arrived."""
        self.host.post(ev.HeartbeatAnswered(other.peer_id, other.host.answer_heartbeat(heartbeat)))

    def send_control(self, neighbor: int, message: Control) -> None:
        """Send a selection or a pass."""
        self.network.later(self._control, self.network.peers[neighbor], message)

    def _control(self, other: SimulatedPeer, message: Control) -> None:
        if other.status:
            self.host.post(ev.SendFailed(other.peer_id, ENDED))
            return
        self.host.post(ev.SendAnswered(other.peer_id, other.host.answer_control(message)))

    def pull(self, neighbor: int) -> None:
        """Take a neighbor's published models."""
        self.network.later(self._pull, self.network.peers[neighbor])

    def _pull(self, other: SimulatedPeer) -> None:
        replies = []
        for slot in range(self.host.algorithm.slots):
            answer = other.host.answer_pull(PullRequest(self.peer_id, self.host.state.incarnation, slot))
            if not isinstance(answer, tuple):
                self.host.post(ev.PullDone(other.peer_id, False, reason=str(answer)))
                return
            replies.append((answer[0], answer[1]()))
        try:
            self.host.post(self.host.receiving.pulled(other.peer_id, replies))
        except RemoteProtocolError as error:
            self.host.post(ev.PullDone(other.peer_id, False, reason=str(error)))

    # ---- `World`: models --------------------------------------------------------------------------------------------

    def push(self, neighbor: int, header: ModelHeader) -> None:
        """Offer a model."""
        header, payload = self.host.sending.message_to(neighbor, header)()
        self.network.later(self._offer, self.network.peers[neighbor], header, self._sent(header, payload))

    def _sent(self, header: ModelHeader, payload: Payload | Sliced) -> Sent:
        data = np.frombuffer(view_of(payload)[:], np.uint8)
        if header.base or self.host.format.is_masked:
            return Sent(data, None, None)  # each receiver adds it to its own base, or its sum
        key = SnapshotKey(header.round_index, header.step, header.slot)
        if key not in self.sent:
            for old in [old for old in self.sent if old.round_index < header.round_index - 1]:
                del self.sent[old]
            model = decode(data, self.host.format.schema, header.encoding).view()
            model.flags.writeable = False
            self.sent[key] = Sent(data, model, norm_squared(model))
        return self.sent[key]

    def _offer(self, other: SimulatedPeer, header: ModelHeader, sent: Sent) -> None:
        if other.status:
            self.host.post(ev.SendFailed(other.peer_id, ENDED))
            return
        rejection = other.host.rejects_offer(header)
        if rejection is not None:
            self.host.post(ev.SendAnswered(other.peer_id, rejection))
            return
        arrival = Arrival(header, sent.payload, sent.model, self.network.next_stream(), sent.norm_squared)
        other.arrivals.add(arrival)
        other.host.post(ev.ArrivalOffered(arrival))

    def read_arrival(self, arrival: Arrival) -> None:
        """Screen a model; its bytes are here."""
        if arrival.header.base:
            self.fold_all()  # the base may be among these models
        rejection = self.host.receiving.screen(arrival)
        if rejection is not None:
            self.answer_arrival(arrival, rejection)
        self.network.later(self.host.arrived, arrival, rejection)

    def answer_arrival(self, arrival: Arrival, reply: PushReply) -> None:
        """Answer a push."""
        if arrival not in self.arrivals:
            return
        header = arrival.header
        if reply is not Outcome.FOLDED:
            self.arrivals.remove(arrival)
        sender = self.network.peers[header.sender].host
        self.network.later(sender.post, sender.sending.push_answered(self.peer_id, header, reply))

    def take_snapshot(self, effect: do.TakeSnapshot) -> None:
        """Snapshot what the folds so far have made."""
        self.fold_all()
        self.host.sending.take_snapshot(effect)

    def fold_arrival(self, effect: do.FoldArrival) -> None:
        """Fold before the next work of this peer."""
        self.arrivals.remove(effect.arrival)
        self.folds.append(effect)
        self.network.later(self.host.post, ev.ArrivalFolded(effect.arrival))

    def cancel_send(self, neighbor: int) -> None:
        """Nothing stays in flight."""

    def retry_if_stalled(self, neighbor: int, quiet_s: float) -> None:
        """Nothing is lost."""

    # ---- `World`: work, disk, operator ------------------------------------------------------------------------------

    def work(self, effect: do.Work) -> None:
        """Work when every peer has asked for it."""
        self.network.works.append((self, effect))

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep it if the run may be interrupted; it is written when the run ends."""
        if self.network.keeps_checkpoints:
            self.checkpoint = checkpoint
        self.network.later(self.host.post, ev.CheckpointWritten(checkpoint.round_index))

    def raise_incarnation(self, above: int) -> int | None:
        """No peer restarts."""
        return None

    def record(self, kind: str, fields: dict[str, Any]) -> None:
        """Keep a line of the history."""
        self.recording.add(kind, fields)
        self.network.on_record(self, kind, fields)

    def log(self, line: do.Log) -> None:
        """Write a log line."""
        level = logging.getLevelNamesMapping()[line.level.upper()]
        log.log(level, "peer %d: %s", self.peer_id, line.message)

    def set_timer(self, at: float) -> None:
        """Set this peer's timer."""
        self.timer = at
        self.network.queue_timer(self)

    def stop(self, status: str) -> None:
        """Note how the run ended."""
        self.status = status

    def should_stop(self) -> bool:
        """Return whether to end a training, since its round is begun again by the next start."""
        run = self.host.state
        return self.network.leaving and run.stage is Stage.TRAINING and run.disk.saved_round == run.round.index


def perform_in_turn(works: Sequence[tuple[SimulatedPeer, do.Work]]) -> Performed:
    """Do one piece of work after another."""
    return [peer.host.work(work) for peer, work in works]


class VirtualNetwork:
    """All peers of a run, and what is under way between them.

    Args:
        perform_all: does the work of many peers, in the given order.
        on_record: called with each history line as it is written: peer, kind, fields.
        fold_threads: threads that fold at the same time, each for another receiver; never changes a bit.
        keeps_checkpoints: keep the last checkpoint of each peer, which takes the memory of its models once more.
    """

    def __init__(
        self,
        *,
        perform_all: PerformAll = perform_in_turn,
        on_record: Callable[[SimulatedPeer, str, dict[str, Any]], None] = lambda peer, kind, fields: None,
        fold_threads: int = 1,
        keeps_checkpoints: bool = False,
    ) -> None:
        self.peers: dict[int, SimulatedPeer] = {}
        self.now = 1.0
        self.on_record = on_record
        self.works: list[tuple[SimulatedPeer, do.Work]] = []
        self._perform_all = perform_all
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int]] = []  # a heap of (time, peer); a peer's later timer replaces none in it
        self._streams = 0
        self._fold_threads = fold_threads
        self.keeps_checkpoints = keeps_checkpoints
        self.leaving = False
        self._told_to_leave = False

    def add(self, host: PeerHost) -> SimulatedPeer:
        """Connect a host to this network."""
        peer = self.peers[host.peer_id] = SimulatedPeer(host, self)
        host.connect(peer)
        return peer

    def leave(self) -> None:
        """Let every peer leave as soon as all have done the same work; safe in a signal handler."""
        self.leaving = True

    def _tell_to_leave(self) -> None:
        """Ask the peers to leave, once; while calls are under way some would leave a round earlier than others."""
        if self.leaving and not self._told_to_leave:
            self._told_to_leave = True
            for peer in self.peers.values():
                self.later(peer.host.post, ev.LeaveRequested())

    def later(self, action: Callable[..., None], *arguments: Any) -> None:
        """Call a function after what is under way now."""
        self._calls.append(partial(action, *arguments))

    def next_stream(self) -> int:
        """Return a new stream number."""
        self._streams += 1
        return self._streams

    def run(self) -> None:
        """Run until every peer has ended.

        Raises:
            LocalProtocolError: nothing happens any more, though peers are left.
        """
        for peer in self.peers.values():
            self.later(peer.host.post, ev.Tick())
        idle, left = 0, deque(self.peers.values())
        with frozen_objects(), ThreadPoolExecutor(self._fold_threads) as pool:
            while left:
                if left[0].status:
                    left.popleft()
                elif self._calls:
                    self._calls.popleft()()
                elif self.leaving and not self._told_to_leave:
                    self._tell_to_leave()
                elif self.works:
                    self._work(pool)
                    idle = 0
                else:
                    idle += 1
                    self._advance_clock(idle)

    def _work(self, pool: ThreadPoolExecutor) -> None:
        works, self.works = self.works, []
        waiting = [peer for peer, _ in works if peer.folds]
        if self._fold_threads > 1:
            list(pool.map(SimulatedPeer.fold_all, waiting))
        else:
            for peer in waiting:
                peer.fold_all()
        answers = self._perform_all(works)
        self._tell_to_leave()  # first: a training that was ended must not be exchanged
        for (peer, _), done in zip(works, answers, strict=True):
            self.later(peer.host.post, done)

    def _advance_clock(self, idle: int) -> None:
        if idle > IDLE_STEPS_MAX:
            left = [peer for peer in self.peers.values() if not peer.status]
            stages = {peer.peer_id: str(peer.host.engine.stage) for peer in left[:8]}
            rounds = [peer.host.engine.round_index for peer in left]
            raise LocalProtocolError(f"the simulated run hangs in rounds {rounds}: {stages}")
        if (first := self._first_timer()) is None:
            return
        self.now, due = max(self.now, first), []
        while (at := self._first_timer()) is not None and at <= self.now:
            _, peer_id = heapq.heappop(self._timers)
            self.peers[peer_id].timer = self.peers[peer_id].queued = float("inf")
            due.append(peer_id)
        for peer_id in sorted(due):
            self.later(self.peers[peer_id].host.post, ev.Tick())

    def queue_timer(self, peer: SimulatedPeer) -> None:
        """Look at a peer's timer when it is due."""
        if peer.timer < peer.queued:
            peer.queued = peer.timer
            heapq.heappush(self._timers, (peer.timer, peer.peer_id))

    def _first_timer(self) -> float | None:
        """Return the time of the first timer of a peer that runs, and drop what is outdated before it; None: there is none."""
        while self._timers:
            at, peer_id = self._timers[0]
            peer = self.peers[peer_id]
            if not peer.status and at == peer.queued == peer.timer:
                return at
            heapq.heappop(self._timers)
            if at == peer.queued:  # else the peer has an earlier one
                peer.queued = float("inf")
                if not peer.status:
                    self.queue_timer(peer)
        return None
