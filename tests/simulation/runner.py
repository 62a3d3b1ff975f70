"""Run seeds, sum up what happened, replay and shrink a failure."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from coordinator_free_bootstrap.errors import GraphError
from tests.simulation.invariants import InvariantViolation
from tests.simulation.network import Weather
from tests.simulation.options import Options, draw
from tests.simulation.world import EPOCH_S, World


@dataclass
class Outcome:
    """What one run came to."""

    options: Options
    error: Exception | None
    simulated_s: float
    events: int
    fired: Counter[str]
    marks: Counter[str]
    tail: str
    fingerprint: str = ""


@dataclass
class Summary:
    """What many runs came to."""

    seeds: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    events: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one run."""
        self.seeds += 1
        self.simulated_s += outcome.simulated_s
        self.events += outcome.events
        self.fired += outcome.fired
        self.marks += outcome.marks
        if outcome.error is not None:
            self.failures.append(outcome)

    def __str__(self) -> str:
        rows = [
            f"{self.seeds} seeds, {self.simulated_s / 3600:.2f} simulated hours in {self.cpu_s:.1f} s of one core "
            f"({self.simulated_s / max(self.cpu_s, 1e-9):.0f} times real time), {self.events} events, "
            f"{self.events / max(self.cpu_s, 1e-9):.0f} events/s, {len(self.failures)} failures",
            "faults fired:   " + ", ".join(f"{name} {count}" for name, count in sorted(self.fired.items())),
            "coverage marks: " + ", ".join(f"{name} {count}" for name, count in sorted(self.marks.items())),
        ]
        return "\n".join(rows)


def run_one(options: Options, *, trace: bool = False) -> Outcome:
    """Simulate one run; an invariant that breaks, or any exception of ours, is its error."""
    world = World(options, trace=trace)
    error: Exception | None = None
    try:
        world.run()
    except Exception as caught:  # whatever a bug raises is a finding
        error = caught
    seconds = world.now - EPOCH_S
    fingerprint = world.fingerprint() if trace else ""
    tail = world.tail() if trace or error else ""
    return Outcome(options, error, seconds, world.engine_events, world.fired, world.checker.marks, tail, fingerprint)


def run_many(
    start: int, count: int, *, twice_every: int = 20, told: Callable[[int], None] = lambda seed: None
) -> Summary:
    """Simulate seeds; every twentieth runs twice and must leave the same trace, models and generators.

    ``told`` hears how many are done, after every thousand and every failure.
    """
    summary, began = Summary(), time.process_time()
    for seed in range(start, start + count):
        outcome = run_one(draw(seed), trace=seed % twice_every == 0)
        if outcome.fingerprint and outcome.error is None:
            again = run_one(draw(seed), trace=True)
            if again.fingerprint != outcome.fingerprint:
                outcome.error = InvariantViolation("determinism", f"seed {seed} took another course the second time")
        summary.add(outcome)
        if outcome.error is not None or summary.seeds % 1000 == 0:
            told(summary.seeds)
    summary.cpu_s = time.process_time() - began
    return summary


def report(outcome: Outcome) -> str:
    """Return what a person needs to look into a failure."""
    manifest = outcome.options.graph.manifest
    settings = manifest.model_dump(exclude_defaults=True)
    return "\n".join(
        [
            f"seed {outcome.options.seed}: {type(outcome.error).__name__}: {outcome.error}",
            f"  graph {outcome.options.graph.edges}, run {settings}",
            f"  weather {outcome.options.weather}, actions {outcome.options.actions}",
            f"  replay: python -m tests.simulation --seed {outcome.options.seed} --trace",
            "  last events:",
            *("    " + line[:240] for line in outcome.tail.splitlines()[-50:]),
        ]
    )


def shrink(outcome: Outcome) -> Outcome:
    """Drop kinds of faults, then peers, then rounds, one after another, as long as the same invariant breaks."""
    smallest = outcome
    for smaller in (_fewer_faults, _fewer_peers, _fewer_rounds):
        while found := next(
            (o for o in map(run_one, smaller(smallest.options)) if _broken(o) == _broken(outcome)), None
        ):
            smallest = found
    return smallest


def _broken(outcome: Outcome) -> str:
    return "" if outcome.error is None else str(getattr(outcome.error, "name", type(outcome.error).__name__))


def _fewer_faults(o: Options) -> Iterator[Options]:
    for kind, calm in vars(Weather()).items():
        if kind != "bytes_per_s" and getattr(o.weather, kind) != calm:
            yield replace(o, weather=replace(o.weather, **{kind: calm}))
    for action in o.actions:
        yield replace(o, actions=tuple(a for a in o.actions if a != action))
    if o.core_loses:
        yield replace(o, core_loses=0)


def _fewer_peers(o: Options) -> Iterator[Options]:
    """Leave out each peer in turn, unless the graph falls apart without it."""
    nodes = o.graph.nodes if len(o.graph.nodes) > 2 + o.core_loses else ()
    for gone in nodes:
        edges = tuple(edge for edge in o.graph.edges if gone.id not in edge)
        with contextlib.suppress(GraphError):
            yield replace(o, graph=replace(o.graph, nodes=tuple(n for n in nodes if n is not gone), edges=edges))


def _fewer_rounds(o: Options) -> Iterator[Options]:
    for rounds in range(1, o.graph.manifest.rounds):
        run = o.graph.manifest.model_copy(update={"rounds": rounds})
        yield replace(o, graph=replace(o.graph, manifest=run))
