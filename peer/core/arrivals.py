"""The part of the engine that takes arrivals: what is refused, what waits, what is read next and where it is folded. Pure."""

from __future__ import annotations

from dataclasses import replace

from coordinator_free_bootstrap.errors import Refusal
from peer.core import effects as do
from peer.core import events as ev
from peer.core.decisions import Rejection
from peer.core.liveness import Liveness
from peer.core.messages import Announce, ModelHeader, Outcome
from peer.core.state import OPEN_STAGES, Effects, Stage


class Arrivals(Liveness):
    """From an announcement or a header to a fold, exactly once."""

    def check_announce(self, announce: Announce) -> Rejection | None:
        """Return why an announcement cannot be believed; state stays unchanged."""
        rejection = self.admits(announce.sender, announce.incarnation)
        return (
            rejection
            or self._place_rejection(announce.round_index, announce.step)
            or self._too_far(announce.round_index)
            or self._announcement_rejection(announce)
        )

    def _announcement_rejection(self, announce: Announce) -> Rejection | None:
        slots = self.algorithm.slots
        if not -1 <= announce.selected < slots:
            return Rejection(Refusal.SLOT_OUT_OF_RANGE, f"cluster {announce.selected} selected, of {slots}")
        if not -1 <= announce.total <= slots:
            return Rejection(Refusal.MALFORMED, f"{announce.total} models announced, of {slots}")
        earlier = self.views[announce.sender].announced.get((announce.round_index, announce.step))
        if earlier is not None and earlier.selected != announce.selected:
            return Rejection(
                Refusal.CONTRADICTS_ANNOUNCEMENT,
                f"cluster {announce.selected} of round {announce.round_index}, announced before as {earlier.selected}",
            )
        return self.algorithm.rejects_announce(self.facts, announce)

    def _place_rejection(self, round_index: int, step: int) -> Rejection | None:
        if not 0 <= round_index < self.manifest.rounds:
            return Rejection(Refusal.ROUND_OUT_OF_RANGE, f"round {round_index} of {self.manifest.rounds}")
        if not 0 <= step < max(1, self.algorithm.steps(round_index)):
            return Rejection(Refusal.ROUND_OUT_OF_RANGE, f"step {step} of round {round_index}")
        return None

    def _too_far(self, round_index: int) -> Rejection | None:
        """Lockstep: a neighbor cannot be further ahead unless this peer was away, and then beats tell it, not models."""
        if not self.lockstep or round_index <= self.round_index + self.manifest.limits.rounds_ahead:
            return None
        return Rejection(
            Refusal.ROUND_TOO_FAR_AHEAD, f"round {round_index}, while peer {self.peer_id} is in {self.round_index}"
        )

    def _on_announced(self, event: ev.Announced, now: float, out: Effects) -> None:
        announce = event.announce
        view = self.views[announce.sender]
        self._heard_from(view, announce.round_index, None, now, out)
        view.announce(announce)

    def _on_offered(self, event: ev.Offered, now: float, out: Effects) -> None:
        header, view = event.header, self.views[event.header.sender]
        rejection = self._header_rejection(header)
        if rejection is not None:
            self._refuse(event.stream, rejection, out)
            return
        self._heard_from(view, header.round_index, None, now, out)
        earlier = self.inbox.same(header)
        if earlier is not None:
            self._try_again(earlier, out)
        self.inbox.held[event.stream] = header

    def _header_rejection(self, header: ModelHeader) -> Rejection | None:
        limits = self.manifest.limits
        rejection = self._place_rejection(header.round_index, header.step)
        if rejection is not None:
            return rejection
        if not 0 <= header.slot < self.algorithm.slots:
            return Rejection(Refusal.SLOT_OUT_OF_RANGE, f"slot {header.slot} of {self.algorithm.slots}")
        if not 0 <= header.index < header.total <= max(self.algorithm.slots, 1):
            return Rejection(Refusal.MALFORMED, f"model {header.index} of {header.total}")
        weights = (header.mass, float(header.sample_count))
        least, most = limits.weight_min, limits.weight_max
        if not all(least <= w <= most for w in weights):
            found = f"mass and sample count {weights}, allowed are {least:g} to {most:g}"
            return Rejection(Refusal.WEIGHT_OUT_OF_RANGE, found)
        if (rejection := self._too_far(header.round_index)) is not None:
            return rejection
        if self._is_late(header) and self.round_index - header.round_index > self._age_allowed(header):
            return None  # too old to be judged by announcements, which are forgotten by then: it is answered `stale`
        announced = self.views[header.sender].announced.get((header.round_index, header.step))
        return self.algorithm.rejects(self.facts, header, announced)

    def _refuse(self, stream: int, rejection: Rejection, out: Effects) -> None:
        self.inbox.forget(stream)
        self.refusals[rejection.code] += 1
        out.append(do.Reply(stream, Outcome.REFUSED, rejection.code, rejection.reason))

    def _on_cut(self, event: ev.Cut, now: float, out: Effects) -> None:
        header = self.inbox.forget(event.stream)
        if header is None or event.refusal is None:
            return
        if event.refusal is Refusal.LABEL_CONFLICT:
            self.totals["label_conflicts"] += 1
        if not self._is_late(header):
            self._delivered(header)  # it will not come again: nobody waits for it

    def _on_arrived(self, event: ev.Arrived, now: float, out: Effects) -> None:
        header = self.inbox.reading.pop(event.stream, None)
        if header is not None:
            self.inbox.waiting[event.stream] = header
            self._heard_from(self.views[header.sender], header.round_index, None, now, out)

    def _on_folded(self, event: ev.Folded, now: float, out: Effects) -> None:
        self.inbox.folding.pop(event.stream, None)

    def _is_late(self, header: ModelHeader) -> bool:
        """Return whether a header belongs to a step that is over (or is being closed)."""
        place, mine = (header.round_index, header.step), (self.round_index, self.step_index)
        closing = self.stage in (Stage.ENDING_STEP, Stage.CLOSING)
        return place < mine or (place == mine and closing and self.lockstep)

    def _judge_held(self, out: Effects) -> None:
        """Answer the unread streams that will never be read; the others stay."""
        for stream, header in list(self.inbox.held.items()):
            if self.stage in (Stage.FINISHING, Stage.LINGERING):
                self._reply(stream, Outcome.UNUSED, out)
            elif self.inbox.is_duplicate(header):
                self.totals["duplicates_dropped"] += 1
                self._reply(stream, Outcome.DUPLICATE, out)
                self._delivered(header)
            elif self._is_late(header) and self.round_index - header.round_index > self._age_allowed(header):
                self.totals["stale_dropped"] += 1
                self._reply(stream, Outcome.STALE, out)
            elif self._outvotes(header):
                self._unused(stream, out)

    def _outvotes(self, header: ModelHeader) -> bool:
        """Async pace: a neighbor that is fast, or claims rounds to come, must not count for many in one of our rounds."""
        most = 1 if self.manifest.screening.trimmed_mean else self.manifest.limits.models_per_round
        return not self.lockstep and self.inbox.is_outvoting(header, most)

    def _unused(self, stream: int, out: Effects) -> None:
        self.totals["models_unused"] += 1
        self._reply(stream, Outcome.UNUSED, out)

    def _age_allowed(self, header: ModelHeader) -> int:
        # Within a relay a late mass must not be counted in a later step; age is measured in whole rounds only.
        return self.stale_rounds_max if self.algorithm.steps(header.round_index) == 1 else -1

    def _delivered(self, header: ModelHeader) -> None:
        view, place = self.views[header.sender], (header.round_index, header.step)
        view.totals[place] = header.total
        view.delivered.setdefault(place, set()).add(header.index)

    def _turn(self) -> int | None:
        """Return the neighbor whose models are to be folded next; None: anyone's."""
        if not self.ordered:
            return None
        return next((n for n in self.expected() if not self._complete(n)), -1)

    def _announcements_known(self, now: float) -> bool:
        """With selection before training, offers and weights depend on what each live neighbor selected."""
        if self.agreed is None and (not self.lockstep or self._deadline_over(now) or not self._unannounced()):
            heard = {a.sender: a for a in self._announcements()}
            self.agreed = self.algorithm.agrees(self.facts, self.round_index, heard)
        return self.agreed is not None

    def _unannounced(self) -> list[int]:
        """Return the neighbors whose selection is still to come."""
        if not self.active or self.algorithm.selects(self.facts, self.round_index) is None:
            return []
        place, scheduled = (self.round_index, 0), self.scheduled(self.round_index)
        return [n for n in self.expected() if n in scheduled and place not in self.views[n].announced]

    def _announcements(self) -> list[Announce]:
        """Return each neighbor's announcement for this step; in async pace the newest that is not stale."""
        if self.lockstep:
            found = [view.announced.get((self.round_index, self.step_index)) for view in self.views.values()]
        else:
            found = [view.newest(self.round_index - self.stale_rounds_max) for view in self.views.values()]
        return [announced for announced in found if announced is not None]

    def _deadline_over(self, now: float) -> bool:
        return now >= self.round_began_at + self.manifest.timeouts.round_deadline_s

    def _admit(self, now: float, out: Effects) -> None:
        """Let held streams be read: those in turn first; one buffer always stays free for the neighbor in turn.

        Nor does the last free buffer go to a neighbor that is being read already: a slow one must not hold them all.
        """
        if self.stage not in OPEN_STAGES or self.leaving or not self.inbox.held:
            return
        known = self._announcements_known(now)
        turn = self._turn()
        order = sorted(self.inbox.held.items(), key=lambda item: (*_order(item[1]), item[0]))
        for stream, header in order:
            ahead = (header.round_index, header.step) > (self.round_index, self.step_index)
            if self.lockstep and (ahead or not (known or self._is_late(header))):
                continue
            if self.inbox.is_here(header):  # sent again: answered once the first is folded, read if that one is lost
                continue
            free = self.manifest.limits.concurrent_receives - self.inbox.buffers()
            in_turn = turn is None or header.sender == turn or self._is_late(header)
            turn_is_read = any(h.sender == turn for h in self.inbox.reading.values())
            greedy = free == 1 < self.manifest.limits.concurrent_receives and self.inbox.is_read_from(header.sender)
            if free >= (1 if in_turn or turn_is_read else 2) and not greedy:
                self.inbox.reading[stream] = self.inbox.held.pop(stream)
                out.append(do.Admit(stream))

    def _fold_waiting(self, out: Effects) -> None:
        """Fold complete arrivals whose turn has come."""
        while self.inbox.waiting and self.stage in OPEN_STAGES and not self.leaving:
            turn = self._turn()
            ready = [
                (stream, header)
                for stream, header in sorted(self.inbox.waiting.items(), key=lambda item: (*_order(item[1]), item[0]))
                if turn is None or header.sender == turn or self._is_late(header)
            ]
            if not ready and len(self.inbox.waiting) == self.manifest.limits.concurrent_receives:
                # A neighbor came back whose turn is earlier: no buffer is left for it unless one goes first.
                ready = sorted(self.inbox.waiting.items(), key=lambda item: (*_order(item[1]), item[0]))
            if not ready:
                return
            stream, header = ready[0]
            del self.inbox.waiting[stream]
            self._take(stream, header, out)

    def _take(self, stream: int, header: ModelHeader, out: Effects) -> None:
        age = max(0, self.round_index - header.round_index)
        late = self._is_late(header)
        if self.inbox.is_duplicate(header):
            self.totals["duplicates_dropped"] += 1
            self._reply(stream, Outcome.DUPLICATE, out)
            return
        if late and age > self._age_allowed(header):
            self.totals["stale_dropped"] += 1
            self._reply(stream, Outcome.STALE, out)
            return
        if self._outvotes(header):
            self._unused(stream, out)
            return
        self.inbox.mark(header)
        if not late:
            self._delivered(header)
        targets = self.algorithm.targets(self.facts | (self.agreed or {}), header)
        if targets is None:
            self._unused(stream, out)
            return
        rho = self.manifest.stale_weight**age
        targets = tuple(replace(t, weight=t.weight * rho) for t in targets)
        self.inbox.folding[stream] = header
        self.totals["models_folded"] += 1
        self._record.setdefault("folded", []).append(
            [header.sender, header.incarnation, header.round_index, header.step, header.slot]
        )
        out.append(do.Reply(stream, Outcome.FOLDED))
        out.append(do.Fold(stream, header, targets))


def _order(header: ModelHeader) -> tuple[int, ...]:
    return (header.round_index, header.step, header.sender, header.index)
