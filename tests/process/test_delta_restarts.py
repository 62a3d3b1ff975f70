"""Goal: runs with deltas end with the same models bit for bit, whatever restarts or is lost; they send fewer bytes.

Method: a peer is killed by a failpoint and restarted, or loses acknowledgments. The undisturbed run is made once.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tools import invariants
from tools.beds import Bed, Models, same_models
from tools.warm_parent import WarmParent

pytestmark = pytest.mark.process

Make = Callable[..., Bed]
VICTIM, ROUNDS = 1, 6
OPTIONS = {"rounds": ROUNDS, "algorithm": "dfedavg", "clusters": 1, "encoding": "delta_top10"}


@pytest.fixture(scope="module")
def undisturbed(warm_parent: WarmParent, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Models]:
    with Bed(warm_parent, tmp_path_factory.mktemp("undisturbed"), **OPTIONS) as run:
        run.finish()
        for peer_id in run.graph.ids:  # the first model of each neighbor is whole, all others are a twelfth of it
            start, sent = run.history(peer_id, "start")[0], run.summary(peer_id)["totals"]
            whole = 4 * start["parameters"] * sent["models_sent"]
            assert 1 / ROUNDS < sent["payload_bytes_sent"] / whole < 1 / ROUNDS + 1 / 12
            assert "no_base" not in run.summary(peer_id)["refusals"]
        return run.models()


@pytest.mark.parametrize(
    "failpoint", ["send.end=kill@8", "fold.end=kill@8", "persist.renamed=kill@3", "train.end=kill@4"]
)
def test_a_restart_changes_no_bit(bed: Make, undisturbed: dict[int, Models], failpoint: str) -> None:
    run = bed(**OPTIONS, failpoints={VICTIM: failpoint})
    invariants.a_restart_changes_no_bit(run, VICTIM, undisturbed)


@pytest.mark.parametrize("lost", ["send.answer=lose@4", pytest.param("send.answer=lose@5-7", marks=pytest.mark.slow)])
def test_a_lost_acknowledgment_changes_no_bit(bed: Make, undisturbed: dict[int, Models], lost: str) -> None:
    timeouts = {"suspicion_s": 2.0}  # an unanswered push is sent again after four of them
    run = bed(**OPTIONS, failpoints={VICTIM: lost}, timeouts=timeouts)
    assert run.finish()["failed"] == {}
    assert run.fired(VICTIM)
    assert not any(line["missing"] for line in run.history(VICTIM, "round"))
    same_models(undisturbed, run.models())
