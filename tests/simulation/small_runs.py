"""Small runs with at most one kind of fault: none, or ends of one peer that is soon restarted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.revision import next_graph, with_changes
from peer.core import events as ev
from peer.core.constants import Constants
from tests.oracle.reference import run_reference
from tests.simulation.fedspd_reference import run_fedspd
from tests.simulation.network import Weather
from tests.simulation.options import Options, manifest
from tests.simulation.rolling import give
from tests.simulation.trainer import QuadraticLearner
from tests.simulation.world import EPOCH_S, Machine, World

PRIVATE = {"private_parameters": ["head.*"]}
RUNS = {
    "plain": {},
    "batch": {"aggregation": "batch"},
    "local initialization": {"options": {"initialization": "local"}},
    "relay": {"options": {"warmup_rounds": 3, "relay_steps": 3}},
    "relay, batch": {"options": {"warmup_rounds": 2, "relay_steps": 2}, "aggregation": "batch"},
    "metropolis": {"mix": "metropolis"},
    "metropolis, batch": {"mix": "metropolis", "aggregation": "batch"},
    "participation": {"participation": 0.5},
    "participation, paper form": {"participation": 0.5, "options": {"idle_folds": False}},
    "dynamic edges": {"dynamic_edges": 0.5},
    "dynamic edges, relay": {"dynamic_edges": 0.4, "options": {"warmup_rounds": 3, "relay_steps": 2}},
    "one edge": {"edges": "one"},
    "one edge, relay, batch": {
        "edges": "one",
        "options": {"warmup_rounds": 2, "relay_steps": 2},
        "aggregation": "batch",
    },
    "one edge, dfedavg, participation": {"algorithm": "dfedavg", "edges": "one", "participation": 0.8},
    "one edge, dynamic edges": {"edges": "one", "dynamic_edges": 0.3, "mix": "metropolis"},
    "one edge, noloco": {"algorithm": "dfedavg", "edges": "one", "outer": {"optimizer": "noloco"}},
    "nesterov": {"outer": {"optimizer": "nesterov"}, "options": {"warmup_rounds": 2, "relay_steps": 2}},
    "nesterov, private, participation": PRIVATE | {"outer": {"optimizer": "nesterov"}, "participation": 0.6},
    "dfedavg": {"algorithm": "dfedavg"},
    "dfedavg, participation": {"algorithm": "dfedavg", "participation": 0.6},
    "dfedavg, uniform, batch": {"algorithm": "dfedavg", "mix": "uniform", "aggregation": "batch"},
    "dfedavg, partners": {"algorithm": "dfedavg", "options": {"partners": 1}},
    "dfedavg, partners, participation": {"algorithm": "dfedavg", "options": {"partners": 2}, "participation": 0.6},
    "dfedavg, partners, dynamic edges": {"algorithm": "dfedavg", "options": {"partners": 2}, "dynamic_edges": 0.4},
    "local": {"algorithm": "local"},
    "private": PRIVATE,
    "private, batch": PRIVATE | {"aggregation": "batch"},
    "private, metropolis": PRIVATE | {"mix": "metropolis"},
    "private, relay": PRIVATE | {"options": {"warmup_rounds": 3, "relay_steps": 3}},
    "private, participation": PRIVATE | {"participation": 0.5},
    "private, dfedavg": PRIVATE | {"algorithm": "dfedavg"},
    "private, dfedavg, uniform, batch": PRIVATE | {"algorithm": "dfedavg", "mix": "uniform", "aggregation": "batch"},
    "late arrivals are folded": {"stale_weight": 0.5},
}
SELECTS = {"u_min": 0.4, "align_every": 2, "sketch_size": 16}  # each cluster, now and then
FEDSPD = {
    "fedspd": SELECTS,
    "fedspd, paper form": {key: value for key, value in SELECTS.items() if key != "sketch_size"}
    | {"first_round": "paper", "label_check": False, "align_every": 0, "u_min": 0.0},
    "fedspd, own drawings": SELECTS | {"initialization": "local"},
    "fedspd, broadcast": SELECTS | {"exchange": "broadcast", "label_check": False},
    "fedspd, warm": SELECTS | {"warm_rounds": 2, "hard_rounds": 1},
}
RUNS |= {name: {"algorithm": "fedspd", "options": options, "final": {"epochs": 1}} for name, options in FEDSPD.items()}
RUNS |= {
    "fedspd, metropolis": RUNS["fedspd"] | {"mix": "metropolis"},
    "fedspd, batch": RUNS["fedspd"] | {"aggregation": "batch"},
    "fedspd, dynamic edges": RUNS["fedspd"] | {"dynamic_edges": 0.4, "mix": "metropolis"},
    "fedspd, one edge": RUNS["fedspd"] | {"edges": "one", "mix": "metropolis"},
    "fedspd, participation": RUNS["fedspd, broadcast"] | {"participation": 0.6, "stale_weight": 0.5},
}


def assert_equals_reference(world: World) -> None:
    """Compare every model of every peer, bit for bit."""
    m = world.manifest
    selecting = m.algorithm == "fedspd"
    shape = {"mixed": selecting, "parts": bool(m.private_parameters)}
    learners = {
        i: QuadraticLearner(i, m.clusters, world.options.size, m.seed, **shape) for i in world.options.graph.ids
    }
    reference = run_fedspd if selecting else run_reference
    changed = (world.graph,) if world.graph is not world.options.graph else ()
    for i, peer in reference(world.options.graph, learners, *changed).items():
        for slot, model in enumerate(peer.models):
            assert np.array_equal(world.checker.final[i][slot], model), f"peer {i}, slot {slot}"


def without_faults(name: str, seed: int, train_s: tuple[float, float] = (0.02, 1.0)) -> World:
    """Play one of `RUNS` on one of four graphs and networks."""
    kind, peers = (("erdos-renyi", 7), ("star", 5), ("line", 4), ("complete", 5))[seed % 4]
    run = manifest(**RUNS[name], clusters=2 + seed % 2, seed=seed, rounds=6)
    graph = make_graph(kind, peers, seed=seed, manifest=run, **({"p": 0.5} if kind == "erdos-renyi" else {}))
    slow = Weather(delay_s=(0.001, 0.05)[seed % 2], bytes_per_s=(100, 1e5)[seed // 2 % 2])
    world = World(Options(seed, graph, weather=slow, train_s=train_s))
    world.run()
    return world


KILLED_ON_ONE_EDGE = (
    "one edge, dynamic edges",
    "one edge, relay, batch",
    "one edge, noloco",
    "nesterov, private, participation",
)
KILLED = ("plain", "relay", "batch", "dfedavg")
KILLED_ASKING = (
    "dfedavg, partners",
    "dfedavg, partners, participation",
    "dfedavg, partners",
    "dfedavg, partners, dynamic edges",
)
KILLED_PRIVATE = ("private", "private, relay", "private, batch", "private, dfedavg")
KILLED_SELECTING = ("fedspd", "fedspd, broadcast", "fedspd, metropolis", "fedspd, warm")


def with_restarts(seed: int, names: tuple[str, ...] = KILLED, end: Callable[[Machine], None] = Machine.crash) -> World:
    """End one peer twice, by a crash or a `leave`, and start it again within the suspicion time of the others."""
    run = manifest(**RUNS[names[seed % 4]], clusters=2, seed=seed, rounds=6)
    graph = make_graph("erdos-renyi", 6, seed=seed, manifest=run, p=0.5)
    world = World(Options(seed, graph, weather=Weather(delay_s=0.01), train_s=(0.05, 0.4)))
    _restarted(world, seed % 6, times=2, earliest_s=1.0, end=end)
    assert bool(world.checker.marks["record leave"]) == (end is leave)
    return world


def leave(machine: Machine) -> None:
    """Ask a peer to leave, if it runs."""
    if machine.process is not None:
        machine.process.host.post(ev.LeaveRequested())


def hub_away(seed: int, away_s: float, *, politely: bool) -> World:
    """Let the hub of a star leave, or kill it, in a round drawn by the seed, and start it again after so many seconds."""
    run = manifest(algorithm="dfedavg", clusters=1, rounds=60, seed=seed)
    world = World(Options(seed, make_graph("star", 4, manifest=run), train_s=(0.3, 0.5)))
    hub, moment = world.machines[0], world.random("hub").uniform(4.0, 8.0)
    for machine in world.machines.values():
        world.after(0.0, machine.start)
    world.after(moment, leave if politely else Machine.crash, hub)
    world.after(moment + away_s, hub.start)
    world.run_until(EPOCH_S + 300, lambda: all(machine.completed for machine in world.machines.values()))
    assert hub.lives == 2 and all(machine.completed for machine in world.machines.values())
    return world


def rounds_alone(world: World, peer_id: int) -> int:
    """Return how many of a peer's rounds were without any neighbor."""
    return sum(line["rounds_alone"] for line in world.checker.history[peer_id])


