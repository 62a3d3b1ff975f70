"""The privacy budget in the engine: a round is paid for before its work, by a checkpoint that is safe, or it has no training."""

from collections import Counter

import pytest

from coordinator_free_bootstrap import make_graph, parse_manifest
from peer.core import effects as do
from peer.core import events as ev
from peer.core.accountant import Mechanism, epsilon
from peer.core.messages import Pass
from peer.core.privacy_budget import NOTHING, Charge, PrivacyBudget, Terms
from peer.core.stages import Stage
from peer.tasks.effect import keys_without_effect
from tests.unit.core.test_engine import Driven, of

STEP, CHOICE, DELTA = Mechanism(0.1, 1.0), Mechanism(1.0, 40.0), 1e-5
ROUND, END = Charge(steps=10, choices=1), Charge(steps=5)


def budget_of(rounds=None, ledger=(), last=END):
    """Return a budget that allows some rounds of `ROUND`; None: all."""
    terms = Terms(STEP, CHOICE, DELTA)
    most = None if rounds is None else terms.epsilon(Counter({STEP: 10 * rounds, CHOICE: rounds})) + 1e-9
    charge_of = lambda t: last if t >= 60 else ROUND  # noqa: E731
    return PrivacyBudget(Terms(STEP, CHOICE, DELTA, most), charge_of, Counter(ledger))


class Paying(Driven):
    """A peer with a budget, at its first round, whose neighbors are there."""

    def __init__(self, budget, **run):
        super().__init__(budget=budget, rounds=60, **run)
        self.effects = [self.hello(1), self.hello(2)][-1]
        self.budget = budget

    def written(self, error=""):
        return self.step(ev.CheckpointWritten(self.engine.round_index, error))

    def whole_round(self, *, trains=True):
        """Go through a round in which the neighbors pass; return its effects from `assign` on."""
        t = self.engine.round_index
        effects = self.written() if self.engine.stage is Stage.PAYING else []
        assert self.engine.stage is Stage.ASSIGNING
        effects += self.work("assign")
        effects += self.work("train") if trains else []
        for n in (1, 2):
            while (outbox := self.engine.state.neighbors[n].outbox).pending():
                self.answered(n)
                assert outbox
            effects += self.step(ev.PassReceived(Pass(n, 1, t, 0)))
        return effects + self.work("close")


def test_the_charge_is_in_a_safe_checkpoint_before_any_work():
    driven = Paying(budget_of())
    (written,) = of(driven.effects, do.WriteCheckpoint)
    assert driven.engine.stage is Stage.PAYING and not of(driven.effects, do.Work)
    assert written.state["spent"] == [[0.1, 1.0, 10], [1.0, 40.0, 1]]
    assert of(driven.step(ev.Tick(), after=5.0), do.Work) == []
    (work,) = of(driven.written(), do.Work)
    assert (work.kind, work.active) == ("assign", True)


def test_each_round_is_paid_for_once_with_one_checkpoint():
    driven = Paying(budget_of())
    for rounds in (1, 2, 3):
        effects = driven.whole_round()
        (written,) = of(effects, do.WriteCheckpoint)
        assert written.round_index == rounds and driven.engine.stage is Stage.PAYING
        assert driven.budget.ledger == {STEP: 10 * (rounds + 1), CHOICE: rounds + 1}
        (record,) = of(effects, do.Record)
        assert record.fields["epsilon"] == epsilon({STEP: 10 * rounds, CHOICE: rounds}, DELTA)


def test_a_restart_pays_again_for_the_round_that_it_repeats():
    first = Paying(budget_of())
    saved = of(first.effects, do.WriteCheckpoint)[0].state["spent"]
    again = Paying(budget_of(ledger={Mechanism(rate, noise): count for rate, noise, count in saved}))
    (written,) = of(again.effects, do.WriteCheckpoint)
    assert written.state["spent"] == [[0.1, 1.0, 20], [1.0, 40.0, 2]]


def test_a_peer_without_budget_passes_and_folds_and_its_neighbors_go_on():
    driven = Paying(budget_of(rounds=1))
    effects = driven.whole_round()
    assert [work.active for work in of(effects, do.Work) if work.kind == "assign"] == [True, False]
    (said,) = [line.message for line in of(effects, do.Log) if line.level == "warning"]
    assert "trains no more, and passes: epsilon would be" in said
    plan = driven.engine.state.plan
    assert not plan.trains and plan.receives and not plan.receivers and plan.charge == NOTHING
    effects = driven.work("assign")
    assert {(e.neighbor, type(e.message)) for e in of(effects, do.SendControl)} == {(1, Pass), (2, Pass)}
    assert driven.engine.stage is Stage.EXCHANGING and not of(effects, do.SendModel)
    driven.answered(1), driven.answered(2)
    folded = driven.deliver(1, round_index=1)
    assert of(folded, do.FoldArrival)
    driven.step(ev.PassReceived(Pass(1, 1, 1, 0)))
    effects = driven.step(ev.PassReceived(Pass(2, 1, 1, 0)))
    effects += driven.work("close")
    (record,) = of(effects, do.Record)
    assert record.fields["active"] is False and record.fields["rounds_without_budget"] == 1
    assert driven.budget.ledger == {STEP: 10, CHOICE: 1}
    assert not [line for line in of(effects, do.Log) if "trains no more" in line.message], "it is said once"


def test_a_charge_that_cannot_be_saved_pays_for_no_training():
    driven = Paying(budget_of())
    effects = driven.written("no space left on the device")
    (work,) = of(effects, do.Work)
    assert (work.kind, work.active) == ("assign", False) and not driven.engine.state.plan.trains
    assert any("could not be saved" in line.message for line in of(effects, do.Log))


def test_a_peer_that_leaves_while_it_pays_stops_once_the_charge_is_safe():
    driven = Paying(budget_of())
    assert not of(driven.step(ev.LeaveRequested()), do.Stop)
    assert of(driven.written(), do.Stop) == [do.Stop("left")]


@pytest.mark.parametrize("last", [END, NOTHING])
def test_the_work_after_the_last_round_is_paid_for_too(last):
    driven = Paying(budget_of(last=last))
    for _ in range(60):
        effects = driven.whole_round()
    if last == END:
        assert driven.engine.stage is Stage.PAYING and driven.budget.ledger[STEP] == 605
        effects = driven.written()
    (work,) = [work for work in of(effects, do.Work) if work.kind == "final"]
    assert work.active is (last == END) and driven.engine.stage is Stage.FINISHING


def test_a_private_run_writes_a_checkpoint_before_each_round_whatever_the_key_says():
    run = {"checkpoint_rounds": 7, "privacy": {"clip_norm": 1.0, "noise_multiplier": 1.0}}
    driven = Paying(budget_of(), **run)
    assert all(of(driven.whole_round(), do.WriteCheckpoint) for _ in range(3))
    graph = make_graph("complete", 3, manifest=parse_manifest(run, "test"))
    assert "writes a checkpoint before each round" in keys_without_effect(graph.manifest)["run.checkpoint_rounds"]
