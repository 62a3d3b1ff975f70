"""Shared scaling under faults: no peer begins without the numbers of all sites, and all have the same ones, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.errors import RefusalCode
from peer.core.messages import Numbers
from peer.core.stages import Stage
from tests.oracle.reference import run_reference
from tests.simulation.network import Weather
from tests.simulation.options import Options, draw, manifest
from tests.simulation.runner import report, run_one
from tests.simulation.trainer import QuadraticLearner, SharedPoints
from tests.simulation.world import EPOCH_S, World

GRAPHS = (("line", 5), ("ring", 6), ("star", 5), ("complete", 4))
SHARED = {"start": {"wait_for": "all", "deadline_s": 60.0}}
START_S = 0.5  # machines start within it


def world_of(seed: int, **run: object) -> World:
    kind, peers = GRAPHS[seed % len(GRAPHS)]
    graph = make_graph(kind, peers, seed=seed, manifest=manifest(**(SHARED | {"seed": seed, "rounds": 4} | run)))
    return World(Options(seed, graph, weather=Weather(delay_s=0.05), shared=True))


def digests(world: World) -> set[str]:
    """Return the different digests that the processes of a run wrote into their histories."""
    return {fields["digest"] for fields in world.checker.scalings}


def assert_same_models(one: World, other: World) -> None:
    for i, models in one.checker.final.items():
        for slot, (a, b) in enumerate(zip(models, other.checker.final[i], strict=True)):
            assert np.array_equal(a, b), f"peer {i}, slot {slot}"


@pytest.mark.parametrize("seed", range(4))
def test_models_are_those_of_a_run_on_points_that_all_sites_have_scaled(seed):
    world = world_of(seed)
    world.run()
    assert len(digests(world)) == 1
    assert len(world.checker.scalings) == len(world.graph.ids)
    m = world.manifest
    learners = {i: QuadraticLearner(i, m.clusters, world.options.size, m.seed) for i in world.graph.ids}
    sites = {i: SharedPoints(learner, learner.points) for i, learner in learners.items()}
    for site in sites.values():
        site.agree({i: each.numbers for i, each in sites.items()})
        site.apply()
    for i, peer in run_reference(world.graph, learners).items():
        for slot, model in enumerate(peer.models):
            assert np.array_equal(world.checker.final[i][slot], model), f"peer {i}, slot {slot}"


@pytest.mark.parametrize("seed", range(12))
def test_deaths_and_lost_disks_before_round_0_change_no_bit(seed):
    calm, struck = world_of(seed), world_of(seed)
    calm.run()
    victims, rng = [], struck.random("victims")
    for victim in rng.sample(struck.graph.ids, 2):
        for _ in range(2):
            at = rng.uniform(0.05, START_S + 0.3)

            def strike(machine=struck.machines[victim]) -> None:
                if machine.process is not None and machine.process.engine.stage is Stage.JOINING:
                    victims.append(machine.peer_id)
                    machine.crash()

            struck.after(at, strike)
            struck.after(at + rng.uniform(0.05, 0.4), struck.machines[victim].start)
    struck.run()
    assert victims, "no peer died before round 0: choose another seed"
    assert digests(struck) == digests(calm)
    assert_same_models(calm, struck)


def test_a_peer_that_dies_right_after_it_gave_its_numbers_is_in_the_scaling_of_all():
    """Its numbers reach even those that never meet it: the site at the end of a line, whose neighbor sends them on."""
    calm, world = world_of(0), world_of(0)
    calm.run()
    last, killed = world.machines[world.graph.ids[-1]], []

    def strike() -> None:
        before = world.running(world.graph.ids[-2])
        known = (
            before is not None
            and before.engine.state.sites is not None
            and last.peer_id in before.engine.state.sites.known
        )
        if known and not killed and last.process is not None:
            killed.append(last.peer_id)
            last.crash()
            world.after(12.0, last.start)
        elif not killed:
            world.after(0.005, strike)

    world.after(0.005, strike)
    world.run()
    assert killed
    assert digests(world) == digests(calm)
    began = {process: at for process, at in world.checker.began.items()}
    assert min(began.values()) < EPOCH_S + 12, "the others began without waiting for its return"


def test_a_restarted_peer_with_its_disk_does_not_ask_again_and_one_without_gets_the_numbers_of_a_neighbor():
    calm, world = world_of(1, rounds=8), world_of(1, rounds=8)
    calm.run()
    kept, lost = world.machines[1], world.machines[4]
    resumed: list[int] = []

    def strike(machine, wipe) -> None:
        assert machine.process is not None and machine.process.engine.round_index > 1
        machine.crash()
        if wipe:
            machine.disk = type(machine.disk)(machine.peer_id, world.random("new disk"))

    def look(machine) -> None:
        machine.start()
        assert machine.process is not None
        sites = machine.process.engine.state.sites
        assert sites is not None
        resumed.append(len(sites.known))

    for at, machine, wipe in ((2.3, kept, False), (2.4, lost, True)):
        world.after(at, strike, machine, wipe)
        world.after(at + 0.3, look, machine)
    world.run()
    assert resumed == [6, 1]
    assert digests(world) == digests(calm)
    assert len(world.checker.scalings) == len(world.graph.ids) + 2


def test_without_one_site_no_peer_begins_and_each_names_it():
    world = world_of(0)
    absent = world.graph.ids[-1]
    for i, machine in world.machines.items():
        if i != absent:
            world.after(0.1, machine.start)
    world.run_until(EPOCH_S + 70)
    assert {world.checker.ends.get(i) for i in world.graph.ids if i != absent} == {"alone"}
    assert not world.checker.began
    said = [line for level, line in world.checker.logged if level == "error" and "shared scaling" in line]
    assert len(said) == len(world.graph.ids) - 1
    assert all(f"got none of peers [{absent}]" in line for line in said)


def test_a_peer_that_returns_with_other_data_before_round_0_is_refused():
    world = world_of(0)
    victim, changed = world.machines[1], []

    def strike() -> None:
        neighbor = world.running(0)
        if not changed and neighbor is not None and 1 in neighbor.engine.state.sites.known:
            changed.append(True)
            victim.crash()
            victim.raw = victim.raw + 1.0
            victim.start()
        elif not changed:
            world.after(0.002, strike)

    for i in world.graph.ids[:3]:  # the others come later, so that nobody begins
        world.after(0.01, world.machines[i].start)
    world.after(0.01, strike)
    world.run_until(EPOCH_S + 20)
    assert changed
    assert world.checker.ends[1] == "refused"
    assert world.checker.marks[f"refused {RefusalCode.MEANING_MISMATCH}"]
    assert any("expected those that it gave before, got others" in line for _, line in world.checker.logged)
    assert not world.checker.began


def test_changed_data_after_the_agreement_leave_it_as_it_is():
    calm, world = world_of(1, rounds=8), world_of(1, rounds=8)
    calm.run()
    machine = world.machines[2]

    def strike() -> None:
        assert machine.process is not None and machine.process.engine.round_index > 1
        machine.crash()
        machine.raw = machine.raw + 1.0

    world.after(2.3, strike)
    world.after(2.6, machine.start)
    world.run()
    assert digests(world) == digests(calm)
    assert any("have changed since all sites agreed" in line for _, line in world.checker.logged)


def test_invariants_hold_under_every_fault():
    began = 0
    for seed in range(60):
        options = draw(seed)
        if not options.actions or options.liars:
            continue
        run = options.graph.manifest.model_copy(update={"start": manifest(**SHARED).start})
        options = replace(options, graph=replace(options.graph, manifest=run), core_loses=0, shared=True)
        outcome = run_one(options)
        assert outcome.error is None, report(outcome)
        began += outcome.marks["record scaling"]
    assert began > 100


def test_numbers_of_a_site_fit_what_a_message_carries():
    """More sites than fit one message travel in several."""
    from peer.core import agreement

    most = agreement.NUMBERS_MAX
    agreement.NUMBERS_MAX = 2 * (1 + 1 + 2 * 6)  # two sites of six features
    try:
        world = world_of(3)
        world.run()
    finally:
        agreement.NUMBERS_MAX = most
    assert len(digests(world)) == 1
    sent = [len(numbers) for numbers in world.checker.statistics]
    assert sent and max(sent) == 2 * 14
    assert all(isinstance(numbers, Numbers) for numbers in world.checker.statistics)
