"""Exchange steps that carry numbers without models, by an algorithm of this file: gossip of one number in each round."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from peer.algorithms import registry
from peer.algorithms.base import Algorithm
from peer.core import effects as do
from peer.core import events as ev
from peer.core.decisions import AlgorithmState
from peer.core.engine import make_hello
from peer.core.messages import ModelHeader, Numbers, Pass
from tests.simulation.network import Weather
from tests.simulation.options import Options, manifest
from tests.simulation.world import World
from tests.unit.algorithms.engines import SAME
from tests.unit.algorithms.engines import World as Engines

STEPS = 12


@dataclass(frozen=True)
class GossipState(AlgorithmState):
    number: float = 0.0


class Gossip(Algorithm):
    """Step 0 exchanges models. In the other steps, each peer's number becomes the Metropolis mean of its neighborhood's."""

    name = "gossip"
    State = GossipState
    clustered = False

    def steps(self, round_index):
        return 1 + STEPS

    def offers(self, state, round_index, step, neighbor, select):
        return () if step else super().offers(state, round_index, step, neighbor, select)

    def tells(self, state, round_index, step):
        return Numbers.of(state.number, step) if step else Numbers()

    def rejects_pass(self, state, message):
        if not message.step:
            return super().rejects_pass(state, message)
        wrong = message.numbers and (len(message.numbers) != 2 or not 0 <= message.numbers[0] <= 100)
        return Refusal(RefusalCode.MALFORMED, "two numbers are allowed") if wrong else None

    def begin(self, workspace):
        return replace(super().begin(workspace), number=float(self.peer_id))

    def mixed(self, workspace):
        change = 0.0
        for neighbor, (number, step) in workspace.neighbor_numbers.items():
            assert self.manifest.pace == "async" or step == workspace.step, "the numbers of another step"
            change += self.metropolis(neighbor) * (number - workspace.state.number)
        return replace(workspace.state, number=workspace.state.number + change)

    def end_step(self, workspace):
        self.merge(workspace)
        return self.mixed(workspace)

    def close(self, workspace):
        self.merge(workspace)
        state = self.mixed(workspace)
        workspace.models.replace(0, np.full(workspace.models.size, state.number, np.float32))
        return state


class Told(Engines):
    """Engines of such peers; `closed` is what each neighbor told in a step, by peer, round and step."""

    def __init__(self, graph):
        self.closed = {}
        super().__init__(graph, lambda peer, round_index: 0, algorithm=Gossip)

    def worked(self, peer, work):
        if work.kind in ("end_step", "close"):
            self.closed[peer, work.round_index, work.step] = dict(work.numbers)
        return GossipState((0,) if work.active else (), number=peer + 10.0 * work.round_index + 0.5 * work.step)


def graph_of(peers=5, kind="ring", **run):
    return make_graph(kind, peers, seed=1, manifest=manifest(algorithm="gossip", clusters=1, **run))


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(registry._registered, "gossip", Gossip)


def test_numbers_reach_every_neighbor_in_their_step_and_no_model_goes_with_them():
    graph = graph_of()
    world = Told(graph).run()
    assert set(world.stopped.values()) == {"completed"} and len(world.stopped) == 5
    assert not any(engine.state.refusals for engine in world.engines.values())
    rounds = range(graph.manifest.rounds)
    assert set(world.closed) == {(i, t, s) for i in graph.ids for t in rounds for s in range(1 + STEPS)}
    for (peer, t, step), told in world.closed.items():
        before = 0.5 * (step - 1)  # the state after the step before
        wanted = {n: Numbers.of(n + 10.0 * t + before, step) for n in graph.neighbors(peer)} if step else {}
        assert told == wanted, (peer, t, step)
    assert {m.step for *_, m in world.sent if isinstance(m, ModelHeader)} == {0}


def test_async_peers_read_the_newest_numbers():
    world = Told(graph_of(pace="async")).run()
    assert set(world.stopped.values()) == {"completed"}
    heard = [told for told in world.closed.values() if told]
    assert len(heard) > 5
    assert all(isinstance(m.step, int) and m.numbers for *_, m in world.sent if isinstance(m, Pass))


def test_an_edge_that_is_down_carries_no_numbers():
    graph = graph_of(6, "complete", dynamic_edges=0.4)
    world = Told(graph).run()
    assert set(world.stopped.values()) == {"completed"}
    down = 0
    for (peer, t, step), told in world.closed.items():
        up = {n for n in graph.neighbors(peer) if n in world.engines[peer].state.planner.plan(t).up}
        assert set(told) == (up if step else set())
        down += len(graph.neighbors(peer)) - len(up)
    assert down > 0


@pytest.mark.parametrize("seed", range(3))
def test_gossip_agrees_on_the_mean_and_a_kill_changes_no_bit(seed):
    def world():
        return World(Options(seed, graph_of(), weather=Weather(delay_s=0.01), train_s=(0.05, 0.4)))

    calm, killed = world(), world()
    calm.run()
    for models in calm.checker.final.values():
        np.testing.assert_allclose(models[0], 2.0, atol=1e-3)
    killed.kill_twice(seed, latest_s=3.0)
    killed.run()
    assert killed.machines[seed].lives > 1
    for i, models in calm.checker.final.items():
        assert np.array_equal(models[0], killed.checker.final[i][0])


@pytest.mark.parametrize(
    ("step", "numbers", "code"),
    [
        (1, (3.0, 1.0), None),
        (1, (), None),
        (1, (3.0,), RefusalCode.MALFORMED),
        (1, (101.0, 1.0), RefusalCode.MALFORMED),
        (0, (3.0, 1.0), RefusalCode.MALFORMED),
        (1 + STEPS, (3.0, 1.0), RefusalCode.ROUND_OUT_OF_RANGE),
    ],
)
def test_numbers_are_checked(step, numbers, code):
    world = Told(graph_of(3, "line"))
    engine = world.engines[0]
    engine.step(ev.Tick(), 100.0)
    engine.step(ev.HandshakeDone(make_hello(world.engines[1], SAME, 0), answered=True), 100.0)
    rejection = engine.rejects_control(Pass(1, 1, 0, step, Numbers.of(numbers)))
    assert (rejection and rejection.code) == code


def test_a_restarted_neighbor_tells_again():
    world = Told(graph_of(2, "line"))
    engine = world.engines[0]
    while engine.state.round.current < (0, 3):
        world.run(until=world.events[0][0])
    neighbor = engine.state.neighbors[1]
    engine.step(ev.PassReceived(Pass(1, 1, 0, 3, (7.0, 3.0))), world.now)
    assert dict(engine.pace.numbers()) == {1: (7.0, 3.0)}
    neighbor.note_restart(2, 0, engine.state.round.current)
    assert engine.pace.numbers() == () and not engine.state.has_delivered(1)
    effects = engine.step(ev.PassReceived(Pass(1, 2, 0, 3, (8.0, 3.0))), world.now)
    work = [effect for effect in effects if isinstance(effect, do.Work)]
    assert not work or dict(work[0].numbers) == {1: (8.0, 3.0)}
