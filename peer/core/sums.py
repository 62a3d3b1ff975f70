"""The part of the engine that has secure sums opened: who is in the sum of a round, and how long it waits to be opened. Pure.

Theory of operation, for a receiver r and a round (`peer.secure_sum` has the secrets):

    r -> a   Select      the neighbors that are there, with their signed keys: the roster
    a -> r   PushModel   a masked model, with shares of the sender's self mask sealed for the others; added up as they come
    r -> a   MEMBERS     the step would close: who has delivered, with the shares that they sealed for a
    a -> r   AGREES      a agrees to these members, and to no others in this round
    r -> a   AGREED      two thirds of the neighbors agree to the same members
    a -> r   REVEALS     a share of each member's self mask, and the seeds that a shares with those of the roster that are none

So many reveals as two thirds of the neighbors open the sum; or all, where a peer of the roster is no member. Where they do not
come, or are refused, r keeps its own model. A peer sends no masked model in the round in which it restarts: it may have sent it
before, with other masks and in another sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from coordinator_free_bootstrap.identity import restart_count
from peer.core import events as ev
from peer.core.messages import ModelHeader, Opening, Select, SumMessage
from peer.core.plan import RoundPlan
from peer.core.state import State
from peer.core.sum_parts import ToSend

WAIT_SUSPICIONS = 2.0  # suspicion times that a sum waits for live members; dead ones are noticed earlier


class Summing:
    """Begins, fixes and opens the own sum, and answers for those of neighbors; without effect in a run without secure sums."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._parts = state.sums
        self._fixed_at: float | None = None  # when the members of the present round's sum were fixed
        self._first_round: int | None = (
            None  # where this incarnation began: the round of the neighbor that was farthest
        )

    # ---- what neighbors send ------------------------------------------------------------------------------------------------

    def rejects_select(self, select: Select) -> Refusal | None:
        """Return why what a selection has of sums cannot be right."""
        if self._parts is not None:
            return self._parts.rejects_roster(select.sender, select.round_index, select.roster)
        return _unasked("roster") if select.roster else None

    def rejects_header(self, header: ModelHeader) -> Refusal | None:
        """Return why a header cannot be right: shares without sums, or none with them."""
        if (self._parts is None) == (not header.shares):
            return None
        return _unasked("shares") if header.shares else Refusal(RefusalCode.MALFORMED, "a masked model without shares")

    def rejects(self, message: SumMessage) -> Refusal | None:
        """Return why a message cannot be right."""
        return _unasked("message") if self._parts is None else self._parts.rejects(message)

    def selected(self, select: Select) -> None:
        """Take part in the sum of a neighbor that announces one, if this peer may."""
        state, parts = self._state, self._parts
        if parts is None or not select.roster:
            return
        if self._may_repeat(select.round_index):
            problem = "this peer restarted in this round, and may have sent a model of it before"
        else:
            problem = parts.join(select.sender, select.round_index, select.roster, state.incarnation)
        if problem:
            at = f"round {select.round_index}: no model for peer {select.sender}"
            state.log_neighbor("info", f"{at}: {problem}", select.sender, "sum")

    def _may_repeat(self, round_index: int) -> bool:
        """Return whether an earlier incarnation may have sent a model of this round: as the disk or a neighbor knows of one.

        It sent one only to a neighbor that was in that round, so none of a round that no neighbor has reached.
        """
        state, begun = self._state, self._first_round
        restarted = state.resumed or restart_count(state.incarnation) > 1
        return restarted and (begun is None or round_index <= begun)

    def received(self, event: ev.SumReceived) -> None:
        """Take a message and answer it."""
        assert self._parts is not None  # rejected otherwise
        self._send(event.message.round_index, self._parts.take(event.message))

    def _send(self, round_index: int, messages: ToSend) -> None:
        state = self._state
        for n, kind, data in messages:
            message = SumMessage(state.peer_id, state.incarnation, round_index, kind, data)
            state.neighbors[n].outbox.post(message)

    # ---- models for neighbors -----------------------------------------------------------------------------------------------

    def offers_to(self, neighbor: int) -> bool:
        """Return whether a neighbor gets models in this round: where it sums, if this peer takes part and its disk is up to date.

        A peer whose disk lacks the last round could send a model of this one twice.
        """
        state, parts = self._state, self._parts
        return parts is None or (
            state.disk.saved_round >= state.round.index and bool(parts.shares(neighbor, state.round.index))
        )

    def shares(self, neighbor: int, round_index: int) -> bytes:
        """Return what goes with a model."""
        return b"" if self._parts is None else self._parts.shares(neighbor, round_index)

    # ---- the own sum --------------------------------------------------------------------------------------------------------

    def begin(self, plan: RoundPlan) -> RoundPlan:
        """Begin the sum of a round with the neighbors that are there; return the plan with a selection that announces it."""
        state, t = self._state, plan.round_index
        if self._first_round is None:
            self._first_round = max(t, *(neighbor.round_index for neighbor in state.neighbors.values()))
        if self._parts is None or not plan.steps:
            return plan
        there = [(n, each.incarnation) for n, each in state.neighbors.items() if each.is_reachable]
        selection = Select(state.peer_id, state.incarnation, t, roster=self._parts.begin(t, there))
        return replace(plan, selection=selection, receivers=plan.up)

    def fits(self, header: ModelHeader) -> bool:
        """Return whether a model counts: in a run with sums, if it is for the sum of this round."""
        return self._parts is None or self._parts.fits(header.sender, header.round_index, header.shares)

    def delivered(self, header: ModelHeader) -> None:
        """Note a model that is added to the sum."""
        if self._parts is not None:
            self._parts.delivered(header.sender, header.shares)

    @property
    def is_fixed(self) -> bool:
        """Whether the members of the present sum are fixed, and it only waits to be opened."""
        return self._fixed_at is not None

    def members(self) -> list[int]:
        """Return the neighbors whose models were in the sum of the round that closes; [] if it was not opened."""
        parts = self._parts
        return list(parts.members or ()) if parts is not None and parts.is_open else []

    def step_closes(self) -> None:
        """Note that the step closes, with the sum or without."""
        self._fixed_at = None

    def is_over(self, now: float) -> bool:
        """Fix the members where that is not done yet; return whether the sum is open, or will not be."""
        parts, state = self._parts, self._state
        if parts is None or not state.plan.steps:
            return True
        if self._fixed_at is None:
            self._fixed_at = now
            self._send(state.round.index, parts.fix())
        for n, incarnation in parts.awaited.items():
            neighbor = state.neighbors[n]
            if not neighbor.is_reachable or neighbor.incarnation != incarnation:
                parts.lose(n)
        if now >= self._until():
            parts.give_up()
        if parts.awaited:
            return False
        if parts.problem:
            state.totals["sums_lost"] += 1
            state.log("warning", f"round {state.round.index}: no sum, this peer keeps its own model: {parts.problem}")
        return True

    def refused_by(self, neighbor: int, message: SumMessage) -> None:
        """Wait no longer for a member that refuses what the own sum asks of it: it will reveal nothing."""
        own = message.kind in (Opening.MEMBERS, Opening.AGREED) and message.round_index == self._state.round.index
        if own and self._parts is not None:
            self._parts.lose(neighbor)

    def _until(self) -> float:
        began = self._fixed_at if self._fixed_at is not None else float("inf")
        return began + WAIT_SUSPICIONS * self._state.manifest.timeouts.suspicion_s

    def next_time(self) -> Iterable[float]:
        """Yield the time at which nothing more is waited for."""
        if self._parts is not None and self._fixed_at is not None and self._parts.awaited:
            yield self._until()


def _unasked(what: str) -> Refusal:
    return Refusal(RefusalCode.MALFORMED, f"secure sums: expected no {what} in a run without run.secure_sum, got one")
