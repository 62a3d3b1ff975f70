"""How a run ends at one peer: all rounds done, asked to leave, refused, or alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from coordinator_free_bootstrap.errors import RefusalCode
from peer.core import effects as do
from peer.core import events as ev
from peer.core.contacts import Contacts
from peer.core.counters import RecordCounts
from peer.core.liveness import NeighborState
from peer.core.messages import Outcome, Phase
from peer.core.neighbor import Neighbor
from peer.core.rounds import RoundCycle
from peer.core.sender import Sender
from peer.core.stages import Stage, Trigger
from peer.core.state import State
from peer.core.waiting import Isolation

_EXCLUDED_AS: dict[RefusalCode, do.Status] = {
    RefusalCode.REMOVED: "removed",
    RefusalCode.REVISION_BEHIND: "behind",
}


class Ending:
    """The part of the engine that stops a peer, after its last checkpoint and its last messages to neighbors."""

    def __init__(
        self,
        state: State,
        contacts: Contacts,
        sender: Sender,
        isolation: Isolation,
        rounds: RoundCycle,
        counted: RecordCounts,
    ) -> None:
        self._state = state
        self._contacts = contacts
        self._sender = sender
        self._isolation = isolation
        self._rounds = rounds
        self._counted = counted
        self._linger_until = 0.0  # how long a finished peer stays for dead neighbors
        self._linger_latest = 0.0  # how long it stays for live ones

    # ---- before the last round ------------------------------------------------------------------------------------------

    def ask(self, status: do.Status) -> None:
        """Let this peer leave as soon as it can; the first reason counts."""
        self._state.leaves_as = self._state.leaves_as or status

    def ask_for_change(self, event: ev.ChangeRequested) -> None:
        """Let this peer stop for another graph file; the last request counts."""
        self._state.changes_from = event.from_round
        self._state.changes_as = "removed" if event.removed else "changed"

    def change(self) -> None:
        """Leave for another graph file where no round is under way; a round that is, ends first (`RoundCycle.go_on`).

        After the last round it is taken at once: it may have more rounds.
        """
        state = self._state
        finished = state.stage is Stage.LINGERING and state.changes_from is not None
        if finished or (state.stage in (Stage.JOINING, Stage.CATCHING_UP) and state.change_is_due):
            self.ask(state.changes_as)

    def exclude(self, now: float) -> None:
        """Leave where no neighbor works with this peer any more, and one says why: it was removed, or its graph file is too old.

        Not on the word of one neighbor while another is live, or may soon be.
        """
        state, neighbors = self._state, self._state.neighbors.values()
        verdicts = [(n, each.refusal) for n, each in state.neighbors.items() if each.refusal]
        if not verdicts or state.leaving or state.stage in (Stage.FINISHING, Stage.LINGERING) or state.live():
            return
        code = next((refusal.code for _, refusal in verdicts if refusal.code in _EXCLUDED_AS), None)
        if code is not None and not any(self._is_awaited(each, now) for each in neighbors if not each.refusal):
            state.log("error", "; ".join(f"peer {n}: {refusal}" for n, refusal in verdicts))
            self.ask(_EXCLUDED_AS[code])

    def _is_awaited(self, neighbor: Neighbor, now: float) -> bool:
        """Return whether a neighbor that is not live may be soon."""
        if neighbor.liveness.state is NeighborState.UNKNOWN:
            return self._state.stage is Stage.JOINING
        return now < self._isolation.may_return_until(neighbor)

    def leave(self, now: float) -> None:
        """Write a checkpoint if the disk lacks one, notify the neighbors, stop; but not while the models are being changed.

        A round that began after the last checkpoint is closed with what has come; otherwise it is begun again at the next start.
        Called after every event, so that no end of work, write or fold can be missed.
        """
        state = self._state
        if state.leaves_as is None:
            return
        if state.may(Trigger.STOP):
            self.stop(state.leaves_as, now)
        elif state.may(Trigger.CUT_SHORT):
            self._rounds.close_step(Trigger.CUT_SHORT, now)
        elif state.may(Trigger.SAVE):
            state.take(Trigger.SAVE)
            state.write_checkpoint()

    def gives_up(self, now: float) -> bool:
        """Leave where the wait for any neighbor is over."""
        reason = self._isolation.given_up(now)
        if not reason or self._state.leaving:
            return False
        self._state.log("error", f"alone: {reason}")
        self.ask("alone")
        self.leave(now)
        return True

    def checkpoint_written(self, event: ev.CheckpointWritten) -> None:
        """Note that a checkpoint is safe, or cannot be written; what waited for it may be sent."""
        state, disk = self._state, self._state.disk
        if event.round_index == disk.writing:
            disk.writing = None
            self._sender.post_selection()
        if event.error:
            state.totals["checkpoint_failures"] += 1
            if event.error != disk.error:
                state.log("error", f"{event.error}; continuing without checkpoints")
        else:
            disk.saved_round = event.round_index
        disk.error = event.error

    # ---- after the last round -------------------------------------------------------------------------------------------

    def begin_linger(self, now: float) -> None:
        """All rounds are done: notify the neighbors, and stay for them."""
        state = self._state
        self._linger_until = now + self._isolation.absence_s
        self._linger_latest = now + state.manifest.timeouts.round_deadline_s
        self._contacts.send_heartbeats(now)

    def linger(self, now: float) -> None:
        """Stay for neighbors that may still need our last models: until each has finished, or been away for long.

        At most for one round deadline, in which a live neighbor closes the last round; a longer stay would depend on claims.
        """
        state = self._state
        if state.may(Trigger.STOP) and not any(now < self._needed_until(each) for each in state.neighbors.values()):
            if reason := self._isolation.verdict():
                state.log("error", f"trained alone: {reason} (docs/trouble.md#training-alone)")
            self.stop("alone" if reason else "completed", now)

    def _needed_until(self, neighbor: Neighbor) -> float:
        """Return how long this peer, all rounds done, stays for a neighbor."""
        done = neighbor.phase is Phase.FINISHED or (
            neighbor.phase is Phase.LEAVING and self._state.has_finished(neighbor)
        )
        if done or not neighbor.connected:
            return 0.0
        if neighbor.liveness.state is NeighborState.LEFT:
            return self._isolation.may_return_until(neighbor)
        return self._linger_latest if neighbor.liveness.is_live else self._linger_until

    def next_time(self, now: float) -> Iterator[float]:
        """Yield the times at which a neighbor is not needed any more."""
        yield from (at for at in map(self._needed_until, self._state.neighbors.values()) if at > now)

    # ---- the end --------------------------------------------------------------------------------------------------------

    def stop(self, status: do.Status, now: float) -> None:
        """End the run: notify the neighbors, answer open requests, write the last record."""
        state, ended = self._state, self._state.stage is Stage.LINGERING
        state.take(Trigger.STOP)
        self.ask(status)
        for line in state.hardly_there() if ended else ():
            state.log("warning", f"{line} of this peer")
        self._contacts.send_heartbeats(now)
        for arrival in state.arrivals.unanswered():
            state.answer(arrival, Outcome.UNUSED)
        metrics = state.round.notes.metrics if ended else {}
        fields = {"rounds_completed": state.round.index} | metrics | self._counted.since_last()
        if state.budget is not None and ended:
            fields["epsilon"] = state.budget.spent
        state.emit(do.Record("end" if ended else "leave", fields))
        state.emit(do.Stop(status))
