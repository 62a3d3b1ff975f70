"""What a round consists of, decided once when it begins: steps, and which peers train, send and receive. Pure.

Both ends of an edge derive the same participants from graph, round and seed. What follows from messages that come in mid-round
stays a question to the algorithm (`Decisions`): `agrees`, `expected`, `offers`, `tells`, `targets`, and what `rejects...` refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.schedule import is_active, neighbors_in_round
from peer.core.decisions import AlgorithmState, Decisions
from peer.core.messages import Select
from peer.core.privacy_budget import NOTHING, Charge

REMEMBERED = 16  # plans of rounds that messages were about


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """The plan of one round at one peer.

    Attributes:
        round_index: the round.
        steps: exchange steps; 0: nothing is exchanged.
        trains: this peer trains, and offers models.
        receives: this peer folds models of neighbors.
        asking: peers ask for the models of chosen neighbors, and get no others.
        up: the neighbors whose edge carries models: with ``run.edges`` "one" a single one, or none.
        senders: the neighbors that offer models, ascending.
        receivers: the neighbors that this peer's models may go to.
        evaluates: the models are evaluated at the end.
        saves: a checkpoint is taken after it.
        selection: what this peer announces to its neighbors before it trains; None: nothing, or not known before `assign`.
        asked: the neighbors whose models this peer takes; None: all, or not known before `assign`.
        charge: on the privacy budget; nothing in a run without one, and where this peer does not train.
    """

    round_index: int
    steps: int
    trains: bool
    receives: bool
    asking: bool
    up: frozenset[int]
    senders: tuple[int, ...]
    receivers: frozenset[int]
    evaluates: bool
    saves: bool
    selection: Select | None = None
    asked: frozenset[int] | None = None
    charge: Charge = NOTHING

    @property
    def brings_models(self) -> bool:
        """Whether this peer gets models of a neighbor."""
        return self.steps > 0 and self.receives and bool(self.senders)

    def declines(self, neighbor: int) -> bool:
        """Return whether this peer takes no model from a neighbor."""
        return self.asked is not None and neighbor not in self.asked


class Planner:
    """Makes the plans of one peer's rounds.

    Args:
        peer_id: this peer.
        graph: the neighbors, and which edges are up; participation, evaluation, checkpoints.
        algorithm: steps, and what is selected.
        charge_of: returns the charge of a round in which this peer trains.
    """

    def __init__(
        self,
        peer_id: int,
        graph: Graph,
        algorithm: Decisions,
        charge_of: Callable[[int], Charge] = lambda round_index: NOTHING,
    ) -> None:
        self._peer_id = peer_id
        self._graph = graph
        self._manifest = graph.manifest
        self._algorithm = algorithm
        self._charge_of = charge_of
        self.plan = lru_cache(REMEMBERED)(self._plan)

    def _plan(self, round_index: int) -> RoundPlan:
        """Return the plan of a round, as far as it is known before `assign`."""
        m, t, algorithm = self._manifest, round_index, self._algorithm
        trains = self.trains_in(self._peer_id, t)
        around = neighbors_in_round(self._graph, t, self._peer_id)
        training = tuple(n for n in around if self.trains_in(n, t))
        up = frozenset(around)
        is_last, every = t + 1 == m.rounds, m.checkpoint_rounds
        return RoundPlan(
            round_index=t,
            steps=algorithm.steps(t),
            trains=trains,
            receives=trains or algorithm.idle_folds,
            asking=algorithm.asking(t),
            up=up,
            senders=training,
            receivers=(up if algorithm.idle_folds else frozenset(training)) if trains else frozenset(),
            evaluates=is_last or (t + 1) % m.evaluate_every == 0,
            saves=bool(every) and (is_last or (t + 1) % every == 0),
            charge=self._charge_of(t) if trains or t == m.rounds else NOTHING,
        )

    def unpaid(self, plan: RoundPlan) -> RoundPlan:
        """Return a plan without training, which the budget does not allow; neighbors do not know, so their models are taken."""
        return replace(plan, trains=False, receives=True, receivers=frozenset(), charge=NOTHING)

    def assigned(self, plan: RoundPlan, state: AlgorithmState, incarnation: int) -> RoundPlan:
        """Return a plan with what follows from the algorithm's state after `assign`."""
        t, algorithm = plan.round_index, self._algorithm
        asked = frozenset[int]() if plan.asking else None
        if not plan.trains:
            return replace(plan, asked=asked)
        if plan.asking:
            asked = algorithm.asks(state, t)
        selected = algorithm.selects(state, t)
        if selected is None and plan.asking:
            selected = Select(0, 0, t)
        if selected is not None:
            selected = replace(selected, sender=self._peer_id, incarnation=incarnation, round_index=t)
        return replace(plan, asked=asked, selection=selected)

    def trains_in(self, peer_id: int, round_index: int) -> bool:
        """Return whether a peer trains in a round (partial participation)."""
        m = self._manifest
        return m.participation == 1 or is_active(m.seed, round_index, peer_id, m.participation)