CHANGED = ("plain", "relay", "batch", "dfedavg", "metropolis", "participation", "dynamic edges", "dfedavg, partners")


def with_a_change(seed: int, *, kill: bool = False, train_s: tuple[float, float] = (0.2, 0.5)) -> World:
    """Give each peer the next graph file at its own time, with a round for the change; ``kill``: one dies as it changes."""
    start = {"wait_for": "all", "deadline_s": 60.0}  # longer than any training
    run = manifest(**RUNS[CHANGED[seed % 8]], clusters=2, seed=seed, rounds=7, start=start)
    graph = make_graph("erdos-renyi", 6, seed=seed, manifest=run, p=0.6)
    world = World(Options(seed, graph, weather=Weather(delay_s=0.01), train_s=train_s))
    rng, absent = world.random("change"), [(a, b) for a in range(6) for b in range(a) if (b, a) not in graph.edges]
    now = with_changes(
        graph,
        remove=[5],
        remove_edges=[next(edge for edge in graph.edges if 5 not in edge)],
        add_edges=[edge for edge in absent if 5 not in edge][:2],
        manifest=run.model_copy(update={"learning_rate": 0.1, "local_epochs": 1}),
        from_round=rng.choice((3, 4)),
    )
    following = next_graph(graph, now)
    for machine in world.machines.values():
        world.after(rng.uniform(0.55, 1.0), lambda machine=machine: (world.adopt(following), give(machine, following)))
    if kill:
        victim = world.machines[seed % 5]

        def die() -> None:
            if victim.process is not None and victim.lives > 1:
                world.fired["killed in a change"] += 1
                victim.crash()
                world.after(0.3, victim.start)
            elif victim.lives == 1:
                world.after(0.01, die)

        world.after(0.6, die)
    world.run()
    assert {i: ends[0] for i, ends in world.checker.changed_in.items()} == dict.fromkeys(range(5), now.from_round)
    assert world.checker.ends[5] == "removed" and bool(world.fired["killed in a change"]) == kill
    return world


