"""The part of the engine that sends: this step's offers to each neighbor, answers, failures, repeats. Pure.

A push may wait long for its answer, because its neighbor still trains. So may one that was lost without a word, by a bug or by
what lies between; it is therefore made again after `LONG_WAIT`, and ever more rarely then. The receiver knows both for one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coordinator_free_bootstrap.errors import Refusal
from peer.core import effects as do
from peer.core import events as ev
from peer.core.arrivals import Arrivals
from peer.core.decisions import Facts, Offer
from peer.core.messages import Announce, ModelHeader
from peer.core.neighbors import Place
from peer.core.state import LONG_WAIT, NOW, Effects

# Refusals of the moment, not of the message: it is sent again.
PASSING = frozenset(
    {
        Refusal.NO_HANDSHAKE,
        Refusal.OLD_INCARNATION,
        Refusal.ROUND_TOO_FAR_AHEAD,
        Refusal.TOO_MANY_STREAMS,
        Refusal.RATE_LIMITED,
        Refusal.TOO_SLOW,
        Refusal.DIGEST_MISMATCH,
    }
)


@dataclass
class LateOffers:
    """A step's offers, for neighbors whose selection becomes known only afterwards.

    That is usual in async pace; in lockstep such a neighbor was away when this peer went on without its word, perhaps
    into the next round.
    """

    place: Place
    facts: Facts
    offered: set[int]


class Sending(Arrivals):
    """At least once to each neighbor that can be reached."""

    late: tuple[LateOffers, ...] = ()  # of the last two rounds, as long as their snapshots live

    def _on_sent(self, event: ev.Sent, now: float, out: Effects) -> None:
        self._changes(self.membership.answered(event.neighbor, self.views[event.neighbor].incarnation, now), out)
        if event.refusal is not None and event.refusal in PASSING:
            self.outbox.failed(event.neighbor, now)
            if event.refusal is Refusal.ROUND_TOO_FAR_AHEAD:  # it was away: told our round, it catches up
                self._beat(self.views[event.neighbor], now, out)
            else:
                self._refused_by(event.neighbor, event.refusal, event.reason, now, out)
            return
        message = self.outbox.answered(event.neighbor)
        if isinstance(message, ModelHeader):
            self.totals["models_sent"] += 1
            self.totals["payload_bytes_sent"] += message.size_bytes
        elif message is not None:
            self.totals["announcements_sent"] += 1
            self.totals["sketches_sent"] += bool(message.sketch)
        if event.refusal is not None:
            self._refused_by(event.neighbor, event.refusal, event.reason, now, out)

    def _on_sendfailed(self, event: ev.SendFailed, now: float, out: Effects) -> None:
        self.outbox.failed(event.neighbor, now)
        sentence = f"sending to peer {event.neighbor} failed, to be repeated: {event.reason}"
        out.append(do.Log("debug", sentence, event.neighbor, "send"))
        self._changes(self.membership.contact_failed(event.neighbor, now), out)

    def _on_unanswered(self, event: ev.Unanswered, now: float, out: Effects) -> None:
        self.outbox.failed(event.neighbor, NOW)
        sentence = f"peer {event.neighbor} has not answered a model for long: sent again"
        out.append(do.Log("debug", sentence, event.neighbor, "send"))

    def _pump(self, now: float, out: Effects) -> None:
        """Send what is due to every neighbor that can be reached."""
        for n in self.neighbors:
            if not self.membership.is_live(n) or not self.views[n].incarnation:
                continue
            patience_s = LONG_WAIT * self.manifest.timeouts.suspicion_s
            if self.outbox.overdue(n, now, patience_s):
                out.append(do.SendAgain(n, patience_s))
            from_round = self.views[n].round_index if self.lockstep else 0
            message = self.outbox.next(n, now, from_round)
            if message is None:
                continue
            message = replace(message, incarnation=self.incarnation)
            self.views[n].said_at = now
            if isinstance(message, Announce):
                self.totals["control_messages_sent"] += 1
                out.append(do.SendAnnounce(n, message))
            else:
                out.append(do.SendModel(n, message))

    def _post_offers(self, out: Effects) -> None:
        """Queue this step's models, or the word that there are none, for every neighbor whose edge is up."""
        self.posted = True
        place = (self.round_index, self.step_index)
        facts = self.facts | (self.agreed or {})
        selected = self.algorithm.selects(self.facts, self.round_index) if self.active else None
        wanted: set[int] = set()
        plan: list[tuple[int, tuple[Offer, ...]]] = []
        for n in self.neighbors:
            offers: tuple[Offer, ...] = ()
            if self._offers_to(n):
                offers = self.algorithm.offers(facts, *place, n, self._announced_by(n))
            plan.append((n, offers))
            wanted.update(offer.slot for offer in offers)
        if selected is not None:
            wanted.add(selected.selected)  # a neighbor may still ask for it
            self.late = (*self.late[-1:], LateOffers(place, facts, {n for n, offers in plan if offers}))
        if wanted:
            out.append(do.Snapshot(*place, tuple(sorted(wanted))))
        for n, offers in plan:
            if not self.lockstep:
                self.outbox.supersede(n, self.round_index)
            told = self._offers_to(n) and selected is not None
            if not offers and not told and self.lockstep:
                self.outbox.post(n, Announce(self.peer_id, self.incarnation, *place, total=0))
            self._post_models(n, offers, place)

    def _pass_round(self, round_index: int) -> None:
        """Say that nothing (more) comes for a round that this peer has jumped over, or closed in an earlier life."""
        if self.lockstep and round_index >= 0:
            for n in self.neighbors:
                for step in range(self.algorithm.steps(round_index)):
                    self.outbox.post(n, Announce(self.peer_id, self.incarnation, round_index, step, total=0))

    def _announced_by(self, neighbor: int) -> Announce | None:
        """Return what a neighbor selected: for this step; in async pace, where rounds drift apart, in its newest round."""
        view = self.views[neighbor]
        return view.announced.get((self.round_index, self.step_index)) if self.lockstep else view.selection()

    def _on_announced(self, event: ev.Announced, now: float, out: Effects) -> None:
        """A selection that comes after our offers went out still gets our newest model, if it is of that cluster."""
        super()._on_announced(event, now, out)
        for late in self.late if self.lockstep else self.late[-1:]:
            self._offer_late(event.announce.sender, late)

    def _offer_late(self, neighbor: int, late: LateOffers) -> None:
        if neighbor in late.offered or late.place[0] < self.round_index - 1:
            return  # had it already; or its snapshot is forgotten
        announced = self.views[neighbor].announced.get(late.place) if self.lockstep else self._announced_by(neighbor)
        if announced is not None and self._edge_up(neighbor, late.place[0]):
            offers = self.algorithm.offers(late.facts, *late.place, neighbor, announced)
            self._post_models(neighbor, offers, late.place)
            if offers:
                late.offered.add(neighbor)

    def _post_models(self, neighbor: int, offers: tuple[Offer, ...], place: Place) -> None:
        for index, offer in enumerate(offers):
            self.outbox.post(neighbor, self._header(offer, index, len(offers), place))

    def _header(self, offer: Offer, index: int, total: int, place: Place) -> ModelHeader:
        return ModelHeader(
            sender=self.peer_id,
            incarnation=self.incarnation,
            round_index=place[0],
            step=place[1],
            slot=offer.slot,
            index=index,
            total=total,
            sample_count=offer.sample_count,
            degree=len(self.neighbors),
            mass=offer.mass,
            scalars=offer.scalars,
            size_bytes=self.model_bytes,
            encoding=self.manifest.encoding,
        )
