"""The part of the engine that sends: a step's offers to each neighbor, answers, failures, retries. Pure.

A push may wait long for its answer, because its neighbor still trains. It may also be lost without an error, by a bug or a
network device. After `Constants.retry_after_suspicions` it is therefore sent again, if it has only waited for the second half of
that time, and at growing intervals from then on; the receiver takes both for one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coordinator_free_bootstrap.errors import RefusalCode
from peer.core import effects as do
from peer.core import events as ev
from peer.core.agreement import Agreement
from peer.core.contacts import DUE_AT_ONCE, Contacts
from peer.core.decisions import AlgorithmState, Offer
from peer.core.encoding import MASKED
from peer.core.messages import NO_NUMBERS, ModelHeader, Numbers, Pass, Select, Statistics, SumMessage
from peer.core.neighbor import Message, Neighbor, RoundStep
from peer.core.pace import Pace
from peer.core.plan import RoundPlan
from peer.core.state import State
from peer.core.sums import Summing

SILENT_SHARE = 0.5  # of the time since a push began it must have waited: not all of it, as it first sent

# Refusals of the moment, not of the message: it is sent again.
RETRIED = frozenset(
    {
        RefusalCode.NO_HANDSHAKE,
        RefusalCode.OLD_INCARNATION,
        RefusalCode.ROUND_TOO_FAR_AHEAD,
        RefusalCode.TOO_MANY_STREAMS,
        RefusalCode.RATE_LIMITED,
        RefusalCode.TOO_SLOW,
        RefusalCode.DIGEST_MISMATCH,
        RefusalCode.NO_BASE,
    }
)


@dataclass
class OpenOffers:
    """A step's offers, kept for neighbors whose selection becomes known only afterwards.

    That is usual in async pace. In lockstep such a neighbor was away when this peer continued without its selection, perhaps
    into the next round.
    """

    plan: RoundPlan
    round_step: RoundStep
    decided: AlgorithmState
    offered_to: set[int]


class Sender:
    """Delivers each message at least once to each neighbor that can be reached."""

    def __init__(self, state: State, pace: Pace, contacts: Contacts, agreement: Agreement, sums: Summing) -> None:
        self._state = state
        self._pace = pace
        self._contacts = contacts
        self._agreement = agreement
        self._sums = sums
        self._patience_s = state.constants.retry_after_suspicions * state.manifest.timeouts.suspicion_s
        self._unannounced: RoundPlan | None = None  # its selection waits for the last checkpoint
        self._open: tuple[OpenOffers, ...] = ()  # of rounds whose snapshots are kept

    # ---- answers --------------------------------------------------------------------------------------------------------

    def answered(self, event: ev.SendAnswered, now: float) -> None:
        """Go on with the next message, or retry this one."""
        neighbor = self._state.neighbors[event.neighbor]
        self._contacts.changed(neighbor, neighbor.liveness.answered(now))
        code = None if event.refusal is None else event.refusal.code
        if code in RETRIED:
            neighbor.outbox.failed(now)
            if code is RefusalCode.NO_BASE:  # the neighbor has restarted: it gets the whole model
                return
            if code is RefusalCode.ROUND_TOO_FAR_AHEAD:  # it was away: it learns our round and catches up
                self._contacts.send_heartbeat(neighbor, now)
                return
        elif (message := neighbor.outbox.answered()) is not None:
            self._count(message, event.size_bytes)
            if isinstance(message, Statistics) and event.refusal is not None:
                self._agreement.refused_by(neighbor, event.refusal)
            if isinstance(message, SumMessage) and event.refusal is not None:
                self._sums.refused_by(neighbor.id, message)
        if event.refusal is not None:
            self._contacts.refused_by(neighbor, event.refusal, now)

    def _count(self, message: Message, size_bytes: int | None) -> None:
        totals = self._state.totals
        totals["number_bytes_sent"] += len(message.numbers.data)
        if isinstance(message, ModelHeader):
            totals["models_sent"] += 1
            totals["payload_bytes_sent"] += message.size_bytes if size_bytes is None else size_bytes
        elif isinstance(message, Select):
            totals["selections_sent"] += 1
        elif isinstance(message, Pass):
            totals["passes_sent"] += 1

    def failed(self, event: ev.SendFailed, now: float) -> None:
        """Retry after a pause."""
        neighbor = self._state.neighbors[event.neighbor]
        neighbor.outbox.failed(now)
        message = f"sending to peer {neighbor.id} failed, will retry: {event.reason}"
        self._state.log_neighbor("debug", message, neighbor.id, "send")
        self._contacts.changed(neighbor, neighbor.liveness.call_failed(now))

    def stalled(self, event: ev.SendStalled) -> None:
        """Send a model again that was not answered for long."""
        neighbor = self._state.neighbors[event.neighbor]
        neighbor.outbox.stalled(DUE_AT_ONCE)
        message = f"peer {neighbor.id} did not answer a model for {self._patience_s:g} s or more: sending it again"
        self._state.log_neighbor("debug", message, neighbor.id, "send")

    # ---- what is due ----------------------------------------------------------------------------------------------------

    def send_due(self, now: float) -> None:
        """Send the next message to every neighbor that can be reached."""
        state = self._state
        for n, neighbor in state.neighbors.items():
            if not neighbor.is_reachable:
                continue
            if state.sites is not None and (statistics := self._agreement.due(neighbor)) is not None:
                neighbor.outbox.post(statistics)
            if not neighbor.outbox.pending():
                continue
            if neighbor.outbox.is_overdue(now, self._patience_s):
                state.emit(do.RetryIfStalled(n, self._patience_s * SILENT_SHARE))
            message = neighbor.outbox.next(now, self._pace.oldest_wanted(neighbor))
            if message is None:
                continue
            message = replace(message, incarnation=state.incarnation)
            neighbor.sent_at = now
            if isinstance(message, ModelHeader):
                state.emit(do.SendModel(n, message))
            else:
                state.totals["control_messages_sent"] += 1
                state.emit(do.SendControl(n, message))

    def announce(self) -> None:
        """Tell what this peer selects for the round, once the last checkpoint is safe."""
        self._unannounced = self._state.plan
        self.post_selection()

    def post_selection(self) -> None:
        """Queue what this peer selects for every neighbor that it may exchange models with, unless a checkpoint is being written.

        A neighbor that is declined completes its round with it; a peer that is killed could not repeat it.
        """
        plan = self._unannounced
        if plan is None or self._state.saving:
            return
        self._unannounced = None
        if plan.selection is None:
            return
        for n, neighbor in self._state.neighbors.items():
            if n in plan.receivers:
                neighbor.outbox.post(replace(plan.selection, declines=plan.declines(n)))

    def post_offers(self) -> None:
        """Queue this step's models, or a pass, for every neighbor."""
        state, plan, round_step = self._state, self._state.plan, self._state.round.current
        decided = state.agreed_state
        selected = plan.selection
        offers_of = {n: self._offers(decided, neighbor) for n, neighbor in state.neighbors.items()}
        wanted = {offer.slot for offers in offers_of.values() for offer in offers}
        if selected is not None:
            wanted |= {selected.selected} - {-1}  # a neighbor may still ask for it
            if plan.asking:
                wanted |= {
                    offer.slot
                    for n in state.neighbors
                    for offer in state.algorithm.offers(decided, *round_step, n, None)
                }
            offered_to = {n for n, offers in offers_of.items() if offers}
            open_max = 2 if self._pace.waits else 1
            self._open = (*self._open, OpenOffers(plan, round_step, decided, offered_to))[-open_max:]
        if wanted:
            state.emit(do.TakeSnapshot(*round_step, tuple(sorted(wanted))))
        numbers = state.algorithm.tells(decided, *round_step)
        for n, offers in offers_of.items():
            neighbor = state.neighbors[n]
            if not self._pace.waits:
                neighbor.outbox.supersede(round_step[0])
            # A selection that announces a sum does not say whether a model follows.
            has_selection = selected is not None and round_step[1] == 0 and n in plan.receivers and state.sums is None
            if not offers and not has_selection:
                self._post_pass(neighbor, round_step, numbers if n in plan.up else NO_NUMBERS)
            self._post_models(neighbor, offers, round_step)

    def _post_pass(self, neighbor: Neighbor, round_step: RoundStep, numbers: Numbers) -> None:
        if numbers or self._pace.waits:
            neighbor.outbox.post(Pass(self._state.peer_id, self._state.incarnation, *round_step, numbers))

    def _offers(self, decided: AlgorithmState, neighbor: Neighbor) -> tuple[Offer, ...]:
        state, round_step = self._state, self._state.round.current
        select = self._pace.selection_of(neighbor, round_step[0])
        if neighbor.id not in state.plan.receivers or not self._takes(select) or not self._sums.offers_to(neighbor.id):
            return ()
        return state.algorithm.offers(decided, *round_step, neighbor.id, select)

    def _takes(self, select: Select | None) -> bool:
        """Return whether a neighbor with this selection takes models; where peers ask, one that has not asked does not."""
        if select is None:
            return not self._state.plan.asking
        return not select.declines

    def post_passes(self, round_index: int) -> None:
        """Queue passes for a round that this peer skips, or closed in an earlier incarnation."""
        state = self._state
        if not self._pace.waits or round_index < 0:
            return
        for neighbor in state.neighbors.values():
            for step in range(state.planner.plan(round_index).steps):
                neighbor.outbox.post(Pass(state.peer_id, state.incarnation, round_index, step))

    def offer_after_selection(self, neighbor: Neighbor) -> None:
        """Offer the models that a selection calls for which came after our offers went out; a sum is over then."""
        state = self._state
        for offers in self._open if state.sums is None else ():
            if neighbor.id in offers.offered_to or offers.round_step[0] < state.round.index - 1:
                continue  # offered before, or the snapshot is freed
            select = self._pace.selection_of(neighbor, offers.round_step[0])
            if select is not None and not select.declines and neighbor.id in offers.plan.up:
                offers_now = state.algorithm.offers(offers.decided, *offers.round_step, neighbor.id, select)
                self._post_models(neighbor, offers_now, offers.round_step)
                if offers_now:
                    offers.offered_to.add(neighbor.id)

    def _post_models(self, neighbor: Neighbor, offers: tuple[Offer, ...], round_step: RoundStep) -> None:
        state = self._state
        for index, offer in enumerate(offers):
            header = ModelHeader(
                sender=state.peer_id,
                incarnation=state.incarnation,
                round_index=round_step[0],
                step=round_step[1],
                slot=offer.slot,
                index=index,
                total=len(offers),
                sample_count=offer.sample_count,
                mass=offer.mass,
                size_bytes=state.model_bytes,
                encoding=state.manifest.encoding if state.sums is None else MASKED,
                numbers=offer.numbers,
                shares=self._sums.shares(neighbor.id, round_step[0]),
            )
            neighbor.outbox.post(header)
