"""What the parts of the engine share: who the neighbors are, the present round, what was counted. Pure."""

from __future__ import annotations

import copy
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from coordinator_free_bootstrap.errors import Refusal
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.schedule import edge_is_up, is_active
from peer.core import effects as do
from peer.core.arrivals import Arrivals
from peer.core.counters import Totals
from peer.core.decisions import AlgorithmState, Decisions
from peer.core.liveness import Liveness, NeighborState
from peer.core.messages import Outcome, Select
from peer.core.neighbor import Neighbor
from peer.core.outbox import Outbox, Place
from peer.core.stages import Stage, Trigger, next_stage

ORDERED_SHARE = 0.75  # of the time until the round deadline: the rest is for what came and could not be folded in order


@dataclass
class Round:
    """The round that a peer is in."""

    index: int = 0
    step: int = 0
    active: bool = True  # whether this peer trains in it
    began_at: float = 0.0
    exchange_began_at: float = 0.0
    unannounced: bool = False  # the selection is known and not yet in the outboxes
    offered: bool = False  # the step's offers are in the outboxes
    agreed: AlgorithmState | None = None  # what all selections of the round add to the algorithm's state, once known
    asked: frozenset[int] | None = None  # whose models this peer takes; None: everyone's, or not known before `assign`
    lost_neighbor: bool = False  # one died or left in it, or is missing that was there in the round before
    company: bool = False  # a neighbor took part in it
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        """(round, step)."""
        return self.index, self.step


