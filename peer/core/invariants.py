"""What holds at the end of every step of the engine, in each stage: checked in tests and simulations, never in production. Pure.

Each invariant is a function that returns what is wrong, "" if nothing is. It sees one engine only; what takes several peers, the
tensors or the disk to judge stands in `tests/simulation`. As in the validation of dask's worker state machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from coordinator_free_bootstrap.errors import LocalProtocolError
from peer.core import effects as do
from peer.core.lockstep import Lockstep
from peer.core.messages import ModelHeader, Select
from peer.core.neighbor import SELECTIONS_MAX
from peer.core.pace import Pace
from peer.core.stages import WORKING, Stage
from peer.core.state import State


@dataclass(frozen=True, slots=True)
class Moment:
    """The end of one step: the state, the pace, neighbors whose models are being pulled, and the step's effects."""

    state: State
    pace: Pace
    pulling: frozenset[int]
    effects: Sequence[do.Effect]

    @property
    def folds(self) -> Iterator[ModelHeader]:
        """The models that the step folds."""
        return (effect.arrival.header for effect in self.effects if isinstance(effect, do.FoldArrival))

    @property
    def waits_for_any(self) -> bool:
        """Whether `run.start.wait_for` makes a peer without a live neighbor wait."""
        return self.state.manifest.start.wait_for == "never_alone" and not self.state.live()


class InvariantBroken(LocalProtocolError):
    """An invariant does not hold after a step: a bug of ours."""

    def __init__(self, name: str, stage: Stage, what: str) -> None:
        super().__init__(f"{name} is broken at the end of a step in stage {stage}: {what}")
        self.name = name


# ---- in every stage -----------------------------------------------------------------------------------------------------


def round_is_in_range(m: Moment) -> str:
    """A peer is in one of the rounds, or has done all, and in one of the round's steps."""
    at, rounds = m.state.round, m.state.manifest.rounds
    fits = 0 <= at.index <= rounds and 0 <= at.step < max(1, m.state.plan.steps)
    return "" if fits else f"step {at.step} of round {at.index} of {rounds}"


def plan_is_of_the_round(m: Moment) -> str:
    """The plan is that of the present round."""
    planned, index = m.state.plan.round_index, m.state.round.index
    return "" if planned == index else f"the plan is of round {planned}, the peer in round {index}"


def stream_is_in_one_table(m: Moment) -> str:
    """An arrival is offered, being read, complete or being folded."""
    a = m.state.arrivals
    streams = [*a.offered, *a.reading, *a.complete, *a.folding]
    return "" if len(streams) == len({*streams}) else f"a stream is twice among {sorted(streams)}"


def streams_are_of_neighbors(m: Moment) -> str:
    """Every arrival is a connected neighbor's."""
    a = m.state.arrivals
    senders = {each.sender for table in (a.offered, a.reading, a.complete, a.folding) for each in table.values()}
    strangers = {n for n in senders if n not in m.state.neighbors or not m.state.neighbors[n].connected}
    return f"models of {sorted(strangers)}" if strangers else ""


def buffers_are_bounded(m: Moment) -> str:
    """The models in memory fit `Constants.concurrent_receives`, and one of each neighbor is read at a time."""
    a, most = m.state.arrivals, m.state.constants.concurrent_receives
    used, readers = len(a.reading) + len(a.complete) + len(a.folding), [h.sender for h in a.reading.values()]
    if used > most:
        return f"{used} buffers of {most} are in use"
    return "" if len(readers) == len({*readers}) else f"two models of one neighbor are read: {readers}"


def messages_do_not_pile_up(m: Moment) -> str:
    """What neighbors say, and what is to be sent to them, is bounded."""
    state, t = m.state, m.state.round.index
    steps = max(1, *(state.planner.plan(at).steps for at in range(max(0, t - 1), t + 2)))
    pending_max = 3 * steps * (1 + state.algorithm.slots) + 1 + (state.sites is not None) + 8 * (state.sums is not None)
    for n, neighbor in state.neighbors.items():
        said = max(len(neighbor.selections), len(neighbor.passed))
        if said > SELECTIONS_MAX or neighbor.outbox.pending() > pending_max:
            return f"{said} selections or passes of {n}, {neighbor.outbox.pending()} messages to it"
    return ""


