"""Secure sums between real processes: the models of a run in one process, and the sums of survivors when a peer is killed.

Method: a failpoint kills a peer with SIGKILL before or after it has sent a model of round 1. Its neighbors recover the masks:
where the model has come it stays in the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tools.beds import Bed, final_models, same_models

from coordinator_free_bootstrap import load_graph
from peer.lab.simulated import simulate

pytestmark = pytest.mark.process

Make = Callable[..., Bed]
PEERS, VICTIM, ROUNDS = 5, 2, 4
RUN: dict[str, Any] = {
    "peers": PEERS,
    "kind": "complete",
    "insecure": False,
    "algorithm": "dfedavg",
    "rounds": ROUNDS,
    "secure_sum": 16.0,
    "local_epochs": 1,
    "split_options": {"samples_per_peer": 80, "test_per_peer": 40},
    "batch_size": 20,
}
QUICK = {"suspicion_s": 4.0, "round_deadline_s": 60.0}


def sums(run: Bed, peer: int) -> dict[int, list[int]]:
    return {at: line["summed"] for at, line in run.last_rounds(peer).items()}


def others(*without: int) -> list[int]:
    return [n for n in range(PEERS) if n not in without]


def test_processes_and_one_process_have_the_same_bits(bed: Make, tmp_path: Path) -> None:
    run = bed(**RUN)
    assert run.finish()["failed"] == {}
    simulate(load_graph(run.directory / "graph.json"), tmp_path / "simulated")
    same_models(run.models(), final_models(tmp_path / "simulated", run.graph))
    for peer in run.graph.ids:
        assert sums(run, peer) == dict.fromkeys(range(ROUNDS), others(peer))


@pytest.mark.parametrize(
    ("failpoint", "delivered"),
    [pytest.param("send.begin=kill@5", 0, id="before-sending"), pytest.param("send.end=kill@5", 1, id="after-sending")],
)
def test_sums_go_on_when_a_peer_is_killed(bed: Make, failpoint: str, delivered: int) -> None:
    run = bed(**RUN, timeouts=QUICK, failpoints={VICTIM: failpoint})
    assert run.until_ended(VICTIM) == -9 and run.fired(VICTIM) == 1
    assert {*map(int, run.finish()["failed"])} == {VICTIM}
    survivors = others(VICTIM)
    with_victim = [peer for peer in survivors if VICTIM in sums(run, peer)[1]]
    assert len(with_victim) == delivered
    for peer in survivors:
        found = sums(run, peer)
        assert found[0] == others(peer)
        assert found[1] == others(*([peer] if peer in with_victim else [peer, VICTIM]))
        assert found[2] == found[3] == others(peer, VICTIM)
        assert run.last_rounds(peer)[ROUNDS - 1].get("sums_lost", 0) == 0


def test_a_restarted_peer_sends_no_model_in_its_round_and_one_in_the_next(bed: Make) -> None:
    run = bed(**RUN | {"rounds": 8}, failpoints={VICTIM: "send.begin=kill@5"})
    assert run.until_ended(VICTIM) == -9 and run.fired(VICTIM) == 1
    run.arm(VICTIM, "")
    run.do("restart", VICTIM)
    assert run.finish()["failed"] == {}
    assert "this peer restarted in this round, and may have sent a model of it before" in run.log(VICTIM)
    for peer in others(VICTIM):
        found = sums(run, peer)
        assert VICTIM not in found[1] and VICTIM in found[7], found
