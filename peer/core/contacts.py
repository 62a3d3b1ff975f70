"""The part of the engine that keeps contact with neighbors: handshakes, heartbeats, failure detection. Pure."""

from __future__ import annotations

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.core import effects as do
from peer.core import events as ev
from peer.core.backoff import RETRY_FIRST_S, RETRY_MAX_S, WARNED_AT, backoff_s
from peer.core.liveness import LIVE, Change, NeighborState, check_all, next_check
from peer.core.messages import Heartbeat, Phase
from peer.core.neighbor import Neighbor
from peer.core.pace import Pace
from peer.core.stages import Stage
from peer.core.state import State

CURED_BY_HELLO = frozenset(
    {RefusalCode.NO_HANDSHAKE, RefusalCode.OLD_INCARNATION}
)  # the reply names the incarnation to exceed
MISCONFIGURED = frozenset(  # refusals that no retry cures: the two peers do not agree on the run
    {
        RefusalCode.WIRE_VERSION,
        RefusalCode.MANIFEST_MISMATCH,
        RefusalCode.GRAPH_MISMATCH,
        RefusalCode.REVISION_BEHIND,
        RefusalCode.REMOVED,
        RefusalCode.MEANING_MISMATCH,
        RefusalCode.SCHEMA_MISMATCH,
        RefusalCode.FROZEN_MISMATCH,
        RefusalCode.INITIAL_MODELS_MISMATCH,
        RefusalCode.NOT_A_NEIGHBOR,
        RefusalCode.IDENTITY_MISMATCH,
    }
)
ROUND_HEARTBEATS_MAX = 10  # at most, in a heartbeat interval
DUE_AT_ONCE = 0.0  # a time that has passed


