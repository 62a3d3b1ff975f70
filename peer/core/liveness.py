"""The part of the engine that keeps neighbors in sight: greetings, beats, suspicion, and what follows from a death. Pure."""

from __future__ import annotations

from coordinator_free_bootstrap.errors import Refusal
from coordinator_free_bootstrap.membership import Change, NeighborState
from peer.core import effects as do
from peer.core import events as ev
from peer.core.messages import Beat, Phase
from peer.core.neighbors import NeighborView
from peer.core.outbox import RETRY_FIRST_S, RETRY_MAX_S, backoff_s
from peer.core.state import NOW, Effects, PeerState

TOLD_AT = frozenset(1 << n for n in range(2, 32))  # failures in a row after which a person is told
MENDED_BY_HELLO = frozenset({Refusal.NO_HANDSHAKE, Refusal.OLD_INCARNATION})  # its answer says what to outgrow


class Liveness(PeerState):
    """Who is there, and in which life and round."""

    def _on_greeted(self, event: ev.Greeted, now: float, out: Effects) -> None:
        hello, view = event.hello, self.views[event.hello.sender]
        if hello.incarnation < view.last_incarnation:
            return
        new_life = hello.incarnation > view.incarnation
        if event.answered:
            view.greet_at, view.greeting, view.greet_failures, view.unreachable = None, False, 0, False
        if new_life:
            self._hang_up(view, out)
            view.incarnation, view.announced = hello.incarnation, {}
            view.last_incarnation = hello.incarnation
            self._keep_delivered(view)
        self.returned |= 0 < hello.seen_incarnation < self.incarnation
        view.phase = hello.phase
        view.heard_round(hello.round_index, anew=new_life)
        changes: list[Change] = []
        if event.answered:
            changes = self.membership.answered(view.neighbor, hello.incarnation, now)
        elif new_life:
            changes = self.membership.heard(view.neighbor, hello.incarnation, now)
        # From a life that we know, a hello of its own says that it holds us dead: no sign that it hears us.
        self._changes(changes, out)
        self._greet_if_absent(view, now)
        if new_life:
            self._say_again(view)
        if changes or event.answered:  # not for every hello: who greets without end must not make us send without end
            self.outbox.retry_now(view.neighbor)

    def _say_again(self, view: NeighborView) -> None:
        oldest = view.round_index if self.lockstep else min(view.round_index, self.round_index)
        self.outbox.repost(view.neighbor, oldest)

    def _greet_if_absent(self, view: NeighborView, now: float) -> None:
        """It was heard, but is not alive to us: our greeting will tell whether it hears us too."""
        view.unreachable = self.membership.must_answer(view.neighbor)
        if view.unreachable and not view.greeting:
            soon = now + RETRY_FIRST_S  # not at once: who talks without end must not make us greet without end
            view.greet_at = soon if view.greet_at is None else min(view.greet_at, soon)

    def _greet_anew(self, view: NeighborView, now: float) -> None:
        """It misses our hello; but who answers hellos and refuses all else must not make us greet without end."""
        timeouts = self.manifest.timeouts
        pause = max(timeouts.heartbeat_s, backoff_s(view.greet_failures + 1, 0.5, timeouts.suspicion_s))
        view.greet_at = max(now, view.greeted_at + pause)

    def _keep_delivered(self, view: NeighborView) -> None:
        """A new life sends the current step again; what its old life delivered is folded and stays delivered."""
        place = (self.round_index, self.step_index)
        done = view.delivered.get(place)
        view.delivered = {place: done} if done else {}
        view.totals = {place: view.totals[place]} if done else {}

    def _on_greetfailed(self, event: ev.GreetFailed, now: float, out: Effects) -> None:
        view = self.views[event.neighbor]
        view.greeting = False
        view.greet_failures += 1
        timeouts = self.manifest.timeouts  # to greet one that is away costs no more than beats to one that is there
        pause = backoff_s(view.greet_failures, 0.5, max(RETRY_MAX_S, timeouts.heartbeat_s))
        view.greet_at = now + min(pause, timeouts.suspicion_s)
        if event.refusal is not None:
            view.greet_at = now + self.manifest.timeouts.suspicion_s
            sentence = f"peer {event.neighbor} refused the handshake: {event.reason}"
            out.append(do.Log("error", sentence, event.neighbor, "handshake"))
            return
        self._changes(self.membership.contact_failed(event.neighbor, now), out)
        if view.unreachable and view.greet_failures in TOLD_AT:
            sentence = (
                f"peer {event.neighbor} is heard but does not answer, so it is not waited for: is its address in the "
                f"graph file right, and its port open to us? {event.reason}"
            )
            out.append(do.Log("warning", sentence, event.neighbor, "unreachable"))

    def _on_outgrown(self, event: ev.Outgrown, now: float, out: Effects) -> None:
        """Neighbors take the new number for a new life, in which everything is said again."""
        self.incarnation = event.incarnation
        for view in self.views.values():
            self._say_again(view)

    def _on_heard(self, event: ev.Heard, now: float, out: Effects) -> None:
        beat, view = event.beat, self.views[event.beat.sender]
        view.persisted_round = beat.persisted_round
        self._heard_from(view, beat.round_index, beat.phase, now, out)

    def _heard_from(self, view: NeighborView, round_index: int, phase: Phase | None, now: float, out: Effects) -> None:
        if round_index > view.round_index:
            view.heard_round(round_index)
            self.outbox.retry_now(view.neighbor)
        if phase is not None:
            view.phase = phase
        if phase is Phase.LEAVING:
            self._changes(self.membership.left(view.neighbor, view.incarnation, now), out)
            self.outbox.clear(view.neighbor)
            return
        changes = self.membership.heard(view.neighbor, view.incarnation, now)
        if changes:
            self.outbox.retry_now(view.neighbor)
        self._changes(changes, out)
        self._greet_if_absent(view, now)

    def _on_beatanswered(self, event: ev.BeatAnswered, now: float, out: Effects) -> None:
        view = self.views[event.neighbor]
        view.beating = False
        if event.lost and event.moving:
            return
        if event.lost:
            self._changes(self.membership.contact_failed(event.neighbor, now), out)
        elif event.refusal is None:
            self._changes(self.membership.answered(event.neighbor, view.incarnation, now), out)
        else:
            self._refused_by(event.neighbor, event.refusal, "", now, out)

    def _refused_by(self, neighbor: int, refusal: Refusal, reason: str, now: float, out: Effects) -> None:
        """A neighbor refused what we sent; it may need our hello, otherwise it is worth a line."""
        if refusal in MENDED_BY_HELLO:
            self._greet_anew(self.views[neighbor], now)
        else:
            sentence = f"peer {neighbor} refused a message of ours: {refusal} {reason}"
            out.append(do.Log("warning", sentence, neighbor, str(refusal)))

    def _changes(self, changes: list[Change], out: Effects) -> None:
        for change in changes:
            if change.before is change.after:
                continue
            dead = change.after is NeighborState.DEAD
            fields = {"neighbor": change.neighbor, "state": str(change.after), "reason": change.reason}
            out.append(do.Record("neighbor", fields))
            sentence = f"neighbor {change.neighbor} is {change.after}, was {change.before}: {change.reason}"
            out.append(do.Log("warning" if dead else "info", sentence, change.neighbor, "state"))
            if dead:
                self.bereft = True
                self._buried(self.views[change.neighbor], out)

    def _buried(self, view: NeighborView, out: Effects) -> None:
        """Let go of what is open with a dead neighbor; greet it from now on, in case it comes back."""
        self._hang_up(view, out)
        if view.greet_at is None and not view.greeting:
            view.greet_at = NOW

    def _hang_up(self, view: NeighborView, out: Effects) -> None:
        """End all that is under way with a life that is over, or looks so: should it still be there, it greets and repeats."""
        if self.outbox.in_flight(view.neighbor) is not None:
            out.append(do.CancelSend(view.neighbor))
            self.outbox.failed(view.neighbor, NOW)
        for stream in self.inbox.streams_of(view.neighbor):
            self._try_again(stream, out)

    def _watch(self, now: float, out: Effects) -> None:
        """Suspicion by silence; greetings and beats that are due."""
        self._changes(self.membership.tick(now), out)
        for n, view in self.views.items():
            if view.greet_at is not None and view.greet_at <= now and not view.greeting:
                view.greeting, view.greet_at, view.greeted_at = True, None, now
                out.append(do.Greet(n))
            due = now >= view.said_at + self.manifest.timeouts.heartbeat_s
            if due and view.incarnation and not view.beating and self.membership.is_live(n):
                self._beat(view, now, out)

    def _beat(self, view: NeighborView, now: float, out: Effects) -> None:
        view.said_at, view.beating = now, True
        self.totals["control_messages_sent"] += 1
        beat = Beat(self.peer_id, self.incarnation, self.round_index, self.persisted_round, self.phase())
        out.append(do.SendBeat(view.neighbor, beat))

    def _beat_all(self, now: float, out: Effects) -> None:
        for view in self.views.values():
            if view.incarnation and self.membership.is_live(view.neighbor):
                self._beat(view, now, out)
