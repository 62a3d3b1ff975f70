"""Secure sums under faults: deaths in each phase, restarts, lost and repeated messages, receivers that lie."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator_free_bootstrap import make_graph
from peer.core.messages import Opening, Pass, Select, SumMessage
from peer.core.sums import Summing
from peer.host.sending import Sending
from peer.secure_sum.arithmetic import derived
from peer.secure_sum.received import ReceivedSum
from peer.secure_sum.sent import SentSum
from tests.simulation.invariants import InvariantViolation
from tests.simulation.network import Weather
from tests.simulation.options import Options, draw, manifest
from tests.simulation.process import Process
from tests.simulation.runner import Summary, report, run_one
from tests.simulation.world import World

RUN: dict[str, Any] = {"algorithm": "dfedavg", "clusters": 1, "rounds": 4, "secure_sum": 64.0}
VICTIM = 2
SEEDS = 30
PHASES = ("select", "push", *Opening)


def options_of(seed: int, peers: int = 6, **run: Any) -> Options:
    graph = make_graph("complete", peers, seed=seed, manifest=manifest(**RUN, seed=seed, **run))
    return Options(seed, graph, weather=Weather(delay_s=0.01))


def phase_of(message: object) -> str:
    if isinstance(message, SumMessage):
        return message.kind
    return "select" if isinstance(message, Select) else "pass" if isinstance(message, Pass) else "push"


def kill_at(
    world: World, monkeypatch: pytest.MonkeyPatch, phase: str, count: int, *, back_after: float | None
) -> list[str]:
    """Crash the victim when it sends its message number ``count`` of a phase in round 1, before or after it is on the way."""
    seen: list[str] = []

    def strike(process: Process, message: Any) -> bool:
        if (
            process.peer_id != VICTIM
            or message.round_index != 1
            or phase_of(message) != phase
            or process.machine.lives > 1
        ):
            return False
        seen.append(phase)
        if len(seen) != count:
            return False
        process.machine.crash()
        if back_after is not None:
            world.after(back_after, process.machine.start)
        else:
            world.options = replace(world.options, core_loses=1)
        return True

    for name in ("send_control", "push"):
        original = getattr(Process, name)

        def struck(self: Process, neighbor: int, message: Any, original: Any = original) -> None:
            if self.alive and not strike(self, message):
                original(self, neighbor, message)

        monkeypatch.setattr(Process, name, struck)
    return seen


@pytest.mark.parametrize("seed", range(3))
def test_without_faults_every_sum_is_of_all_neighbors(seed):
    world = World(options_of(seed, peers=4 + seed))
    world.run()
    assert world.checker.marks["sum opened"] == len(world.graph.ids) * 4
    assert all(members == world.graph.neighbors(peer) for (peer, _), members in world.checker.summed.items())


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("phase", PHASES)
def test_a_death_in_any_phase_costs_the_survivors_no_sum(phase, count, monkeypatch):
    world = World(options_of(1))
    fired = kill_at(world, monkeypatch, phase, count, back_after=3.0)
    world.run()
    assert len(fired) >= count, "the victim sent nothing in this phase"
    survivors = [i for i in world.graph.ids if i != VICTIM]
    for i in survivors:
        members = world.checker.summed[i, 1]
        assert {*survivors} - {i} <= {*members}, f"peer {i} sums {members}"
    delivered = sum(VICTIM in world.checker.summed[i, 1] for i in survivors)
    if phase == "select":
        assert delivered == 0
    elif phase == "push":
        assert delivered <= count - 1
    else:
        assert delivered == len(survivors), "it had sent all its models"


def under_faults(seed: int) -> Options:
    """Return the weather and actions of a seed, with more deaths, in a run with sums."""
    drawn = draw(seed)
    graph = make_graph("complete", 4 + seed % 3, seed=seed, manifest=manifest(**RUN, seed=seed))
    gone = ("revise", "tunnel_loss", "late_joiner")
    actions = tuple((name, times) for name, times in drawn.actions if name not in gone)
    struck = (*actions, ("crash", 3), ("restart_all", seed % 2))
    return replace(drawn, graph=graph, actions=struck, liars=(), shared=False, safety_s=6.0, core_loses=0)


def test_faults_break_no_invariant():
    """Crashes, lost disks, pauses, partitions, lost, cut, repeated and damaged messages, as in the other seeds."""
    summary = Summary()
    for seed in range(SEEDS):
        summary.add(run_one(under_faults(seed)))
    assert not summary.failures, report(summary.failures[0])
    missing = {"sum opened", "sum lost", "revealed", "pulled a mean"} - summary.marks.keys()
    assert not missing and summary.fired["crash"] and summary.fired["restart_all"], (missing, summary)


# ---- planted bugs: each must break an invariant, or lose a sum -----------------------------------------------------------


def repeats_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Summing, "_may_repeat", lambda self, round_index: False)


def lets_neighbors_pull_trained_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def present(self: Sending, slot: int, original: Any = Sending.present) -> Any:
        self._summed = self._state.round.index, self._workspace.models.share_part(slot)
        return original(self, slot)

    monkeypatch.setattr(Sending, "present", present)


def adds_masks_of_the_dead_with_the_other_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    def masks(self: ReceivedSum, original: Any = ReceivedSum._pair_masks) -> Any:
        return [(seed, -sign) for seed, sign in original(self)]

    monkeypatch.setattr(ReceivedSum, "_pair_masks", masks)


def masks_with_a_new_secret_at_each_try(monkeypatch: pytest.MonkeyPatch) -> None:
    def streams(self: SentSum, original: Any = SentSum.streams) -> Any:
        self._secret = derived(self._secret, "next")
        return original(self)

    monkeypatch.setattr(SentSum, "streams", streams)


BUGS = (
    repeats_its_model,
    lets_neighbors_pull_trained_models,
    adds_masks_of_the_dead_with_the_other_sign,
    masks_with_a_new_secret_at_each_try,
)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug, monkeypatch):
    bug(monkeypatch)
    found = (run_one(under_faults(seed)).error for seed in range(2 * SEEDS))
    assert any(isinstance(error, InvariantViolation) for error in found), "no seed finds it"
