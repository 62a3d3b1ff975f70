"""Every algorithm of the registry under faults: the invariants hold, and a kill changes no bit of any model.

A new algorithm is here as soon as it is registered. One that needs options to run in the simulation names them in `OPTIONS`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coordinator_free_bootstrap import Manifest, make_graph
from coordinator_free_bootstrap.schedule import is_active
from peer.algorithms.registry import algorithms
from tests.simulation.network import Weather
from tests.simulation.options import Options, draw, manifest
from tests.simulation.runner import report, run_one
from tests.simulation.world import World

OPTIONS: dict[str, dict[str, Any]] = {
    "fedspd": {"u_min": 0.4, "align_every": 2, "sketch_size": 16},
    "pfedme": {"strength": 1.0},
    "fedsoft, select": {"variant": "select"},
    "blend, relay": {"initialization": "global"},
    "dfca, seeds": {"initialization": "seeds"},
    "dfca, groups": {"initialization": "groups"},
    "dpfl": {"budget": 2, "rebuild_every": 2},  # rounds in which peers ask, and others of many steps
    "dpfl, shares": {"period": 2, "preprocess_share": 0.7, "round_share": 0.6},
    "cgpfl": {"strength": 1.0, "align_every": 2, "sketch_size": 8},
    "cgpfl, one": {"strength": 1.0},
    "cgpfl, auto": {"strength": 1.0, "align_every": 2, "sketch_size": 8, "clusters": "auto", "clusters_max": 3},
    "cgpfl, alpha": {"strength": 1.0, "align_every": 3, "sketch_size": 8, "alpha": 0.5},
}
LOCKSTEP_ONLY = {"dpfl", "cgpfl", "dfca, seeds", "dfca, groups"}
NEEDED: dict[str, dict[str, Any]] = {
    "blend": {"clusters": 2, "edges": "all", "dynamic_edges": 0.0},
    "dfca, seeds": {"clusters": 2, "edges": "all", "dynamic_edges": 0.0},
    "dfca, groups": {"clusters": 2, "edges": "all", "dynamic_edges": 0.0},
    "dpfl": {
        "clusters": 1,
        "learning_rate": 0.1,
        "edges": "all",
    },  # far from the optimum, where neighbors' models are a gain
    "dpfl, shares": {"clusters": 1, "learning_rate": 0.1, "edges": "all"},
    "cgpfl, one": {"clusters": 1},
}  # of ``run``
for each in ("blend", "cgpfl", "fedem", "fedspd"):
    OPTIONS[f"{each}, one edge"] = OPTIONS.get(each, {})
    NEEDED[f"{each}, one edge"] = NEEDED.get(each, {}) | {"edges": "one"}
PRIVATE = sorted(name for name in algorithms() if name not in ("fedrep", "local"))  # fedrep has a private head anyway
for each in PRIVATE:
    OPTIONS[f"{each}, private"] = OPTIONS.get(each, {})
    NEEDED[f"{each}, private"] = NEEDED.get(each, {}) | {"private_parameters": ["head.*"]}
NAMES = sorted({*algorithms(), *OPTIONS})


def plain(name: str) -> str:
    """Return the algorithm's name, without its variant."""
    return name.partition(",")[0]


def world_of(name: str, seed: int, participation: float = 1.0) -> World:
    run = {"clusters": 2, "seed": seed, "rounds": 6, "participation": participation} | NEEDED.get(name, {})
    made = manifest(algorithm=plain(name), options=OPTIONS.get(name, {}), **run)
    graph = make_graph("erdos-renyi", 5, seed=seed, manifest=made, p=0.6)
    return World(Options(seed, graph, weather=Weather(delay_s=0.01), train_s=(0.05, 0.4)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("seed", "participation"), [(0, 1.0), (1, 0.6)])
def test_kill_and_restart_of_a_peer_changes_no_bit_of_any_model(name: str, seed: int, participation: float) -> None:
    victim = 3 + seed  # with dpfl, it averages in every round
    calm, killed = (world_of(name, seed, participation) for _ in range(2))
    calm.run()
    killed.kill_twice(victim, latest_s=2.5)
    killed.run()
    assert killed.machines[victim].lives > 1
    assert bool(killed.checker.marks["private tensors stay"]) == (plain(name) == "fedrep" or name.endswith(", private"))
    rests = [not is_active(seed, t, victim, participation) for t in range(6)]
    assert any(rests) == (participation < 1) and not all(rests), "choose another seed"
    for i, models in calm.checker.final.items():
        for slot, (one, other) in enumerate(zip(models, killed.checker.final[i], strict=True)):
            assert np.array_equal(one, other), f"peer {i}, slot {slot}"
    assert killed.checker.tests == calm.checker.tests, "the tests of the last round's models"


@pytest.mark.parametrize("name", NAMES)
def test_invariants_hold_under_faults_in_both_paces(name: str) -> None:
    paces = {"lockstep"} if {name, plain(name)} & LOCKSTEP_ONLY else {"lockstep", "async"}
    for seed in range(40):
        options = draw(seed)
        run = options.graph.manifest
        if run.pace not in paces or not options.actions or run.screening.norm_bound:
            continue
        changes = {"algorithm": plain(name), "options": OPTIONS.get(name, {}), "learning_rate": 0.1}
        changes |= NEEDED.get(name, {})
        for key in algorithms()[plain(name)].keys:
            section = key.partition(".")[0]
            changes[section] = getattr(Manifest(), section)
        graph = replace(options.graph, manifest=run.model_copy(update=changes))
        outcome = run_one(replace(options, graph=graph))
        assert outcome.error is None, report(outcome)
        assert sum(outcome.fired.values()), "no fault fired"
        paces.remove(run.pace)
    assert not paces, "each pace must have run"
