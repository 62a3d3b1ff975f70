"""A round from its beginning to its end: assign, train, the exchange steps, close; and the transition to the next. Pure."""

from __future__ import annotations

from typing import Any, Literal

from coordinator_free_bootstrap.errors import LocalProtocolError
from peer.core import effects as do
from peer.core import events as ev
from peer.core.catch_up import CatchUp
from peer.core.contacts import Contacts
from peer.core.counters import RecordCounts
from peer.core.liveness import NeighborState
from peer.core.messages import Outcome
from peer.core.model_tests import absent, all_skipped
from peer.core.pace import Pace
from peer.core.receiver import Receiver
from peer.core.sender import Sender
from peer.core.stages import WORK, Stage, Trigger
from peer.core.state import State
from peer.core.sums import Summing
from peer.core.waiting import Isolation


class RoundCycle:
    """The part of the engine that takes a peer from round to round."""

    def __init__(
        self,
        state: State,
        pace: Pace,
        contacts: Contacts,
        receiver: Receiver,
        sender: Sender,
        catch_up: CatchUp,
        isolation: Isolation,
        counted: RecordCounts,
        sums: Summing,
    ) -> None:
        self._state = state
        self._pace = pace
        self._contacts = contacts
        self._receiver = receiver
        self._sender = sender
        self._catch_up = catch_up
        self._isolation = isolation
        self._counted = counted
        self._sums = sums
        self._unpaid = ""  # why this peer did not train in the last round that it could not pay for
        self._missing: list[int] = []  # neighbors missing in the last round: logged when it changes

    # ---- between two rounds ---------------------------------------------------------------------------------------------

    def go_on(self, now: float) -> None:
        """Begin a round, or catch up, or leave, also for another graph file."""
        state = self._state
        if state.change_is_due and state.round.index < state.manifest.rounds:
            state.leaves_as = state.leaves_as or state.changes_as
        if state.may(Trigger.LEAVE):
            state.take(Trigger.LEAVE)
        elif not self._catch_up.is_due() or state.round.index >= state.manifest.rounds:
            self._pay_or_begin(now)
        elif sources := self._catch_up.sources():
            self._catch_up.adopt(sources, now)
        else:
            self._catch_up.pull(now)
            if self._catch_up.pulling and state.may(Trigger.PULL):  # this peer has no round of its own to continue
                state.take(Trigger.PULL)
            else:
                self._catch_up.begin()
                self._pay_or_begin(now)

    def catch_up_at_start(self, now: float) -> None:
        """At the start of an incarnation: the first complete answer is enough, see `CatchUp.sources`."""
        if sources := self._catch_up.sources():
            self._catch_up.adopt(sources, now)
        elif not self._catch_up.pulling:
            self._catch_up.begin()
            self._pay_or_begin(now)

    # ---- the privacy budget ---------------------------------------------------------------------------------------------

    def _pay_or_begin(self, now: float) -> None:
        """Begin a round, after a checkpoint with its charge on the privacy budget where it has one."""
        state = self._state
        if state.pays and state.may(Trigger.PAY):
            state.take(Trigger.PAY)
            self.pay(now)
        else:
            self._begin(now)

    def pay(self, now: float) -> None:
        """Write a checkpoint with the charge of the round, and begin the round once it is safe; without one, do not train."""
        state, budget = self._state, self._state.budget
        if state.saving or budget is None:
            return
        t, charge = state.round.index, state.plan.charge
        if not state.pays:
            if state.disk.error:
                state.plan = state.planner.unpaid(state.plan)
                self._log_unpaid("its charge on the privacy budget could not be saved")
            self.go_on(now)
        elif budget.affords(charge):
            budget.pay(t, charge)
            state.write_checkpoint()
        else:
            state.plan = state.planner.unpaid(state.plan)
            most = budget.terms.epsilon_max
            self._log_unpaid(f"epsilon would be {budget.with_charge(charge):.3g}, above the limit of {most:g}")
            self.go_on(now)

    def _log_unpaid(self, why: str) -> None:
        """Count a round in which this peer does not train, and say why, once in a row."""
        state = self._state
        if state.round.index < state.manifest.rounds:
            state.totals["rounds_without_budget"] += 1
        if why != self._unpaid:
            state.log("warning", f"round {state.round.index}: this peer trains no more, and passes: {why}")
        self._unpaid = why

    # ---- the round ------------------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        state, t = self._state, self._state.round.index
        if t >= state.manifest.rounds:
            state.take(Trigger.ROUNDS_OVER)
            paid = state.budget is None or state.budget.paid_round == t
            state.emit(do.Work("final", t, active=paid, absent=all_skipped(state)))
            return
        state.take(Trigger.BEGIN_ROUND)
        self._catch_up.forget()
        state.begin_round(now)
        state.arrivals.folded_in_round.clear()
        kept_from = t - self._pace.stale_rounds_max if self._pace.waits else 0
        for neighbor in state.neighbors.values():
            neighbor.forget_before((t, 0), kept_from)
            neighbor.outbox.drop_before(t - 1)
        if not self._pace.waits:  # rounds drift apart, and age is counted by the slower end
            self._contacts.tell_round(now)
        state.emit(do.DropSnapshots(t - 1))
        state.emit(do.Work("assign", t, active=state.plan.trains))

    def work_done(self, event: ev.WorkDone, now: float) -> Trigger:
        """Take the end of a piece of work, and continue with what follows; return what it triggered.

        Raises:
            LocalProtocolError: no such work was asked for.
        """
        state = self._state
        trigger = WORK.get(event.kind)
        if trigger is None:
            raise LocalProtocolError(f"work '{event.kind}' is done that was not asked for")
        if trigger is Trigger.ASSIGNED and state.may(Trigger.SAT_OUT) and not state.may(trigger):
            trigger = Trigger.SAT_OUT
        state.take(trigger)
        state.algorithm_state = event.state
        if event.kind == "assign":
            state.plan = self._sums.begin(state.planner.assigned(state.plan, event.state, state.incarnation))
        for phase, seconds in event.seconds.items():
            state.round.notes.seconds[phase] += seconds
        state.round.notes.metrics.update(event.metrics)
        match trigger:
            case Trigger.ASSIGNED:
                self._sender.announce()
                state.emit(do.Work("train", state.round.index))
            case Trigger.SAT_OUT | Trigger.TRAINED:
                if (
                    trigger is Trigger.SAT_OUT and state.sums is not None
                ):  # it has no budget to train, and sums all the same
                    self._sender.announce()
                state.round.exchange_began_at = now
            case Trigger.STEP_ENDED:
                state.round.enter(state.round.index, state.round.step + 1)
                state.round.exchange_began_at = now
                for neighbor in state.neighbors.values():
                    neighbor.forget_before(state.round.current)
            case Trigger.CLOSED:
                self._end(now)
            case Trigger.ADOPTED:
                if state.manifest.checkpoint_rounds and not state.pays:
                    state.write_checkpoint()
                self.go_on(now)
        return trigger

    def exchange(self, now: float) -> None:
        """Post this step's offers once the last checkpoint is safe; close the step when it is over."""
        state = self._state
        if state.may(Trigger.OFFERED) and self._receiver.selections_known(now):
            if state.plan.steps:
                self._sender.post_offers()
            state.take(Trigger.OFFERED)
        if state.may(Trigger.ROUND_OVER) and self._is_over(now):
            is_last = state.round.step + 1 >= state.plan.steps
            self.close_step(Trigger.ROUND_OVER if is_last else Trigger.STEP_OVER, now)

    def _is_over(self, now: float) -> bool:
        """Return whether the step may close: all is there, and the sum of it, where there is one, is open or lost."""
        if self._sums.is_fixed:
            return self._sums.is_over(now)
        return self._pace.may_close(now) and not self._isolation.is_awaited() and self._sums.is_over(now)

    def close_step(
        self, trigger: Literal[Trigger.STEP_OVER, Trigger.ROUND_OVER, Trigger.CUT_SHORT], now: float
    ) -> None:
        """Close the present step with what has come."""
        state, t, step = self._state, self._state.round.index, self._state.round.step
        closed = self._pace.close_step()
        self._sums.step_closes()
        self._isolation.step_closes(closed.with_neighbors)
        for arrival in closed.unused:
            state.answer(arrival, Outcome.UNUSED)
        state.round.notes.seconds["wait"] += now - state.round.exchange_began_at
        if self._pace.waits:
            self._note_missing(closed.missing)
        selections, numbers = tuple(self._pace.selections()), self._pace.numbers()
        state.take(trigger)
        is_last = state.stage is Stage.CLOSING
        state.emit(
            do.Work(
                "close" if is_last else "end_step",
                t,
                step,
                state.plan.trains,
                closed.present,
                selections,
                numbers,
                evaluate=is_last and state.plan.evaluates,
                absent=absent(state) if is_last else (),
            )
        )

    def _note_missing(self, missing: list[int]) -> None:
        state = self._state
        notes = state.round.notes
        notes.missing = sorted({*(notes.missing or ()), *missing})
        if missing == self._missing:
            return
        if not {*missing} <= {*self._missing}:
            state.round.lost_neighbor = True
        self._missing = missing
        if missing:
            state.log(
                "warning", f"round {state.round.index} closes without neighbors {missing}; logged when this changes"
            )
        else:
            state.log("info", f"round {state.round.index} closes with all neighbors again")

    def _end(self, now: float) -> None:
        state = self._state
        self._pace.close_round(now)
        self._isolation.round_closes()
        notes = state.round.notes
        notes.seconds["other"] = max(0.0, now - state.round.began_at - sum(notes.seconds.values()))
        if notes.missing is not None:
            state.waited_rounds += 1
            state.missed.update(notes.missing)
        alive = sum(1 for n in state.neighbors.values() if n.liveness.state is NeighborState.ALIVE)
        fields: dict[str, Any] = {
            "round_index": state.round.index,
            "neighbors_alive": alive,
            "active": state.plan.trains,
        }
        if state.budget is not None:
            fields["epsilon"] = state.budget.spent
        if state.sums is not None and state.plan.steps:
            fields["summed"] = self._sums.members()
        state.emit(do.Record("round", fields | self._counted.since_last() | notes.as_fields()))
        saves = state.plan.saves
        state.enter_round(state.round.index + 1)
        if saves and not state.pays:  # else the checkpoint with its charge follows
            state.write_checkpoint()
        self.go_on(now)
