"""DPFL: the greedy choice against an oracle over sets, whole runs against a loop in float64, bytes, budgets."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.seeds import generator
from peer.algorithms.local import Local
from peer.algorithms.workspace import FoldedArrival, Workspace
from peer.core.encoding import payload_size
from peer.core.messages import ModelHeader
from peer.core.model_store import ModelStore
from peer.zoo.algorithms.dpfl import Dpfl, DpflState
from peer.zoo.algorithms.greedy import GreedyChoice
from tests.oracle import dpfl as oracle
from tests.oracle.fedspd import Data, descend, losses
from tests.tools.simulated import finish, peers_of, run

SMALL = {"samples_per_peer": 60, "test_per_peer": 20}
BASE = dict(algorithm="dpfl", task="digits", split="rotated_hard", split_options=SMALL, rounds=4, model="mlr")


UNEQUAL = {"samples_min": 20, "samples_max": 150, "test_per_peer": 20}
FULL_BATCH = dict(
    split="mixture", split_options=UNEQUAL, local_epochs=2, batch_size=1000, learning_rate=0.3, seed=6, rounds=6
)  # no order of batches that float64 would have to repeat


def graph_of(peers=5, kind="complete", options=None, **manifest) -> Graph:
    made = make_graph(kind, peers, seed=3)
    return Graph(made.nodes, made.edges, Manifest(**BASE | {"options": options or {}} | manifest))


# ---- the greedy choice ------------------------------------------------------------------------------------------------


def numbers(*shape):
    size = math.prod(shape)
    values = st.floats(-3, 3, width=32, allow_subnormal=False)
    return st.lists(values, min_size=size, max_size=size).map(lambda v: np.array(v, np.float32).reshape(shape))


@st.composite
def cases(draw):
    degree = draw(st.integers(1, 8))
    counts = draw(st.lists(st.integers(1, 50), min_size=degree + 1, max_size=degree + 1))
    options = {
        "budget": draw(st.none() | st.integers(1, degree + 1)),
        "preprocess_share": draw(st.sampled_from([1, 0.6])),
    }
    if options["budget"] == 1:
        options["preprocess_share"] = 1
    return draw(numbers(degree + 1, 3)), counts, options, draw(numbers(3)), draw(st.integers(0, 999))


def quadratic(target):
    return lambda theta: float(0.5 * ((theta.astype(np.float64) - target) ** 2).sum())


def arrival(peer, count, model):
    header = ModelHeader(peer, 0, 0, 0, 0, 0, 1, count, 1.0, model.nbytes, "float32")
    return FoldedArrival(header, model.copy())


@settings(max_examples=300)
@given(cases())
def test_theorem_1_batches_decide_as_the_oracle_over_sets_does(case):
    models, counts, options, target, seed = case
    graph = graph_of(len(models), options=options, seed=seed)
    order = generator(seed, "candidates", 0, 0).permutation(graph.neighbors(0)).tolist()
    order = order[: max(1, round(options["preprocess_share"] * len(order)))]
    budget = options["budget"] or math.inf
    by_peer = {j: model.astype(np.float64) for j, model in enumerate(models)}
    weights = dict(enumerate(map(float, counts)))
    coins = iter(generator(seed, "coins", 0, 0).random(100).tolist())
    loss = quadratic(target)
    expected = oracle.ggc(0, order, by_peer, weights, loss, coins, budget)
    assume(expected.margin > 1e-5)
    evaluated = []

    def counted(theta, part):
        evaluated.append(part)
        return loss(theta)

    algorithm, store = Dpfl(graph.manifest, 0, graph), ModelStore([models[0], models[0].copy()])
    state = DpflState(trained=(0,), sample_count=counts[0])
    workspace = Workspace(graph.manifest, 0, graph, SimpleNamespace(mean_loss=counted), store, state)
    choice = workspace.scratch["choice"] = algorithm._choice(workspace)
    for step, batch in enumerate(algorithm.plan(0, 0)):
        assert len(batch) <= budget
        workspace.step, workspace.arrivals = step, [arrival(j, counts[j], models[j]) for j in batch]
        algorithm.end_step(workspace)
    assert choice.chosen == expected.chosen
    assert evaluated == ["validation"] * (expected.evaluations if budget != 1 else 0)
    wanted = oracle.average(by_peer, weights, [0, *expected.chosen])
    np.testing.assert_allclose(choice.average(), wanted, atol=1e-5)
    assert len(choice.chosen) <= budget - 1
    gain = loss(by_peer[0]) - loss(wanted)
    assert choice.gain == pytest.approx(gain, abs=1e-4)


def test_remark_2_does_not_hold_a_chosen_set_can_be_worse_than_the_own_model():
    """The own model, 0, has no loss. Model 3 makes X worse (a = 0), its removal makes Y worse (b = 0): it is added."""
    models = {0: np.zeros(1, np.float32), 1: np.full(1, 3, np.float32), 2: np.full(1, -2, np.float32)}
    loss = quadratic(np.zeros(1))
    choice = GreedyChoice(models[0], 1.0, loss, generator(1, "coins"), None)
    for read in (choice.expect, choice.consider):
        for peer in (1, 2):
            read(peer, models[peer], 1.0)
    found = oracle.ggc(0, [1, 2], models, dict.fromkeys(models, 1.0), loss, iter([0.5, 0.5]), math.inf)
    assert choice.chosen == found.chosen == [1, 2]
    assert choice.gain == pytest.approx(-loss(np.full(1, 1 / 3))) and choice.gain < 0


def test_a_model_whose_loss_is_not_finite_is_not_chosen():
    def loss(theta):
        return math.nan if np.abs(theta).max() > 10 else quadratic(np.ones(1))(theta)

    choice = GreedyChoice(np.zeros(1, np.float32), 1.0, loss, generator(1, "coins"), None)
    models = {1: np.full(1, 1e9, np.float32), 2: np.ones(1, np.float32)}
    for read in (choice.expect, choice.consider):
        for peer, model in models.items():
            read(peer, model, 1.0)
    assert choice.chosen == [2] and choice.gain == pytest.approx(0.5 - 0.125)


def test_a_candidate_is_considered_once_and_only_if_expected():
    choice = GreedyChoice(np.zeros(1, np.float32), 1.0, quadratic(np.ones(1)), generator(1, "coins"), None)
    model = np.ones(1, np.float32)
    choice.consider(1, model, 1.0)
    assert choice.chosen == []
    for _ in range(2):
        choice.expect(1, model, 1.0)
        choice.consider(1, model, 1.0)
    assert choice.chosen == [1] and choice.average() == [0.5]


# ---- whole runs -------------------------------------------------------------------------------------------------------


DEFAULTS = dict(
    budget=math.inf, period=1, rebuild_every=0, preprocess_share=1, round_share=1, initial_epochs=0, guard_self=False
)


class Reference:
    """The rounds of Algorithm 1 in float64 for full-batch softmax regression, from the seeds of orders, shares and coins."""

    def __init__(self, graph, peers):
        self.graph, self.options = graph, DEFAULTS | graph.manifest.options
        self.train, self.held, self.w = {}, {}, {}
        for i, peer in enumerate(peers):
            shard = peer.learner.shard
            flat = lambda x: x.reshape(len(x), -1).astype(np.float64)  # noqa: E731
            self.train[i] = Data(flat(shard.train_x), shard.train_y)
            self.held[i] = Data(flat(shard.val_x), shard.val_y)
            self.w[i] = peer.models[0].astype(np.float64)
        self.counts = {i: float(len(data.y)) for i, data in self.train.items()}
        self.omega, self.chosen, self.gain, self.without_choice = {}, {}, {}, 0

    def round(self, t):
        """Run round t; return how close any decision was to another one."""
        m = self.graph.manifest
        epochs = m.local_epochs if t else self.options["initial_epochs"] or 2 * m.local_epochs
        trained = {i: descend(w, self.train[i], epochs, m.learning_rate) for i, w in self.w.items()}
        return min(self.average(i, t, trained) for i in self.graph.ids)

    def drawn(self, purpose, i, t, pool, count):
        return generator(self.graph.manifest.seed, purpose, i, t).permutation(pool)[:count].tolist()

    def average(self, i, t, trained):
        o, neighbors = self.options, self.graph.neighbors(i)
        rebuilds = t == 0 or bool(o["rebuild_every"] and t % o["rebuild_every"] == 0)
        if rebuilds:
            order = self.drawn("candidates", i, t, neighbors, max(1, round(o["preprocess_share"] * len(neighbors))))
        else:
            chooses = (t - 1) % o["period"] == 0
            pool = self.omega[i] if chooses else self.chosen[i]
            heard = self.drawn("asked", i, t, pool, min(len(pool), max(1, round(o["round_share"] * len(pool)))))
            if not chooses:
                self.w[i] = oracle.average(trained, self.counts, [i, *heard])
                self.without_choice += bool(heard)
                return math.inf
            order = self.drawn("shuffle", i, t, sorted(heard), None)
        coins = iter(generator(self.graph.manifest.seed, "coins", i, t).random(100).tolist())
        loss = lambda theta: losses(theta, self.held[i]).mean()  # noqa: E731
        found = oracle.ggc(i, order, trained, self.counts, loss, coins, o["budget"])
        self.w[i] = oracle.average(trained, self.counts, [i, *found.chosen])
        self.gain[i], self.chosen[i] = loss(trained[i]) - loss(self.w[i]), sorted(found.chosen)
        if o["guard_self"] and self.gain[i] < 0:
            self.w[i], self.chosen[i] = trained[i], []
        if rebuilds:
            self.omega[i] = self.chosen[i]
        return min(found.margin, abs(self.gain[i]) if found.chosen else math.inf)


@pytest.mark.parametrize("kind", ["complete", "star"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"budget": 2},
        {"budget": 3},
        {"initial_epochs": 1},
        {"period": 3},
        {"round_share": 0.7, "period": 2},
        {"round_share": 0.1},  # one, where the share is none
        {"preprocess_share": 0.6},
        {"rebuild_every": 2},
        {"rebuild_every": 3, "period": 2, "budget": 3},
        {"guard_self": True},
    ],
    ids=str,
)
def test_a_run_equals_the_oracle(options, kind):
    graph = graph_of(5, kind, options, **FULL_BATCH)
    peers = peers_of(graph)
    reference, margins = Reference(graph, peers), []
    assert len(set(reference.counts.values())) == len(peers), "equal weights would hide the p of Eq. 4"

    def compare(t):
        margins.append(reference.round(t))
        assert margins[-1] > 1e-6, "a decision that rounding can turn: take another seed"
        for i, peer in enumerate(peers):
            assert list(peer.state.candidates) == reference.omega[i]
            assert list(peer.state.collaborators) == reference.chosen[i]
            assert peer.state.gain == pytest.approx(reference.gain[i], abs=1e-5)
            np.testing.assert_allclose(peer.models[0], reference.w[i], atol=5e-6)

    finish(peers, compare)
    assert len(margins) == 6
    assert any(reference.chosen.values())
    assert bool(reference.without_choice) == ("period" in options), "Eq. 4 without GGC is not tested"


@pytest.mark.parametrize("kind", ["complete", "erdos-renyi"])
def test_bytes_fall_with_the_budget_as_the_formula_says(kind):
    """Round 0: deg models, or 2 deg in 2 ceil(deg / B_c) steps; then |Omega_k| < B_c; a peer sends what others take."""
    sent = []
    for budget in (None, 4, 2, 1):
        graph = graph_of(7, kind, options={} if budget is None else {"budget": budget}, batch_size=20)
        peers = run(graph)
        size = payload_size(peers[0].learner.schema, "float32")
        omega = [peer.state.candidates or () for peer in peers]
        degrees = [graph.degree(i) for i in graph.ids]
        reads = [0 if budget == 1 else 1 if degree <= (budget or 7) else 2 for degree in degrees]
        for i, (peer, degree) in enumerate(zip(peers, degrees, strict=True)):
            assert len(omega[i]) <= (budget or 7) - 1
            steps = {step for _, _, _, step, _ in peer.history[0]["folded"]}
            assert len(steps) == reads[i] * math.ceil(degree / (budget or degree))
            assert peer.totals["models_folded"] == reads[i] * degree + 3 * len(omega[i])
            wanted = sum(reads[j] for j in graph.neighbors(i)) + 3 * sum(i in others for others in omega)
            assert peer.totals["models_sent"] == wanted
            assert peer.totals["payload_bytes_sent"] == wanted * size
        assert not sum(peer.totals["models_unused"] for peer in peers)
        sent.append(sum(peer.totals["models_sent"] for peer in peers))
    assert sent[1] > sent[2] > sent[3] == 0 < sent[0]


def test_rounds_without_choice_take_models_of_collaborators_only():
    graph = graph_of(6, options={"period": 3}, rounds=8, batch_size=20)
    peers, asked = peers_of(graph), {}

    def note(t):
        for i, peer in enumerate(peers):
            row = peer.history[t]
            asked[i, t] = sorted(sender for sender, *_ in row["folded"]), list(peer.state.collaborators)
            assert list(peer.state.candidates) == asked[i, 0][1]

    finish(peers, note)
    for (i, t), (folded, collaborators) in asked.items():
        if t in (1, 4, 7):
            assert folded == asked[i, 0][1], "GGC sees all of Omega"
        elif t:
            assert folded == collaborators == asked[i, t - 1][1]


def test_the_preprocessing_is_repeated():
    graph = graph_of(6, options={"rebuild_every": 2, "budget": 3}, rounds=5, batch_size=20)
    rows = [peer.history for peer in run(graph)]
    for peer_rows in rows:
        counts = [len(row["folded"]) for row in peer_rows]
        assert counts[0] == counts[2] == counts[4] == 10 and max(counts[1], counts[3]) <= 2


def test_partial_participation_takes_a_share_of_the_models():
    options = {"preprocess_share": 0.5, "round_share": 0.5}
    for peer in run(graph_of(9, options=options, batch_size=20)):
        counts = [len(row["folded"]) for row in peer.history]
        assert counts[0] == 4
        most = len(peer.state.candidates)
        assert counts[1:] == [min(most, max(1, round(0.5 * most)))] * 3


def test_budget_1_equals_local(monkeypatch):
    mine = run(graph_of(3, options={"budget": 1, "initial_epochs": 1}, local_epochs=1, batch_size=20))
    monkeypatch.setattr(Local, "validation_share", Dpfl.validation_share)  # the same samples for training
    for peer, other in zip(mine, run(graph_of(3, algorithm="local", local_epochs=1, batch_size=20)), strict=True):
        assert peer.models[0].tobytes() == other.models[0].tobytes()
        assert not (peer.totals["models_sent"] or peer.totals["models_folded"] or peer.totals["selections_sent"])
        assert len(peer.learner.shard.val_y) == 12


def test_the_result_is_the_best_model_on_validation_data():
    graph = graph_of(4, rounds=6, batch_size=20, learning_rate=0.5)
    peers, scores = peers_of(graph), []

    def note(t):
        scores.append([peer.state.best for peer in peers])

    finish(peers, note)
    assert all((np.diff(np.array(scores), axis=0) >= 0).ravel())
    for peer in peers:
        assert peer.personalized.tobytes() == peer.models[1].tobytes()
        assert peer.learner.evaluate(peer.personalized, "validation").metric == peer.state.best
        assert peer.final["metric_value"] == peer.learner.evaluate(peer.personalized).metric


def test_peers_with_renamed_labels_are_no_collaborators_of_the_others():
    options = {"q": 0.5, "base": "iid", "samples_per_peer": 100, "test_per_peer": 50}
    graph = graph_of(
        8, split="label_flip", split_options=options, rounds=5, learning_rate=0.3, local_epochs=5, batch_size=10
    )
    peers = run(graph)
    group = [int(peer.learner.true_cluster[0]) for peer in peers]
    links = [(group[i], group[j]) for i, peer in enumerate(peers) for j in peer.state.collaborators]
    assert sum(group) == 4 and len(links) > 8
    assert [link for link in links if link[0] != link[1]] == []


def test_peers_that_train_alone_on_renamed_labels_end_without_a_link_to_them():
    """Figure 3a of the paper: peers with renamed labels offer their models and choose nobody."""
    options = {"q": 0.4, "base": "iid", "samples_per_peer": 100, "test_per_peer": 50}
    graph = graph_of(10, split="label_flip", split_options=options, rounds=5, local_epochs=2, batch_size=10)
    peers = peers_of(graph)
    renamed = {peer.peer_id for peer in peers if peer.learner.true_cluster[0]}
    for n in renamed:
        peers[n].algorithm._chosen = lambda workspace, choice: replace(workspace.state, collaborators=(), gain=0.0)
    finish(peers)
    links = [(i, j) for i, peer in enumerate(peers) for j in peer.state.collaborators]
    assert len(renamed) == 4 and all(peers[n].totals["models_sent"] for n in renamed)
    assert len(links) >= 6
    assert not renamed & {i for i, _ in links} and not renamed & {j for _, j in links}


def test_guard_keeps_the_own_model_where_the_average_is_worse():
    """C_i is empty in that round, and in round 0 so is Omega_i: no model comes in any later round."""
    peers, kept = peers_of(graph_of(5, options={"guard_self": True}, **FULL_BATCH)), []

    def note(t):
        if t == 0:
            kept.extend(peer.models[0].tobytes() == peer.models[1].tobytes() for peer in peers)  # as it was trained

    finish(peers, note)
    guarded = [peer for peer in peers if peer.history[0]["state"]["gain"] < 0]
    assert guarded
    for peer in guarded:
        first, *later = peer.history
        assert kept[peer.peer_id] and first["state"]["collaborators"] == first["state"]["candidates"] == []
        assert later and not any(line["folded"] for line in later)


def test_a_peer_without_preprocessing_takes_neighbors_at_random():
    graph = graph_of(6, options={"budget": 3})
    algorithm = Dpfl(graph.manifest, 0, graph)
    drawn = algorithm.candidates(DpflState())
    assert len(drawn) == 2 and set(drawn) <= set(graph.neighbors(0))
    assert algorithm.asks(DpflState(), 1) == set(drawn)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"pace": "async"}, "run.pace: expected .*, got 'async'"),
        ({"edges": "one"}, "run.edges: expected 'all', got 'one'"),
        ({"encoding": "int8", "options": {"budget": 3}}, "run.encoding: expected .*, got 'int8'"),
        ({"limits": {"kept_bytes_max": 4 * 650}}, "keeps up to 4 arrivals"),
        ({"limits": {"kept_bytes_max": 4 * 650}, "options": {"budget": 2}}, "keeps up to 2 arrivals"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, found):
    with pytest.raises(ConfigError, match=found):
        peers_of(graph_of(5, **changes))


def test_limits_hold_at_their_value():
    assert len(run(graph_of(5, limits={"kept_bytes_max": 4 * 4 * 650}, rounds=1))) == 5
    assert len(run(graph_of(5, limits={"kept_bytes_max": 4 * 2 * 650}, options={"budget": 2}, rounds=1))) == 5
    assert len(run(graph_of(5, encoding="int8", rounds=2))) == 5
