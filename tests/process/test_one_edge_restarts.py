"""Goal: with one edge a round real peers exchange over the edge that both derive, and a restart changes no bit.

Method: three peers that are all neighbors, so one is idle in each round; deltas and NoLoCo's momentum have to survive a kill. The
edge of a round is that of an independent coloring.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tools import invariants
from tools.beds import Bed, Models
from tools.warm_parent import WarmParent

from tests.oracle import one_edge

pytestmark = pytest.mark.process

Make = Callable[..., Bed]
VICTIM, ROUNDS = 1, 9
OPTIONS = {
    "peers": 3,
    "rounds": ROUNDS,
    "algorithm": "dfedavg",
    "clusters": 1,
    "edges": "one",
    "encoding": "delta_int8",
    "outer": {"optimizer": "noloco"},
}


@pytest.fixture(scope="module")
def undisturbed(warm_parent: WarmParent, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Models]:
    with Bed(warm_parent, tmp_path_factory.mktemp("undisturbed"), **OPTIONS) as run:
        run.finish()
        idle = 0
        for peer_id in run.graph.ids:
            for t, line in enumerate(run.history(peer_id, "round")):
                up = [n for n in run.graph.neighbors(peer_id) if one_edge.is_up(run.graph, t, peer_id, n)]
                assert [row[0] for row in line["folded"]] == up and not line["missing"]
                idle += not up
            totals = run.summary(peer_id)["totals"]
            assert not totals.get("rounds_alone") and totals["models_sent"] + totals["passes_sent"] == 2 * ROUNDS
            whole = 4 * run.history(peer_id, "start")[0]["parameters"] * totals["models_sent"]
            assert 2 / 6 < totals["payload_bytes_sent"] / whole < 0.55, (
                "after one whole model to each neighbor all are changes"
            )
        assert idle == ROUNDS, "choose peers of whom one is idle in each round"
        return run.models()


@pytest.mark.parametrize(
    "failpoint", ["send.end=kill@3", "fold.end=kill@3", "persist.renamed=kill@3", "train.end=kill@6"]
)
def test_a_restart_changes_no_bit(bed: Make, undisturbed: dict[int, Models], failpoint: str) -> None:
    run = bed(**OPTIONS, failpoints={VICTIM: failpoint})
    invariants.a_restart_changes_no_bit(run, VICTIM, undisturbed)
