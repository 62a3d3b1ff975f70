"""The invariants I1 to I16, I19, I20 and L1 to L9, checked while a simulation runs, against records that the engine never sees.

What can be said of one engine alone stands in `peer.core.invariants`, which every step of a simulation checks too.

I1  an average is the mean (or trimmed mean) of the local model and of exactly the folded arrivals (recomputed in float64)
I2  an arrival (sender, round, step, slot) is folded at most once in a peer's line of states, across restarts
I3  only complete models are folded, with the bytes that their sender had at that step; what is folded is what the bytes say,
    clipped to the distance from the round's first model
I4  each coordinate of an average lies in the hull of what was folded, or of what was left after trimming
I5  models are finite always
I6  only graph neighbors' arrivals are folded, and only in a life that has shaken hands
I7  rounds and incarnations never go back; an incarnation is persisted before it is used; what was sent was persisted first
I8  streams and snapshots stay within their limits
I9  the result of a round depends on what was folded, in which order, and on nothing else (recomputed bit for bit, except
    trimmed means)
I10 the payloads of a slot add up to its models, up to half a step of the encoding
I12 where peers ask for models, only those of a neighbor that was asked in the round are folded, or offered to one that asks
I13 in lockstep, work reads the numbers that a neighbor's pass of the same step carries
I14 private tensors have values that only the peer's own training gave them; no exchange and no catching up makes others
I15 with run.start.wait_for = "everyone" a run begins with all neighbors, and after all peers of the graph, or not at all
I16 at its end a peer names itself and every neighbor: with the test of exactly those models that it has folded in the first step
    of its last round (recomputed), or with a reason why it has none
I19 with run.edges = "one" a model is folded over the edge of its round, which an independent coloring names
I20 a peer that takes over models of neighbors has no momentum of the outer step, which would lead on from others
I11 a model is refused by the norm bound if, and only if, its norm exceeds the bound
I17 a model is folded only over an edge of the graph files of both ends, which are at most one revision apart
I18 a peer changes to another graph file between two rounds, with the round that the file names or later, and nothing of its
    round is lost; a former peer ends as one
L1  every peer of the healed core finishes within a bound, and no round of it waits for its deadline
L2  consensus: in its own test
L3  a peer does not wait for a dead neighbor longer than the suspicion time
L4  a restarted peer is alive at its neighbors soon
L5  a healthy, connected peer is not marked dead once delays are bounded
L6  without faults, lockstep gives the models of `tests.oracle.reference`: in its own test
L9  a neighbor's claim alone makes no peer skip rounds
L8  an absent neighbor becomes alive by an answer, never by its own messages alone

Those of runs that select a cluster before training stand in `selections`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.algorithms.dfca import Dfca, DfcaState
from peer.algorithms.workspace import Workspace
from peer.core import effects as do
from peer.core import events as ev
from peer.core.arrivals import Arrival
from peer.core.averaging import Vector, fold
from peer.core.encoding import DELTAS
from peer.core.liveness import NeighborState
from peer.core.lockstep import Lockstep
from peer.core.messages import ModelHeader, Numbers, Pass, PushReply, Statistics
from peer.core.model_store import SnapshotKey
from peer.core.model_tests import REASONS
from peer.core.stages import EXCHANGE, Stage
from peer.zoo.algorithms.centers import OwnNearCenters
from tests.oracle import encodings, one_edge
from tests.oracle.reference import collect, merge
from tests.simulation.network import LIMITS
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

    base: list[Vector] = field(default_factory=list)  # the local sample of each slot, of what travels
    private: list[bytes] = field(default_factory=list)  # the private tensors of each slot, before the work
    deferred: frozenset[int] = frozenset()
    folded: dict[int, list[tuple[Vector, float]]] = field(default_factory=lambda: defaultdict(list))
    tensors_busy: bool = False  # assign, close and the like are under way: nothing may be folded
    working: bool = False  # a round has begun, and has not ended
    compared: bool = False  # the averages of the step were checked where they were made
    round_index: int = 0
    incarnation: int = 0
    states: dict[int, NeighborState] = field(default_factory=dict)  # of neighbors, as recorded
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)  # incarnation and round of each neighbor
    caught_up: int = -1  # the round in which pulls were sent
    pulled: set[int] = field(default_factory=set)  # neighbors whose pulled models were there before the last event
    centers: list[Vector] = field(default_factory=list)  # what travels of the models at the round's start
    observed: list[tuple[int, Vector, float]] | None = None  # what a fold gives to the models, while it runs
    exact: NDArray[np.float64] | None = None  # what it should give
    unsent: dict[int, NDArray[np.float64]] = field(default_factory=dict)  # by slot: what payloads have left out so far
    encoded: set[SnapshotKey] = field(default_factory=set)
    delivered: dict[tuple[int, int], tuple[int, Vector]] = field(
        default_factory=dict
    )  # to its last round: sender, slot
    kept: dict[tuple[int, int], Vector] = field(default_factory=dict)  # by sender and slot: the last folded model


class Checker:
    """Watches every process of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.marks: Counter[str] = Counter()
        self.shadows: dict[Process, Shadow] = {}
        self.sent: dict[tuple[tuple[int, ...], str], bytes] = {}  # by key and encoding
        self.published: dict[int, Vector] = {}  # by name: what receivers have after a model of a run with deltas
        self.meant: dict[tuple[int, ...], bytes] = {}  # by key: the same, whether it is sent whole or as a delta
        self.lives: dict[int, int] = {}
        self.final: dict[int, list[Vector]] = {}
        self.furthest = 0  # the highest round of any honest peer so far
        self.history: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self.delivered: dict[
            int, dict[tuple[int, int], tuple[int, Vector]]
        ] = {}  # of the last time that the last round closed
        self.tests: dict[int, list[dict[str, Any]]] = {}
        self.told: dict[tuple[int, int, int], set[Numbers]] = defaultdict(set)  # by sender, round and step
        self.scalings: list[dict[str, Any]] = []  # the line of each process that knows the numbers of all sites
        self.statistics: list[Numbers] = []  # each message of them
        self.began: dict[int, float] = {}  # when each peer first began a round
        self.ends: dict[int, str] = {}  # how the last process of each peer ended
        self.logged: list[tuple[str, str]] = []  # level and text
        self.changed_in: dict[int, list[int]] = defaultdict(list)  # the rounds of each peer
        self.files: dict[tuple[int, ...], Graph] = {}  # of the sender, by key of what it sent
        self.selections = Selections(self) if world.manifest.algorithm == "fedspd" else None

    def mark(self, name: str) -> None:
        """Note that a rare thing has happened; the test of all seeds wants each of them."""
        self.marks[name] += 1

    def require(self, condition: bool, name: str, message: str) -> None:
        """Raise unless ``condition``."""
        if not condition:
            raise InvariantViolation(name, message)

    def watch(self, process: Process) -> None:
        """Watch what a new process folds; and the averages, where a close changes the models after it has averaged."""
        models, fold_model = process.workspace.models, process.workspace.models.fold

        def watched(slot: int, arrival: Vector, weight: float = 1.0) -> None:
            observed = self.shadows[process].observed
            if observed is not None:
                observed.append((slot, arrival.copy(), weight))
            fold_model(slot, arrival, weight)

        models.fold = watched  # type: ignore[method-assign]
        merge = process.algorithm.merge

        def merged(workspace: Workspace) -> None:
            merge(workspace)
            self.merged(process)

        process.algorithm.merge = merged  # type: ignore[method-assign]

    # ---- starts and ends ----------------------------------------------------------------------------------------------------

    def begins(self, process: Process) -> None:
        """A process has read its disk."""
        engine = process.engine
        self.shadows[process] = Shadow(round_index=engine.round_index, incarnation=engine.state.incarnation)
        self.shadows[process].private = private_of(process)
        loaded = process.checkpoint.round_index if process.checkpoint else 0
        self.require(engine.round_index == loaded, "I7", f"resumed at {engine.round_index}, the disk holds {loaded}")
        if process.checkpoint:
            self.mark("resumed")
        else:  # what a peer has folded is lost with its disk
            self.delivered.pop(process.peer_id, None)

    def ended(self, process: Process) -> None:
        """A process is gone."""
        self.world.ended(process)
        del self.shadows[process]
        self.ends[process.peer_id] = process.ended_as
        sites = process.engine.state.sites
        wait_for = self.world.manifest.start.wait_for
        gave_up = process.ended_as == "alone" and (
            wait_for in ("never_alone", "everyone") or (sites is not None and bool(sites.missing))
        )
        gave_up &= process.engine.round_index < self.world.manifest.rounds
        if gave_up and wait_for == "everyone":
            self.mark("not started without everyone")
        if process.ended_as in ("completed", "alone") and not gave_up:
            self.final[process.peer_id] = [
                process.workspace.models.model(s) for s in range(len(process.workspace.models))
            ]
            rounds = self.world.manifest.rounds
            self.require(process.engine.round_index == rounds, "L1", f"completed after {process.engine.round_index}")

    # ---- every event ----------------------------------------------------------------------------------------------

    def before(self, process: Process, event: ev.Event) -> None:
        """An event is about to be given to an engine."""
        said: Any = None
        if process in self.shadows:
            self.shadows[process].pulled = set(process.workspace.pulled)
        match event:
            case ev.HandshakeDone(hello):
                known, now = connected(process, hello.sender), hello.incarnation
                self.require(now >= known, "I7", f"a handshake with incarnation {now} after {known}")
                if 0 < known < now:
                    self.mark(f"handshake with a new incarnation while {process.engine.stage}")
            case (
                ev.ArrivalOffered(Arrival(said))
                | ev.SelectReceived(said)
                | ev.PassReceived(said)
                | ev.HeartbeatReceived(said)
            ):
                known = connected(process, said.sender)
                message = (
                    f"a message of incarnation {said.incarnation} of {said.sender}; the handshake was with {known}"
                )
                self.require(said.incarnation == known, "I6", message)
        if self.selections:
            self.selections.before(process, event)

    def after(self, process: Process, event: ev.Event, effects: list[do.Effect]) -> None:
        """An event was taken and its effects are executed or under way."""
        engine, shadow, world = process.engine, self.shadows.get(process), self.world
        if shadow is None:
            return
        self.require(engine.round_index >= shadow.round_index, "I7", "a peer went back a round")
        incarnation = engine.state.incarnation
        self.require(incarnation >= shadow.incarnation, "I7", "an incarnation went back")
        disk = process.machine.disk.incarnation or 0
        self.require(incarnation <= disk, "I7", "an incarnation is used before it is persisted")
        shadow.round_index, shadow.incarnation = engine.round_index, incarnation
        seen = shadow.seen
        for n, neighbor in engine.state.neighbors.items():
            now = connected(process, n), neighbor.round_index
            before = seen.get(n, (0, 0))
            if now != before:
                back = now[0] == before[0] and now[1] < before[1]
                self.require(not back, "I7", f"{process.peer_id} sees {n} go back to round {neighbor.round_index}")
                seen[n] = now
        self._limits(process)
        self._note_start(process, effects)
        if self.selections:
            self.selections.after(process, event, effects)
        if isinstance(event, ev.Tick):
            self._nobody_waits_for_the_dead(process)
        for effect in effects:
            self._note_change(process, shadow, effect)
            if isinstance(effect, do.SendControl) and isinstance(said := effect.message, Pass):
                self.told[said.sender, said.round_index, said.step].add(said.numbers)
            if isinstance(effect, do.Pull):
                shadow.caught_up = engine.round_index
            if isinstance(effect, do.Work) and effect.kind == "assign":
                self._nobody_lags(process, shadow)
                self._begins_with_everyone(process, effect.round_index)
            if isinstance(effect, do.Record) and effect.kind == "neighbor":
                self._back_by_an_answer(process, shadow, event, effect.fields)
                if world.healed_at is not None:
                    self._no_false_death(process, effect.fields)

    def _begins_with_everyone(self, process: Process, round_index: int) -> None:
        state = process.engine.state
        if round_index == 0 and not state.run_has_begun and self.world.manifest.start.wait_for == "everyone":
            absent = [
                n for n, each in state.neighbors.items() if not (each.liveness.is_live or state.has_finished(each))
            ]
            never = [n for n, machine in self.world.machines.items() if machine.lives == 0]
            absent += [n for n in never if n not in absent]
            self.require(not absent, "I15", f"{process.peer_id} begins without {absent}")

    def _note_start(self, process: Process, effects: list[do.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, do.SendControl) and isinstance(effect.message, Statistics):
                self.statistics.append(effect.message.numbers)
            if isinstance(effect, do.Work):
                self.began.setdefault(process.peer_id, self.world.now)

    def _limits(self, process: Process) -> None:
        most_open, offered = LIMITS.streams_per_neighbor, process.engine.state.arrivals.offered
        if len(offered) > most_open:
            most = max(Counter(arrival.sender for arrival in offered.values()).values())
            self.require(most <= most_open, "I8", f"{most} streams of one neighbor are unread")
        snapshots = len(process.workspace.models._snapshots)
        self.require(snapshots <= 3 * 3 * process.engine.state.algorithm.slots, "I8", "too many snapshots are kept")

    def _nobody_waits_for_the_dead(self, process: Process) -> None:
        engine, world, t = process.engine, self.world, self.world.manifest.timeouts
        if engine.stage not in EXCHANGE:
            return
        for n in engine.waits.undelivered():
            down = world.machines[n].down_since
            if down is not None:
                waited = world.now - max(down, process.resumed_at, engine.state.round.exchange_began_at)
                # what it said last may still be under way, by a clogged link
                allowed = t.suspicion_s + t.heartbeat_s + (6.0 if "clog" in world.fired else 1.0)
                allowed += 6.0 if world.options.weather.replay else 0.0  # its last words, again and again
                self.require(waited <= allowed, "L3", f"{process.peer_id} waits for dead {n} for {waited:.1f} s")

    def _back_by_an_answer(self, process: Process, shadow: Shadow, event: ev.Event, fields: dict[str, Any]) -> None:
        n, after = fields["neighbor"], NeighborState(fields["state"])
        before, shadow.states[n] = shadow.states.get(n, NeighborState.UNKNOWN), after
        if after is NeighborState.ALIVE and before is not NeighborState.SUSPECT:
            answer = isinstance(event, ev.SendAnswered)
            answer |= isinstance(event, ev.HandshakeDone) and event.answered
            answer |= isinstance(event, ev.HeartbeatAnswered) and not event.lost
            self.require(answer, "L8", f"{process.peer_id} marks {n}, {before} before, alive after {event}")

    def _no_false_death(self, process: Process, fields: dict[str, Any]) -> None:
        world = self.world
        if fields["state"] != NeighborState.DEAD or world.now < world.healed_at + world.settle_s():
            return
        machine = world.machines[fields["neighbor"]]
        healthy = machine.process is not None and world.now - machine.process.started_at > world.settle_s()
        healthy &= machine.process is not None and machine.process.graph == process.graph
        gone = machine.process is not None and machine.process.engine.stage is Stage.STOPPED
        self.require(not healthy or gone, "L5", f"{process.peer_id} marks healthy {fields['neighbor']} dead: {fields}")

    def record(self, process: Process, kind: str, fields: dict[str, Any]) -> None:
        """A line of the history."""
        world = self.world
        if kind != "round":
            self.mark(f"record neighbor {fields['state']}" if kind == "neighbor" else f"record {kind}")
            if kind == "scaling":
                self.scalings.append(fields)
                self.require(
                    fields["digest"] == self.scalings[0]["digest"], "S1", "two peers agreed on different numbers"
                )
            if kind == "caught_up":
                self._skips_to_a_real_round(process, fields)
            if kind == "end":
                self._tests_what_came(process, fields)
            return
        if fields["round_index"] + 1 == world.manifest.rounds:
            self.delivered[process.peer_id] = self.shadows[process].delivered
        self.history[process.peer_id].append(fields)
        if fields.get("missing"):
            self.mark("closed without a neighbor")
        pace, began_at = process.engine.pace, process.engine.state.round.began_at
        if isinstance(pace, Lockstep) and pace.partition.holds_rate:
            self.mark("kept its round rate")
        settled = world.healed_at is not None and began_at > world.healed_at + world.settle_s()
        if settled and isinstance(pace, Lockstep):
            lost = {
                n
                for n in fields.get("missing", ())
                if n in world.core and not world.machines[n].completed and world.machines[n].process is not None
            }
            lost = {n for n in lost if world.machines[n].process.graph == process.graph}  # type: ignore[union-attr]
            lost = {
                n
                for n in lost
                if not world.machines[n].lies and world.machines[n].process.started_at < began_at - world.settle_s()
            }  # type: ignore[union-attr]
            self.require(not lost, "L1", f"a healthy round of {process.peer_id} closes without {sorted(lost)}")

    def _skips_to_a_real_round(self, process: Process, fields: dict[str, Any]) -> None:
        """No claim alone makes a peer skip to a round that no honest peer has reached."""
        self.furthest = max([self.furthest, *(p.engine.round_index for p in self.shadows if not p.machine.lies)])
        found, t = self.furthest, fields["to_round"]
        self.require(t <= found, "L9", f"{process.peer_id} skips to round {t}; honest peers have reached {found}")

    def _tests_what_came(self, process: Process, fields: dict[str, Any]) -> None:
        """The tests of a peer that ends."""
        manifest, neighbors = self.world.manifest, process.graph.neighbors(process.peer_id)
        if not process.algorithm.steps(manifest.rounds - 1) or not neighbors:
            self.require("model_tests" not in fields, "I16", "tests without an exchange")
            return
        self.tests[process.peer_id] = tests = fields["model_tests"]
        named = {test["model_of"] for test in tests}
        self.require(named == {process.peer_id, *neighbors}, "I16", f"{process.peer_id} names {sorted(named)}")
        came = {p: each for p, each in self.delivered.get(process.peer_id, {}).items() if p[0] in neighbors}
        found = {(t["model_of"], t["slot"]): t for t in tests if "slot" in t and t["model_of"] != process.peer_id}
        self.require(found.keys() == came.keys(), "I16", f"{process.peer_id} tests {[*found]}, folded were {[*came]}")
        for place, (round_index, model) in came.items():
            test, learner = found[place], process.workspace.learner
            self.require(test["round_index"] == round_index, "I16", f"{test} is of round {round_index}")
            if model.size == learner.schema.size:
                loss = learner.evaluate(model).loss
                self.require(test["loss"] == loss, "I16", f"{process.peer_id} finds {test}, the loss is {loss}")
                self.mark("tested a neighbor's model")
        for test in tests:
            if "missing" in test:
                self.require(test["missing"] in REASONS, "I16", f"no such reason: {test}")
                self.mark(f"no test: {test['missing']}")

    # ---- models ---------------------------------------------------------------------------------------------------

    def sends(self, process: Process, neighbor: int, header: ModelHeader, payload: NDArray[np.uint8]) -> None:
        """A model is about to be sent."""
        if self.selections:
            self.selections.sends(process, neighbor, header)
        data = payload.tobytes()
        self.files[header.key] = process.graph
        known = self.sent.setdefault((header.key, header.encoding), data)
        self.require(known == data, "I3", f"the snapshot {header.key} has changed")
        self.require(header.incarnation == process.engine.state.incarnation, "I7", "sent in the name of another life")
        if self.world.manifest.encoding in DELTAS:
            self._publishes(process, header, data)
        else:
            self._adds_up(process, header, data)
        engine, disk = process.engine, process.machine.disk
        if self.world.manifest.checkpoint_rounds == 1 and not engine.state.disk.error and not disk.failing:
            rounds = (disk.durable_round, header.round_index)
            self.require(rounds[0] >= rounds[1], "I7", f"round {rounds[1]} is sent, {rounds[0]} is on disk")

    def _adds_up(self, process: Process, header: ModelHeader, payload: bytes) -> None:
        """Compare a new payload with its model, and lossy ones with all of the slot's models so far."""
        shadow, schema = self.shadows[process], process.host.format.schema
        key = SnapshotKey(header.round_index, header.step, header.slot)
        if key in shadow.encoded:
            return
        shadow.encoded.add(key)
        model = process.workspace.models.get_snapshot(key)
        fed_back = header.encoding == "int8"
        before = shadow.unsent.get(header.slot, np.zeros(schema.size)) if fed_back else np.zeros(schema.size)
        left = before + model - encodings.decoded(payload, schema, header.encoding)
        step = encodings.steps(payload, schema, header.encoding, model)
        shadow.unsent[header.slot] = left
        slack = 1e-4 * step + 4 * EPS * np.abs(model)
        within = bool((np.abs(left) <= step + (slack if header.encoding != "float32" else 0)).all())
        self.require(within, "I10", f"{header.key}: the payloads so far leave out {np.abs(left).max():.3g}")
        if header.encoding != "float32":
            self.mark(f"sent {header.encoding}")

    def _publishes(self, process: Process, header: ModelHeader, payload: bytes) -> None:
        """In a run with deltas, every message of a key leaves the same model, which is the snapshot but for what was left out."""
        schema = process.host.format.schema
        change = encodings.decoded(payload, schema, header.encoding)
        base = self.published.get(header.base, np.zeros(schema.size, np.float32))
        self.require(header.base == 0 or header.base in self.published, "I10", f"{header.key}: a delta from nothing")
        published = base + change.astype(np.float32) if header.base else change.astype(np.float32)
        self.published[encodings.name(published)] = published
        meant = self.meant.setdefault(header.key, published.tobytes())
        self.require(meant == published.tobytes(), "I10", f"{header.key} leaves another model than before")
        self.mark(f"sent {header.encoding} of {self.world.manifest.encoding}")
        if header.base:
            key = SnapshotKey(header.round_index, header.step, header.slot)
            wanted = process.workspace.models.get_snapshot(key) - base
            step = encodings.steps(payload, schema, header.encoding, wanted)
            left = np.abs(wanted - change)
            self.require(
                bool((left <= 1.0001 * step + 1e-30).all()), "I10", f"{header.key} leaves out {left.max():.3g}"
            )

    def _exact(self, process: Process, header: ModelHeader, payload: bytes) -> NDArray[np.float64]:
        """Return what a payload stands for at its receiver."""
        found = encodings.decoded(payload, process.host.format.schema, header.encoding)
        if not header.base:
            return found
        base = self.shadows[process].kept.get((header.sender, header.slot))
        self.require(base is not None, "I10", f"{header.key}: a delta is used without a base")
        return (base + found.astype(np.float32)).astype(np.float64)

    def screens(self, process: Process, arrival: Arrival, rejection: Refusal | None) -> None:
        """A complete model was screened."""
        bound, shadow = self.world.manifest.screening.norm_bound, self.shadows[process]
        if bound is None or (rejection is not None and rejection.code is RefusalCode.NO_BASE):
            return
        header = arrival.header
        found = self._exact(process, header, arrival.buffer.tobytes())
        allowed = bound * float(np.linalg.norm(shadow.centers[header.slot].astype(np.float64)))
        norm, refused = float(np.linalg.norm(found)), rejection is not None and rejection.code is RefusalCode.NORM_BOUND
        if abs(norm - allowed) > 1e-5 * allowed and (rejection is None or refused):
            self.require(refused == (norm > allowed), "I11", f"{header.key}: norm {norm:.6g}, {allowed:.6g} is allowed")

    def _was_asked(self, process: Process, sender: int) -> None:
        engine = process.engine
        if process.algorithm.asking(engine.round_index):
            asked = process.algorithm.asks(engine.state.algorithm_state, engine.round_index)
            fits = engine.state.plan.trains and sender in asked
            self.require(fits, "I12", f"{process.peer_id} folds a model of {sender}, asked were {sorted(asked)}")
            self.mark("folded from a neighbor that was asked")

    def folds(self, process: Process, effect: do.FoldArrival) -> None:
        """An arrival is about to be folded."""
        header, shadow = effect.header, self.shadows[process]
        self.require(header.sender in process.graph.neighbors(process.peer_id), "I6", f"folded from {header.sender}")
        self._of_files_near(process, header)
        self.require(
            not shadow.tensors_busy, "I1", f"a fold runs beside other work on tensors ({process.engine.stage})"
        )
        payload = effect.arrival.buffer.tobytes()
        shadow.exact = self._exact(process, header, payload)
        shadow.kept[header.sender, header.slot] = shadow.exact.astype(np.float32)
        if self.world.manifest.encoding in DELTAS:
            kept = shadow.kept[header.sender, header.slot].tobytes()
            self.require(
                self.meant[header.key] == kept, "I10", f"{header.key} is another model here than at its sender"
            )
        self.require(bool(np.isfinite(shadow.exact).all()), "I3", "an incomplete model is folded")
        self.require(
            self.sent.get((header.key, header.encoding)) == payload, "I3", f"{header.key} is not what was sent"
        )
        key = (header.sender, header.round_index, header.step, header.slot)
        self.require(key not in process.lineage, "I2", f"peer {process.peer_id} folds {key} twice")
        process.lineage.add(key)
        if process.engine.round_index + 1 == self.world.manifest.rounds and header.step == 0:
            shadow.delivered[header.sender, header.slot] = header.round_index, shadow.exact.astype(np.float32)
        if self.world.manifest.edges == "one":
            up = one_edge.is_up(self.world.graph, header.round_index, process.peer_id, header.sender)
            self.require(up, "I19", f"{process.peer_id} folds {header.key} over an edge of another round")
            self.mark("folded over the one edge")
        late = header.round_index < process.engine.round_index
        self._was_asked(process, effect.header.sender)
        self.mark("folded late" if late else "folded")
        if self.selections:
            self.selections.folds(process, effect)
        shadow.observed = []

    def _of_files_near(self, process: Process, header: ModelHeader) -> None:
        theirs, mine = self.files[header.key], process.graph
        chains = ([each.run_digest, *each.continues] for each in (mine, theirs))
        (own, older), (other, others) = ((chain[0], chain[:2]) for chain in chains)
        self.require(
            own in others or other in older, "I17", f"{header.key} is folded under a file that is too far away"
        )
        common = header.sender in mine.neighbors(process.peer_id) and process.peer_id in theirs.neighbors(header.sender)
        self.require(common, "I17", f"{header.key} is folded over an edge of one file")
        if own != other:
            self.mark("folded over two revisions")

    def _note_change(self, process: Process, shadow: Shadow, effect: do.Effect) -> None:
        match effect:
            case do.Stop(status):
                self._stops(process, status)
            case do.Work(kind):
                shadow.working = kind not in ("adopt", "final")
            case do.Record("round"):
                shadow.working = False

    def _stops(self, process: Process, status: str) -> None:
        engine, machine = process.engine, process.machine
        former = process.peer_id not in self.world.graph
        if status == "changed":
            due, t, safe = machine.asked_from, engine.round_index, machine.disk.durable_round
            early = t < due and t < engine.state.manifest.rounds
            self.require(not early, "I18", f"{process.peer_id} changes in round {t}, not before {due} is right")
            began = self.shadows[process].working
            self.require(not began, "I18", f"{process.peer_id} changes in the middle of round {t}")
            self.require(safe >= t or bool(engine.state.disk.error), "I18", f"round {t} is not on disk, but {safe}")
        if status == "behind":
            self.require(not former, "I18", f"{process.peer_id} was removed, and ends as one that is behind")
        if status == "removed":
            self.require(former, "I18", f"{process.peer_id} ends as removed, and is in the last file")
        if status == "changed":
            self.changed_in[process.peer_id].append(engine.round_index)
        if status in ("changed", "behind", "removed"):
            self.mark(f"ended {status}")

    def has_folded(self, process: Process, effect: do.FoldArrival) -> None:
        """An arrival is folded: into its targets, and clipped as the manifest says."""
        shadow, screening = self.shadows[process], self.world.manifest.screening
        observed, exact, slot = shadow.observed, shadow.exact, effect.header.slot
        assert observed is not None and exact is not None
        shadow.observed = None
        found = [(target, weight) for target, _, weight in observed]
        wanted = [(target.slot, target.weight) for target in effect.targets]
        self.require(found == wanted, "I3", f"{effect.header.key} is folded into {found}, not {wanted}")
        if screening.clip is not None:
            center = shadow.centers[slot].astype(np.float64)
            distance = float(np.linalg.norm(exact - center))
            if distance > screening.clip:
                self.mark("clipped")
                exact = center + screening.clip / distance * (exact - center)
        plain = screening.clip is None and effect.header.encoding == "float32"
        slack = 0.0 if plain else 8 * EPS * max(1e-3, float(np.abs(exact).max()))
        for target, vector, weight in observed:
            off = float(np.abs(vector - exact).max())
            self.require(off <= slack, "I3", f"{effect.header.key} is folded as something else, off by {off:.3g}")
            shadow.folded[target].append((vector, weight))

    def replies(self, process: Process, reply: PushReply, push: Push | None) -> None:
        """A stream is answered, if it is still there."""
        self.mark(f"replied {reply.code if isinstance(reply, Refusal) else reply}")
        if self.selections and push is not None:
            self.selections.replies(process, reply, push.header)

    def works(self, process: Process, effect: do.Work) -> None:
        """Work on tensors begins."""
        shadow = self.shadows[process]
        for n, numbers in effect.numbers if self.world.manifest.pace == "lockstep" else ():
            self.mark("numbers told")
            place = (n, effect.round_index, effect.step)
            self.require(numbers in self.told[place], "I13", f"{process.peer_id} reads numbers that {place} never had")
        if effect.kind in ("end_step", "close"):
            if isinstance(process.algorithm, OwnNearCenters):
                self._own_model_counts(process, process.algorithm)
            self._expected = self._recompute(process, shadow)
        if effect.kind == "assign":
            shadow.folded.clear()

    def _nobody_lags(self, process: Process, shadow: Shadow) -> None:
        engine, world = process.engine, self.world
        if not isinstance(engine.pace, Lockstep) or engine.state.plan.steps == 0:
            return
        live = [neighbor for neighbor in engine.state.neighbors.values() if neighbor.liveness.is_live]
        ahead = {
            neighbor.id: neighbor.round_index for neighbor in live if neighbor.round_index >= engine.round_index + 2
        }
        far = engine.round_index + engine.state.constants.wait_rounds_behind
        over = 2 * len(ahead) >= len(live) or any(round_index > far for round_index in ahead.values())
        waits = all(world.now < engine.state.neighbors[n].pull_at or n in engine.catch_up.pulling for n in ahead)
        tried = shadow.caught_up == engine.round_index or waits
        known = engine.state.neighbors
        useful = [n for n in ahead if n in shadow.pulled and known[n].proven_round >= engine.round_index + 2]
        skips = over and len(ahead) > 1 and bool(useful)
        self.require(not skips, "L4", f"{process.peer_id} begins a round though it has the models of {useful}, ahead")
        self.require(not ahead or not over or tried, "L4", f"{process.peer_id} begins a round that is over at {ahead}")

    def worked(self, process: Process, effect: do.Work) -> None:
        """Work on tensors is done."""
        shadow, models = self.shadows[process], process.workspace.models
        for slot in range(len(models)):
            self.require(bool(np.isfinite(models.model(slot)).all()), "I5", f"slot {slot} is not finite")
        if effect.kind in ("end_step", "close"):
            if not shadow.compared:
                self._compare(process, shadow)
            shadow.compared = False
            shadow.folded.clear()
        momentum = [name for name in process.workspace.optimizers if name.startswith("outer/")]
        self.require(effect.kind != "adopt" or not momentum, "I20", f"{process.peer_id} adopts and keeps {momentum}")
        if effect.kind == "close" and momentum:
            self.mark("outer step")
        if self.selections:
            self.selections.worked(process, effect)
        if effect.kind == "train":
            private = range(process.algorithm.slots, process.algorithm.held)
            for slot in {*process.workspace.state.trained, *private}:
                shadow.base[slot] = models.part.of(models.model(slot)).copy()
        else:
            shadow.base = [models.part.of(models.model(slot)).copy() for slot in range(len(models))]
        self._private_stays(process, shadow, effect)
        if effect.kind == "assign":
            shadow.deferred = process.algorithm.deferred_slots(process.workspace.state, effect.round_index)
            shadow.centers = [models.part.of(models.model(slot)).copy() for slot in range(len(models))]

    def _private_stays(self, process: Process, shadow: Shadow, effect: do.Work) -> None:
        private = private_of(process)
        if effect.kind in ("end_step", "close", "adopt") and any(private):
            known = set(private) <= set(shadow.private)
            self.require(known, "I14", f"{process.peer_id}: {effect.kind} makes other private tensors")
            self.mark("private tensors stay")
        shadow.private = private

    def _own_model_counts(self, process: Process, algorithm: OwnNearCenters) -> None:
        """The local sample of a center is the peer's own model, unless it takes no part."""
        shadow, state = self.shadows[process], process.workspace.state
        for s in range(algorithm.clusters):
            folded = sum(weight for _, weight in shadow.folded.get(s, ()))
            if algorithm.own_share(state, s, folded) > 0:
                shadow.base[s] = shadow.base[algorithm.own].copy()

    def merged(self, process: Process) -> None:
        """The averages of a step are made, and the work on it continues."""
        self._compare(process, self.shadows[process])
        self.shadows[process].compared = True
        if self.selections:
            self.selections.merged(process)

    def _own_weight(self, process: Process, slot: int, folded: float) -> float:
        algorithm, state, round_index = process.algorithm, process.workspace.state, process.workspace.round_index
        engine = process.engine
        if isinstance(algorithm, Dfca) and algorithm.seeding(round_index) and slot == round_index:
            return 0.0  # the seed's model replaces the peer's own
        relays = algorithm.steps(round_index) > 1 or (
            isinstance(algorithm, Dfca) and algorithm.warming_up(engine.round_index)
        )
        if relays and isinstance(state, DfcaState) and state.masses and slot < algorithm.slots:
            up = [n for n in process.effect_present if n in engine.state.plan.up]
            return (1.0 - sum(algorithm.metropolis(n) for n in up)) * state.masses[slot]
        if isinstance(algorithm, OwnNearCenters):
            return algorithm.own_share(state, slot, folded) if slot < algorithm.clusters else 1.0
        return 1.0 if algorithm.mix == "uniform" else max(0.0, 1.0 - folded)

    def _recompute(self, process: Process, shadow: Shadow) -> list[tuple[Vector, Vector | None, Vector, Vector]]:
        """Return per slot: the float64 mean, the exact float32 result (None: not known to the bit), and the hull."""
        batch, result = self.world.manifest.aggregation == "batch", []
        share = self.world.manifest.screening.trimmed_mean
        for slot, base in enumerate(shadow.base):
            arrivals = shadow.folded.get(slot, [])
            total = sum(weight for _, weight in arrivals)
            own_weight = self._own_weight(process, slot, total)
            exact = base.copy()
            if not arrivals:
                result.append((base.astype(np.float64), exact, base, base))
                continue
            if share is not None:
                own = [(base, own_weight)] if own_weight > 0 else []
                result.append(trimmed([*arrivals, *own], share))
                self.mark("trimmed" if int(share * (len(arrivals) + len(own))) else "too few to trim")
                continue
            if slot in shadow.deferred or batch:
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
        who = f"peer {process.peer_id}, round {process.workspace.round_index}"
        for slot, (mean, exact, low, high) in enumerate(self._expected):
            models = process.workspace.models
            model = models.part.of(models.model(slot))
            scale = max(float(np.abs(low).max()), float(np.abs(high).max()), 1e-3)
            error = float(np.abs(model - mean).max())
            self.require(error <= 4 * EPS * scale, "I1", f"{who}, slot {slot}: off by {error:.3g} at scale {scale:.3g}")
            slack = 4 * EPS * scale
            inside = bool((model >= low - slack).all() and (model <= high + slack).all())
            self.require(inside, "I4", f"{who}, slot {slot} leaves the hull of its inputs")
            same = exact is None or np.array_equal(model, exact)
            self.require(same, "I9", f"{who}, slot {slot}: other bits than its folds give")

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
            place = f"{engine.round_index}.{engine.state.round.step}"
            rows.append(f"{i} {engine.stage} {place} waiting for {engine.waits.undelivered()}")
        return "; ".join(rows)

    def at_the_end(self) -> None:
        """The core has finished."""
        for i in self.world.core:
            done = i in self.final or self.world.machines[i].too_late or i not in self.world.graph
            self.require(done, "L1", f"peer {i} did not complete")


def private_of(process: Process) -> list[bytes]:
    """Return the private tensors of each slot."""
    models = process.workspace.models
    mask = np.ones(models.size, bool)
    for place in models.part.places:
        mask[place] = False
    return [models.model(slot)[mask].tobytes() for slot in range(len(models))]


def connected(process: Process, neighbor: int) -> int:
    """Return the incarnation that a process has shaken hands with; 0: none yet."""
    known = process.engine.state.neighbors[neighbor]
    return known.incarnation if known.connected else 0


def trimmed(models: list[tuple[Vector, float]], share: float) -> tuple[Vector, None, Vector, Vector]:
    """Return the trimmed mean of models and weights by a sort of each coordinate, and the hull of what is left."""
    cut, low, high, mean = int(share * len(models)), [], [], []
    for coordinate in range(models[0][0].size):
        left = sorted(((float(m[coordinate]), w) for m, w in models), key=lambda value: value[0])[
            cut : len(models) - cut
        ]
        low.append(left[0][0])
        high.append(left[-1][0])
        mean.append(sum(value * weight for value, weight in left) / sum(weight for _, weight in left))
    return np.array(mean), None, np.array(low, np.float32), np.array(high, np.float32)
