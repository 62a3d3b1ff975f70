"""What one seed simulates: the run, and which faults exist in it and how hard (swarm testing: each seed draws its own).

What was added later draws from generators of its own, and seldom, so that most seeds stay the runs that they were.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

from coordinator_free_bootstrap import Manifest, Relay, make_graph
from coordinator_free_bootstrap.graph import Graph
from peer.core.constants import DEFAULTS, Constants
from peer.core.encoding import DELTAS
from tests.simulation.network import Weather

Kind = Literal["ring", "line", "star", "complete", "erdos-renyi"]

# What the nemesis does to processes and links; the network's own faults are in `Weather`.
ACTIONS = (
    *(
        "crash",
        "wipe",
        "rot",
        "pause",
        "partition",
        "one_way",
        "clog",
        "leave",
        "restart_all",
        "disk_error",
        "late_joiner",
    ),
    *("straggler", "slow_disk"),
)
ACTIONS_LATER = ("closed_port",)  # drawn from a generator of their own: what seeds drew before stays as it was
REVISE = "revise"  # the operator makes a new graph file, and gives it to one peer after the other; see `rolling`
ACTIONS_RARE = ("read_error", "misdirected")  # carried out by a generator of their own too


@dataclass(frozen=True)
class Options:
    """One simulated run."""

    seed: int
    graph: Graph
    size: int = 6
    train_s: tuple[float, float] = (0.05, 0.3)
    weather: Weather = field(default_factory=Weather)
    actions: tuple[tuple[str, int], ...] = ()  # how often each happens
    safety_s: float = 0.0
    core_loses: int = 0  # peers that stay dead in the second phase
    liars: tuple[int, ...] = ()  # peers that claim rounds to come, and answer no pull
    constants: Constants = DEFAULTS
    shared: bool = False  # the peers agree on a scaling before round 0

    @property
    def faultless(self) -> bool:
        """Whether nothing but delay happens."""
        w = self.weather
        return not self.actions and not (w.loss or w.cut or w.replay or w.corrupt) and not self.core_loses


def manifest(**changes: Any) -> Manifest:
    """Return a manifest with the short timeouts of the simulation."""
    base: dict[str, Any] = {
        "algorithm": "dfca",
        "clusters": 2,
        "rounds": 5,
        "local_epochs": 2,
        "learning_rate": 0.3,
        "timeouts": {"suspicion_s": 2.0, "round_deadline_s": 600.0},
        "start": {"wait_for": "all", "deadline_s": 5.0},
    }
    return Manifest.model_validate(base | changes)


def draw(seed: int) -> Options:
    """Return the options of a seed."""
    rng = Random(f"{seed}:options")
    peers = rng.choice((2, 3, 3, 4, 4, 5, 6, 8))
    kind = rng.choice(("ring", "line", "star", "complete", "erdos-renyi")) if peers > 2 else "line"
    shape = {"p": rng.uniform(0.4, 0.8)} if kind == "erdos-renyi" else {}
    calm = rng.random() < 0.15
    run, constants = _run(rng, seed)
    graph = _big_graph(seed, kind, run) or make_graph(kind, peers, seed=seed, manifest=run, **shape)
    if calm:
        weather = Weather(delay_s=rng.choice((0.001, 0.01, 0.05)), bytes_per_s=rng.choice((1e2, 1e4, 1e6)))
        return Options(seed, graph, weather=weather, constants=constants)
    weather = Weather(
        delay_s=rng.choice((0.001, 0.01, 0.05, 0.1)),
        loss=_sometimes(rng, 0.3),
        cut=_sometimes(rng, 0.4),
        replay=_sometimes(rng, 0.5),
        corrupt=_sometimes(rng, 0.2),
        bytes_per_s=rng.choice((50, 1e3, 1e6)),
    )
    chosen = [action for action in ACTIONS if rng.random() < (0.5 if action == "crash" else 0.3)]
    train_s = rng.choice(((0.05, 0.3), (0.5, 2.0)))
    later = Random(f"{seed}:later")
    actions = [(action, rng.randint(1, 5 if action == "crash" else 3)) for action in chosen]
    actions += [(action, later.randint(1, 2)) for action in ACTIONS_LATER if later.random() < 0.3]
    graph = behind_nat(seed, graph)
    if any(node.dials_only for node in graph.nodes):
        actions.append(("tunnel_loss", later.randint(1, 4)))
    revised = Random(f"{seed}:revisions")
    if seed % 10 == 7 and run.start.wait_for != "everyone" and not any(node.dials_only for node in graph.nodes):
        actions.append((REVISE, revised.randint(1, 3)))
    rare = Random(f"{seed}:reads")
    actions += [(action, rare.randint(1, 2)) for action in ACTIONS_RARE if rare.random() < 0.06]
    return Options(
        seed,
        graph,
        train_s=train_s,
        weather=weather,
        actions=tuple(actions),
        safety_s=rng.uniform(0.5, 1.5) * (2 + graph.manifest.rounds * (train_s[1] + 0.3)),
        # without everyone no run begins: what stays dead may be missing
        core_loses=rng.choice((0, 0, 0, 1)) * (run.start.wait_for != "everyone") if peers > 2 else 0,
        liars=_liars(seed, graph),
        constants=constants,
    )


def behind_nat(seed: int, graph: Graph) -> Graph:
    """Return the graph with peers that only dial, in a seventh of the seeds; common neighbors relay for two of them."""
    rng = Random(f"{seed}:nat")
    if rng.random() >= 0.15:
        return graph
    for peer_id in rng.sample(graph.ids, len(graph.ids)):
        dialers = {node.id for node in graph.nodes if node.dials_only} | {peer_id}
        nodes = tuple(replace(n, dials_only=n.id in dialers, relay=None) for n in graph.nodes)
        via = []
        for a, b in graph.edges:
            if {a, b} <= dialers:
                common = sorted(set(graph.neighbors(a)) & set(graph.neighbors(b)) - dialers)
                via.append((a, b, rng.choice(common)) if common else None)
        if None in via or rng.random() < 0.3:
            continue
        relays = {relay for _, _, relay in via}
        nodes = tuple(replace(n, relay=Relay(1 << 20, 8) if n.id in relays else None) for n in nodes)
        graph = replace(graph, nodes=nodes, via=tuple(via))
    return graph


def _liars(seed: int, graph: Graph) -> tuple[int, ...]:
    """Return one peer of a few graphs in which every peer has another neighbor too."""
    rng = Random(f"{seed}:liars")
    lockstep = graph.manifest.pace == "lockstep" and min(len(graph.neighbors(i)) for i in graph.ids) > 1
    return (rng.choice(graph.ids),) if lockstep and rng.random() < 0.15 else ()


def _fedspd(rng: Random) -> dict[str, Any]:
    """Return options that make peers select, and change their minds: by a floor under every cluster's weight."""
    options: dict[str, Any] = {"u_min": rng.choice((0.0, 0.3, 0.9)), "sketch_size": 8}
    options |= {"align_every": rng.choice((0, 1, 2, 3)), "label_check": rng.random() < 0.5}
    if rng.random() < 0.3:
        options["exchange"] = "broadcast"
    if rng.random() < 0.4:
        options["first_round"] = "paper"
    if rng.random() < 0.3:
        options["initialization"] = "local"
    if rng.random() < 0.2:
        options |= {"warm_rounds": rng.randint(1, 3), "hard_rounds": rng.randint(1, 2)}
        options["split"] = rng.choice(("noise", "noise", "noise", "updates"))
        options.pop("first_round", None)  # no effect in a run that begins with warm rounds
    if not options["align_every"] and options.get("split") != "updates":
        del options["sketch_size"]  # no effect either: no sketch is sent
    return options