class Contacts:
    """Which neighbors are there, in which incarnation and round."""

    def __init__(self, state: State, pace: Pace) -> None:
        self._state = state
        self._pace = pace
        self._timeouts = state.manifest.timeouts
        self._liveness = {n: neighbor.liveness for n, neighbor in state.neighbors.items()}
        self._check_at = float("inf")  # when a neighbor may have been silent for long; an event only moves it later

    def phase(self) -> Phase:
        """Return the phase that is sent to neighbors and observers."""
        if self._state.leaving:
            return Phase.LEAVING
        if self._state.stage is Stage.JOINING:
            return Phase.STARTING
        return Phase.FINISHED if self._state.stage in (Stage.LINGERING, Stage.STOPPED) else Phase.RUNNING

    # ---- handshakes -------------------------------------------------------------------------------------------------

    def handshake_done(self, event: ev.HandshakeDone, now: float) -> None:
        """Connect to a neighbor's incarnation; a new one gets the messages of its round again."""
        hello, state = event.hello, self._state
        neighbor = state.neighbors[hello.sender]
        if hello.incarnation < neighbor.incarnation:
            return
        is_new = hello.incarnation > neighbor.incarnation or not neighbor.connected
        was_known = neighbor.connected
        neighbor.refusal, neighbor.needs_file = None, False
        if event.answered:
            neighbor.hello_at, neighbor.hello_in_flight, neighbor.hello_failures = None, False, 0
            neighbor.unreachable = False
        if is_new:
            self._hang_up(neighbor)
            neighbor.note_restart(hello.incarnation, hello.round_index, state.round.current)
        else:
            neighbor.note_round(hello.round_index)
        restarted = 0 < hello.seen_incarnation < state.incarnation
        state.resumed |= restarted
        # else both may still have waited for the others when it met the earlier incarnation
        state.took_part |= restarted and (hello.round_index > 0 or hello.phase is not Phase.STARTING)
        neighbor.phase = hello.phase
        restarted_as = hello.incarnation if is_new and was_known else None
        change: Change | None = None
        if event.answered:
            change = neighbor.liveness.answered(now, restarted_as)
        elif is_new:
            change = neighbor.liveness.heard(now, restarted_as)
        # A hello from a known incarnation shows that it considers us dead, not that it hears us.
        self.changed(neighbor, change)
        if neighbor.is_reachable:
            neighbor.returns_until = None
        self._hello_if_absent(neighbor, now)
        if is_new:
            neighbor.outbox.repost(self._pace.repost_from(neighbor))
        if is_new or event.answered:  # not for every hello: repeated hellos must not cause unlimited messages
            neighbor.outbox.retry_now()

    def _hello_if_absent(self, neighbor: Neighbor, now: float) -> None:
        """Send a hello to a neighbor that was heard but is not alive: its answer tells whether it hears us too."""
        neighbor.unreachable = neighbor.liveness.must_answer
        if neighbor.unreachable and not neighbor.hello_in_flight:
            soon = now + RETRY_FIRST_S  # rate-limited: its messages must not cause unlimited hellos
            neighbor.hello_at = soon if neighbor.hello_at is None else min(neighbor.hello_at, soon)

    def _retry_hello(self, neighbor: Neighbor, now: float) -> None:
        """Send a hello to a neighbor that misses ours; rate-limited, since it may refuse everything but hellos."""
        pause_s = max(
            self._timeouts.heartbeat_s, backoff_s(neighbor.hello_failures + 1, 0.5, self._timeouts.suspicion_s)
        )
        neighbor.hello_at = max(now, neighbor.hello_sent_at + pause_s)

    def handshake_failed(self, event: ev.HandshakeFailed, now: float) -> None:
        """Retry later; hellos to an absent neighbor are as rare as heartbeats to a present one."""
        neighbor = self._state.neighbors[event.neighbor]
        neighbor.hello_in_flight = False
        neighbor.hello_failures += 1
        pause_s = backoff_s(neighbor.hello_failures, 0.5, max(RETRY_MAX_S, self._timeouts.heartbeat_s))
        neighbor.hello_at = now + min(pause_s, self._timeouts.suspicion_s)
        why = event.why
        if isinstance(why, Refusal) and why.code is RefusalCode.NOT_A_NEIGHBOR and self._state.graph.continues:
            # it has not read the hello, and may have the graph file before: no verdict on this peer
            why = f"no exchange with peer {neighbor.id} until it has the graph file of this peer: {why}"
            self._state.log_neighbor("info", why, neighbor.id, "revision")
        if isinstance(why, Refusal) and why.code is RefusalCode.REVISION_AHEAD:
            neighbor.needs_file, neighbor.needs_file_until = True, now + 2 * self._timeouts.suspicion_s
        elif isinstance(why, Refusal) or now >= neighbor.needs_file_until:
            neighbor.needs_file = False
        if isinstance(why, Refusal):
            neighbor.refusal = why if why.code in MISCONFIGURED else None
            if neighbor.refusal is not None:
                neighbor.returns_until = None  # it is back, and works without this peer
            neighbor.hello_at = now + self._timeouts.suspicion_s
            if why.code is RefusalCode.SHUTTING_DOWN:  # it is leaving, and says hello when it is back
                return
            if neighbor.needs_file:
                neighbor.note_round(event.round_index)
                self._state.log_neighbor(
                    "info", f"no exchange with peer {neighbor.id} yet: {why}", neighbor.id, "revision"
                )
                return
            message = f"peer {neighbor.id} refused the handshake: {why}"
            self._state.log_neighbor("error", message, neighbor.id, "handshake")
            return
        self.changed(neighbor, neighbor.liveness.call_failed(now))
        if neighbor.unreachable and neighbor.hello_failures in WARNED_AT:
            message = (
                f"peer {neighbor.id} sends messages but does not answer ours, so rounds do not wait for it; check its address "
                f"in the graph file and that its port is open to this peer: {why} (docs/trouble.md#unreachable)"
            )
            self._state.log_neighbor("warning", message, neighbor.id, "unreachable")

    def hello_refused(self, event: ev.HelloRefused) -> None:
        """Note that a neighbor does not agree on the run, as our own hello would find out; its host has logged it."""
        if event.refusal.code in MISCONFIGURED:
            self._state.neighbors[event.neighbor].refusal = event.refusal

    def incarnation_raised(self, event: ev.IncarnationRaised) -> None:
        """Go on under a higher incarnation, in which neighbors get everything again."""
        self._state.incarnation = event.incarnation
        for neighbor in self._state.neighbors.values():
            neighbor.outbox.repost(self._pace.repost_from(neighbor))

    # ---- heartbeats -------------------------------------------------------------------------------------------------

    def heartbeat_received(self, event: ev.HeartbeatReceived, now: float) -> None:
        """Note a neighbor's round and phase."""
        heartbeat = event.heartbeat
        self.heard(self._state.neighbors[heartbeat.sender], heartbeat.round_index, now, heartbeat.phase)

    def heard(self, neighbor: Neighbor, round_index: int, now: float, phase: Phase | None = None) -> None:
        """Note a message that a neighbor sent on its own."""
        if round_index > neighbor.round_index:
            neighbor.note_round(round_index)
            neighbor.outbox.retry_now()
        if phase is not None:
            neighbor.phase = phase
        if phase is Phase.LEAVING:
            self._note_leave(neighbor, now)
            return
        change = neighbor.liveness.heard(now)
        if change is not None:
            neighbor.outbox.retry_now()
        self.changed(neighbor, change)
        self._hello_if_absent(neighbor, now)

    def _note_leave(self, neighbor: Neighbor, now: float) -> None:
        """Note a goodbye. Before the end of its run it is most likely a restart: it costs what a death costs, once."""
        change = neighbor.liveness.left(now)
        neighbor.outbox.clear()
        if change is not None and not self._state.has_finished(neighbor):
            self._state.round.lost_neighbor = True
            if change.before in LIVE:
                neighbor.returns_until = now + self._timeouts.suspicion_s
            if neighbor.hello_at is None and not neighbor.hello_in_flight:
                neighbor.hello_at = now + self._timeouts.heartbeat_s  # it may be unable to call us when it is back
        self.changed(neighbor, change)

    def heartbeat_answered(self, event: ev.HeartbeatAnswered, now: float) -> None:
        """Note whether a neighbor can be reached."""
        neighbor = self._state.neighbors[event.neighbor]
        neighbor.heartbeat_in_flight = False
        if event.refusal is not None:
            self.refused_by(neighbor, event.refusal, now)
        elif not event.lost:
            self.changed(neighbor, neighbor.liveness.answered(now))
        elif not event.moving:
            self.changed(neighbor, neighbor.liveness.call_failed(now))

    def refused_by(self, neighbor: Neighbor, refusal: Refusal, now: float) -> None:
        """React to a neighbor that refused our message: it may need our hello; otherwise the operator should know."""
        if refusal.code in CURED_BY_HELLO:
            self._retry_hello(neighbor, now)
            return
        message = f"peer {neighbor.id} refused a message of ours: {refusal}"
        self._state.log_neighbor("warning", message, neighbor.id, str(refusal.code))

    # ---- failure detection ------------------------------------------------------------------------------------------

    def changed(self, neighbor: Neighbor, change: Change | None) -> None:
        """Record a neighbor's transition, and cancel what is pending with one that was marked dead."""
        if change is None or change.before is change.after:
            return
        dead = change.after is NeighborState.DEAD
        fields = {"neighbor": neighbor.id, "state": str(change.after), "reason": change.reason}
        self._state.emit(do.Record("neighbor", fields))
        message = f"neighbor {neighbor.id} marked {change.after}, was {change.before}: {change.reason}"
        self._state.log_neighbor("warning" if dead else "info", message, neighbor.id, "state")
        if dead:
            self._state.round.lost_neighbor = True
            self._hang_up(neighbor)
            if neighbor.hello_at is None and not neighbor.hello_in_flight:
                neighbor.hello_at = DUE_AT_ONCE  # it may come back

    def _hang_up(self, neighbor: Neighbor) -> None:
        """Cancel what is under way with an incarnation that has ended or seems to; if not, it says hello and resends."""
        if neighbor.outbox.in_flight is not None:
            self._state.emit(do.CancelSend(neighbor.id))
            neighbor.outbox.failed(DUE_AT_ONCE)
        for arrival in self._state.arrivals.unread_of(neighbor.id):
            self._state.answer(arrival, Refusal(RefusalCode.NO_HANDSHAKE, "marked dead, or of an older incarnation"))

    def check(self, now: float) -> None:
        """Mark silent neighbors; send the hellos and heartbeats that are due."""
        if now >= self._check_at:
            for n, change in check_all(self._liveness, now, self._timeouts.heartbeat_s).items():
                self.changed(self._state.neighbors[n], change)
        for neighbor in self._state.neighbors.values():
            if neighbor.returns_until is not None and now >= neighbor.returns_until:
                neighbor.returns_until, self._state.round.lost_neighbor = None, True
            if neighbor.hello_at is not None and now >= neighbor.hello_at and not neighbor.hello_in_flight:
                neighbor.hello_in_flight, neighbor.hello_at, neighbor.hello_sent_at = True, None, now
                self._state.emit(do.SendHello(neighbor.id))
            due = now >= neighbor.sent_at + self._timeouts.heartbeat_s
            if due and neighbor.is_reachable and not neighbor.heartbeat_in_flight:
                self.send_heartbeat(neighbor, now)

    def send_heartbeat(self, neighbor: Neighbor, now: float) -> None:
        """Send a heartbeat now."""
        neighbor.sent_at = neighbor.heartbeat_at = now
        neighbor.heartbeat_in_flight = True
        self._state.totals["control_messages_sent"] += 1
        heartbeat = Heartbeat(self._state.peer_id, self._state.incarnation, self._state.round.index, self.phase())
        self._state.emit(do.SendHeartbeat(neighbor.id, heartbeat))

    def tell_round(self, now: float) -> None:
        """Tell the neighbors the round that begins, a few times in a heartbeat interval at most."""
        pause_s = self._timeouts.heartbeat_s / ROUND_HEARTBEATS_MAX
        for neighbor in self._state.neighbors.values():
            if neighbor.is_reachable and not neighbor.heartbeat_in_flight and now >= neighbor.heartbeat_at + pause_s:
                self.send_heartbeat(neighbor, now)

    def send_heartbeats(self, now: float) -> None:
        """Send a heartbeat to every neighbor that can be reached."""
        for neighbor in self._state.neighbors.values():
            if neighbor.is_reachable:
                self.send_heartbeat(neighbor, now)

    def next_time(self, now: float) -> list[float]:
        """Return the times at which `check` has something to do."""
        due = next_check(self._liveness.values())
        self._check_at = float("inf") if due is None else due
        times = [] if due is None else [max(now, due)]
        sent_at: float | None = None  # to whom nothing was sent for longest
        for neighbor in self._state.neighbors.values():
            if neighbor.returns_until is not None:
                times.append(max(now, neighbor.returns_until))
            if neighbor.hello_at is not None and not neighbor.hello_in_flight:
                times.append(neighbor.hello_at)
            if neighbor.is_reachable:
                if sent_at is None or neighbor.sent_at < sent_at:
                    sent_at = neighbor.sent_at
                if (retry_at := neighbor.outbox.next_retry()) is not None:
                    times.append(retry_at)
        if sent_at is not None:
            times.append(max(sent_at + self._timeouts.heartbeat_s, now + self._timeouts.heartbeat_s / 20))
        return times
