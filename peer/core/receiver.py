"""The part of the engine that receives: selections and passes, and arrivals from offer to fold, exactly once. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.core import effects as do
from peer.core import events as ev
from peer.core.arrivals import Arrival, Buffers, fold_order
from peer.core.contacts import Contacts
from peer.core.messages import ModelHeader, Outcome, Pass, Select
from peer.core.pace import Pace
from peer.core.stages import OPEN, Stage
from peer.core.state import State
from peer.core.sums import Summing


class Receiver:
    """Decides which arrivals are refused, read, and folded, and when."""

    def __init__(self, state: State, pace: Pace, contacts: Contacts, sums: Summing) -> None:
        self._state = state
        self._pace = pace
        self._contacts = contacts
        self._sums = sums
        self._buffers = Buffers(
            state.arrivals, state.constants.concurrent_receives, state.manifest.timeouts, state.answer
        )
        self._answered = False
        self._rho = state.manifest.rho

    # ---- what cannot be accepted; nothing changes ----------------------------------------------------------------------

    def rejects_sender(self, sender: int, incarnation: int) -> Refusal | None:
        """Return why a message cannot be taken: not a neighbor, an old incarnation, or no handshake with this one yet."""
        state, neighbor = self._state, self._state.neighbors.get(sender)
        if neighbor is None:
            return Refusal(
                RefusalCode.NOT_A_NEIGHBOR,
                f"sender: expected a neighbor of peer {state.peer_id} in the graph file, got peer {sender}",
            )
        if incarnation < neighbor.incarnation:
            reason = f"incarnation of peer {sender}: expected {neighbor.incarnation} or higher, got {incarnation}"
            return Refusal(RefusalCode.OLD_INCARNATION, reason)
        if not neighbor.connected or incarnation > neighbor.incarnation:
            return Refusal(
                RefusalCode.NO_HANDSHAKE,
                f"expected a handshake first, got a message of incarnation {incarnation} of peer {sender}",
            )
        return None

    def rejects_control(self, message: Select | Pass) -> Refusal | None:
        """Return why a selection or a pass cannot be believed."""
        rejection = (
            self.rejects_sender(message.sender, message.incarnation)
            or self._rejects_round_step(message.round_index, message.step)
            or self._too_far_ahead(message.round_index)
        )
        if rejection is not None:
            return rejection
        if isinstance(message, Select):
            return self._rejects_select(message)
        return self._state.algorithm.rejects_pass(self._state.algorithm_state, message)

    def _rejects_select(self, select: Select) -> Refusal | None:
        state = self._state
        if not -1 <= select.selected < state.algorithm.slots:
            reason = f"selection: expected a cluster below {state.algorithm.slots}, or -1, got {select.selected}"
            return Refusal(RefusalCode.SLOT_OUT_OF_RANGE, reason)
        earlier = state.neighbors[select.sender].selections.get(select.round_index)
        if earlier is not None and _content(earlier) != _content(select):
            expected = f"selection for round {select.round_index}: expected {_described(earlier)}, as before"
            reason = f"{expected}, got {_described(select)}"
            return Refusal(RefusalCode.CONTRADICTS_SELECTION, reason)
        asking = state.planner.plan(select.round_index).asking
        if select.declines and not asking:
            name = state.manifest.algorithm
            reason = f"round {select.round_index}: expected no declined models with algorithm '{name}', got a decline"
            return Refusal(RefusalCode.MALFORMED, reason)
        if (rejection := self._sums.rejects_select(select)) is not None:
            return rejection
        if (asking or state.sums is not None) and select.selected == -1 and not select.numbers:
            return None
        return state.algorithm.rejects_select(state.algorithm_state, select)

    def _too_far_ahead(self, round_index: int) -> Refusal | None:
        """A neighbor cannot be further ahead unless this peer was away; it learns that from heartbeats, not from models."""
        state, most = self._state, self._pace.rounds_ahead_max
        if most is None or round_index <= state.round.index + most:
            return None
        reason = f"round: expected at most {state.round.index + most} at peer {state.peer_id}, got {round_index}"
        return Refusal(RefusalCode.ROUND_TOO_FAR_AHEAD, reason)

    def _rejects_round_step(self, round_index: int, step: int) -> Refusal | None:
        state = self._state
        if not 0 <= round_index < state.manifest.rounds:
            return Refusal(
                RefusalCode.ROUND_OUT_OF_RANGE, f"round: expected 0 to {state.manifest.rounds - 1}, got {round_index}"
            )
        steps = max(1, state.planner.plan(round_index).steps)
        if not 0 <= step < steps:
            reason = f"step of round {round_index}: expected 0 to {steps - 1}, got {step}"
            return Refusal(RefusalCode.ROUND_OUT_OF_RANGE, reason)
        return None

    def _rejects_header(self, header: ModelHeader) -> Refusal | None:
        state, limits = self._state, self._state.constants
        rejection = self._rejects_round_step(header.round_index, header.step)
        if rejection is not None:
            return rejection
        if not 0 <= header.slot < state.algorithm.slots:
            return Refusal(
                RefusalCode.SLOT_OUT_OF_RANGE, f"slot: expected 0 to {state.algorithm.slots - 1}, got {header.slot}"
            )
        if not 0 <= header.index < header.total <= max(state.algorithm.slots, 1):
            most = max(state.algorithm.slots, 1)
            reason = f"model: expected an index below its total, up to {most}, got {header.index} of {header.total}"
            return Refusal(RefusalCode.MALFORMED, reason)
        if header.sender not in state.planner.plan(header.round_index).up:
            reason = f"expected no model over an edge that is down in round {header.round_index}, got one of peer {header.sender}"
            return Refusal(RefusalCode.MALFORMED, reason)
        weights = (header.mass, float(header.sample_count))
        if not all(limits.weight_min <= w <= limits.weight_max for w in weights):
            allowed = f"{limits.weight_min:g} to {limits.weight_max:g}"
            problem = f"mass and sample count: expected {allowed}, got {weights}"
            return Refusal(RefusalCode.WEIGHT_OUT_OF_RANGE, problem)
        if (rejection := self._too_far_ahead(header.round_index) or self._sums.rejects_header(header)) is not None:
            return rejection
        if self._is_stale(header):
            return None  # its selection is forgotten by now; the answer is `stale`
        select = state.neighbors[header.sender].selections.get(header.round_index)
        return state.algorithm.rejects(state.algorithm_state, header, select)

    # ---- selections and passes ------------------------------------------------------------------------------------------

    def select_received(self, event: ev.SelectReceived, now: float) -> None:
        """Note a selection."""
        neighbor = self._state.neighbors[event.select.sender]
        self._contacts.heard(neighbor, event.select.round_index, now)
        neighbor.note_select(event.select)
        self._sums.selected(event.select)

    def pass_received(self, event: ev.PassReceived, now: float) -> None:
        """Note that a step brings no models."""
        neighbor = self._state.neighbors[event.message.sender]
        self._contacts.heard(neighbor, event.message.round_index, now)
        neighbor.note_pass(event.message)

    def selections_known(self, now: float) -> bool:
        """Return whether this round's selections are known, or waited for long enough; they are agreed on once."""
        state = self._state
        if state.round.agreed is None and (now >= state.round.deadline or not self._pace.missing_selections()):
            state.round.agreed = {select.sender: select for select in self._pace.selections()}
        return state.round.agreed is not None

    # ---- arrivals: events -----------------------------------------------------------------------------------------------

    def offered(self, event: ev.ArrivalOffered, now: float) -> None:
        """Take an offered model, unread, or refuse it."""
        arrival, header, state = event.arrival, event.arrival.header, self._state
        rejection = self._rejects_header(header)
        if rejection is not None:
            state.refusals[rejection.code] += 1
            state.answer(arrival, rejection)
            return
        self._contacts.heard(state.neighbors[header.sender], header.round_index, now)
        earlier = state.arrivals.unread_copy(header)
        if earlier is not None:
            state.answer(earlier, Refusal(RefusalCode.NO_HANDSHAKE, "a newer stream carries the same model"))
        state.arrivals.offered[arrival.stream] = arrival

    def complete(self, event: ev.ArrivalComplete, now: float) -> None:
        """Take a complete arrival; it waits for its turn."""
        arrivals, arrival, header = self._state.arrivals, event.arrival, event.arrival.header
        if arrivals.reading.pop(arrival.stream, None) is not None:
            arrivals.complete[arrival.stream] = arrival
            self._state.neighbors[header.sender].note_model(header.round_index)
            self._contacts.heard(self._state.neighbors[header.sender], header.round_index, now)

    def lost(self, event: ev.ArrivalLost) -> None:
        """Forget an arrival; a model that failed screening will not come again, so the round does not wait for it."""
        header = event.arrival.header
        if not self._state.arrivals.forget(event.arrival):
            return
        self._state.neighbors[header.sender].stalls += event.stalled
        if event.refusal is None:
            return
        self._state.totals["models_rejected"] += 1
        self._state.round.notes.rejected[event.refusal.code] += 1
        if not self._is_closed(header):
            self._state.neighbors[header.sender].note_delivered(header)

    def folded(self, event: ev.ArrivalFolded) -> None:
        """Free an arrival's buffer."""
        self._state.arrivals.folding.pop(event.arrival.stream, None)

    # ---- arrivals: what is due ------------------------------------------------------------------------------------------

    def advance(self, now: float) -> bool:
        """Answer, fold and read whatever the present stage allows; return whether a model was answered and not folded.

        Such a model may be the last that a step waits for, and no event will follow it.
        """
        self._answered = False
        self._buffers.note(now)
        self._answer_unread()
        if self._state.stage in OPEN and not self._state.leaving:
            self._fold_complete(now)
            self._read_offered(now)
        return self._answered

    def next_time(self, now: float) -> Iterator[float]:
        """Yield the times at which something is due here by itself."""
        yield from self._buffers.next_time(now)
        waits = self._state.arrivals.offered or self._state.arrivals.complete
        if self._pace.folds_in_order and waits and now < self._state.round.ordered_until:
            yield self._state.round.ordered_until

    def _turn(self, now: float) -> int | None:
        """Return the neighbor whose models are folded next, as `Pace.turn`.

        Near the round deadline models are folded as they come: those that wait for a neighbor that does not deliver would be
        lost with it.
        """
        return self._pace.turn() if now < self._state.round.ordered_until else None

    def _is_closed(self, header: ModelHeader) -> bool:
        return self._pace.is_closed((header.round_index, header.step))

    def _is_stale(self, header: ModelHeader) -> bool:
        """Return whether a model is too old to fold; age counts in whole rounds, and never into a later relay step."""
        relayed = self._state.planner.plan(header.round_index).steps != 1
        age_max = -1 if relayed else self._pace.stale_rounds_max
        return self._is_closed(header) and self._pace.age(header) > age_max

    def _answer_unread(self) -> None:
        """Answer the offered models that will never be read."""
        state = self._state
        for arrival in list(state.arrivals.offered.values()):
            if state.stage in (Stage.FINISHING, Stage.LINGERING):
                state.answer(arrival, Outcome.UNUSED)
            else:
                self._answer_unfoldable(arrival)

    def _answer_unfoldable(self, arrival: Arrival) -> bool:
        """Answer a model that is not folded whatever it holds; return whether that is so."""
        state, header = self._state, arrival.header
        if state.arrivals.is_duplicate(header):
            state.totals["duplicates_dropped"] += 1
            state.answer(arrival, Outcome.DUPLICATE)
            state.neighbors[header.sender].note_delivered(header)
        elif self._is_stale(header):
            state.totals["stale_dropped"] += 1
            state.answer(arrival, Outcome.STALE)
        elif self._is_declined(header) or self.is_unwanted(header):
            self._answer_unused(arrival)
        elif not self._sums.fits(header):
            self._answer_unused(arrival)
            state.neighbors[header.sender].note_delivered(header)
        else:
            return False
        self._answered = True
        return True

    def _is_declined(self, header: ModelHeader) -> bool:
        """Return whether this peer declines the sender's models; one of a round in which no peer asks may come early."""
        return self._state.plan.declines(header.sender) and self._state.planner.plan(header.round_index).asking

    def is_unwanted(self, header: ModelHeader) -> bool:
        """Return whether the sender's models of this round are enough."""
        most = self._pace.models_per_round_max
        return most is not None and self._state.arrivals.count_in_round(header) >= most

    def _answer_unused(self, arrival: Arrival) -> None:
        self._state.totals["models_unused"] += 1
        self._state.answer(arrival, Outcome.UNUSED)

    def _read_offered(self, now: float) -> None:
        """Let offered models be read, those in turn first."""
        arrivals = self._state.arrivals
        if not arrivals.offered:
            return
        known, turn = self.selections_known(now), self._turn(now)
        if turn is None:
            self._buffers.give_up_slow(now)
        for arrival in self._buffers.in_order(by_round=turn is not None):
            header = arrival.header
            if not self._pace.may_read((header.round_index, header.step), selections_known=known):
                continue
            if arrivals.has_complete(header):  # sent again: answered once the first is folded, read if that one is lost
                continue
            # With -1 all have delivered: what is offered now is a retry of a model that failed screening.
            in_turn = turn in (None, -1, header.sender) or self._is_closed(header)
            if self._buffers.has_room(header.sender, turn, now, in_turn=in_turn):
                arrivals.reading[arrival.stream] = arrivals.offered.pop(arrival.stream)
                self._buffers.begin(arrival, now)
                self._state.emit(do.ReadArrival(arrival))

    def _fold_complete(self, now: float) -> None:
        """Fold the complete arrivals whose turn has come."""
        arrivals = self._state.arrivals
        if arrivals.complete:
            self.selections_known(now)  # weights may depend on what is agreed
        while arrivals.complete:
            turn = self._turn(now)
            waiting = sorted(arrivals.complete.values(), key=fold_order)
            ready = [each for each in waiting if turn is None or each.sender == turn or self._is_closed(each.header)]
            if not ready and len(waiting) == self._state.constants.concurrent_receives:
                # A neighbor returned whose turn is earlier: no buffer is free for it unless one is folded first.
                ready = waiting
            if not ready:
                return
            arrival = ready[0]
            del arrivals.complete[arrival.stream]
            if not self._answer_unfoldable(arrival):
                self._fold(arrival)

    def _fold(self, arrival: Arrival) -> None:
        state, header = self._state, arrival.header
        state.arrivals.mark_folded(header)
        if not self._is_closed(header):
            state.neighbors[header.sender].note_delivered(header)
        targets = state.algorithm.targets(state.agreed_state, header)
        if targets is None:
            self._answer_unused(arrival)
            self._answered = True
            return
        by_age = self._rho ** self._pace.age(header)
        targets = tuple(replace(target, weight=target.weight * by_age) for target in targets)
        self._sums.delivered(header)
        state.arrivals.folding[arrival.stream] = arrival
        state.totals["models_folded"] += 1
        key = [header.sender, header.incarnation, header.round_index, header.step, header.slot]
        state.round.notes.folded.append(key)
        state.emit(do.AnswerArrival(arrival, Outcome.FOLDED))
        state.emit(do.FoldArrival(arrival, targets))


def _content(select: Select) -> tuple[int, bool, bytes]:
    """Return what a sender may not say in two ways."""
    return select.selected, select.declines, select.roster


def _described(select: Select) -> str:
    summed = f", a sum of {len(select.roster)} bytes of keys" if select.roster else ""
    return f"cluster {select.selected} selected{', models declined' if select.declines else ''}{summed}"