def sites_are_known(m: Moment) -> str:
    """A peer that has begun knows the numbers of all sites, where the run needs them."""
    sites, stage = m.state.sites, m.state.stage
    unknown = [] if sites is None or stage in (Stage.JOINING, Stage.LEAVING, Stage.STOPPED) else sites.missing
    return f"the numbers of {unknown} are not known" if unknown else ""


def live_neighbors_are_connected(m: Moment) -> str:
    """A neighbor is alive only after a handshake."""
    strangers = [neighbor.id for neighbor in m.state.live() if not neighbor.connected]
    return f"{strangers} are live without a handshake" if strangers else ""


def disk_is_not_ahead(m: Moment) -> str:
    """No checkpoint is of a round to come."""
    disk, index = m.state.disk, m.state.round.index
    newest = max(disk.saved_round, disk.writing or 0)
    return "" if newest <= index else f"a checkpoint of round {newest} in round {index}"


def nothing_unsaved_is_sent(m: Moment) -> str:
    """No model and no selection of a round leaves before the checkpoint of the round before is safe."""
    for effect in m.effects:
        match effect:
            case do.SendModel(_, message) | do.SendControl(_, Select() as message):
                if m.state.disk.writing is not None and message.round_index >= m.state.disk.writing:
                    return f"a message of round {message.round_index} is sent while its checkpoint is being written"
    return ""


def folds_belong_to_open_steps(m: Moment) -> str:
    """Lockstep folds no model of a step to come, and no pace one of a neighbor that it did not ask."""
    state = m.state
    for header in m.folds:
        if m.pace.waits and (header.round_index, header.step) > state.round.current:
            return f"{header.key} is folded in step {state.round.current}"
        if state.plan.declines(header.sender) and state.planner.plan(header.round_index).asking:
            return f"{header.key} is folded, though this peer did not ask peer {header.sender}"
    return ""


def folds_are_remembered(m: Moment) -> str:
    """What is folded is never folded again, in this incarnation or the next."""
    known = m.state.arrivals.folded
    forgotten = [h.key for h in m.folds if known.get((h.sender, h.slot), (-1, 0)) < (h.round_index, h.step)]
    return f"{forgotten} could be folded again" if forgotten else ""


def leaving_peer_is_not_idle(m: Moment) -> str:
    """A peer that was asked to leave stops as soon as nothing is under way."""
    state = m.state
    if not state.leaving or state.stage is Stage.STOPPED or state.saving or state.folding:
        return ""
    under_way = state.stage in WORKING or (state.stage is Stage.TRAINING and state.behind)
    return "" if under_way else "a leaving peer has nothing to wait for"


# ---- by stage -----------------------------------------------------------------------------------------------------------


def charge_is_being_saved(m: Moment) -> str:
    """Before a private round only the checkpoint with its charge is waited for, and nothing is folded."""
    if folding := models_change_alone(m):
        return folding
    return "" if m.state.saving else "no checkpoint is being written"


def training_is_paid_for(m: Moment) -> str:
    """The samples are asked only in a round whose charge is in a checkpoint that is safe."""
    return "the round is not paid for" if m.state.pays else ""


def no_round_has_begun(m: Moment) -> str:
    """A peer that joins, or catches up at its start, has no round, and no model in memory."""
    used = m.state.arrivals.buffers()
    return f"a round has begun, or {used} buffers are in use" if m.state.has_begun or used else ""


def pull_is_pending(m: Moment) -> str:
    """Only an answer to a pull is waited for."""
    return "" if m.pulling else "no pull is pending"


def models_change_alone(m: Moment) -> str:
    """Nothing is folded while other work changes the models."""
    folding = m.state.arrivals.folding
    return f"streams {sorted(folding)} are being folded" if folding else ""


def nothing_is_decided_yet(m: Moment) -> str:
    """Before `assign`, neither the selection nor whom this peer asks is known."""
    plan, at = m.state.plan, m.state.round
    known = (plan.selection, plan.asked, at.agreed) != (None, None, None)
    return "a selection of another round is in use" if known else ""


def peer_trains_in_the_round(m: Moment) -> str:
    """A peer that sits a round out does not train."""
    return "" if m.state.plan.trains else "this peer sits the round out"


