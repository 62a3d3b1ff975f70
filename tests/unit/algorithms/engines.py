"""Engines of a few peers, joined by a network that a test bends: no tensors, no sockets, a clock that only events move.

Work is answered with scripted facts after a scripted time; a `Rule` says for each announcement and model whether it gets through
and how long it takes. (The simulator of tests/simulation draws faults at random; here a test says exactly which.)
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from coordinator_free_bootstrap import Graph
from peer.algorithms.fedspd import FedSpd
from peer.algorithms.fedspd_decisions import NOTHING
from peer.core import effects as do
from peer.core import events as ev
from peer.core.engine import Engine, make_hello
from peer.core.messages import Announce, ModelHeader, Outcome

LOST = None
Rule = Callable[[int, int, Announce | ModelHeader], float | None]  # (sender, receiver, message) -> seconds, or LOST
DIGESTS = {"wire_version": "1", "manifest": "", "graph": "", "schema": "", "initial_models": ""}


class World:
    """All engines of a graph; `run` until nothing is left to do or the clock passes ``until``."""

    def __init__(
        self,
        graph: Graph,
        select: Callable[[int, int], int],
        train_s: Callable[[int], float] = lambda peer: 0.1,
        rule: Rule = lambda sender, receiver, message: 0.001,
    ) -> None:
        self.graph, self.select, self.train_s, self.rule = graph, select, train_s, rule
        self.engines = {i: Engine(i, graph, FedSpd(graph.manifest, i, graph), 1, facts={}) for i in graph.ids}
        self.selected_at = {i: [-1] * graph.manifest.clusters for i in graph.ids}
        self.now, self.count = 100.0, 0
        self.events: list[tuple[float, int, int, ev.Event]] = []
        self.senders: dict[int, int] = {}
        self.folds: list[tuple[int, do.Fold]] = []
        self.sent: list[tuple[int, int, Announce | ModelHeader]] = []
        self.replies: list[tuple[int, do.Reply]] = []
        self.stopped: dict[int, str] = {}
        self.timers: dict[int, int] = {}
        for i in graph.ids:
            self.post(i, ev.Tick(), 0.0)

    def post(self, peer: int, event: ev.Event, after_s: float = 0.001) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + after_s, self.count, peer, event))

    def run(self, until: float = 1000.0) -> World:
        while self.events and self.events[0][0] <= until:
            self.now, number, peer, event = heapq.heappop(self.events)
            if isinstance(event, ev.Tick) and self.timers.get(peer, number) != number:
                continue  # replaced by a later `SetTimer`
            for effect in self.engines[peer].step(event, self.now):
                getattr(self, f"_{type(effect).__name__.lower()}", lambda *_: None)(peer, effect)
        return self

    # ---- what effects do; those without a method here need nothing ----------------------------------------------------

    def _greet(self, peer: int, effect: do.Greet) -> None:
        for me, other in ((peer, effect.neighbor), (effect.neighbor, peer)):
            self.post(me, ev.Greeted(make_hello(self.engines[other], DIGESTS, "", me), answered=me == peer))

    def _sendbeat(self, peer: int, effect: do.SendBeat) -> None:
        self.post(effect.neighbor, ev.Heard(effect.beat))
        self.post(peer, ev.BeatAnswered(effect.neighbor))

    def _sendannounce(self, peer: int, effect: do.SendAnnounce) -> None:
        delay = self._pass(peer, effect.neighbor, effect.announce)
        if delay is None:
            return
        rejection = self.engines[effect.neighbor].check_announce(effect.announce)
        if rejection is None:
            self.post(effect.neighbor, ev.Announced(effect.announce), delay)
        outcome = Outcome.FOLDED if rejection is None else Outcome.REFUSED
        self.post(peer, ev.Sent(effect.neighbor, outcome, rejection and rejection.code), delay)

    def _sendmodel(self, peer: int, effect: do.SendModel) -> None:
        delay = self._pass(peer, effect.neighbor, effect.header)
        if delay is not None:
            self.count += 1
            self.senders[self.count] = peer
            self.post(effect.neighbor, ev.Offered(self.count, effect.header), delay)

    def _pass(self, sender: int, receiver: int, message: Announce | ModelHeader) -> float | None:
        self.sent.append((sender, receiver, message))
        delay = self.rule(sender, receiver, message)
        if delay is None:
            self.post(sender, ev.SendFailed(receiver, "lost"))
        return delay

    def _admit(self, peer: int, effect: do.Admit) -> None:
        self.post(peer, ev.Arrived(effect.stream))

    def _reply(self, peer: int, effect: do.Reply) -> None:
        self.replies.append((peer, effect))
        if effect.stream in self.senders:
            self.post(self.senders.pop(effect.stream), ev.Sent(peer, effect.outcome, effect.refusal, effect.reason))

    def _fold(self, peer: int, effect: do.Fold) -> None:
        self.folds.append((peer, effect))
        self.post(peer, ev.Folded(effect.stream))

    def _work(self, peer: int, effect: do.Work) -> None:
        facts: dict[str, Any] = dict(self.engines[peer].facts)
        if effect.kind == "assign":
            slot = self.select(peer, effect.round_index) if effect.active else NOTHING
            trained = [slot] if effect.active else []
            for chosen in trained:
                self.selected_at[peer][chosen] = effect.round_index
            facts = {"selected": slot, "trained": trained, "sample_count": 1, "round_index": effect.round_index}
            facts["selected_at"] = list(self.selected_at[peer])
        self.post(peer, ev.WorkDone(effect.kind, facts), self.train_s(peer) if effect.kind == "train" else 0.001)

    def _persist(self, peer: int, effect: do.Persist) -> None:
        self.post(peer, ev.Persisted(effect.round_index))

    def _settimer(self, peer: int, effect: do.SetTimer) -> None:
        self.post(peer, ev.Tick(), max(0.001, effect.at - self.now))
        self.timers[peer] = self.count

    def _stop(self, peer: int, effect: do.Stop) -> None:
        self.stopped[peer] = effect.status


def header(sender: int = 1, slot: int = 0, round_index: int = 3, **changes: Any) -> ModelHeader:
    """Return a header that fits, but for ``changes``."""
    fields: dict[str, Any] = dict(
        incarnation=1, step=0, index=0, total=1, sample_count=1, degree=2, mass=1.0, scalars=()
    )
    return ModelHeader(
        sender=sender, slot=slot, round_index=round_index, size_bytes=4, encoding="float32", **(fields | changes)
    )


def said(sender: int = 1, selected: int = 0, round_index: int = 3, **changes: Any) -> Announce:
    """Return the announcement of a selection, but for ``changes``."""
    return Announce(sender, 1, round_index, 0, changes.pop("total", -1), selected, **changes)