def former_peer(seed: int) -> World:
    """Remove a peer, and let its neighbors tell it, one after the other."""
    run = manifest(algorithm="dfedavg", clusters=1, rounds=200, seed=seed)
    graph = make_graph("complete", 4, manifest=run)
    world = World(Options(seed, graph, weather=Weather(delay_s=0.01), train_s=(0.1, 0.3)))
    following = next_graph(graph, with_changes(graph, remove=[3]))
    for i, machine in world.machines.items():
        world.after(0.0, machine.start)
        if i != 3:
            world.after(2.0 + i * 3.0, lambda machine=machine: (world.adopt(following), give(machine, following)))
    world.run_until(EPOCH_S + 60, lambda: world.machines[3].completed)
    assert world.checker.ends.get(3) == "removed", world.checker.ends
    return world


def with_forgotten_pushes(seed: int) -> World:
    """Let some pushes or their answers vanish, which no end notices."""
    run = manifest(**RUNS[("plain", "relay", "batch", "dfedavg")[seed % 4]], clusters=2, seed=seed, rounds=6)
    graph = make_graph("erdos-renyi", 6, seed=seed, manifest=run, p=0.5)
    world = World(Options(seed, graph, weather=Weather(delay_s=0.01, forgotten=0.02), train_s=(0.05, 0.4)))
    world.run()
    assert world.fired["forgotten"]
    return world


def async_with_kills(seed: int) -> World:
    """Kill a slow peer three times, whose faster neighbors have sent it models of later rounds; the invariants judge."""
    run = manifest(algorithm="dfedavg", pace="async", seed=seed, rounds=8)
    graph = make_graph("complete", 4, seed=seed, manifest=run)
    drift = Constants(stale_rounds=3)
    world = World(Options(seed, graph, weather=Weather(delay_s=0.01), train_s=(0.1, 0.4), constants=drift))
    world.machines[seed % 4].slowness = 3.0
    _restarted(world, seed % 4, times=3, earliest_s=0.8)
    return world


def _restarted(
    world: World, victim: int, times: int, earliest_s: float, end: Callable[[Machine], None] = Machine.crash
) -> None:
    """Play a run in which one peer ends at random moments, and is started again soon after each."""
    rng, machine = world.random("victim"), world.machines[victim]
    for moment in sorted(rng.uniform(earliest_s, 3.0) for _ in range(times)):
        world.after(moment, end, machine)
        world.after(moment + rng.uniform(0.05, 0.4), machine.start)
    world.run()
    assert machine.lives > 1
