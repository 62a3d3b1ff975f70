"""The virtual clock and everything under it: a heap of (time, sequence, action), machines, their processes, the network.

Nothing here knows the wall clock. Each concern draws from its own generator, so that one more draw in one place does not
shift all others. A run has two phases: in the first anything may fail and only safety is checked; then a connected core is
healed, the rest stays dead, and the core must finish within a bound.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

from coordinator_free_bootstrap.graph import Graph
from peer.core.constants import DEFAULTS
from peer.core.effects import Effect, Log, SetTimer
from peer.core.engine import Engine
from peer.core.events import Event
from tests.simulation.disk import Disk
from tests.simulation.invariants import Checker, InvariantViolation
from tests.simulation.nemesis import Nemesis
from tests.simulation.network import Network
from tests.simulation.options import Options
from tests.simulation.process import Process
from tests.simulation.rolling import give
from tests.simulation.sums import SummedChecker
from tests.simulation.trainer import QuadraticLearner, SharedPoints

Engine.validate = True
EPOCH_S = 1000.0  # where the clock begins
EVENTS_MAX = 60_000  # more is a livelock


class Machine:
    """What outlives a process: disk, data, speed."""

    def __init__(self, world: World, peer_id: int) -> None:
        self.world, self.peer_id = world, peer_id
        self.rng = world.random(f"machine {peer_id}")
        self.disk = Disk(peer_id, world.random(f"disk {peer_id}"))
        self.graph = world.graph  # its graph file
        self.asked_from = 0  # the round with which its process changes, as the file says that it was told of last
        m = world.manifest
        mixed = m.algorithm in ("fedspd", "fedsoft")
        parts = m.algorithm == "fedrep" or bool(m.private_parameters)
        self.learner = QuadraticLearner(peer_id, m.clusters, world.options.size, m.seed, mixed=mixed, parts=parts)
        self.raw = self.learner.points
        self.slowness = self.disk_slowness = 1.0
        self.lies = peer_id in world.options.liars  # claims rounds to come, and answers no pull
        self.process: Process | None = None
        self.lives = 0
        self.completed = False
        self.too_late = False  # it can never start: run.start.wait_for is everyone, and a neighbor is done
        self.down_since: float | None = EPOCH_S

    def scaling(self) -> SharedPoints | None:
        """Return the part of a new process in shared scaling; None in a run without it."""
        return SharedPoints(self.learner, self.raw) if self.world.options.shared else None

    def duration_s(self, kind: str) -> float:
        """Draw how long a piece of work takes."""
        low, high = self.world.options.train_s if kind == "train" else (0.0005, 0.01)
        return self.rng.uniform(low, high) * self.slowness

    def start(self) -> None:
        """Begin a new life, unless one continues or the run is over for this peer."""
        if self.peer_id not in self.graph:
            self.completed = True  # it cannot start
        if self.process is None and not self.completed:
            self.lives += 1
            self.down_since = None
            self.process = Process(self.world, self)
            self.process.start()

    def crash(self) -> None:
        """Lose power."""
        if self.process is not None:
            self.process.end("crashed")
            fate = self.disk.crash()
            if fate:
                self.world.fired[f"write {fate}"] += 1


class World:
    """One simulated run of one seed."""

    def __init__(self, options: Options, *, trace: bool = False) -> None:
        self.options, self.graph, self.manifest = options, options.graph, options.graph.manifest
        self._now_us = int(EPOCH_S * 1e6)
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self.fired: Counter[str] = Counter()
        self.engine_events = 0
        self.trace = trace
        self.last = deque[str](maxlen=60 if not trace else None)
        self._hash = hashlib.blake2b(digest_size=16)
        self.healed_at: float | None = None
        self.core: tuple[int, ...] = self.graph.ids
        self.checker = Checker(self) if options.graph.manifest.secure_sum is None else SummedChecker(self)
        self.network = Network(self, options.weather)
        self.machines = {i: Machine(self, i) for i in self.graph.ids}
        self.nemesis = Nemesis(self)

    def random(self, concern: str) -> Random:
        """Return the generator of one concern."""
        return Random(f"{self.options.seed}:{concern}")

    # ---- time -----------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Monotonic seconds."""
        return self._now_us / 1e6

    def after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Schedule an action."""
        self._sequence += 1
        at = self._now_us + max(0, math.ceil(delay_s * 1e6))
        heapq.heappush(self._heap, (at, self._sequence, action, arguments))

    def run_until(self, end_s: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until ``end_s`` or until ``done``."""
        while self._heap and not done():
            if self._heap[0][0] > end_s * 1e6:
                self._now_us = int(end_s * 1e6)
                return
            self._now_us, _, action, arguments = heapq.heappop(self._heap)
            action(*arguments)

    # ---- processes ------------------------------------------------------------------------------------------------

    def processes(self) -> list[Process]:
        """Return all that run."""
        return [machine.process for machine in self.machines.values() if machine.process is not None]

    def adopt(self, graph: Graph) -> None:
        """Make a graph file the last one: new peers get machines, new edges links."""
        new = set(graph.ids) - set(self.machines)
        self.graph, self.manifest = graph, graph.manifest
        self.network.connect(graph)
        for peer_id in sorted(new):
            self.machines[peer_id] = Machine(self, peer_id)

    def running(self, peer_id: int) -> Process | None:
        """Return the process that listens at a peer's address."""
        return self.machines[peer_id].process

    def ended(self, process: Process) -> None:
        """A process is gone."""
        machine = self.machines[process.peer_id]
        machine.process, machine.down_since = None, self.now
        neighbors = [self.machines[n] for n in process.graph.neighbors(process.peer_id)]
        machine.completed = machine.completed or process.ended_as == "removed"
        if process.ended_as in ("changed", "behind"):
            self.after(machine.rng.uniform(0.05, 0.6) if process.ended_as == "changed" else 3.0, machine.start)
        again = process.ended_as == "alone" and process.engine.round_index == 0  # its operator starts it again
        machine.too_late = again and any(neighbor.completed for neighbor in neighbors)  # one that it needs has ended
        again &= not machine.too_late
        machine.completed = machine.completed or (process.ended_as in ("completed", "alone") and not again)
        if again or (process.ended_as == "left" and self.healed_at is not None):
            self.after(1.0, machine.start)

    def note(self, process: Process, event: Event, effects: list[Effect]) -> None:
        """Put one step into the trace."""
        self.engine_events += 1
        if self.engine_events > EVENTS_MAX:
            raise InvariantViolation("L1", f"livelock: {EVENTS_MAX} events and no end")
        if self.trace:
            shown = [effect for effect in effects if not isinstance(effect, SetTimer)]
            engine = process.engine
            place = f"{engine.round_index}.{engine.state.round.step}"
            line = f"{self.now - EPOCH_S:10.6f} {process.peer_id} {engine.stage}:{place} {event}"
            self.last.append("\n".join([line, *(f"             -> {effect}" for effect in shown)]))
            self._hash.update(line.encode())
        elif effects:
            self.last.append((self._now_us, process.peer_id, event, effects))  # type: ignore[arg-type]

    def tail(self) -> str:
        """Return the last events as text."""
        rows = []
        for row in self.last:
            if isinstance(row, str):
                rows.append(row)
                continue
            at, peer_id, event, effects = row
            rows.append(f"{at / 1e6 - EPOCH_S:10.6f} {peer_id} {event}")
            rows += [f"             -> {e}" for e in effects if not isinstance(e, SetTimer | Log)]
        return "\n".join(rows)

    def fingerprint(self) -> str:
        """Return a hash of the trace, the models and the state of the generators (trace runs only)."""
        for machine in self.machines.values():
            self._hash.update(repr(machine.rng.getstate()).encode())
        for models in self.checker.final.values():
            for model in models:
                self._hash.update(model.tobytes())
        return self._hash.hexdigest()

    # ---- the two phases ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play the whole run; raises InvariantViolation."""
        late = self.nemesis.late_joiners()
        for i, machine in self.machines.items():
            self.after(late.get(i, self.random(f"start {i}").uniform(0, 0.5)), machine.start)
        self.nemesis.plan()
        if self.options.safety_s:
            self.run_until(EPOCH_S + self.options.safety_s)
        self.heal()
        bound = self.bound_s()
        self.run_until(self.now + bound, self.finished)
        if not self.finished():
            raise InvariantViolation("L1", f"not finished {bound:.0f} s after healing: {self.checker.where()}")
        self.checker.at_the_end()

    def kill_twice(self, peer_id: int, latest_s: float) -> None:
        """Plan two deaths of a peer between 1 s and `latest_s` (virtual time); each time it starts again within 0.4 s."""
        machine, draw = self.machines[peer_id], self.random("victim")
        for moment in sorted(draw.uniform(1.0, latest_s) for _ in range(2)):
            self.after(moment, machine.crash)
            self.after(moment + draw.uniform(0.05, 0.4), machine.start)

    def heal(self) -> None:
        """Choose the core, leave the rest dead, repair everything else."""
        self.core = self.nemesis.choose_core()
        self.healed_at = self.now
        self.network.heal()
        if self.options.faultless:
            self.network.weather = self.options.weather
        for i, machine in self.machines.items():
            machine.slowness = machine.disk_slowness = 1.0
            machine.disk.failing = ""
            if i in self.graph and machine.graph is not self.graph:
                give(machine, self.graph)
            if i not in self.core and i in self.graph:
                machine.crash()
                machine.completed = True  # never again
                continue
            if machine.process is not None and machine.process.paused:
                machine.process.resume()
            if machine.lies:  # its false rounds are forgotten with its incarnation
                machine.lies = False
                machine.crash()
            if not self.options.faultless:
                self.after(self.random(f"revive {i}").uniform(0, 3), machine.start)

    def settle_s(self) -> float:
        """Return how long after healing the last consequences of a fault may still show."""
        t = self.manifest.timeouts
        slow = 20 if any(action == "straggler" for action, _ in self.options.actions) else 2
        return 3 * t.suspicion_s + slow * self.options.train_s[1] + self.manifest.start.deadline_s + 3

    def bound_s(self) -> float:
        """Return how long a healed core may take to finish all its rounds."""
        steps = 4
        lost_s = (
            3
            * DEFAULTS.retry_after_suspicions
            * self.manifest.timeouts.suspicion_s
            * bool(self.options.weather.forgotten)
        )
        return self.settle_s() + self.manifest.rounds * (self.options.train_s[1] + steps * 1.0 + lost_s) + 20

    def finished(self) -> bool:
        """Return whether all core peers have completed their rounds or left for good."""
        former = [machine for i, machine in self.machines.items() if i not in self.graph]
        return all(machine.completed for machine in former) and all(self.machines[i].completed for i in self.core)
