"""Goal: a private peer never trains what it has not paid for, whenever it is killed, and its neighbors go on without it.

Method: failpoints kill a peer with SIGKILL before, in and after the checkpoint with a charge, and in the training that it pays
for. The ledger is read from the checkpoint that the dead process left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tools import invariants
from tools.beds import Bed

from peer.core.accountant import Mechanism, epsilon
from peer.store.files import unseal

pytestmark = pytest.mark.process

Make = Callable[..., Bed]
VICTIM, ROUNDS = 1, 4
RUN: dict[str, Any] = {
    "rounds": ROUNDS,
    "algorithm": "dfedavg",
    "local_epochs": 1,
    "split_options": {"samples_per_peer": 100, "test_per_peer": 40},
    "batch_size": 20,
}
NOISE = {"clip_norm": 1.0, "noise_multiplier": 1.5}
STEPS = 5  # of a round: an epoch of 100 samples at 20 a step


def on_disk(run: Bed) -> tuple[int, int]:
    """Return what the newest checkpoint of the victim says: rounds completed, and steps that are paid for."""
    newest = max(run.place(VICTIM).checkpoints.glob("checkpoint-*"), default=None)
    if newest is None:
        return 0, 0
    saved: Any = unseal((newest / "manifest.json").read_bytes())
    return saved["round_index"], sum(int(count) for _, _, count in saved["state"]["spent"])


def cost(steps: int) -> float:
    return epsilon({Mechanism(0.2, NOISE["noise_multiplier"]): steps}, 1e-5)


@pytest.mark.parametrize(
    ("failpoint", "rounds"),
    [
        pytest.param("persist.begin=kill@1", 0, id="before-the-first-charge"),
        pytest.param("persist.sealed=kill@2", 1, id="charge-not-yet-in-place"),
        pytest.param("persist.renamed=kill@2", 2, id="charge-in-place"),
        pytest.param("train.begin=kill@1", 1, id="first-training"),
        pytest.param("train.step=kill@8", 2, id="inside-a-training"),
        pytest.param("train.end=kill@3", 3, id="after-a-training"),
        pytest.param("send.end=kill@3", 2, id="after-a-model-was-sent"),
    ],
)
def test_a_killed_peer_has_paid_for_all_that_it_trained(bed: Make, failpoint: str, rounds: int) -> None:
    run = bed(**RUN, privacy=NOISE, failpoints={VICTIM: failpoint})
    assert run.until_ended(VICTIM) == -9 and run.fired(VICTIM) == 1
    completed, paid = on_disk(run)
    assert paid == rounds * STEPS
    run.arm(VICTIM, "")
    run.do("restart", VICTIM)
    assert run.finish()["failed"] == {}
    invariants.completed(run)
    (end,), (other,) = run.history(VICTIM, "end"), run.history(0, "end")
    assert end["epsilon"] == pytest.approx(cost(paid + STEPS * (ROUNDS - completed)))
    assert other["epsilon"] == pytest.approx(cost(STEPS * ROUNDS))


def test_a_peer_beyond_its_budget_passes_and_its_neighbors_go_on(bed: Make) -> None:
    """The target is that of a run without restarts, so a peer that repeats a round cannot pay for its last one."""
    run = bed(**RUN, privacy={"clip_norm": 1.0, "target_epsilon": 3.0}, failpoints={VICTIM: "train.end=kill@2"})
    assert run.until_ended(VICTIM) == -9 and run.fired(VICTIM) == 1
    run.arm(VICTIM, "")
    run.do("restart", VICTIM)
    assert run.finish()["failed"] == {}
    invariants.completed(run)
    trained = {peer: [line["active"] for line in run.last_rounds(peer).values()] for peer in run.graph.ids}
    assert trained.pop(VICTIM) == [True, True, True, False]
    assert all(all(active) for active in trained.values())
    for peer in run.graph.ids:
        (end,) = run.history(peer, "end")
        assert 2.0 < end["epsilon"] <= 3.0
        assert run.last_rounds(peer)[ROUNDS - 1].get("missing", []) == [], "a pass is no absence"
    assert run.last_rounds(VICTIM)[ROUNDS - 1]["rounds_without_budget"] == 1
    assert run.last_rounds(VICTIM)[ROUNDS - 1]["folded"], "it takes what comes"
    assert "this peer trains no more, and passes: epsilon would be" in run.log(VICTIM)
    assert "differential privacy of each of the 100 training samples: epsilon 3 after the whole run" in run.log(0)
