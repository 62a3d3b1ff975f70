"""Beside an attacking neighbor honest peers fold as many honest models a round as without it, and also after the attack.

Each run is compared with the run of the same seed in which the attacker's node never starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from coordinator_free_bootstrap import make_graph
from tests.simulation.attackers import ATTACKS, AttackedNetwork, Attacker
from tests.simulation.network import Weather
from tests.simulation.options import Options, manifest
from tests.simulation.world import EPOCH_S, World

ATTACKER = 0  # lockstep would fold its models first
BEFORE, DURING, AFTER = 8, 48, 32  # rounds
SETTLED = 4  # rounds after the attack that are not counted
SHARE = 0.9
WITHIN_S = 3000.0


@dataclass
class Measured:
    """The honest arrivals a round of each honest peer, during and after the attack, and the seconds a round during it."""

    during: dict[int, float]
    after: dict[int, float]
    round_s: float
    fired: int


def measured(attack: str | None, seed: int, **run: Any) -> Measured:
    """Run four honest peers, all neighbors, and the attacker from round `BEFORE` for `DURING` rounds."""
    settings = {"start": {"rule": "quorum", "quorum": 0.7, "deadline_s": 5.0}, "clusters": 2, "seed": seed, **run}
    rounds = BEFORE + DURING + AFTER
    graph = make_graph("complete", 5, manifest=manifest(rounds=rounds, **settings))
    slow = Weather(bytes_per_s=24 / 0.05)  # a model takes 50 ms on average
    world = World(Options(seed, graph, train_s=(0.1, 0.3), weather=slow))
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
        {i: arrivals(i, ended[i] + SETTLED, rounds) for i in honest if ended[i] + SETTLED < rounds},
        seconds / DURING,
        world.fired[attack] if attack else 0,
    )


SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))]
RUNS = {
    "async": {"pace": "async"},
    "async, one buffer": {"pace": "async", "limits": {"concurrent_receives": 1}},
    "lockstep": {"pace": "lockstep"},
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("seed", SEEDS)
def test_attacked_peers_fold_as_many_honest_models_as_without_the_attack(attack: str, name: str, seed: int) -> None:
    quiet, found = measured(None, seed, **RUNS[name]), measured(attack, seed, **RUNS[name])
    assert found.fired, "the attack never came"
    for i, undisturbed in quiet.during.items():
        assert found.during[i] >= SHARE * undisturbed, (i, quiet, found)
    for i, undisturbed in quiet.after.items():
        assert found.after.get(i, undisturbed) >= SHARE * undisturbed, (i, quiet, found)
