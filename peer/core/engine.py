"""The protocol engine: `step(event, now)` returns effects. It holds no tensors and knows no clock, socket or thread.

Theory of operation. A peer goes through stages:

    joining -> [catching_up] -> (assigning -> training -> exchanging -> [end_step -> exchanging]* -> closing)* -> finishing
            -> lingering -> stopped

- joining: handshakes until the start rule is met.
- catching_up: most neighbors are two or more rounds ahead, or some are far ahead. Our round is over: pull the models of those
  that are ahead, adopt them, go on in their round.
- leaving: asked to, in any stage; what is under way is ended, the disk brought up to date, the neighbors told.
- In every stage neighbors greet, beat, announce and offer; what comes too early waits (an offer unread, behind flow control).
- Only in training and exchanging are arrivals admitted and folded, so the tensors that `assign` and `close` read stand still.
- Lockstep: a step is over when each neighbor that is alive and near has delivered all it announced, or at the round deadline; who
  is cut off keeps the tempo it had in company. Models are folded in the order of neighbor ids.
  Async: a step is over at once; folding goes on in the next.

Everything a neighbor claims is checked here before it is believed; the bytes of models are checked by the wire.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from coordinator_free_bootstrap.errors import LocalProtocolError
from coordinator_free_bootstrap.membership import NeighborState
from peer.core import effects as do
from peer.core import events as ev
from peer.core.messages import Hello, Outcome, Phase
from peer.core.sending import Sending
from peer.core.state import LONG_WAIT, NEAR_ROUNDS, OPEN_STAGES, WORKING_STAGES, Effects, Stage

COUNTED = (
    "models_sent",
    "models_folded",
    "duplicates_dropped",
    "stale_dropped",
    "payload_bytes_sent",
    "control_messages_sent",
    "announcements_sent",
    "sketches_sent",
    "models_unused",
    "label_conflicts",
)


class Engine(Sending):
    """One peer's protocol: drive it with `step`, a `Tick` first; read `stage`, `round_index`, `facts`, `totals`.

    The parts it is made of, each a file: `PeerState`, `Liveness`, `Arrivals`, `Sending`; the round itself is here.
    """

    # ---- the machine --------------------------------------------------------------------------------------------

    def step(self, event: ev.Event, now: float) -> Effects:
        """Take one event at monotonic time ``now`` (seconds) and return what is to be done, in order."""
        if self.stage is Stage.STOPPED:
            return []
        out: Effects = []
        if self.started_at is None:
            self.started_at = now
            wait_s = self._start_deadline() - now
            out.append(do.Log("info", f"waits up to {wait_s:g} s for neighbors {list(self.neighbors)}"))
        handler = getattr(self, f"_on_{type(event).__name__.lower()}")
        handler(event, now, out)
        if self.leaving:
            self._leave(now, out)
        self._watch(now, out)
        self._advance(now, out)
        self._tell_wait(now, out)
        self._pump(now, out)
        at = self._next_time(now)
        if at is not None:
            out.append(do.SetTimer(at))
        return out

    def _on_tick(self, event: ev.Tick, now: float, out: Effects) -> None:
        pass

    # ---- the round ------------------------------------------------------------------------------------------------

    def _advance(self, now: float, out: Effects) -> None:
        """Go on as far as the present state allows."""
        while True:
            before = (self.stage, self.round_index, self.step_index)
            if self.stage is Stage.JOINING and self._may_start(now):
                if unmet := self._unmet():
                    sentence = f"begins without {unmet}, not met in {now - (self.started_at or 0.0):.0f} s"
                    out.append(do.Log("warning", f"{sentence}; the wait is run.start of the graph file"))
                self._pass_round(self.round_index - 1)
                self._begin_or_catch_up(now, out)
            elif self.stage is Stage.CATCHING_UP:
                self._catch_up(now, out)
            elif self.stage in OPEN_STAGES:
                self._exchange(now, out)
            self._judge_held(out)
            self._fold_waiting(out)
            self._admit(now, out)
            if self.stage is Stage.LINGERING:
                self._linger(now, out)
            if (self.stage, self.round_index, self.step_index) == before:
                return

    def _may_start(self, now: float) -> bool:
        if self.algorithm.steps(self.round_index) == 0 and not self.neighbors:
            return True
        start = self.manifest.start
        met = len(self.neighbors) - len(self._unmet())
        need = {"all": len(self.neighbors), "quorum": start.quorum * len(self.neighbors), "deadline": float("inf")}
        return met >= need[start.rule] or met == len(self.neighbors) or now >= self._start_deadline()

    def _unmet(self) -> list[int]:
        return [n for n, state in self.membership.states.items() if state is NeighborState.UNKNOWN]

    def _start_deadline(self) -> float:
        """Return when the wait for neighbors is over; after a restart soon, but not before any is met or the run is over.

        Who goes on alone is ahead of all others before long, and they would skip rounds to catch up with it.
        """
        soon = self.returned and (bool(self.membership.live) or self.round_index >= self.manifest.rounds)
        wait_s = self.manifest.timeouts.suspicion_s if soon else self.manifest.start.deadline_s
        return (self.started_at or 0.0) + wait_s

    def _ahead(self) -> list[int]:
        """Return the live neighbors for whom our round is over, if it is over: for most of them, or long ago for some.

        A few that are a little ahead wait for us: if we skipped rounds to join them, our other neighbors would follow.
        Not so at the start of a life: neighbors that were restarted too can no longer send what we have lost.
        """
        if self.algorithm.steps(self.round_index) == 0:
            return []
        rounds = {n: self.views[n].round_index for n in self.neighbors if self.membership.is_live(n)}
        ahead = [n for n, reached in rounds.items() if reached >= self.round_index + 2]
        long_ago = any(rounds[n] > self.round_index + NEAR_ROUNDS for n in ahead)
        return ahead if self.stage is Stage.JOINING or long_ago or 2 * len(ahead) >= len(rounds) else []

    def _begin_or_catch_up(self, now: float, out: Effects) -> None:
        if self.leaving:
            self.stage = Stage.LEAVING
            return
        ahead = self._ahead()
        if ahead and (self.lockstep or self.stage is Stage.JOINING) and self.round_index < self.manifest.rounds:
            self.stage, self.pulls = Stage.CATCHING_UP, {}
            for n in ahead:
                self.pulls[n] = None
                out.append(do.Pull(n))
            out.append(
                do.Log("info", f"round {self.round_index} is over elsewhere: catching up with {sorted(self.pulls)}")
            )
            return
        self._begin_round(now, out)

    def _on_pulled(self, event: ev.Pulled, now: float, out: Effects) -> None:
        self.pulls[event.neighbor] = event.complete
        if event.complete:
            self.views[event.neighbor].heard_round(event.round_index)

    def _catch_up(self, now: float, out: Effects) -> None:
        if not self.pulls or any(done is None for done in self.pulls.values()):
            return
        reached = [self.views[n].round_index for n, done in self.pulls.items() if done]
        self.pulls = {}
        if not reached:
            self._begin_round(now, out)
            return
        skipped = self.round_index
        out.append(do.Work("adopt", skipped))
        self.round_index, self.step_index = min([*reached, self.manifest.rounds]), 0
        out.append(do.Record("caught_up", {"from_round": skipped, "to_round": self.round_index}))
        self._pass_round(self.round_index - 1)
        self._beat_all(now, out)

    def _begin_round(self, now: float, out: Effects) -> None:
        if self.round_index >= self.manifest.rounds:
            self.stage = Stage.FINISHING
            out.append(do.Work("final", self.round_index))
            return
        self.stage, self.step_index, self.posted, self.agreed = Stage.ASSIGNING, 0, False, None
        self.round_began_at, self.bereft = now, False
        self.inbox.taken.clear()
        self.active = self._active(self.peer_id, self.round_index)
        self._record = {"folded": [], "seconds": Counter()}
        announced_from = self.round_index - self.stale_rounds_max if self.lockstep else 0
        for view in self.views.values():
            view.forget_before((self.round_index, 0), announced_from)
        self.outbox.forget(self.round_index - 1)
        out.append(do.ForgetSnapshots(self.round_index - 1))
        out.append(do.Work("assign", self.round_index, active=self.active))

    def _on_workdone(self, event: ev.WorkDone, now: float, out: Effects) -> None:
        self.facts = event.facts
        self._record.setdefault("seconds", Counter()).update(event.seconds)
        self._record.update(event.metrics)
        getattr(self, f"_after_{event.kind}")(now, out)

    def _after_assign(self, now: float, out: Effects) -> None:
        if self.leaving:
            self._begin_exchange(now)
            return
        selected = self.algorithm.selects(self.facts, self.round_index) if self.active else None
        if selected is not None:
            for n in self.neighbors:
                if self._offers_to(n):
                    said = replace(
                        selected, sender=self.peer_id, incarnation=self.incarnation, round_index=self.round_index
                    )
                    self.outbox.post(n, said)
        if self.active:
            self.stage = Stage.TRAINING
            out.append(do.Work("train", self.round_index))
        else:
            self._after_train(now, out)

    def _after_train(self, now: float, out: Effects) -> None:
        self._begin_exchange(now)

    def _begin_exchange(self, now: float) -> None:
        self.stage = Stage.EXCHANGING
        self.exchange_began_at = now
        self.wait_told_s = LONG_WAIT * self.manifest.timeouts.suspicion_s

    def _exchange(self, now: float, out: Effects) -> None:
        """Post this step's offers once the last checkpoint is safe; close the step when it is complete."""
        if self.stage is not Stage.EXCHANGING or self.leaving:
            return
        steps = self.algorithm.steps(self.round_index)
        if not self.posted:
            if self.persisting is not None or not self._announcements_known(now):
                return
            if steps:
                self._post_offers(out)
            self.posted = True
        if (self.lockstep and not self._step_is_over(now)) or self.inbox.folding:
            return
        if self.lockstep and steps and self._keeps_tempo(steps, now, out):
            return
        self._close_step(steps, now, out)

    def _keeps_tempo(self, steps: int, now: float, out: Effects) -> bool:
        """Return whether this round is to be drawn out because its peer is cut off."""
        if self.step_index + 1 < steps or now >= self.round_began_at + self.tempo.least_s() or not self._cut_off():
            return False
        if not self.paced:
            self.paced = True
            sentence = (
                f"cut off from half of the neighbors or more: rounds last {self.tempo.least_s():.1f} s, as before"
            )
            out.append(do.Log("info", sentence))
        return True

    def _step_is_over(self, now: float) -> bool:
        """Everything expected is here, and what live neighbors expect of us is there.

        A peer that is killed after the checkpoint of its next round could not repeat an offer of this one.
        """
        place = (self.round_index, self.step_index)
        return self._deadline_over(now) or all(
            self._complete(n) and not self.outbox.owes(n, place) for n in self.expected()
        )

    def _tell_wait(self, now: float, out: Effects) -> None:
        """Say what a long wait is for, ever more rarely: a graph that stands still must not be silent about it."""
        waited_s = now - self.exchange_began_at
        if self.stage is not Stage.EXCHANGING or waited_s < self.wait_told_s:  # looked at with every beat
            return
        offered, owed = self.inbox.offered_by((self.round_index, self.step_index)), self.owed_to()
        silent = [n for n in self.waiting_for() if n not in offered]  # what is here waits for its turn only
        reasons = [f"for the models of {silent}"] * bool(silent) + [f"for {owed} to take ours"] * bool(owed)
        if reasons:
            self.wait_told_s = 2 * waited_s
            out.append(do.Log("info", f"round {self.round_index} has waited {waited_s:.0f} s {' and '.join(reasons)}"))

    def _close_step(self, steps: int, now: float, out: Effects) -> None:
        expected = self.expected()
        present = [n for n in expected if self._complete(n) and self._edge_up(n, self.round_index)]
        for n in expected:
            self.views[n].late = not self._complete(n)
        missing = sorted(set(self.scheduled(self.round_index)) - set(present)) if steps else []
        for stream, header in [*self.inbox.reading.items(), *self.inbox.waiting.items()]:
            if self.lockstep and (header.round_index, header.step) <= (self.round_index, self.step_index):
                self._reply(stream, Outcome.UNUSED, out)
        waited = now - self.exchange_began_at
        self._record["seconds"]["wait"] += waited
        if self.lockstep:
            self._record["missing"] = sorted({*self._record.get("missing", ()), *missing})
            if missing != self.missed:
                self.missed = missing
                sentence = (
                    f"closes without {missing}, as rounds will until that changes"
                    if missing
                    else "closes with all neighbors again"
                )
                out.append(do.Log("warning" if missing else "info", f"round {self.round_index} {sentence}"))
        last = self.step_index + 1 >= steps or self.leaving
        self.stage = Stage.CLOSING if last else Stage.ENDING_STEP
        every = self.manifest.evaluate_every
        evaluate = (self.round_index + 1) % every == 0 or self.round_index + 1 == self.manifest.rounds
        kind: Any = "close" if last else "end_step"
        work = do.Work(kind, self.round_index, self.step_index, self.active, tuple(present))
        out.append(replace(work, announced=tuple(self._announcements()), evaluate=last and evaluate))

    def _after_end_step(self, now: float, out: Effects) -> None:
        if self.stage is not Stage.ENDING_STEP:
            return
        self.step_index += 1
        self.posted = False
        self._begin_exchange(now)
        for view in self.views.values():
            view.forget_before((self.round_index, self.step_index))

    def _after_close(self, now: float, out: Effects) -> None:
        if not self._cut_off():
            self.paced = False
            if not self.bereft and not self._deadline_over(now):
                self.tempo.add(now - self.round_began_at)
        record, seconds = self._record, self._record.pop("seconds")
        spent = sum(seconds.values())
        seconds["other"] = max(0.0, now - self.round_began_at - spent)
        alive = sum(1 for n in self.neighbors if self.membership.state(n) is NeighborState.ALIVE)
        fields = {"round_index": self.round_index, "neighbors_alive": alive, "active": self.active}
        out.append(do.Record("round", fields | record | self._counted() | {"seconds": dict(seconds)}))
        self.round_index, self.step_index = self.round_index + 1, 0
        due = self.manifest.checkpoint_rounds
        if due and (self.round_index % due == 0 or self.round_index == self.manifest.rounds):
            self._persist(out)
        self._begin_or_catch_up(now, out)

    def _counted(self) -> dict[str, int]:
        """Return what was counted since the last record."""
        counted = {key: self.totals[key] - self._before[key] for key in COUNTED}
        self._before = Counter(self.totals)
        return counted

    def _after_adopt(self, now: float, out: Effects) -> None:
        if self.manifest.checkpoint_rounds:
            self._persist(out)
        self._begin_or_catch_up(now, out)

    def _after_final(self, now: float, out: Effects) -> None:
        self._record = {key: self._record[key] for key in self._record if key not in ("seconds", "folded", "missing")}
        self.stage = Stage.LINGERING
        self._beat_all(now, out)

    def _linger(self, now: float, out: Effects) -> None:
        """Stay for neighbors that may still need our last models; go when each has finished, left or died."""
        done = (Phase.FINISHED, Phase.LEAVING)
        waiting = [n for n in self.neighbors if self.membership.is_live(n) and self.views[n].phase not in done]
        if waiting or self.persisting is not None:
            return
        self._stop("completed", now, out)

    # ---- checkpoints and leaving ------------------------------------------------------------------------------------

    def _persist(self, out: Effects) -> None:
        self.persisting = self.round_index
        out.append(do.Persist(self.round_index, self.state()))

    def _on_persisted(self, event: ev.Persisted, now: float, out: Effects) -> None:
        if event.round_index == self.persisting:
            self.persisting = None
        if event.error:
            self.totals["checkpoint_failures"] += 1
            if event.error != self.storage_error:
                out.append(do.Log("error", f"{event.error}; going on without checkpoints"))
            self.storage_error = event.error
        else:
            self.persisted_round, self.storage_error = event.round_index, ""

    def _on_leaverequested(self, event: ev.LeaveRequested, now: float, out: Effects) -> None:
        self.leaving = True

    def _leave(self, now: float, out: Effects) -> None:
        """Persist if the disk is behind, tell the neighbors, stop; but not while the models are being worked on.

        What is written stands between two rounds: in the middle of one the models hold what the marks do not say, and the
        reverse. So a round that began after the last checkpoint is closed with what has come; otherwise it is begun again.
        Called after every event, so that no end of work, write or fold can be missed.
        """
        behind = self.persisted_round < self.round_index and not self.storage_error
        adopting = self.stage is Stage.CATCHING_UP and not self.pulls
        working = adopting or self.stage in WORKING_STAGES or (behind and self.stage is Stage.TRAINING)
        if self.persisting is not None or self.inbox.folding or working:
            return
        if behind and self.stage is Stage.EXCHANGING:
            self._close_step(self.algorithm.steps(self.round_index), now, out)
        elif behind and self.stage is not Stage.JOINING:
            self._persist(out)
        else:
            self._stop("left", now, out)

    def _stop(self, status: Any, now: float, out: Effects) -> None:
        self.leaving = True
        self._beat_all(now, out)
        for stream in [*self.inbox.held, *self.inbox.reading, *self.inbox.waiting]:
            self._reply(stream, Outcome.UNUSED, out)
        self.stage = Stage.STOPPED
        completed = status == "completed"
        fields = {"rounds_completed": self.round_index} | (self._record if completed else {}) | self._counted()
        out.append(do.Record("end" if completed else "leave", fields))
        out.append(do.Stop(status))

    # ---- time -------------------------------------------------------------------------------------------------------

    def _next_time(self, now: float) -> float | None:
        """Return when something is due by itself; None once stopped."""
        if self.stage is Stage.STOPPED:
            return None
        timeouts = self.manifest.timeouts
        times = [self.membership.next_deadline(now)]
        soon = now + timeouts.heartbeat_s / 20
        for n, view in self.views.items():
            if view.greet_at is not None and not view.greeting:
                times.append(view.greet_at)
            if view.incarnation and self.membership.is_live(n):
                times.append(max(view.said_at + timeouts.heartbeat_s, soon))
                times.append(self.outbox.next_retry(n))
        if self.stage is Stage.JOINING:
            times.append(self._start_deadline())
        elif self.stage is Stage.EXCHANGING and self.lockstep and not self._deadline_over(now):
            times.append(self.round_began_at + timeouts.round_deadline_s)
            if self.paced and (until := self.round_began_at + self.tempo.least_s()) > now:
                times.append(until)
        return min((t for t in times if t is not None), default=None)


def make_hello(engine: Engine, digests: dict[str, str], manifest: str, neighbor: int) -> Hello:
    """Return this peer's hello to a neighbor, as of now."""
    if neighbor not in engine.views:
        raise LocalProtocolError(f"peer {neighbor} is no neighbor of peer {engine.peer_id}")
    return Hello(
        sender=engine.peer_id,
        incarnation=engine.incarnation,
        wire_version=int(digests["wire_version"]),
        manifest_digest=digests["manifest"],
        graph_digest=digests["graph"],
        schema_digest=digests["schema"],
        initial_models_digest=digests["initial_models"],
        round_index=engine.round_index,
        phase=engine.phase(),
        manifest=manifest,
        seen_incarnation=engine.views[neighbor].last_incarnation,
    )
