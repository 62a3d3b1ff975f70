"""run.privacy with every algorithm: a round uses what it declares, and neither messages nor records tell more of the samples."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from coordinator_free_bootstrap.errors import ConfigError
from peer.algorithms.base import Algorithm
from peer.algorithms.learner import Learner
from peer.algorithms.local import Local
from peer.algorithms.private import OF_SAMPLES, PrivateLearner, SampleUse, Sampling
from peer.algorithms.registry import algorithms
from peer.core.messages import ModelHeader, Select
from peer.core.privacy_budget import NOTHING, Charge
from peer.lab.network import SimulatedPeer
from tests.tools.simulated import peers_of, run

SIZES = {"samples_per_peer": 80, "test_per_peer": 40}
PRIVACY = {"clip_norm": 1.0, "noise_multiplier": 1.5, "delta": 1e-3}
BASE = dict(task="digits", split="rotated_hard", split_options=SIZES, rounds=4, model="mlr", batch_size=20)
COVERED = {
    "local": {},
    "dfedavg": {"final": {"epochs": 2}},
    "dpsgd": {},
    "dfca": {"options": {"warmup_rounds": 2}},
    "ifca": {"participation": 0.7},
    "blend": {"options": {"tune_epochs": 2}},
    "fedprox": {},
    "ditto": {"options": {"personal_epochs": 1}},
    "fedrep": {"model": "mlp"},
}
REFUSED = sorted(set(algorithms()) - set(COVERED))


def graph_of(name="dfedavg", peers=3, privacy=None, **manifest) -> Graph:
    made = make_graph("ring", peers, seed=3)
    given = BASE | ({} if name == "dpsgd" else {"local_epochs": 2}) | {"algorithm": name} | manifest
    return Graph(made.nodes, made.edges, Manifest(**given, privacy=PRIVACY | (privacy or {})))


@pytest.mark.parametrize("name", COVERED)
def test_a_run_uses_what_it_declares_and_tells_nothing_else(name, monkeypatch):
    headers, selections, left = [], [], []
    push, tell, opened = SimulatedPeer.push, SimulatedPeer.send_control, PrivateLearner.open

    def spied_push(self, neighbor, header):
        headers.append(header)
        push(self, neighbor, header)

    def spied_tell(self, neighbor, message):
        selections.append(message)
        tell(self, neighbor, message)

    def spied_open(self, round_index, *, paid):
        left.append(self._left)
        opened(self, round_index, paid=paid)

    monkeypatch.setattr(SimulatedPeer, "push", spied_push)
    monkeypatch.setattr(SimulatedPeer, "send_control", spied_tell)
    monkeypatch.setattr(PrivateLearner, "open", spied_open)
    graph = graph_of(name, **COVERED[name])
    peers = run(graph)
    assert set(left) == {NOTHING}, "a round leaves nothing of what it has paid for"
    assert all(peer.learner._left == NOTHING for peer in peers)
    assert bool(headers) == (name != "local")
    assert {header.sample_count for header in headers} <= {1}
    assert not [each for each in selections if isinstance(each, Select) or each.numbers]
    for peer in peers:
        spent = [row["epsilon"] for row in peer.history]
        assert len(spent) == 4 and spent == sorted(spent) and spent[-1] <= peer.final["epsilon"]
        assert peer.workspace.state.sample_count == 1 and peer.workspace.best is None
        for row in (*peer.history, peer.final):
            assert not set(row) & {*OF_SAMPLES, "metric_validation", "best_round", "metric_best"}
            assert set(row.get("state", {})) <= {"blend", "seeds"}


def test_relayed_losses_are_not_sent(monkeypatch):
    sent: list[ModelHeader] = []
    push = SimulatedPeer.push
    monkeypatch.setattr(SimulatedPeer, "push", lambda self, n, header: (sent.append(header), push(self, n, header))[1])
    run(graph_of("dfca", options={"warmup_rounds": 4}))
    assert sent and all(list(header.numbers) == [0.0] for header in sent)


@pytest.mark.parametrize("name", REFUSED)
def test_other_algorithms_are_refused_with_the_reason(name):
    options = {"options": {"dp_epsilon": 10.0, "min_cluster_samples": 5}} if name == "fedspd" else {}
    with pytest.raises(ConfigError, match=rf"run\.algorithm: expected one that run\.privacy covers .*'{name}': \w"):
        run(graph_of(name, **options))


class Greedy(Local):
    """Local training that trains more often than it declares."""

    name = "greedy"

    def train(self, workspace):
        return super().train(workspace) | super().train(workspace)


class Curious(Local):
    """Local training that looks at its training samples."""

    name = "curious"

    def close(self, workspace):
        workspace.learner.mean_loss(workspace.models.model(0))
        return super().close(workspace)


class Silent(Algorithm):
    """An algorithm that does not say what it asks of the samples."""

    name = "silent"


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (Greedy, "no more use of the training samples than run.privacy charges for"),
        (Curious, "asks train samples by private trainings and votes only"),
        (Silent, "it is not known to ask the training samples by private trainings"),
    ],
)
def test_an_algorithm_that_asks_more_than_it_declares_fails(kind, what, monkeypatch):
    from peer.algorithms import registry

    monkeypatch.setattr(registry, "algorithms", lambda: {kind.name: kind})
    with pytest.raises(ConfigError, match=what):
        run(graph_of(kind.name))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            {"name": "dfca", "options": {"initialization": "seeds"}},
            r"run\.privacy\.clip_norm: expected null with .*seeds",
        ),
        (
            {"name": "dfca", "options": {"warmup_rounds": 2, "split_empty": True}},
            r"run\.options\.split_empty: .*mean losses",
        ),
        ({"final": {"epochs": 2, "guard": True}}, r"run\.final\.guard: expected False with run\.privacy"),
        ({"diverged_restores": 2}, r"run\.diverged_restores: expected 0 with run\.privacy"),
        ({"privacy": {"delta": 0.1}}, r"run\.privacy\.delta: expected less than 1 / \d+"),
        (
            {"privacy": {"noise_multiplier": None, "target_epsilon": 0.01, "delta": 1e-12}},
            r"run\.privacy\.target_epsilon: .*no noise multiplier",
        ),
    ],
)
def test_keys_that_would_ask_more_are_refused(change, what):
    with pytest.raises(ConfigError, match=what):
        run(graph_of(**change))


@pytest.mark.parametrize("name", ["dfedavg", "dfca", "blend"])
def test_a_target_is_kept_and_almost_used(name):
    for peer in run(graph_of(name, privacy={"noise_multiplier": None, "target_epsilon": 3.0}, rounds=6)):
        assert 2.9 < peer.final["epsilon"] <= 3.0
        assert not peer.totals["rounds_without_budget"]


def test_beyond_the_limit_a_peer_folds_and_does_not_train():
    limit = run(graph_of(rounds=2))[0].final["epsilon"]
    for peer in run(graph_of(rounds=5, privacy={"epsilon_max": limit * 1.0001})):
        assert [row["active"] for row in peer.history] == [True, True, False, False, False]
        assert peer.totals["rounds_without_budget"] == 3 and peer.final["epsilon"] == pytest.approx(limit)


def test_the_run_goes_on_where_one_peer_has_no_budget_left():
    """The largest shard has the smallest sampling rate, so its peer spends least."""
    peers = peers_of(graph_of(rounds=5))
    poor = peers[0].workspace.private._budget
    poor.terms = type(poor.terms)(
        poor.terms.training, poor.terms.choice, poor.terms.delta, poor.with_charge(Charge(16))
    )
    peers.network.run()
    assert [row["active"] for row in peers[0].history] == [True, True, False, False, False]
    for other in peers[1:]:
        assert all(row["active"] for row in other.history) and not other.totals["rounds_without_budget"]
        assert not any(row.get("missing") for row in other.history), "a pass is no absence"
        assert len([row for row in other.history if row["folded"]]) == 5
    assert peers[0].totals["models_folded"] > 4, "models that come are folded all the same"


# ---- the learner and its noise ------------------------------------------------------------------------------------------


def test_steps_of_an_epoch_and_rate_follow_from_batch_size_and_samples():
    found = {
        (size, n, unit): (s.rate, s.steps(3, unit))
        for size, n, unit in (
            (20, 80, "epoch"),
            (20, 90, "epoch"),
            (20, 90, "step"),
            ("all", 90, "epoch"),
            (100, 90, "epoch"),
        )
        for s in [Sampling.of(Manifest(batch_size=size, local_unit=unit), n)]
    }
    assert list(found.values()) == [(0.25, 12), (20 / 90, 15), (20 / 90, 3), (1.0, 3), (1.0, 3)]
    charge = Sampling(0.25, "step").charge(SampleUse(local=3, epochs=2, steps=1, choices=4))
    assert charge == Charge(3 + 8 + 1, 4)


class Losses:
    """A learner whose samples have given losses: [model][sample]."""

    def __init__(self, losses):
        self.losses = losses

    def sample_losses(self, theta, part):
        return self.losses[int(theta[0])]


def voting(losses, noise):
    sampling = Sampling(1.0, "epoch")
    terms = sampling.terms(Manifest(privacy=PRIVACY), 1.0)
    terms = type(terms)(terms.training, type(terms.choice)(1.0, noise), terms.delta)
    budget = type("Paid", (), {"terms": terms, "charge_of": staticmethod(lambda t: Charge(choices=10_000))})()
    learner = PrivateLearner(Losses(np.array(losses)), budget, sampling, 1.0)
    learner.open(0, paid=True)
    return learner, [np.array([float(i)]) for i in range(len(losses))]


def test_each_sample_has_one_vote():
    learner, models = voting([[0.1, 5.0, np.inf, 2.0], [0.2, 4.0, 1.0, 3.0], [9.0, 9.0, 9.0, 1.0]], 1e-9)
    assert np.rint(learner.votes(models)).tolist() == [1, 2, 1]
    assert np.rint(learner.votes(models, indices=np.array([1, 2]))).tolist() == [0, 2, 0]


def test_votes_have_the_noise_that_is_charged():
    learner, models = voting([[0.0] * 10, [1.0] * 10], 7.0)
    found = np.array([learner.votes(models) for _ in range(4000)])
    assert found.std(0) == pytest.approx([7.0, 7.0], rel=0.05) and found.mean(0) == pytest.approx([10.0, 0.0], abs=0.5)


def test_a_choice_costs_a_small_part_of_a_training():
    sampling = Sampling(0.1, "epoch")
    terms = sampling.terms(Manifest(local_epochs=2, privacy=PRIVACY), 2.0)
    step, choice = (terms.epsilon(Counter({each: count})) for each, count in ((terms.training, 20), (terms.choice, 1)))
    assert choice < 0.4 * step
    both = terms.epsilon(terms.ledger(Charge(20 * 10, 10)))
    assert both < 1.1 * terms.epsilon(terms.ledger(Charge(20 * 10)))


def test_the_private_learner_has_all_of_a_learner():
    wanted = {name for name in vars(Learner) if not name.startswith("_")}
    assert wanted <= {name for name in vars(PrivateLearner) if not name.startswith("_")}
