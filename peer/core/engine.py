"""The protocol engine: `step(event, now)` returns effects. It holds no tensors and knows no clock, socket or thread.

Theory of operation. A peer goes through the stages of `peer.core.stages`:

    joining -> [catching_up] -> (assigning -> training -> exchanging -> [ending_step -> exchanging]* -> closing)* -> finishing
            -> lingering -> stopped

- joining: handshakes until the start rule is met.
- catching_up: most neighbors are two or more rounds ahead, or some are far ahead. This peer pulls their models, while its own
  round goes on (at its start: waits for the first that come), adopts their average, and continues in their round. One neighbor
  alone is believed only if it delivers a model.
- leaving: asked to stop, in any stage. Work under way is ended, the disk brought up to date, the neighbors told.
- In every stage neighbors send hellos, heartbeats, selections and offers; an offer that comes too early waits unread.
- Only in training and exchanging are arrivals read and folded, so the tensors that `assign` and `close` read stand still.
- The pace (`peer.core.pace`) decides whom a step waits for.

Everything a neighbor claims is checked here before it is believed; the bytes of models are checked by the wire and the host.

The parts: `Contacts` (handshakes, heartbeats, failures), `Receiver` (arrivals), `Sender` (offers), `CatchUp` (skipping rounds),
`Company` (rounds alone), and the round itself, here.
They share one `State` with one `Neighbor` record per neighbor, and ask one `Pace` and one algorithm.
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from typing import Literal, assert_never

from coordinator_free_bootstrap.errors import LocalProtocolError
from peer.core import effects as do
from peer.core import events as ev
from peer.core.catch_up import CatchUp
from peer.core.company import Company
from peer.core.contacts import Contacts
from peer.core.counters import BY_ENGINE
from peer.core.liveness import NeighborState
from peer.core.messages import Hello, Outcome, Phase
from peer.core.neighbor import Neighbor
from peer.core.pace import pace_of
from peer.core.receiver import Receiver
from peer.core.sender import Sender
from peer.core.stages import OPEN, WORK, WORKING, Stage, Trigger
from peer.core.state import Round, State


class Engine:
    """One peer's protocol: drive it with `step`, a `Tick` first.

    Args:
        state: of a peer at the start of an incarnation; the engine changes it from now on.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.pace = pace_of(self.state)
        self.contacts = Contacts(self.state, self.pace)
        self.receiver = Receiver(self.state, self.pace, self.contacts)
        self.sender = Sender(self.state, self.pace, self.contacts)
        self.catch_up = CatchUp(self.state, self.pace, self.contacts, self.sender)
        self.company = Company(self.state, self.pace)
        self.rejects_sender = self.receiver.rejects_sender
        self.rejects_control = self.receiver.rejects_control
        self._linger_until = 0.0  # how long a finished peer stays for dead neighbors
        self._linger_latest = 0.0  # how long it stays for live ones
        self._wait_told_s = state.manifest.timeouts.suspicion_s  # how long a wait must last to be logged (again)
        self._missing: list[int] = []  # neighbors missing in the last round: logged when it changes
        self._counted_before = copy(self.state.totals)
        self._leaves_as: do.Status = "left"

    @property
    def stage(self) -> Stage:
        """Where this peer is in its run."""
        return self.state.stage

    @property
    def round_index(self) -> int:
        """The present round; the number of rounds when all are done."""
        return self.state.round.index

    def phase(self) -> Phase:
        """Return the phase that neighbors and observers are told."""
        return self.contacts.phase()

    def must_answer(self, neighbor: int) -> bool:
        """Return whether a neighbor, though heard, is not alive before a call to it is answered."""
        return self.state.neighbors[neighbor].liveness.must_answer

    # ---- the machine ----------------------------------------------------------------------------------------------------

    def step(self, event: ev.Event, now: float) -> list[do.Effect]:
        """Take one event at monotonic time ``now`` (seconds) and return what is to be done, in order.

        Raises:
            LocalProtocolError: the event cannot come in this stage: a bug of ours.
        """
        run = self.state
        if run.stage is Stage.STOPPED:
            return []
        run.effects = []
        if run.started_at is None:
            run.started_at = now
            wait_s = self._start_deadline() - now
            run.log("info", f"waiting up to {wait_s:g} s for neighbors {list(run.neighbors)}")
        self._take(event, now)
        if run.leaving:
            self._leave(now)
        self.contacts.check(now)
        self.company.note(now)
        self._advance(now)
        self._log_wait(now)
        self.sender.send_due(now)
        at = self._next_time(now)
        if at is not None:
            run.emit(do.SetTimer(at))
        return run.effects

    def _take(self, event: ev.Event, now: float) -> None:  # noqa: PLR0912 - one case per event
        match event:
            case ev.Tick():
                pass
            case ev.HandshakeDone():
                self.contacts.handshake_done(event, now)
            case ev.HandshakeFailed():
                self.contacts.handshake_failed(event, now)
            case ev.HelloRefused():
                self.contacts.hello_refused(event)
            case ev.IncarnationRaised():
                self.contacts.incarnation_raised(event)
            case ev.HeartbeatReceived():
                self.contacts.heartbeat_received(event, now)
            case ev.HeartbeatAnswered():
                self.contacts.heartbeat_answered(event, now)
            case ev.SelectReceived():
                self.receiver.select_received(event, now)
                self.sender.offer_after_selection(self.state.neighbors[event.select.sender])
            case ev.PassReceived():
                self.receiver.pass_received(event, now)
            case ev.ArrivalOffered():
                self.receiver.offered(event, now)
            case ev.ArrivalComplete():
                self.receiver.complete(event, now)
            case ev.ArrivalLost():
                self.receiver.lost(event)
            case ev.ArrivalFolded():
                self.receiver.folded(event)
            case ev.SendAnswered():
                self.sender.answered(event, now)
            case ev.SendFailed():
                self.sender.failed(event, now)
            case ev.SendStalled():
                self.sender.stalled(event)
            case ev.WorkDone():
                self._work_done(event, now)
            case ev.PullDone():
                self.catch_up.pull_done(event, now)
            case ev.CheckpointWritten():
                self._checkpoint_written(event)
            case ev.LeaveRequested():
                self.state.leaving = True
            case _:
                assert_never(event)

    def _advance(self, now: float) -> None:
        """Go on as far as the present state allows."""
        run = self.state
        while True:
            before = (run.stage, run.round.place)
            if run.stage is Stage.JOINING and run.manifest.start.rule != "deadline" and run.refused_by_all():
                reasons = "; ".join(f"peer {n}: {neighbor.refusal}" for n, neighbor in run.neighbors.items())
                run.log("error", f'refused by all neighbors; run.start.rule = "deadline" would train alone: {reasons}')
                self._stop("refused", now)
            elif run.stage in (Stage.JOINING, Stage.EXCHANGING) and not run.leaving and self._gives_up(now):
                self._leave(now)
            elif run.stage is Stage.JOINING and self._may_start(now):
                if absent := self.company.absent_at_start(now):
                    waited_s = now - (run.started_at or 0.0)
                    run.log(
                        "warning", f"starting without {absent}, not met in {waited_s:.0f} s; run.start sets this wait"
                    )
                self.sender.post_passes(run.round.index - 1)
                self._between_rounds(now)
            elif run.stage is Stage.CATCHING_UP and not self.catch_up.adopting:
                self._catch_up_at_start(now)
            elif run.stage in OPEN:
                self._exchange(now)
            self.receiver.advance(now)
            if run.stage is Stage.LINGERING:
                self._linger(now)
            if (run.stage, run.round.place) == before:
                return

    # ---- the start, and catching up -------------------------------------------------------------------------------------

    def _may_start(self, now: float) -> bool:
        run, start = self.state, self.state.manifest.start
        count = len(run.neighbors)
        if run.steps == 0 and not count:
            return True
        met = count - len(self.company.absent_at_start(now))
        enough = met == count or (start.rule == "quorum" and met >= start.quorum * count)
        return enough or (now >= self._start_deadline() and not self.company.is_awaited())

    def _start_deadline(self) -> float:
        """Return when the wait for neighbors is over: after a restart soon, and sooner once one is met or the run is over.

        A peer that goes on alone is ahead of all others before long, and they would skip rounds to catch up with it.
        """
        run = self.state
        wait_s = run.manifest.start.deadline_s
        if run.resumed:
            met = bool(run.live()) or run.round.index >= run.manifest.rounds
            wait_s = run.manifest.timeouts.suspicion_s if met else min(wait_s, self.company.absence_s)
        return (run.started_at or 0.0) + wait_s

    def _between_rounds(self, now: float) -> None:
        """Begin a round, or catch up, or leave."""
        run = self.state
        if run.leaving:
            run.take(Trigger.LEAVE)
            return
        if not self.pace.catches_up() or run.round.index >= run.manifest.rounds:
            self._begin_round(now)
        elif used := self.catch_up.sources():
            run.take(Trigger.CATCH_UP)
            self.catch_up.adopt(used, now)
        else:
            self.catch_up.pull(now)
            if run.stage is Stage.JOINING and self.catch_up.pulling:  # there is no round of our own to go on with
                run.take(Trigger.CATCH_UP)
            else:
                self._begin_round(now)

    def _catch_up_at_start(self, now: float) -> None:
        """At the start of an incarnation: the first complete answer is enough."""
        if used := self.catch_up.sources():
            self.catch_up.adopt(used, now)
        elif not self.catch_up.pulling:
            self._begin_round(now)

    # ---- the round ------------------------------------------------------------------------------------------------------

    def _begin_round(self, now: float) -> None:
        run, t = self.state, self.state.round.index
        if t >= run.manifest.rounds:
            run.take(Trigger.ROUNDS_OVER)
            run.emit(do.Work("final", t))
            return
        run.take(Trigger.BEGIN_ROUND)
        run.has_begun = True
        self.catch_up.forget()
        run.round = Round(t, active=run.trains_in(run.peer_id, t), began_at=now)
        run.round.record = {"folded": [], "rejected": Counter(), "seconds": Counter()}
        run.arrivals.folded_in_round.clear()
        kept_from = self.pace.selections_kept_from()
        for neighbor in run.neighbors.values():
            neighbor.forget_before((t, 0), kept_from)
            neighbor.outbox.drop_before(t - 1)
        if self.pace.tells_rounds:
            self.contacts.tell_round(now)
        run.emit(do.DropSnapshots(t - 1))
        run.emit(do.Work("assign", t, active=run.round.active))

    def _work_done(self, event: ev.WorkDone, now: float) -> None:
        run = self.state
        trigger = WORK.get(event.kind)
        if trigger is None or (trigger is Trigger.ADOPTED and not self.catch_up.adopting):
            raise LocalProtocolError(f"work '{event.kind}' is done that was not asked for")
        if trigger is Trigger.ASSIGNED and (run.leaving or not run.round.active):
            trigger = Trigger.SAT_OUT
        run.take(trigger)
        run.algorithm_state = event.state
        if event.kind == "assign" and run.algorithm.asking(run.round.index):
            takes_part = run.round.active
            run.round.asked = run.algorithm.asks(event.state, run.round.index) if takes_part else frozenset()
        run.round.record.setdefault("seconds", Counter()).update(event.seconds)
        run.round.record.update(event.metrics)
        match trigger:
            case Trigger.ASSIGNED:
                run.round.unannounced = True
                self._announce()
                run.emit(do.Work("train", run.round.index))
            case Trigger.SAT_OUT | Trigger.TRAINED:
                self._begin_exchange(now)
            case Trigger.STEP_ENDED:
                run.round.step, run.round.offered = run.round.step + 1, False
                self._begin_exchange(now)
                for neighbor in run.neighbors.values():
                    neighbor.forget_before(run.round.place)
            case Trigger.CLOSED:
                self._end_round(now)
            case Trigger.ADOPTED:
                self.catch_up.adopting = False
                if run.manifest.checkpoint_rounds:
                    self._write_checkpoint()
                self._between_rounds(now)
            case Trigger.FINAL_DONE:
                skipped = ("seconds", "folded", "rejected", "missing")
                run.round.record = {key: value for key, value in run.round.record.items() if key not in skipped}
                self._linger_until = now + self.company.absence_s
                self._linger_latest = now + run.manifest.timeouts.round_deadline_s
                self.contacts.send_heartbeats(now)

    def _announce(self) -> None:
        """Post this round's selection once the last checkpoint is safe: one that declines completes a neighbor's round."""
        run = self.state
        if run.round.unannounced and run.persisting is None:
            run.has_selected |= run.selection() is not None
            self.sender.post_selection()
            run.round.unannounced = False

    def _begin_exchange(self, now: float) -> None:
        self.state.round.exchange_began_at = now
        self._wait_told_s = (
            self.state.manifest.lockstep.retry_after_suspicions * self.state.manifest.timeouts.suspicion_s
        )

    def _exchange(self, now: float) -> None:
        """Post this step's offers once the last checkpoint is safe; close the step when it is over."""
        run = self.state
        if run.stage is not Stage.EXCHANGING or run.leaving:
            return
        if not run.round.offered:
            if run.persisting is not None or not self.receiver.selections_known(now):
                return
            if run.steps:
                self.sender.post_offers()
            run.round.offered = True
        if not self.pace.step_is_over(now) or run.arrivals.folding or self.pace.keeps_rate(now):
            return
        if not self.company.is_awaited():
            self._close_step(now)

    def _gives_up(self, now: float) -> bool:
        """Leave where the wait for any neighbor is over."""
        if reason := self.company.given_up(now):
            self.state.log("error", f"alone: {reason}")
            self.state.leaving, self._leaves_as = True, "alone"
        return bool(reason)

    def waiting_for(self) -> list[int]:
        """Return the neighbors whose models the present step waits for; all, where it waits for any of them."""
        return list(self.state.neighbors) if self.company.is_awaited() else self.pace.waiting_for()

    def _log_wait(self, now: float) -> None:
        """Log what a long wait is for, ever more rarely."""
        run = self.state
        if run.stage is Stage.JOINING:
            self._log_start(now)
        waited_s = now - run.round.exchange_began_at
        if run.stage is not Stage.EXCHANGING or waited_s < self._wait_told_s:
            return
        here, owed = run.arrivals.senders_at(run.round.place), self.pace.owed_to()
        silent = [n for n in self.pace.waiting_for() if n not in here]  # what is here only waits for its turn
        reasons = [f"models from {silent}"] * bool(silent) + [f"{owed} to take ours"] * bool(owed)
        if reasons:
            self._wait_told_s = 2 * waited_s
            run.log("info", f"round {run.round.index} has waited {waited_s:.0f} s for {' and for '.join(reasons)}")

    def _log_start(self, now: float) -> None:
        run, waited_s = self.state, now - (self.state.started_at or 0.0)
        if now >= (run.started_at or 0.0) + self._wait_told_s:  # the sum that the timer was set to
            left_s = max(0.0, self._start_deadline() - now)
            absent = self.company.absent_at_start(now)
            run.log("info", f"waiting for neighbors {absent}: {waited_s:.0f} s so far, {left_s:.0f} s at most to go")
            self._wait_told_s = max(2 * waited_s, run.manifest.timeouts.suspicion_s)

    def _close_step(self, now: float) -> None:
        run, t, step = self.state, self.state.round.index, self.state.round.step
        present = [n for n in self.pace.awaited() if run.has_delivered(n) and run.edge_is_up(n, t)]
        self.company.step_closes()
        unused, missing = self.pace.step_closes()
        for stream in unused:
            run.answer(stream, Outcome.UNUSED)
        run.round.record["seconds"]["wait"] += now - run.round.exchange_began_at
        if self.pace.sends_passes:
            self._note_missing(missing)
        last = step + 1 >= run.steps or run.leaving
        due = (t + 1) % run.manifest.evaluate_every == 0 or t + 1 == run.manifest.rounds
        kind: Literal["close", "end_step"] = "close" if last else "end_step"
        selections, told = tuple(self.pace.selections()), self.pace.told()
        run.take(Trigger.ROUND_OVER if last else Trigger.STEP_OVER)
        run.emit(do.Work(kind, t, step, run.round.active, tuple(present), selections, told, evaluate=last and due))

    def _note_missing(self, missing: list[int]) -> None:
        run = self.state
        run.round.record["missing"] = sorted({*run.round.record.get("missing", ()), *missing})
        if missing == self._missing:
            return
        if not {*missing} <= {*self._missing}:
            run.round.lost_neighbor = True
        self._missing = missing
        if missing:
            run.log("warning", f"round {run.round.index} closes without neighbors {missing}; logged when this changes")
        else:
            run.log("info", f"round {run.round.index} closes with all neighbors again")

    def _end_round(self, now: float) -> None:
        run = self.state
        self.pace.round_closes(now)
        self.company.round_closes()
        record, seconds = run.round.record, run.round.record.pop("seconds")
        seconds["other"] = max(0.0, now - run.round.began_at - sum(seconds.values()))
        alive = sum(1 for n in run.neighbors.values() if n.liveness.state is NeighborState.ALIVE)
        fields = {"round_index": run.round.index, "neighbors_alive": alive, "active": run.round.active}
        run.emit(do.Record("round", fields | record | self._counted() | {"seconds": dict(seconds)}))
        run.round.index, run.round.step = run.round.index + 1, 0
        every = run.manifest.checkpoint_rounds
        if every and (run.round.index % every == 0 or run.round.index == run.manifest.rounds):
            self._write_checkpoint()
        self._between_rounds(now)

    def _counted(self) -> dict[str, int]:
        """Return what was counted since the last record."""
        totals = self.state.totals
        counted = {key: totals[key] - self._counted_before[key] for key in BY_ENGINE}
        self._counted_before = copy(totals)
        return counted

    def _linger(self, now: float) -> None:
        """Stay for neighbors that may still need our last models: until each has finished, or been away for long.

        At most for one round deadline, in which a live neighbor closes the last round; a longer stay would depend on claims.
        """
        run = self.state
        waits = any(now < self._needed_until(neighbor) for neighbor in run.neighbors.values())
        if run.persisting is None and not waits:
            if reason := self.company.verdict():
                run.log("error", f"trained alone: {reason}")
            self._stop("alone" if reason else "completed", now)

    def _needed_until(self, neighbor: Neighbor) -> float:
        """Return how long this peer, all rounds done, stays for a neighbor."""
        done = neighbor.phase is Phase.FINISHED or (
            neighbor.phase is Phase.LEAVING and self.state.has_finished(neighbor)
        )
        if done or not neighbor.connected:
            return 0.0
        if neighbor.liveness.state is NeighborState.LEFT:
            return self.company.may_return_until(neighbor)
        return self._linger_latest if neighbor.liveness.is_live else self._linger_until

    # ---- checkpoints and leaving ----------------------------------------------------------------------------------------

    def _write_checkpoint(self) -> None:
        run = self.state
        run.persisting = run.round.index
        run.emit(do.WriteCheckpoint(run.round.index, run.checkpoint()))

    def _checkpoint_written(self, event: ev.CheckpointWritten) -> None:
        run = self.state
        if event.round_index == run.persisting:
            run.persisting = None
            self._announce()
        if event.error:
            run.totals["checkpoint_failures"] += 1
            if event.error != run.storage_error:
                run.log("error", f"{event.error}; continuing without checkpoints")
        else:
            run.persisted_round = event.round_index
        run.storage_error = event.error

    def _leave(self, now: float) -> None:
        """Write a checkpoint if the disk is behind, tell the neighbors, stop; but not while the models are being changed.

        A checkpoint stands between two rounds: in the middle of one the models hold what the engine's state does not name, and
        the reverse. So a round that began after the last checkpoint is closed with what has come; otherwise it is begun
        again at the next start. Called after every event, so that no end of work, write or fold can be missed.
        """
        run = self.state
        behind = run.persisted_round < run.round.index and not run.storage_error
        working = self.catch_up.adopting or run.stage in WORKING or (behind and run.stage is Stage.TRAINING)
        if run.persisting is not None or run.arrivals.folding or working:
            return
        if behind and run.stage is Stage.EXCHANGING:
            self._close_step(now)
        elif behind and run.stage is not Stage.JOINING:
            self._write_checkpoint()
        else:
            self._stop(self._leaves_as, now)

    def goodbye(self, now: float) -> list[do.Effect]:
        """Return the heartbeats that tell the neighbors that this peer leaves at once, in the middle of a round."""
        self.state.effects, self.state.leaving = [], True
        self.contacts.send_heartbeats(now)
        return self.state.effects

    def _stop(self, status: do.Status, now: float) -> None:
        run, ended = self.state, self.state.stage is Stage.LINGERING
        run.leaving = True
        self.contacts.send_heartbeats(now)
        for stream in run.arrivals.open_streams():
            run.answer(stream, Outcome.UNUSED)
        run.take(Trigger.STOP)
        record = run.round.record if ended else {}
        fields = {"rounds_completed": run.round.index} | record | self._counted()
        run.emit(do.Record("end" if ended else "leave", fields))
        run.emit(do.Stop(status))

    # ---- time -----------------------------------------------------------------------------------------------------------

    def _next_time(self, now: float) -> float | None:
        """Return when something is due by itself; None once stopped."""
        run = self.state
        if run.stage is Stage.STOPPED:
            return None
        times = self.contacts.next_time(now)
        if run.stage in (Stage.JOINING, Stage.EXCHANGING) and (until := self.company.waits_until()) is not None:
            times.append(max(now, until))
        if run.stage is Stage.JOINING:
            times += [self._start_deadline(), (run.started_at or 0.0) + self._wait_told_s]
            times += [at for at in map(self.company.may_return_until, run.neighbors.values()) if at > now]
        elif run.stage is Stage.LINGERING:
            times += [at for at in map(self._needed_until, run.neighbors.values()) if at > now]
        elif run.stage is Stage.EXCHANGING:
            times.extend(self.pace.next_time(now))
        if run.stage in OPEN:
            times.extend(self.receiver.next_time(now))
        return min(times, default=None)


def make_hello(engine: Engine, digests: dict[str, str], manifest: str, neighbor: int, meaning: str = "") -> Hello:
    """Return this peer's hello to a neighbor, as of now."""
    run = engine.state
    if neighbor not in run.neighbors:
        raise LocalProtocolError(f"peer {neighbor} is no neighbor of peer {run.peer_id}")
    return Hello(
        sender=run.peer_id,
        incarnation=run.incarnation,
        wire_version=int(digests["wire_version"]),
        manifest_digest=digests["manifest"],
        graph_digest=digests["graph"],
        schema_digest=digests["schema"],
        frozen_digest=digests["frozen"],
        initial_models_digest=digests["initial_models"],
        round_index=run.round.index,
        phase=engine.phase(),
        manifest=manifest,
        seen_incarnation=run.neighbors[neighbor].incarnation,
        meaning=meaning,
    )
