"""The part of the engine that sends: a step's offers to each neighbor, answers, failures, retries. Pure.

A push may wait long for its answer, because its neighbor still trains. It may also be lost without an error, by a bug or a
network device. After `lockstep.retry_after_suspicions` it is therefore sent again, if it has only waited for the second half of
that time, and ever more rarely from then on; the receiver takes both for one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coordinator_free_bootstrap.errors import Refusal
from peer.core import effects as do
from peer.core import events as ev
from peer.core.contacts import NOW, Contacts
from peer.core.decisions import AlgorithmState, Offer
from peer.core.messages import ModelHeader, Pass, Select
from peer.core.neighbor import Neighbor
from peer.core.outbox import Place
from peer.core.pace import Pace
from peer.core.state import State

SILENT_SHARE = 0.5  # of the time since a push began it must have waited: not all of it, as it first sent

# Refusals of the moment, not of the message: it is sent again.
RETRIED = frozenset(
    {
        Refusal.NO_HANDSHAKE,
        Refusal.OLD_INCARNATION,
        Refusal.ROUND_TOO_FAR_AHEAD,
        Refusal.TOO_MANY_STREAMS,
        Refusal.RATE_LIMITED,
        Refusal.TOO_SLOW,
        Refusal.DIGEST_MISMATCH,
        Refusal.NO_BASE,
    }
)


@dataclass
class OpenOffers:
    """A step's offers, kept for neighbors whose selection becomes known only afterwards.

    That is usual in async pace. In lockstep such a neighbor was away when this peer went on without its selection, perhaps
    into the next round.
    """

    place: Place
    state: AlgorithmState
    offered_to: set[int]


class Sender:
    """Delivers each message at least once to each neighbor that can be reached."""

    def __init__(self, run: State, pace: Pace, contacts: Contacts) -> None:
        self._run = run
        self._pace = pace
        self._contacts = contacts
        self._patience_s = run.manifest.lockstep.retry_after_suspicions * run.manifest.timeouts.suspicion_s
        self._open: tuple[OpenOffers, ...] = ()  # of rounds whose snapshots are kept

    # ---- answers --------------------------------------------------------------------------------------------------------

    def answered(self, event: ev.SendAnswered, now: float) -> None:
        """Go on with the next message, or retry this one."""
        neighbor = self._run.neighbors[event.neighbor]
        self._contacts.changed(neighbor, neighbor.liveness.answered(now))
        if event.refusal in RETRIED:
            neighbor.outbox.failed(now)
            if event.refusal is Refusal.NO_BASE:  # the neighbor has restarted: it gets the whole model
                return
            if event.refusal is Refusal.ROUND_TOO_FAR_AHEAD:  # it was away: told our round, it catches up
                self._contacts.send_heartbeat(neighbor, now)
                return
        elif (message := neighbor.outbox.answered()) is not None:
            self._count(message, event.size_bytes)
        if event.refusal is not None:
            self._contacts.refused_by(neighbor, event.refusal, event.reason, now)

    def _count(self, message: Select | Pass | ModelHeader, size_bytes: int | None) -> None:
        totals = self._run.totals
        if isinstance(message, ModelHeader):
            totals["models_sent"] += 1
            totals["payload_bytes_sent"] += message.size_bytes if size_bytes is None else size_bytes
        elif isinstance(message, Select):
            totals["selections_sent"] += 1
            totals["sketch_bytes_sent"] += len(message.sketch)
        else:
            totals["passes_sent"] += 1

    def failed(self, event: ev.SendFailed, now: float) -> None:
        """Retry after a pause."""
        neighbor = self._run.neighbors[event.neighbor]
        neighbor.outbox.failed(now)
        message = f"sending to peer {neighbor.id} failed, will retry: {event.reason}"
        self._run.log_neighbor("debug", message, neighbor.id, "send")
        self._contacts.changed(neighbor, neighbor.liveness.call_failed(now))

    def stalled(self, event: ev.SendStalled) -> None:
        """Send a model again that was not answered for long."""
        neighbor = self._run.neighbors[event.neighbor]
        neighbor.outbox.stalled(NOW)
        message = f"peer {neighbor.id} did not answer a model for {self._patience_s:g} s or more: sending it again"
        self._run.log_neighbor("debug", message, neighbor.id, "send")

    # ---- what is due ----------------------------------------------------------------------------------------------------

    def send_due(self, now: float) -> None:
        """Send the next message to every neighbor that can be reached."""
        run = self._run
        for n, neighbor in run.neighbors.items():
            if not neighbor.is_reachable:
                continue
            if neighbor.outbox.is_overdue(now, self._patience_s):
                run.emit(do.RetryIfStalled(n, self._patience_s * SILENT_SHARE))
            message = neighbor.outbox.next(now, self._pace.oldest_wanted(neighbor))
            if message is None:
                continue
            message = replace(message, incarnation=run.incarnation)
            neighbor.sent_at = now
            if isinstance(message, ModelHeader):
                run.emit(do.SendModel(n, message))
            else:
                run.totals["control_messages_sent"] += 1
                run.emit(do.SendControl(n, message))

    def post_selection(self) -> None:
        """Queue what this peer selects for the round, for every neighbor that it may exchange models with."""
        run = self._run
        select = run.selection()
        if select is None:
            return
        for n, neighbor in run.neighbors.items():
            if run.offers_to(n):
                neighbor.outbox.post(replace(select, declines=run.declines(n)))

    def post_offers(self) -> None:
        """Queue this step's models, or a pass, for every neighbor."""
        run, place = self._run, self._run.round.place
        state = run.agreed_state
        selected = run.selection()
        plan = {n: self._offers(state, neighbor) for n, neighbor in run.neighbors.items()}
        wanted = {offer.slot for offers in plan.values() for offer in offers}
        if selected is not None:
            wanted |= {selected.selected} - {-1}  # a neighbor may still ask for it
            if run.algorithm.asking(place[0]):
                wanted |= {offer.slot for n in run.neighbors for offer in run.algorithm.offers(state, *place, n, None)}
            offered_to = {n for n, offers in plan.items() if offers}
            self._open = (*self._open, OpenOffers(place, state, offered_to))[-self._pace.rounds_open :]
        if wanted:
            run.emit(do.TakeSnapshot(*place, tuple(sorted(wanted))))
        numbers = run.algorithm.tells(state, *place)
        for n, offers in plan.items():
            neighbor = run.neighbors[n]
            self._pace.before_offers(neighbor)
            has_selection = selected is not None and place[1] == 0 and run.offers_to(n)
            if not offers and not has_selection:
                self._post_pass(neighbor, place, numbers if run.edge_is_up(n, place[0]) else ())
            self._post_models(neighbor, offers, place)
        run.round.offered = True

    def _post_pass(self, neighbor: Neighbor, place: Place, numbers: tuple[float, ...]) -> None:
        if numbers or self._pace.sends_passes:
            neighbor.outbox.post(Pass(self._run.peer_id, self._run.incarnation, *place, numbers))

    def _offers(self, state: AlgorithmState, neighbor: Neighbor) -> tuple[Offer, ...]:
        run, place = self._run, self._run.round.place
        select = self._pace.selection_of(neighbor, place[0])
        if not run.offers_to(neighbor.id) or not self._takes(select, place):
            return ()
        return run.algorithm.offers(state, *place, neighbor.id, select)

    def _takes(self, select: Select | None, place: Place) -> bool:
        """Return whether a neighbor with this selection takes models; where peers ask, one that has not asked does not."""
        if select is None:
            return not self._run.algorithm.asking(place[0])
        return not select.declines

    def post_passes(self, round_index: int) -> None:
        """Queue passes for a round that this peer skips, or closed in an earlier incarnation."""
        run = self._run
        if not self._pace.sends_passes or round_index < 0:
            return
        for neighbor in run.neighbors.values():
            for step in range(run.algorithm.steps(round_index)):
                neighbor.outbox.post(Pass(run.peer_id, run.incarnation, round_index, step))

    def offer_after_selection(self, neighbor: Neighbor) -> None:
        """Offer the models that a selection calls for which came after our offers went out."""
        run = self._run
        for offers in self._open:
            if neighbor.id in offers.offered_to or offers.place[0] < run.round.index - 1:
                continue  # offered before, or the snapshot is freed
            select = self._pace.selection_of(neighbor, offers.place[0])
            if select is not None and not select.declines and run.edge_is_up(neighbor.id, offers.place[0]):
                late = run.algorithm.offers(offers.state, *offers.place, neighbor.id, select)
                self._post_models(neighbor, late, offers.place)
                if late:
                    offers.offered_to.add(neighbor.id)

    def _post_models(self, neighbor: Neighbor, offers: tuple[Offer, ...], place: Place) -> None:
        run = self._run
        for index, offer in enumerate(offers):
            header = ModelHeader(
                sender=run.peer_id,
                incarnation=run.incarnation,
                round_index=place[0],
                step=place[1],
                slot=offer.slot,
                index=index,
                total=len(offers),
                sample_count=offer.sample_count,
                mass=offer.mass,
                scalars=offer.scalars,
                size_bytes=run.model_bytes,
                encoding=run.manifest.encoding,
            )
            neighbor.outbox.post(header)
