"""Beside an attacking neighbor honest peers fold as many honest models a round as without it, and also after the attack.

Each run is compared with the run of the same seed in which the attacker's node never starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any

import pytest

from coordinator_free_bootstrap import make_graph
from peer.core.constants import DEFAULTS, Constants
from tests.simulation.attackers import ATTACKS, DRY, AttackedNetwork, Attacker
from tests.simulation.network import Weather
from tests.simulation.options import Options, manifest
from tests.simulation.world import EPOCH_S, World

ATTACKER = 0  # lockstep would fold its models first
BEFORE, DURING, AFTER = 8, 64, 48  # rounds
SETTLED = 4  # rounds after the attack that are not counted
SHARE = 0.9
WITHIN_S = 3000.0
DEADLINES = {"suspicion_s": 2.0, "round_deadline_s": 20.0}


@dataclass
class Measured:
    """The honest arrivals a round of each honest peer, during and after the attack, and the seconds a round during it."""

    during: dict[int, float]
    after: dict[int, float]
    round_s: float
    fired: int


def measured(attack: str | None, seed: int, constants: Constants = DEFAULTS, **run: Any) -> Measured:
    """Run four honest peers, all neighbors, and the attacker from round `BEFORE` for `DURING` rounds."""
    settings = {"start": {"wait_for": 0.7, "deadline_s": 5.0}, "clusters": 2, "seed": seed, **run}
    rounds = BEFORE + DURING + AFTER
    graph = make_graph("complete", 5, manifest=manifest(rounds=rounds, **settings))
    slow = Weather(bytes_per_s=24 / 0.05)  # a model takes 50 ms on average
    world = World(Options(seed, graph, train_s=(0.15, 0.25), weather=slow, constants=constants))
    world.network = AttackedNetwork(world, slow)
    honest = [i for i in graph.ids if i != ATTACKER]
    history = world.checker.history

    def until(count: int) -> float:
        began = world.now
        world.run_until(EPOCH_S + WITHIN_S, lambda: all(len(history[i]) >= count for i in honest))
        assert all(len(history[i]) >= count for i in honest), {i: len(history[i]) for i in honest}
        return world.now - began

    for i in honest:
        world.after(0.0, world.machines[i].start)
    until(BEFORE)
    attacker, started = None, {i: len(history[i]) for i in honest}
    if attack is not None:
        machine = world.machines[ATTACKER]
        attacker = machine.process = Attacker(world, machine, attack)
        machine.down_since = None
        attacker.start()
    seconds = until(BEFORE + DURING)
    ended = {i: len(history[i]) for i in honest}
    if attacker is not None:
        attacker.stop_attack()
    until(rounds)

    def arrivals(i: int, first: int, last: int) -> float:
        lines = history[i][first:last]
        return sum(sender in honest for line in lines for sender, *_ in line["folded"]) / len(lines)

    return Measured(
        {i: arrivals(i, started[i], ended[i]) for i in honest},
        {i: arrivals(i, ended[i] + SETTLED, rounds) for i in honest},
        seconds / DURING,
        world.fired[attack] if attack else 0,
    )


RUNS: dict[str, dict[str, Any]] = {
    "async": {"pace": "async"},
    "async, one buffer": {"pace": "async", "constants": Constants(concurrent_receives=1)},
    "lockstep": {"pace": "lockstep", "timeouts": DEADLINES},
}
OFTEN = {("async", DRY), ("async", "floods of messages"), ("async, one buffer", DRY), ("lockstep", "never answers")}
CASES = [
    pytest.param(name, attack, seed, marks=[] if (name, attack) in OFTEN and seed == 1 else [pytest.mark.slow])
    for name in RUNS
    for attack in ATTACKS
    for seed in (1, 2, 3)
]


@cache
def undisturbed(name: str, seed: int) -> Measured:
    """Run without an attack."""
    return measured(None, seed, **RUNS[name])


@pytest.mark.parametrize(("name", "attack", "seed"), CASES)
def test_attacked_peers_fold_as_many_honest_models_as_without_the_attack(name: str, attack: str, seed: int) -> None:
    quiet, found = undisturbed(name, seed), measured(attack, seed, **RUNS[name])
    assert found.fired, "the attack never came"
    during, after = fmean(quiet.during.values()), fmean(quiet.after.values())  # all are alike: what differs is chance
    for i in quiet.during:
        assert found.during[i] >= SHARE * during, (i, quiet, found)
        assert found.after[i] >= SHARE * after, (i, quiet, found)


@pytest.mark.parametrize("pace", ["async", "lockstep"])
def test_peer_that_is_faster_than_its_neighbors_folds_every_model_of_theirs(pace: str) -> None:
    """In async pace its rounds run away from theirs; their models were too old for it from then on."""
    graph = make_graph("complete", 4, manifest=manifest(rounds=60, pace=pace))
    world = World(Options(1, graph, train_s=(0.1, 0.12)))
    for i, machine in world.machines.items():
        machine.slowness = 1.0 if i == 0 else 3.0
        world.after(0.0, machine.start)
    history = world.checker.history
    world.run_until(EPOCH_S + WITHIN_S, lambda: len(history[0]) >= 60 or len(history[1]) >= 60)
    folded, sent = (sum(len(line["folded"]) for line in history[0]), sum(len(history[i]) for i in (1, 2, 3)))
    assert folded >= SHARE * sent > 0