def _sometimes(rng: Random, most: float) -> float:
    return rng.uniform(0, most) if rng.random() < 0.5 else 0.0


def _big_graph(seed: int, kind: Kind, run: Manifest) -> Graph | None:
    """Return a graph of more than 8 peers for a few seeds; a complete one would cost as much as all others together."""
    rng = Random(f"{seed}:big")
    if rng.random() >= 0.025:
        return None
    peers = rng.choice((10, 12, 16))
    kind = "erdos-renyi" if kind == "complete" else kind
    return make_graph(kind, peers, seed=seed, manifest=run, **({"p": 0.3} if kind == "erdos-renyi" else {}))


def _run(rng: Random, seed: int) -> tuple[Manifest, Constants]:
    algorithm = rng.choice(("dfca", "dfca", "dfca", "dfedavg", "local"))
    options: dict[str, Any] = {}
    if algorithm == "dfca":
        if rng.random() < 0.3:
            options |= {"warmup_rounds": rng.randint(1, 3), "relay_steps": rng.randint(1, 3)}
            options |= {"split_empty": rng.random() < 0.3}
        if rng.random() < 0.3:
            options["initialization"] = "local"
        if rng.random() < 0.3:
            options["idle_folds"] = False
    pace = rng.choice(("lockstep", "lockstep", "async"))
    if algorithm == "local" and Random(f"{seed}:fedspd").random() < 0.75:  # runs without an exchange show little
        algorithm, options = "fedspd", _fedspd(Random(f"{seed}:fedspd options"))
    if algorithm == "dfedavg" and (asking := Random(f"{seed}:partners")).random() < 0.3:
        options["partners"] = asking.randint(1, 3)
    if pace == "lockstep" and (telling := Random(f"{seed}:cgpfl")).random() < 0.05:  # steps of numbers without models
        algorithm, options = "cgpfl", {"sketch_size": 4, "align_every": telling.randint(1, 3)}
        options |= {"clusters": "auto", "clusters_max": 3} if telling.random() < 0.5 else {}
        options |= {"strength": 1.0, "alpha": telling.choice((0.5, 1.0, 1.0))}
    relays = "warmup_rounds" in options
    suspicion = rng.choice((2.0, 2.0, 5.0))
    run: dict[str, Any] = {
        "algorithm": algorithm,
        "options": options,
        "clusters": rng.randint(1, 4),
        "rounds": rng.randint(2, 8),
        "seed": seed,
        "pace": pace,
        "aggregation": rng.choice((None, "batch")),
        "mix": rng.choice((None, None, "uniform", "metropolis")),
        "participation": 1.0 if relays or rng.random() < 0.7 else rng.uniform(0.4, 0.9),
        "dynamic_edges": 0.0 if rng.random() < 0.7 else rng.uniform(0.1, 0.6),
    }
    if pace == "lockstep" and rng.random() < 0.1:
        run["aggregation"] = "on_arrival"
    run["stale_weight"] = rng.choice((None, None, 0.0, 0.5))
    stale_rounds = rng.choice((1, 1, 3))
    run |= {
        "checkpoint_rounds": rng.choice((1, 1, 1, 2)),
        "start": {"wait_for": rng.choice(("all", "all", 0.5, "deadline")), "deadline_s": 5.0},
        "timeouts": {
            "suspicion_s": suspicion * rng.choice((1.0, 1.25)),
            "round_deadline_s": rng.choice((600.0, 600.0, 30.0, 2 * suspicion)),
        },
    }
    receives, ahead = rng.choice((1, 2, 2, 4)), rng.choice((1, 2, 2))
    constants = Constants(concurrent_receives=receives, rounds_ahead=ahead, stale_rounds=stale_rounds)
    if algorithm != "local" and "partners" not in options and Random(f"{seed}:one edge").random() < 0.15:
        run["edges"] = "one"
    if algorithm in ("dfca", "dfedavg") and (outer := Random(f"{seed}:outer")).random() < 0.15:
        optimizer = "noloco" if "edges" in run else "nesterov"
        run["outer"] = {
            "optimizer": optimizer,
            "learning_rate": outer.choice((0.7, 1.0)),
            "momentum": outer.choice((0.0, 0.3, 0.5)),
        }
    if Random(f"{seed}:complete start").random() < 0.08:
        run["start"]["wait_for"] = "everyone"
    return manifest(**run, **_screening(seed)), constants


def _screening(seed: int) -> dict[str, Any]:
    """Return encoding and screening: both in two seeds of five, deltas in one of ten; the others stay the runs that they were."""
    if seed % 10 == 3:  # deltas, which restarts and lost answers must not confuse
        return {"encoding": Random(f"{seed}:deltas").choice(DELTAS)}
    if seed % 10 not in (0, 5, 8, 9):
        return {}
    rng = Random(f"{seed}:screening")
    screening: dict[str, float] = {}
    if rng.random() < 0.5:
        screening["clip"] = rng.choice((0.5, 2.0))
    if rng.random() < 0.4:
        screening["norm_bound"] = rng.choice((1.05, 1.5))
    if rng.random() < 0.4:
        screening["trimmed_mean"] = rng.choice((0.2, 0.35))
    return {"screening": screening, "encoding": rng.choice(("float32", "float16", "bfloat16", "int8", "int8"))}
