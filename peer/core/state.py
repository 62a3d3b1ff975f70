"""What the parts of the engine share: who the neighbors are, the present round, what was counted. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from coordinator_free_bootstrap.graph import Graph
from peer.core import effects as do
from peer.core.accountant import as_rows
from peer.core.arrivals import Arrival, Arrivals
from peer.core.constants import DEFAULTS, Constants
from peer.core.counters import Totals
from peer.core.decisions import AlgorithmState, Decisions
from peer.core.liveness import Liveness, NeighborState
from peer.core.messages import Phase, PushReply, Select
from peer.core.neighbor import Neighbor, Outbox, RoundStep
from peer.core.participation import sentence, was_hardly_there
from peer.core.plan import Planner
from peer.core.privacy_budget import NOTHING, PrivacyBudget
from peer.core.sites import Sites
from peer.core.stages import Stage, Trigger, may_take, next_stage
from peer.core.sum_parts import SumParts

NOT_BEGUN = float("-inf")
ORDERED_SHARE = 0.75  # of the time until the round deadline: in the rest, models are folded out of order


@dataclass
class Disk:
    """The checkpoints of a peer, as far as the engine knows.

    Attributes:
        saved_round: of the last one that is safe.
        writing: the round of the one that is being written.
        error: why the last one could not be written; "" if it could.
    """

    saved_round: int = 0
    writing: int | None = None
    error: str = ""


@dataclass
class RoundNotes:
    """What the record of a round will say, as far as it is known.

    Attributes:
        folded: [neighbor, incarnation, round, step, slot] of each arrival, in fold order.
        rejected: complete arrivals that failed screening, by refusal code.
        seconds: per phase.
        metrics: what the algorithm and the host say of the work of the round; after the last round, of the final work.
        missing: neighbors whose models were missing when a step closed; None: no step that waits for neighbors has closed.
        awaited: seconds that the round waited for a neighbor, by neighbor.
    """

    folded: list[list[int]] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    metrics: dict[str, Any] = field(default_factory=dict)
    missing: list[int] | None = None
    awaited: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))

    def as_fields(self) -> dict[str, Any]:
        """Return the fields of the record, JSON values."""
        missing = {} if self.missing is None else {"missing": self.missing}
        longest = max(self.awaited, key=lambda n: self.awaited[n], default=-1)
        awaited = {"awaited": longest} if self.awaited[longest] else {}
        known = {"folded": self.folded, "rejected": self.rejected} | self.metrics | missing | awaited
        return known | {"seconds": dict(self.seconds)}


@dataclass
class Round:
    """The round that a peer is in.

    Attributes:
        current: (round, step).
        deadline: when it closes without the models that are missing then.
        ordered_until: until when lockstep keeps the order of folds.
        awaited: the first neighbor that the step waits for, and since when; None: it waits for none.
    """

    index: int = 0
    step: int = 0
    current: RoundStep = (0, 0)
    began_at: float = NOT_BEGUN
    deadline: float = NOT_BEGUN
    ordered_until: float = NOT_BEGUN
    exchange_began_at: float = 0.0
    agreed: dict[int, Select] | None = None  # the selections of the round by sender, once all are known
    decided: tuple[AlgorithmState, AlgorithmState] | None = None  # a state of the algorithm, and with what is agreed
    lost_neighbor: bool = False  # one died or left in it, or is missing since the round before
    with_neighbors: bool = False  # a neighbor took part in it
    awaited: tuple[int, float] | None = None
    notes: RoundNotes = field(default_factory=RoundNotes)

    def enter(self, index: int, step: int) -> None:
        """Go to a step."""
        self.index, self.step = self.current = index, step
        self.awaited = None

    def wait_for(self, neighbor: int | None, now: float) -> None:
        """Note which neighbor the step waits for first; None: for none."""
        before = self.awaited
        if before is not None and before[0] != neighbor:
            self.notes.awaited[before[0]] += now - before[1]
            self.awaited = None
        if self.awaited is None and neighbor is not None:
            self.awaited = neighbor, now


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
        sites: the numbers that all sites must agree on before the first round; None: there are none.
        budget: of privacy; None: the run has none.
        sums: the secrets of secure sums; None: the run has none.
        constants: of the protocol; only tests and benchmarks give others.
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
        sites: Sites | None = None,
        budget: PrivacyBudget | None = None,
        sums: SumParts | None = None,
        constants: Constants = DEFAULTS,
    ) -> None:
        self.peer_id = peer_id
        self.graph = graph
        self.manifest = graph.manifest
        self.constants = constants
        self.algorithm = algorithm
        self.incarnation = incarnation
        self.model_bytes = model_bytes
        self.sites = sites
        self.budget = budget
        self.sums = sums
        self.algorithm_state = algorithm_state or AlgorithmState()
        timeouts = self.manifest.timeouts
        self.neighbors = {n: Neighbor(n, Liveness(timeouts), Outbox(peer_id, n)) for n in graph.neighbors(peer_id)}
        self.arrivals = Arrivals()
        self.stage = Stage.JOINING
        self.round = Round()
        self.planner = Planner(
            peer_id,
            graph,
            algorithm,
            budget.charge_of if budget else lambda round_index: NOTHING,
        )
        self.plan = self.planner.plan(0)  # of the present round
        self.resumed = resume is not None  # there was an earlier incarnation: our disk or a neighbor says so
        self.took_part = resume is not None  # and the run had begun
        self.leaves_as: do.Status | None = None  # once it was asked to stop, or gives up
        self.changes_from: int | None = None  # the round with which it stops to take another graph file
        self.changes_as: do.Status = "changed"
        self.disk = Disk()
        self.round_seconds: deque[float] = deque(maxlen=constants.rate_window_rounds)  # see `RoundRate`
        self.waited_rounds = 0  # rounds that waited for neighbors, and in how many of them each was missing
        self.missed: Counter[int] = Counter()
        self.totals = Totals()
        self.refusals: Counter[str] = Counter()
        self.effects: list[do.Effect] = []
        if resume is not None:
            self._restore(resume)

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def checkpoint(self) -> dict[str, Any]:
        """Return what a checkpoint keeps beside the algorithm's state, as JSON values; taken between two rounds."""
        return {
            "incarnation": self.incarnation,
            "round_index": self.round.index,
            "folded": self.arrivals.as_rows(),
            "incarnations": [[n, neighbor.incarnation] for n, neighbor in self.neighbors.items()],
            "round_seconds": list(self.round_seconds),
            "waited_rounds": self.waited_rounds,
            "missed": [[n, count] for n, count in sorted(self.missed.items())],
            "totals": self.totals.as_json(),
            "refusals": dict(self.refusals),
            **({"spent": as_rows(self.budget.ledger)} if self.budget else {}),
        }

    def write_checkpoint(self) -> None:
        """Ask for a checkpoint of the present state, which is between two rounds."""
        self.disk.writing = self.round.index
        self.emit(do.WriteCheckpoint(self.round.index, self.checkpoint()))

    def _restore(self, saved: dict[str, Any]) -> None:
        self.disk.saved_round = int(saved["round_index"])
        self.enter_round(self.disk.saved_round)
        self.arrivals.restore(saved["folded"])
        for n, incarnation in saved["incarnations"]:
            if n in self.neighbors:
                self.neighbors[n].incarnation = int(incarnation)
        self.round_seconds.extend(saved.get("round_seconds", ()))
        self.waited_rounds = int(saved.get("waited_rounds", 0))
        self.missed.update({int(n): int(count) for n, count in saved.get("missed", ())})
        self.totals.add(saved["totals"], (name for name, _ in self.totals))
        self.refusals.update(saved["refusals"])

    @property
    def agreed_state(self) -> AlgorithmState:
        """The algorithm's state, with what the selections of the round add to it, once they are known."""
        now, state = self.round, self.algorithm_state
        if now.agreed is None:
            return state
        if now.decided is None or now.decided[0] is not state:  # asked once, not for every arrival
            now.decided = state, self.algorithm.agrees(state, now.index, now.agreed)
        return now.decided[1]

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

    def answer(self, arrival: Arrival, reply: PushReply) -> None:
        """Answer an arrival and forget it."""
        self.arrivals.forget(arrival)
        self.emit(do.AnswerArrival(arrival, reply))

    # ---- stages -----------------------------------------------------------------------------------------------------

    def may(self, trigger: Trigger) -> bool:
        """Return whether the transition table and its guards allow a trigger now."""
        return may_take(self.stage, trigger, self)

    def take(self, trigger: Trigger) -> None:
        """Go to the stage that the transition table names."""
        self.stage = next_stage(self.stage, trigger, self)

    @property
    def leaving(self) -> bool:
        """Whether this peer was asked to stop, or gives up."""
        return self.leaves_as is not None

    @property
    def change_is_due(self) -> bool:
        """Whether this peer, between two rounds, stops to take another graph file."""
        return self.changes_from is not None and self.round.index >= self.changes_from

    @property
    def saving(self) -> bool:
        """Whether a checkpoint is being written: nothing of the round after it is sent."""
        return self.disk.writing is not None

    @property
    def behind(self) -> bool:
        """Whether the disk lacks the models with which the present round began, and can be written."""
        return self.disk.saved_round < self.round.index and not self.disk.error

    @property
    def folding(self) -> bool:
        """Whether an arrival is being folded."""
        return bool(self.arrivals.folding)

    @property
    def pays(self) -> bool:
        """Whether the present round has a charge on the privacy budget that no checkpoint of this incarnation has."""
        return self.budget is not None and self.plan.charge != NOTHING and self.budget.paid_round != self.round.index

    @property
    def trains(self) -> bool:
        """Whether this peer trains in the present round."""
        return self.plan.trains

    # ---- the round --------------------------------------------------------------------------------------------------

    def enter_round(self, round_index: int) -> None:
        """Make a round the present one; it begins when nothing precedes it."""
        self.round.enter(round_index, 0)
        self.plan = self.planner.plan(round_index)

    def begin_round(self, now: float) -> None:
        """Begin the present round."""
        lasts_s = self.manifest.timeouts.round_deadline_s
        index, ordered_until = self.round.index, now + ORDERED_SHARE * lasts_s
        self.round = Round(index, 0, (index, 0), now, deadline=now + lasts_s, ordered_until=ordered_until)

    @property
    def has_begun(self) -> bool:
        """Whether a round has begun in this incarnation."""
        return self.round.began_at > NOT_BEGUN

    def has_delivered(self, n: int) -> bool:
        """Return whether a neighbor has delivered, in the present step, all that it announced."""
        neighbor, round_step = self.neighbors[n], self.round.current
        total = neighbor.totals.get(round_step)
        if total is None and round_step in neighbor.passed:
            total = 0
        if total is None and round_step[1] == 0 and round_step[0] in neighbor.selections:
            select = neighbor.selections[round_step[0]]
            total = 0 if self.plan.declines(n) else self.algorithm.expected(self.algorithm_state, select)
        return total is not None and len(neighbor.delivered.get(round_step, ())) >= total

    def owes(self, n: int) -> bool:
        """Return whether a neighbor has not yet taken all that this peer offers it in the present step."""
        neighbor = self.neighbors[n]
        return neighbor.outbox.owes(self.round.current, neighbor.round_index)

    def live(self) -> list[Neighbor]:
        """Return the neighbors that are alive or suspect."""
        return [neighbor for neighbor in self.neighbors.values() if neighbor.liveness.is_live]

    def has_finished(self, neighbor: Neighbor) -> bool:
        """Return whether a neighbor has done all rounds, of our graph file or of its own, so that it need not come back."""
        return neighbor.phase is Phase.FINISHED or neighbor.round_index >= self.manifest.rounds

    def refused_by_all(self) -> bool:
        """Return whether every neighbor has refused our hello, so that this peer would train alone."""
        return bool(self.neighbors) and all(neighbor.refusal for neighbor in self.neighbors.values())

    def hardly_there(self) -> list[str]:
        """Return a sentence on each neighbor that took part in few of the rounds of this peer that waited for it."""
        rounds = self.waited_rounds
        took_part = {n: rounds - self.missed[n] for n in self.neighbors}
        return [sentence(n, count, rounds) for n, count in took_part.items() if was_hardly_there(count, rounds)]

    def unmet(self) -> list[int]:
        """Return the neighbors that this peer has not met yet, but may meet without an operator who gives them a file."""
        unknown = [n for n, neighbor in self.neighbors.items() if neighbor.liveness.state is NeighborState.UNKNOWN]
        changing = self.changing()
        return [n for n in unknown if n in changing or not (self.neighbors[n].needs_file or self._comes_later(n))]

    def _comes_later(self, n: int) -> bool:
        """Return whether a neighbor does not answer that no incarnation of this peer has met: its edge is new, or it never came.

        It may need the graph file, which TLS does not tell. Peers that change in the same round wait for each other, and a peer
        that would be alone waits for whoever comes: all peers may start at once.
        """
        neighbor = self.neighbors[n]
        may_be_new = self.took_part and self.round.index > self.graph.from_round
        never_met = not neighbor.incarnation and neighbor.hello_failures > 0
        return may_be_new and never_met and any(each.is_reachable for each in self.neighbors.values())

    @property
    def run_has_begun(self) -> bool:
        """Whether this peer took part in the run before, or is new and works with a neighbor that has done a round.

        New by a later graph file: in async pace, neighbors do rounds also while the peers of the first one still start.
        """
        begun = (neighbor.is_reachable and neighbor.round_index > 0 for neighbor in self.neighbors.values())
        return self.took_part or bool(self.graph.continues and any(begun))

    def changing(self) -> list[int]:
        """Return the neighbors with an earlier graph file that are to change to this one soon, so that a start waits for them.

        Where peers change with one round, those that have not reached it, and none before it: they wait for a peer that started
        with this file at once. For a new peer that would be alone, or with new ones only, all that are on their way: it pulls the
        models of the first that changes, and would be ahead of all of them with a model of its own data otherwise.
        """
        from_round, waits = self.graph.from_round, self.round.index >= self.graph.from_round
        earlier = [neighbor for neighbor in self.neighbors.values() if neighbor.needs_file]
        if not self.run_has_begun:
            alone = not any(neighbor.is_reachable for neighbor in self.neighbors.values())
            return [neighbor.id for neighbor in earlier if neighbor.round_index or (waits and alone)]
        return [neighbor.id for neighbor in earlier if waits and neighbor.round_index < from_round]

    # ---- neighbors ----------------------------------------------------------------------------------------------------------

    def reachable_and_near(self) -> Iterator[int]:
        """Yield the neighbors that messages reach and that are in about the same round, ascending; none without an exchange."""
        if self.plan.steps:
            for n, neighbor in self.neighbors.items():
                if neighbor.is_reachable and self.is_near(neighbor):
                    yield n

    def is_near(self, neighbor: Neighbor) -> bool:
        """Return whether a neighbor is at most one round ahead and not too far behind; a straggler may be one round behind."""
        behind = self.round.index - neighbor.round_index
        return -1 <= behind <= (1 if neighbor.is_straggler else self.constants.wait_rounds_behind)

    def note_delivery(self, neighbors: Iterable[int]) -> tuple[int, ...]:
        """Note which neighbors have not delivered in the step that closes; return those that have, over an edge that is up."""
        for n in neighbors:
            self.neighbors[n].is_straggler = not self.has_delivered(n)
        return tuple(n for n in neighbors if not self.neighbors[n].is_straggler and n in self.plan.up)