def offers_wait_for_something(m: Moment) -> str:
    """Offers wait for a checkpoint or for selections; a leaving peer makes none."""
    state = m.state
    return "" if state.saving or state.leaving or state.round.agreed is None else "nothing keeps the offers back"


def offers_are_allowed(m: Moment) -> str:
    """Offers go out after the checkpoint and the selections."""
    state = m.state
    return "" if not state.saving and state.round.agreed is not None else "offers are out too early"


def step_waits_for_something(m: Moment) -> str:
    """A step stays open for a neighbor, a fold or, in lockstep, the round rate of a partitioned peer."""
    state = m.state
    if state.folding or state.leaving or m.waits_for_any:
        return ""
    if not isinstance(m.pace, Lockstep):
        return "an async step waits"
    if not any(isinstance(effect, do.SetTimer) for effect in m.effects):
        return "no timer ends the step"
    if state.sums is not None and state.sums.awaited:
        return ""
    waits = any(not state.has_delivered(n) or state.owes(n) for n in m.pace.counted_on())
    return "" if waits or m.pace.partition.holds_rate else "all neighbors have delivered, and taken what is offered"


def another_step_follows(m: Moment) -> str:
    """A step that is ended is not the last one."""
    at, steps = m.state.round, m.state.plan.steps
    return "" if at.step + 1 < steps else f"step {at.step} of {steps} is the last one"


def all_rounds_are_done(m: Moment) -> str:
    """A peer finishes after its last round, and lets no neighbor wait for an answer."""
    state = m.state
    if state.round.index != state.manifest.rounds:
        return f"finished after {state.round.index} of {state.manifest.rounds} rounds"
    return f"offers {sorted(state.arrivals.offered)} are unanswered" if state.arrivals.offered else ""


def only_the_disk_is_waited_for(m: Moment) -> str:
    """Between two rounds a leaving peer waits for its last checkpoint."""
    return "" if m.state.leaving and m.state.saving else "nothing is being written"


def everything_is_answered(m: Moment) -> str:
    """A peer that has stopped leaves no stream open, and says that it stops."""
    streams = [arrival.stream for arrival in m.state.arrivals.unanswered()]
    stops = any(isinstance(effect, do.Stop) for effect in m.effects)
    return "" if stops and not streams else f"streams {streams} are open, or no effect is a Stop"


Invariant = Callable[[Moment], str]
ALWAYS: tuple[Invariant, ...] = (
    round_is_in_range,
    plan_is_of_the_round,
    stream_is_in_one_table,
    streams_are_of_neighbors,
    buffers_are_bounded,
    messages_do_not_pile_up,
    sites_are_known,
    live_neighbors_are_connected,
    disk_is_not_ahead,
    nothing_unsaved_is_sent,
    folds_belong_to_open_steps,
    folds_are_remembered,
    leaving_peer_is_not_idle,
)
BY_STAGE: dict[Stage, tuple[Invariant, ...]] = {
    Stage.JOINING: (no_round_has_begun,),
    Stage.CATCHING_UP: (no_round_has_begun, pull_is_pending),
    Stage.ADOPTING: (models_change_alone,),
    Stage.PAYING: (charge_is_being_saved,),
    Stage.ASSIGNING: (models_change_alone, nothing_is_decided_yet, training_is_paid_for),
    Stage.TRAINING: (peer_trains_in_the_round, training_is_paid_for),
    Stage.OFFERING: (offers_wait_for_something,),
    Stage.EXCHANGING: (offers_are_allowed, step_waits_for_something),
    Stage.ENDING_STEP: (models_change_alone, another_step_follows),
    Stage.CLOSING: (models_change_alone,),
    Stage.FINISHING: (models_change_alone, all_rounds_are_done),
    Stage.LINGERING: (models_change_alone, all_rounds_are_done),
    Stage.LEAVING: (models_change_alone, only_the_disk_is_waited_for),
    Stage.STOPPED: (everything_is_answered,),
}


def check(moment: Moment) -> None:
    """Check the invariants of every stage and of the present one.

    Raises:
        InvariantBroken: one does not hold.
    """
    stage = moment.state.stage
    for invariant in (*ALWAYS, *BY_STAGE[stage]):
        if what := invariant(moment):
            raise InvariantBroken(invariant.__name__, stage, what)