class State:
    """The protocol state of one peer; only the engine and its parts change it.

    Args:
        peer_id: this peer.
        graph: the neighbors and the manifest.
        algorithm: what to offer, and where arrivals go.
        incarnation: of this start, persisted already.
        model_bytes: encoded size of one model.
        algorithm_state: the algorithm's first state, or that of a checkpoint.
        resume: the ``state`` of the last checkpoint.
    """

    def __init__(
        self,
        peer_id: int,
        graph: Graph,
        algorithm: Decisions,
        incarnation: int,
        *,
        model_bytes: int = 0,
        algorithm_state: AlgorithmState | None = None,
        resume: dict[str, Any] | None = None,
    ) -> None:
        self.peer_id = peer_id
        self.graph = graph
        self.manifest = graph.manifest
        self.algorithm = algorithm
        self.incarnation = incarnation
        self.model_bytes = model_bytes
        self.algorithm_state = algorithm_state or {}
        timeouts = self.manifest.timeouts
        self.neighbors = {n: Neighbor(n, Liveness(timeouts), Outbox(peer_id, n)) for n in graph.neighbors(peer_id)}
        self.arrivals = Arrivals()
        self.stage = Stage.JOINING
        self.round = Round()
        self.started_at: float | None = None
        self.has_begun = False  # a round has begun in this incarnation
        self.has_selected = False  # its algorithm selects or asks: it may have chosen no neighbor's model
        self.resumed = resume is not None  # an earlier incarnation took part in the run: our disk or a neighbor says so
        self.leaving = False
        self.persisted_round = 0
        self.persisting: int | None = None  # the round of the checkpoint being written
        self.storage_error = ""
        self.round_seconds: deque[float] = deque(maxlen=self.manifest.lockstep.rate_window_rounds)  # see `RoundRate`
        self.totals = Totals()
        self.refusals: Counter[str] = Counter()
        self.effects: list[do.Effect] = []
        if resume is not None:
            self._restore(resume)

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def checkpoint(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, as JSON values; taken between two rounds, a run resumes from it bit for bit."""
        return {
            "incarnation": self.incarnation,
            "round_index": self.round.index,
            "algorithm_state": copy.deepcopy(self.algorithm_state),
            "folded": self.arrivals.as_rows(),
            "incarnations": [[n, neighbor.incarnation] for n, neighbor in self.neighbors.items()],
            "round_seconds": list(self.round_seconds),
            "totals": self.totals.as_json(),
            "refusals": dict(self.refusals),
        }

    def _restore(self, saved: dict[str, Any]) -> None:
        self.round.index = self.persisted_round = int(saved["round_index"])
        self.algorithm_state = dict(saved["algorithm_state"])
        self.arrivals.restore(saved["folded"])
        for n, incarnation in saved["incarnations"]:
            if n in self.neighbors:
                self.neighbors[n].incarnation = int(incarnation)
        self.round_seconds.extend(saved.get("round_seconds", ()))
        self.totals.add(saved["totals"], (name for name, _ in self.totals))
        self.refusals.update(saved["refusals"])

    # ---- effects ----------------------------------------------------------------------------------------------------

    def emit(self, effect: do.Effect) -> None:
        """Ask for one effect."""
        self.effects.append(effect)

    def log(self, level: Literal["debug", "info", "warning", "error"], message: str) -> None:
        """Ask for a log line."""
        self.emit(do.Log(level, message))

    def log_neighbor(
        self, level: Literal["debug", "info", "warning", "error"], message: str, neighbor: int, kind: str
    ) -> None:
        """Ask for a log line that a neighbor causes; its kind is rate-limited."""
        self.emit(do.Log(level, message, neighbor, kind))

    def answer(self, stream: int, outcome: Outcome) -> None:
        """Answer an arrival and forget its stream."""
        self.arrivals.forget(stream)
        self.emit(do.AnswerArrival(stream, outcome))

    def refuse(self, stream: int, sender: int, code: Refusal, reason: str) -> None:
        """Refuse an arrival and forget its stream."""
        self.arrivals.forget(stream)
        self.emit(do.AnswerArrival(stream, Outcome.REFUSED, code, reason, sender))

    def take(self, trigger: Trigger) -> None:
        """Go to the stage that the transition table names."""
        self.stage = next_stage(self.stage, trigger)

    # ---- the round --------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Exchange steps of the present round; 0: nothing is exchanged."""
        return self.algorithm.steps(self.round.index)

    def deadline_over(self, now: float) -> bool:
        """Return whether the round has lasted as long as it may."""
        return now >= self.deadline

    @property
    def deadline(self) -> float:
        """When the present round closes without the models that are missing then."""
        return self.round.began_at + self.manifest.timeouts.round_deadline_s

    @property
    def ordered_until(self) -> float:
        """Until when lockstep keeps the order of folds in the present round."""
        return self.round.began_at + ORDERED_SHARE * self.manifest.timeouts.round_deadline_s

    def edge_is_up(self, neighbor: int, round_index: int) -> bool:
        """Return whether an edge carries models in a round (dynamic graphs)."""
        m = self.manifest
        return not m.dynamic_edges or edge_is_up(m.seed, round_index, self.peer_id, neighbor, m.dynamic_edges)

    def trains_in(self, peer_id: int, round_index: int) -> bool:
        """Return whether a peer trains in a round (partial participation)."""
        m = self.manifest
        return m.participation == 1 or is_active(m.seed, round_index, peer_id, m.participation)

    def scheduled(self) -> list[int]:
        """Return the neighbors that offer models in the present round, by the shared seed."""
        t = self.round.index
        return self._scheduled(t)

    def _scheduled(self, round_index: int) -> list[int]:
        return [n for n in self.neighbors if self.edge_is_up(n, round_index) and self.trains_in(n, round_index)]

    def is_due(self, round_index: int) -> bool:
        """Return whether a round brings this peer models of a neighbor, by the shared seed."""
        receives = self.algorithm.idle_folds or self.trains_in(self.peer_id, round_index)
        return self.algorithm.steps(round_index) > 0 and receives and bool(self._scheduled(round_index))

    def offers_to(self, neighbor: int) -> bool:
        """Return whether models go to a neighbor in the present round; both ends derive the same answer."""
        receives = self.algorithm.idle_folds or self.trains_in(neighbor, self.round.index)
        return self.round.active and receives and self.edge_is_up(neighbor, self.round.index)

    def selection(self) -> Select | None:
        """Return what this peer says to its neighbors in the present round before it trains; None: nothing."""
        t = self.round.index
        if not self.round.active:
            return None
        selected = self.algorithm.selects(self.algorithm_state, t)
        if selected is None and not self.algorithm.asking(t):
            return None
        return replace(selected or Select(0, 0, t), sender=self.peer_id, incarnation=self.incarnation, round_index=t)

    def declines(self, neighbor: int) -> bool:
        """Return whether this peer takes no model from a neighbor in the present round."""
        return self.round.asked is not None and neighbor not in self.round.asked

    def has_delivered(self, n: int) -> bool:
        """Return whether a neighbor has delivered, in the present step, all that it announced."""
        neighbor, place = self.neighbors[n], self.round.place
        total = neighbor.totals.get(place)
        if total is None and place in neighbor.passed:
            total = 0
        if total is None and place[1] == 0 and place[0] in neighbor.selections:
            select = neighbor.selections[place[0]]
            total = 0 if self.declines(n) else self.algorithm.expected(self.algorithm_state, select)
        return total is not None and len(neighbor.delivered.get(place, ())) >= total

    def live(self) -> list[Neighbor]:
        """Return the neighbors that are alive or suspect."""
        return [neighbor for neighbor in self.neighbors.values() if neighbor.liveness.is_live]

    def has_finished(self, neighbor: Neighbor) -> bool:
        """Return whether a neighbor has done all rounds, so that it need not come back."""
        return neighbor.round_index >= self.manifest.rounds

    def refused_by_all(self) -> bool:
        """Return whether every neighbor has refused our hello, so that this peer would train alone."""
        return bool(self.neighbors) and all(neighbor.refusal for neighbor in self.neighbors.values())

    def unmet(self) -> list[int]:
        """Return the neighbors that this peer has not met yet."""
        return [n for n, neighbor in self.neighbors.items() if neighbor.liveness.state is NeighborState.UNKNOWN]
