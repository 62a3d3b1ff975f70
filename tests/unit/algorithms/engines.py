"""Engines of a few peers, joined by a network that a test controls: no tensors, no sockets, and a clock that events move.

Work is answered with scripted algorithm state after a scripted time. A `Rule` says for each selection, pass and model whether
it is delivered and how long that takes. (The simulation of tests/simulation draws faults at random; here a test sets them.)
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from coordinator_free_bootstrap import Compared, Graph
from coordinator_free_bootstrap.errors import Refusal
from peer.algorithms.base import Algorithm
from peer.algorithms.fedspd import FedSpd
from peer.algorithms.fedspd_decisions import NOTHING, FedSpdState
from peer.core import effects as do
from peer.core import events as ev
from peer.core.arrivals import Arrival
from peer.core.decisions import AlgorithmState
from peer.core.engine import Engine, make_hello
from peer.core.messages import WIRE_VERSION, Control, ModelHeader, Select
from peer.core.state import State

LOST = None
Message = Control | ModelHeader
Rule = Callable[[int, int, Message], float | None]  # (sender, receiver, message) -> seconds, or LOST
SAME = Compared(wire_version=WIRE_VERSION, manifest_digest="", graph_digest="", schema_digest="")


class World:
    """All engines of a graph; `run` continues until nothing is left to do or the clock passes ``until``.

    Args:
        graph: the peers and the manifest.
        select: (peer, round) -> the slot that the peer selects.
        train_s: peer -> seconds that its training takes.
        rule: what becomes of each message.
        algorithm: the class of the algorithm.
    """

    def __init__(
        self,
        graph: Graph,
        select: Callable[[int, int], int],
        train_s: Callable[[int], float] = lambda peer: 0.1,
        rule: Rule = lambda sender, receiver, message: 0.001,
        algorithm: type[Algorithm] = FedSpd,
    ) -> None:
        self.graph, self.select, self.train_s, self.rule = graph, select, train_s, rule
        first = algorithm.State()
        self.engines = {
            i: Engine(State(i, graph, algorithm(graph.manifest, i, graph), 1, algorithm_state=first)) for i in graph.ids
        }
        self.selected_at = {i: [-1] * graph.manifest.clusters for i in graph.ids}
        self.now, self.count = 100.0, 0
        self.events: list[tuple[float, int, int, ev.Event]] = []
        self.senders: dict[int, int] = {}
        self.folds: list[tuple[int, do.FoldArrival]] = []
        self.sent: list[tuple[int, int, Message]] = []
        self.answers: list[tuple[int, do.AnswerArrival]] = []
        self.stopped: dict[int, str] = {}
        self.timers: dict[int, int] = {}
        for i in graph.ids:
            self.post(i, ev.Tick(), 0.0)

    def post(self, peer: int, event: ev.Event, after_s: float = 0.001) -> None:
        """Give an engine an event after a time."""
        self.count += 1
        heapq.heappush(self.events, (self.now + after_s, self.count, peer, event))

    def run(self, until: float = 1000.0) -> World:
        """Take all events up to a time."""
        while self.events and self.events[0][0] <= until:
            self.now, number, peer, event = heapq.heappop(self.events)
            if isinstance(event, ev.Tick) and self.timers.get(peer, number) != number:
                continue  # replaced by a later `SetTimer`
            for effect in self.engines[peer].step(event, self.now):
                self.execute(peer, effect)
        return self

    # ---- effects ------------------------------------------------------------------------------------------------------------

    def execute(self, peer: int, effect: do.Effect) -> None:  # noqa: PLR0912 - one case per effect
        """Do what an engine asks for."""
        match effect:
            case do.SendHello(neighbor):
                for me, other in ((peer, neighbor), (neighbor, peer)):
                    hello = make_hello(self.engines[other], SAME, me)
                    self.post(me, ev.HandshakeDone(hello, answered=me == peer))
            case do.SendHeartbeat(neighbor, heartbeat):
                self.post(neighbor, ev.HeartbeatReceived(heartbeat))
                self.post(peer, ev.HeartbeatAnswered(neighbor))
            case do.SendControl(neighbor, message):
                self.send_control(peer, neighbor, message)
            case do.SendModel(neighbor, header):
                delay = self.deliver(peer, neighbor, header)
                if delay is not None:
                    self.count += 1
                    self.senders[self.count] = peer
                    self.post(neighbor, ev.ArrivalOffered(Arrival(header, stream=self.count)), delay)
            case do.ReadArrival(arrival):
                self.read(peer, arrival)
            case do.AnswerArrival(arrival, reply):
                self.answers.append((peer, effect))
                if arrival.stream in self.senders:
                    refusal = reply if isinstance(reply, Refusal) else None
                    self.post(self.senders.pop(arrival.stream), ev.SendAnswered(peer, refusal))
            case do.FoldArrival(arrival):
                self.folds.append((peer, effect))
                self.post(peer, ev.ArrivalFolded(arrival))
            case do.Work(kind):
                after_s = self.train_s(peer) if kind == "train" else 0.001
                self.post(peer, ev.WorkDone(kind, self.worked(peer, effect)), after_s)
            case do.WriteCheckpoint(round_index):
                self.post(peer, ev.CheckpointWritten(round_index))
            case do.SetTimer(at):
                self.post(peer, ev.Tick(), max(0.001, at - self.now))
                self.timers[peer] = self.count
            case do.Stop(status):
                self.stopped[peer] = status
            case do.Pull() | do.CancelSend():
                raise AssertionError(f"peer {peer} asks for {effect}, which no test here should cause")
            case do.RetryIfStalled() | do.TakeSnapshot() | do.DropSnapshots() | do.Record() | do.Log():
                pass  # nothing stalls here, and there are no tensors
            case _:
                assert_never(effect)

    def send_control(self, sender: int, receiver: int, message: Control) -> None:
        """Deliver a selection or a pass, checked as the host of the receiver checks it."""
        delay = self.deliver(sender, receiver, message)
        if delay is None:
            return
        rejection = self.engines[receiver].rejects_control(message)
        if rejection is None:
            event = ev.SelectReceived(message) if isinstance(message, Select) else ev.PassReceived(message)
            self.post(receiver, event, delay)
            self.post(sender, ev.SendAnswered(receiver), delay)
        else:
            self.engines[receiver].state.refusals[rejection.code] += 1
            self.post(sender, ev.SendAnswered(receiver, rejection), delay)

    def deliver(self, sender: int, receiver: int, message: Message) -> float | None:
        """Return how long a message takes; a lost one fails at its sender."""
        self.sent.append((sender, receiver, message))
        delay = self.rule(sender, receiver, message)
        if delay is None:
            self.post(sender, ev.SendFailed(receiver, "lost"))
        return delay

    def read(self, peer: int, arrival: Arrival) -> None:
        """Read an arrival: it is complete and passes screening."""
        self.post(peer, ev.ArrivalComplete(arrival))

    def worked(self, peer: int, work: do.Work) -> AlgorithmState:
        """Return the algorithm's state after a piece of work; `assign` selects what the script says."""
        if work.kind != "assign":
            return self.engines[peer].state.algorithm_state
        slot = self.select(peer, work.round_index) if work.active else NOTHING
        if work.active:
            self.selected_at[peer][slot] = work.round_index
        state = replace(self.engines[peer].state.algorithm_state, trained=(slot,) if work.active else ())
        if not isinstance(state, FedSpdState):
            return state
        at = tuple(self.selected_at[peer])
        return replace(state, selected=slot, round_index=work.round_index, selected_at=at)
