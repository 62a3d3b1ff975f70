"""The invariants I1 to I9 and L1 to L8, checked while a simulation runs, against records that the engine never sees.

I1  an average is the mean of the local model and of exactly the folded arrivals (recomputed in float64)
I2  an arrival (sender, round, step, slot) is folded at most once in a peer's line of states, across restarts
I3  only complete models are folded, with the bytes that their sender had at that step
I4  each coordinate of an average lies in the hull of what was folded
I5  models are finite always
I6  only graph neighbors' arrivals are folded, and only in a life that has shaken hands
I7  rounds and incarnations never go back; an incarnation is persisted before it is used; what was sent was persisted first
I8  buffers, streams, queues and snapshots stay within their limits
I9  the result of a round depends on what was folded, in which order, and on nothing else (recomputed bit for bit)
L1  every peer of the healed core finishes within a bound, and no round of it waits for its deadline
L2  consensus: in its own test
L3  nobody waits for a dead peer longer than the suspicion time
L4  a restarted peer is alive at its neighbors soon
L5  a healthy, connected peer is not declared dead once delays are bounded
L6  without faults, lockstep gives the models of `tests.oracle.reference`: in its own test
L7  who was asked to leave is gone as soon as nothing is under way
L8  who was absent is alive again by an answer, never by words of its own alone

Those of runs that select a cluster before training stand in `selections`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator_free_bootstrap.membership import NeighborState
from peer.core import effects as do
from peer.core import events as ev
from peer.core.averaging import Vector, fold
from peer.core.engine import Stage
from peer.core.messages import ModelHeader
from peer.core.state import NEAR_ROUNDS
from tests.oracle.reference import collect, merge
from tests.simulation.selections import Selections

if TYPE_CHECKING:
    from tests.simulation.network import Push
    from tests.simulation.process import Process
    from tests.simulation.world import World

EPS = float(np.finfo(np.float32).eps)


class InvariantViolation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


@dataclass
class Shadow:
    """What one process should hold of the round it is in."""

    base: list[Vector] = field(default_factory=list)  # the local sample of each slot
    aside: frozenset[int] = frozenset()
    folded: dict[int, list[tuple[Vector, float]]] = field(default_factory=lambda: defaultdict(list))
    tensors_busy: bool = False  # assign, close and the like are under way: nothing may be folded
    working: bool = False  # any work is under way
    round_index: int = 0
    incarnation: int = 0
    states: dict[int, NeighborState] = field(default_factory=dict)  # of neighbors, as recorded
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)  # incarnation and round of each neighbor
    caught_up: int = -1  # the round in which pulls were sent


class Checker:
    """Watches every process of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.marks: Counter[str] = Counter()
        self.shadows: dict[Process, Shadow] = {}
        self.sent: dict[tuple[int, ...], bytes] = {}
        self.lives: dict[int, int] = {}
        self.final: dict[int, list[Vector]] = {}
        self.history: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self.selections = Selections(self) if world.manifest.algorithm == "fedspd" else None

    def mark(self, name: str) -> None:
        """Note that a rare thing has happened; the test of all seeds wants each of them."""
        self.marks[name] += 1

    def require(self, condition: bool, name: str, message: str) -> None:
        """Raise unless ``condition``."""
        if not condition:
            raise InvariantViolation(name, message)

    # ---- lives ----------------------------------------------------------------------------------------------------

    def begins(self, process: Process) -> None:
        """A process has read its disk."""
        engine = process.engine
        self.shadows[process] = Shadow(round_index=engine.round_index, incarnation=engine.incarnation)
        loaded = process.checkpoint.round_index if process.checkpoint else 0
        self.require(engine.round_index == loaded, "I7", f"resumed at {engine.round_index}, the disk holds {loaded}")
        if process.checkpoint:
            self.mark("resumed")

    def ended(self, process: Process) -> None:
        """A process is gone."""
        self.world.ended(process)
        del self.shadows[process]
        if process.ended_as == "completed":
            self.final[process.peer_id] = [process.bench.models.model(s) for s in range(len(process.bench.models))]
            rounds = self.world.manifest.rounds
            self.require(process.engine.round_index == rounds, "L1", f"completed after {process.engine.round_index}")

    # ---- every event ----------------------------------------------------------------------------------------------

    def before(self, process: Process, event: ev.Event) -> None:
        """An event is about to be given to an engine."""
        said: Any = None
        match event:
            case ev.Greeted(hello):
                known, now = process.engine.views[hello.sender].incarnation, hello.incarnation
                self.require(now >= known, "I7", f"a life {now} was greeted after {known}")
                if 0 < known < now:
                    self.mark(f"new life greeted while {process.engine.stage}")
            case ev.Offered(_, said) | ev.Announced(said) | ev.Heard(said):
                known = process.engine.views[said.sender].incarnation
                message = f"life {said.incarnation} of {said.sender} speaks, {known} was greeted"
                self.require(said.incarnation == known, "I6", message)
        if self.selections:
            self.selections.before(process, event)

    def after(self, process: Process, event: ev.Event, effects: list[do.Effect]) -> None:
        """An event was taken and its effects are executed or under way."""
        engine, shadow, world = process.engine, self.shadows.get(process), self.world
        if shadow is None:
            return
        self.require(engine.round_index >= shadow.round_index, "I7", "a peer went back a round")
        self.require(engine.incarnation >= shadow.incarnation, "I7", "an incarnation went back")
        disk = process.machine.disk.incarnation or 0
        self.require(engine.incarnation <= disk, "I7", "an incarnation is used before it is persisted")
        shadow.round_index, shadow.incarnation = engine.round_index, engine.incarnation
        seen = shadow.seen
        for n, view in engine.views.items():
            now = view.incarnation, view.round_index
            before = seen.get(n, (0, 0))
            if now != before:
                back = now[0] == before[0] and now[1] < before[1]
                self.require(not back, "I7", f"{process.peer_id} sees {n} go back to round {view.round_index}")
                seen[n] = now
        self._limits(process)
        if self.selections:
            self.selections.after(process, event, effects)
        if engine.leaving and engine.stage is not Stage.STOPPED:
            under_way = shadow.working or engine.persisting is not None or bool(engine.inbox.folding)
            self.require(under_way, "L7", f"{process.peer_id}, asked to leave, stays idle while {engine.stage}")
        if isinstance(event, ev.Tick):
            self._nobody_waits_for_the_dead(process)
        for effect in effects:
            if isinstance(effect, do.Pull):
                shadow.caught_up = engine.round_index
            if isinstance(effect, do.Work) and effect.kind == "assign":
                self._nobody_lags(process, shadow)
            if isinstance(effect, do.Record) and effect.kind == "neighbor":
                self._back_by_an_answer(process, shadow, event, effect.fields)
                if world.healed_at is not None:
                    self._no_false_death(process, effect.fields)

    def _limits(self, process: Process) -> None:
        engine, limits = (
            process.engine,
            self.world.manifest.limits,
        )  # after every event: words are made only if one is broken
        inbox, slots = engine.inbox, engine.algorithm.slots
        buffers = len(inbox.reading) + len(inbox.waiting) + len(inbox.folding)
        self.require(buffers <= limits.concurrent_receives, "I8", "too many buffers")
        if len(inbox.held) > limits.streams_per_neighbor:
            most = max(Counter(header.sender for header in inbox.held.values()).values())
            self.require(most <= limits.streams_per_neighbor, "I8", f"{most} streams of one neighbor are held")
        pending_max = 3 * 3 * (1 + slots) + 1
        for n, view in engine.views.items():
            if len(view.announced) > 64 or engine.outbox.pending(n) > pending_max:
                raise InvariantViolation("I8", f"announcements or messages for {n} pile up: {engine.outbox.pending(n)}")
        snapshots = len(process.bench.models._snapshots)
        self.require(snapshots <= 3 * 3 * slots, "I8", "too many snapshots are kept")

    def _nobody_waits_for_the_dead(self, process: Process) -> None:
        engine, world, t = process.engine, self.world, self.world.manifest.timeouts
        if engine.stage is not Stage.EXCHANGING:
            return
        for n in engine.waiting_for():
            down = world.machines[n].down_since
            if down is not None:
                waited = world.now - max(down, process.resumed_at, engine.exchange_began_at)
                # what it said last may still be under way, by a clogged link
                allowed = t.suspicion_s + t.heartbeat_s + (6.0 if "clog" in world.fired else 1.0)
                allowed += 6.0 if world.options.weather.replay else 0.0  # its last words, again and again
                self.require(waited <= allowed, "L3", f"{process.peer_id} waits for dead {n} for {waited:.1f} s")

    def _back_by_an_answer(self, process: Process, shadow: Shadow, event: ev.Event, fields: dict[str, Any]) -> None:
        n, after = fields["neighbor"], NeighborState(fields["state"])
        before, shadow.states[n] = shadow.states.get(n, NeighborState.UNKNOWN), after
        if after is NeighborState.ALIVE and before is not NeighborState.SUSPECT:
            answer = isinstance(event, ev.Sent)
            answer |= isinstance(event, ev.Greeted) and event.answered
            answer |= isinstance(event, ev.BeatAnswered) and not event.lost
            self.require(answer, "L8", f"{process.peer_id} holds {n}, {before} before, alive after {event}")

    def _no_false_death(self, process: Process, fields: dict[str, Any]) -> None:
        world = self.world
        if fields["state"] != NeighborState.DEAD or world.now < world.healed_at + world.settle_s():
            return
        machine = world.machines[fields["neighbor"]]
        healthy = machine.process is not None and world.now - machine.process.started_at > world.settle_s()
        gone = machine.process is not None and machine.process.engine.stage is Stage.STOPPED
        self.require(not healthy or gone, "L5", f"{process.peer_id} buries healthy {fields['neighbor']}: {fields}")

    def record(self, process: Process, effect: do.Record) -> None:
        """A line of the history."""
        world = self.world
        if effect.kind != "round":
            self.mark(f"record {effect.kind} {effect.fields.get('state', '')}".strip())
            return
        self.history[process.peer_id].append(effect.fields)
        if effect.fields.get("missing"):
            self.mark("closed without somebody")
        if process.engine.paced:
            self.mark("kept its tempo")
        engine = process.engine
        settled = world.healed_at is not None and engine.round_began_at > world.healed_at + world.settle_s()
        if settled and engine.lockstep:
            lost = {
                n
                for n in effect.fields.get("missing", ())
                if n in world.core and not world.machines[n].completed and world.machines[n].process is not None
            }
            lost = {n for n in lost if world.machines[n].process.started_at < engine.round_began_at - world.settle_s()}  # type: ignore[union-attr]
            self.require(not lost, "L1", f"a healthy round of {process.peer_id} closes without {sorted(lost)}")

    # ---- models ---------------------------------------------------------------------------------------------------

    def sends(self, process: Process, neighbor: int, header: ModelHeader, payload: Vector) -> None:
        """A model is about to be sent."""
        if self.selections:
            self.selections.sends(process, neighbor, header)
        data = payload.tobytes()
        known = self.sent.setdefault(header.key, data)
        self.require(known == data, "I3", f"the snapshot {header.key} has changed")
        self.require(header.incarnation == process.engine.incarnation, "I7", "sent in the name of another life")
        engine, disk = process.engine, process.machine.disk
        if self.world.manifest.checkpoint_rounds == 1 and not engine.storage_error and not disk.failing:
            rounds = (disk.durable_round, header.round_index)
            self.require(rounds[0] >= rounds[1], "I7", f"round {rounds[1]} is sent, {rounds[0]} is on disk")

    def folds(self, process: Process, effect: do.Fold, push: Push, buffer: Vector) -> None:
        """An arrival is about to be folded."""
        header, shadow = effect.header, self.shadows[process]
        self.require(header.sender in self.world.graph.neighbors(process.peer_id), "I6", f"folded from {header.sender}")
        self.require(
            not shadow.tensors_busy, "I1", f"a fold runs beside other work on tensors ({process.engine.stage})"
        )
        self.require(bool(np.isfinite(buffer).all()), "I3", "an incomplete model is folded")
        self.require(self.sent.get(header.key) == buffer.tobytes(), "I3", f"{header.key} is not what was sent")
        key = (header.sender, header.round_index, header.step, header.slot)
        self.require(key not in process.lineage, "I2", f"peer {process.peer_id} folds {key} twice")
        process.lineage.add(key)
        late = header.round_index < process.engine.round_index
        self.mark("folded late" if late else "folded")
        if self.world.manifest.pace == "lockstep":
            ahead = (header.round_index, header.step) > (process.engine.round_index, process.engine.step_index)
            self.require(not ahead, "I1", f"{key} is folded in step {process.engine.round_index}")
        if self.selections:
            self.selections.folds(process, effect)
        for target in effect.targets:
            shadow.folded[target.slot].append((buffer.copy(), target.weight))

    def replies(self, process: Process, effect: do.Reply, push: Push | None) -> None:
        """A stream is answered, if it is still there."""
        self.mark(f"replied {effect.refusal or effect.outcome}")
        if self.selections and push is not None:
            self.selections.replies(process, effect, push.header)

    def works(self, process: Process, effect: do.Work) -> None:
        """Work on tensors begins."""
        shadow = self.shadows[process]
        if effect.kind in ("end_step", "close"):
            self._expected = self._recompute(process, shadow)
        if effect.kind == "assign":
            shadow.folded.clear()

    def _nobody_lags(self, process: Process, shadow: Shadow) -> None:
        engine = process.engine
        if not engine.lockstep or engine.algorithm.steps(engine.round_index) == 0:
            return
        ahead = [n for n, view in engine.views.items() if view.round_index >= engine.round_index + 2]
        live = [n for n in ahead if engine.membership.is_live(n)]
        over = 2 * len(live) >= len(engine.membership.live) or any(
            engine.views[n].round_index > engine.round_index + NEAR_ROUNDS for n in live
        )
        tried = shadow.caught_up == engine.round_index
        self.require(not live or not over or tried, "L4", f"{process.peer_id} begins a round that is over at {live}")

    def worked(self, process: Process, effect: do.Work) -> None:
        """Work on tensors is done."""
        shadow, models = self.shadows[process], process.bench.models
        for slot in range(len(models)):
            self.require(bool(np.isfinite(models.model(slot)).all()), "I5", f"slot {slot} is not finite")
        if effect.kind in ("end_step", "close"):
            if not self.selections:
                self._compare(process, shadow)
            shadow.folded.clear()
        if self.selections:
            self.selections.worked(process, effect)
        if effect.kind == "train":
            for slot in process.bench.facts["trained"]:
                shadow.base[slot] = models.model(slot).copy()
        else:
            shadow.base = [models.model(slot).copy() for slot in range(len(models))]
        if effect.kind == "assign":
            shadow.aside = process.algorithm.aside(process.bench.facts, effect.round_index)

    def merged(self, process: Process) -> None:
        """The averages of a step are made, and the work on it goes on."""
        self._compare(process, self.shadows[process])
        if self.selections:
            self.selections.merged(process)

    def _own_weight(self, process: Process, slot: int, folded: float) -> float:
        algorithm, facts, round_index = process.algorithm, process.bench.facts, process.bench.round_index
        engine = process.engine
        if algorithm.steps(round_index) > 1 or ("masses" in facts and algorithm.warming_up(engine.round_index)):
            up = [n for n in process.effect_present if engine._edge_up(n, engine.round_index)]
            return (1.0 - sum(algorithm.metropolis(n) for n in up)) * facts["masses"][slot]
        return 1.0 if algorithm.mix == "uniform" else max(0.0, 1.0 - folded)

    def _recompute(self, process: Process, shadow: Shadow) -> list[tuple[Vector, Vector, Vector, Vector]]:
        """Return per slot: the float64 mean, the exact float32 result, and the hull."""
        batch, result = self.world.manifest.aggregation == "batch", []
        for slot, base in enumerate(shadow.base):
            arrivals = shadow.folded.get(slot, [])
            total = sum(weight for _, weight in arrivals)
            own_weight = self._own_weight(process, slot, total)
            exact = base.copy()
            if not arrivals:
                result.append((base.astype(np.float64), exact, base, base))
                continue
            if slot in shadow.aside or batch:
                aside, weight = collect(arrivals, batch)
                merge(exact, aside, own_weight, weight, batch)
            else:
                weight = 1.0
                for arrival, q in arrivals:
                    weight = fold(exact, weight, arrival, q)
            stack = [(base, own_weight), *arrivals]
            mean = sum(v.astype(np.float64) * w for v, w in stack) / (own_weight + total)
            inputs = np.stack([v for v, w in stack if w > 0])
            result.append((mean, exact, inputs.min(axis=0), inputs.max(axis=0)))
        return result

    def _compare(self, process: Process, shadow: Shadow) -> None:
        who = f"peer {process.peer_id}, round {process.bench.round_index}"
        for slot, (mean, exact, low, high) in enumerate(self._expected):
            model = process.bench.models.model(slot)
            scale = max(float(np.abs(low).max()), float(np.abs(high).max()), 1e-3)
            error = float(np.abs(model - mean).max())
            self.require(error <= 4 * EPS * scale, "I1", f"{who}, slot {slot}: off by {error:.3g} at scale {scale:.3g}")
            slack = 4 * EPS * scale
            inside = bool((model >= low - slack).all() and (model <= high + slack).all())
            self.require(inside, "I4", f"{who}, slot {slot} leaves the hull of its inputs")
            self.require(np.array_equal(model, exact), "I9", f"{who}, slot {slot}: other bits than its folds give")

    # ---- the end --------------------------------------------------------------------------------------------------

    def where(self) -> str:
        """Return what every unfinished core peer is doing."""
        rows = []
        for i in self.world.core:
            machine = self.world.machines[i]
            if machine.completed:
                continue
            if machine.process is None:
                rows.append(f"{i} down")
                continue
            engine = machine.process.engine
            place = f"{engine.round_index}.{engine.step_index}"
            rows.append(f"{i} {engine.stage} {place} waiting for {engine.waiting_for()}")
        return "; ".join(rows)

    def at_the_end(self) -> None:
        """The core has finished."""
        for i in self.world.core:
            self.require(i in self.final, "L1", f"peer {i} did not complete")
