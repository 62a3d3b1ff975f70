"""Goal: honest peers complete their run beside a neighbor that lies in every field, as if it were not there.

Method: real peers over TLS in one process, on a complete graph, with a round deadline that no test outlasts. No invariant is
a time: they are counts and the order of the histories. The liar acts before each round begins, so each lie is told in a
known round, and a lie that was not told fails the test.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.liar import END, FAR, NEAR, PULLS, SILENT, Liar
from tools.sum_liar import ABSENT, HONEST, PARTS, WRONG_SHARES, SumLiar

from coordinator_free_bootstrap import make_graph, parse_manifest
from coordinator_free_bootstrap.graph import Graph, Node
from peer.bed.testbed.ports import free_ports
from peer.core import effects as do
from peer.core import events as ev
from peer.core.constants import DEFAULTS
from peer.core.stages import Stage
from peer.identity.certificates import make_certificate
from peer.identity.files import KeyPair
from peer.identity.pinning import pin
from peer.runtime.assembly import LocalSettings, assemble
from peer.runtime.process import secure_sums
from peer.runtime.world import AsyncioWorld
from peer.store.history import read_history
from peer.wire.limits import WireLimits
from peer.wire.security import MutualTls

pytestmark = pytest.mark.process
PEERS, ROUNDS, NORM_BOUND = 4, 12, 3.0
TEST_S = 240.0  # only a victim that was stopped lasts so long: it would stand until the round deadline
RUN: dict[str, Any] = {
    "rounds": ROUNDS,
    "algorithm": "dfedavg",
    "mix": "uniform",
    "clusters": 1,
    "split": "iid",
    "split_options": {"samples_per_peer": 40, "test_per_peer": 20},
    "model_options": {"hidden": 8},
    "local_epochs": 1,
    "evaluate_every": ROUNDS,
    "screening": {"norm_bound": NORM_BOUND},
    "timeouts": {"suspicion_s": 3.0, "round_deadline_s": 600.0},
}
SUMMED = {key: value for key, value in RUN.items() if key != "screening"} | {"secure_sum": 64.0}


class HonestPeer(AsyncioWorld):
    """A real peer that begins a round when the liar has acted, and keeps the largest counts of what it holds in memory.

    Its clock is that of the event loop, and continues when `skip` says so.
    """

    def __init__(self, liar: Liar, peer_id: int, graph: Graph, pair: KeyPair, directory: Path) -> None:
        tls = MutualTls(graph, peer_id, pair)
        super().__init__(assemble(peer_id, graph, LocalSettings.at(directory), secure_sums(peer_id, graph, tls)), tls)
        self.host.state.constants = replace(DEFAULTS, wait_rounds_behind=3)  # fewer rounds than the liar's claims
        self.largest = {"streams": 0, "buffers": 0, "tasks": 0}
        self.initial_norm = float(np.linalg.norm(self.host.workspace.models.model(0)))
        self._skipped_s = 0.0
        self._liar = liar
        liar.victims[peer_id] = self

    def now(self) -> float:
        return super().now() + self._skipped_s

    def set_timer(self, at: float) -> None:
        super().set_timer(at - self._skipped_s)

    def skip(self, seconds: float) -> None:
        self._skipped_s += seconds
        self.post(ev.Tick())

    async def _working(self, effect: do.Work) -> None:
        if effect.kind == "assign":
            await self._liar.before_round(self.peer_id, effect.round_index)
            held = {
                "streams": len(self.requests._open),
                "buffers": self.host.state.arrivals.buffers(),
                "tasks": len(self._tasks),
            }
            self.largest = {name: max(count, self.largest[name]) for name, count in held.items()}
        await super()._working(effect)


@dataclass
class Run:
    """A run that ended."""

    liar: Liar
    peers: dict[int, HonestPeer]

    def history(self, peer_id: int, kind: str) -> list[dict[str, Any]]:
        lines = read_history(self.peers[peer_id].parts.state_dir.history)
        return [line for line in lines if line["kind"] == kind]


def _run(
    directory: Path,
    plan: list[str],
    *,
    seed: int = 1,
    lets_go: bool = True,
    kind: type[Liar] = Liar,
    peers_total: int = PEERS,
    settings: dict[str, Any] = RUN,
    **options: Any,
) -> Run:
    """Run honest peers and a liar to the end of the honest peers.

    Args:
        directory: of the peers' states.
        plan: the liar's part in each round.
        seed: of the liar.
        lets_go: the liar claims the end of the run when the honest peers have completed it; else a round deadline passes.
        kind: of liar.
        peers_total: with the liar.
        settings: of the run.
        options: of the liar.
    """
    ports = free_ports(peers_total)
    made = [make_certificate("federation", peer_id) for peer_id in range(peers_total)]
    pairs = [KeyPair(private, certificate, certificate.pem()) for private, certificate in made]
    edges = make_graph("complete", peers_total, seed=1).edges
    nodes = tuple(Node(i, f"127.0.0.1:{port}") for i, port in enumerate(ports))
    graph = pin(Graph(nodes, edges, parse_manifest(settings, "liars")), [pair.certificate for pair in pairs])
    liar_id = random.Random(seed).randrange(peers_total)

    async def run() -> Run:
        liar = kind(graph, liar_id, pairs[liar_id], seed=seed, plan=plan, **options)
        peers = {
            p: HonestPeer(liar, p, graph, pairs[p], directory / str(p)) for p in range(peers_total) if p != liar_id
        }
        await liar.start()
        running = [asyncio.create_task(peer.run()) for peer in peers.values()]
        try:
            async with asyncio.timeout(TEST_S):
                while not all(peer.host.engine.stage in (Stage.LINGERING, Stage.STOPPED) for peer in peers.values()):
                    await asyncio.sleep(0.02)
                    for task in running:
                        if task.done():
                            task.result()  # raises what ended a peer
                if lets_go:
                    liar.finish()
                else:
                    stays = [peer.host.engine.stage for peer in peers.values()]
                    assert stays == [Stage.LINGERING] * len(peers), "a peer has not waited for the liar"
                    for peer in peers.values():
                        peer.skip(RUN["timeouts"]["round_deadline_s"])
                assert await asyncio.gather(*running) == ["completed"] * len(peers)
        except TimeoutError:
            places = {p: (str(peer.host.engine.stage), peer.host.engine.round_index) for p, peer in peers.items()}
            pytest.fail(f"a victim was stopped; (stage, round) of each peer: {places}; lies told: {dict(liar.told)}")
        finally:
            for peer in peers.values():
                peer.stop("left")
            await asyncio.gather(*running, return_exceptions=True)
            await liar.stop()
            for peer in peers.values():
                peer.parts.lock.release()
        return Run(liar, peers)

    return asyncio.run(run())


def _check(run: Run) -> None:
    """The invariants of every run with a liar."""
    for p, peer in run.peers.items():
        assert [line["round_index"] for line in run.history(p, "round")] == list(range(ROUNDS)), p
        assert run.history(p, "caught_up") == [], "a peer skipped rounds"
        assert run.history(p, "end")[-1]["rounds_completed"] == ROUNDS
        waits = [line["seconds"]["wait"] for line in run.history(p, "round")]
        assert max(waits) < RUN["timeouts"]["round_deadline_s"], "a round closed at its deadline"
        others = {n for n in run.peers if n != p}
        for line in run.history(p, "round"):
            senders = [sender for sender, *_ in line["folded"]]
            assert others <= set(senders), f"peer {p} closed round {line['round_index']} without an honest neighbor"
            assert len(senders) == len(set(senders)), "a model of one neighbor was folded twice in a round"
        _check_model(peer)
        assert len(peer.requests._open) == 0 == peer.host.state.arrivals.buffers()
        assert peer.largest["streams"] <= WireLimits().streams_per_neighbor * len(peer.host.state.neighbors)
        assert peer.largest["buffers"] <= DEFAULTS.concurrent_receives
        assert peer.largest["tasks"] <= 8 * len(peer.host.state.neighbors), "tasks pile up"


def _check_model(peer: HonestPeer) -> None:
    model, initial = peer.host.workspace.models.model(0), peer.initial_norm
    assert np.isfinite(model).all()
    assert np.linalg.norm(model) <= NORM_BOUND * initial


@pytest.mark.slow
def test_neighbor_far_ahead_whose_pulls_never_end_stops_no_peer(tmp_path: Path) -> None:
    """A round stood until the round deadline: the peer waited for a pull that brings four bytes before each idle limit."""
    run = _run(tmp_path, [NEAR, NEAR] + [FAR] * (ROUNDS - 2), pulls=["trickle"])
    _check(run)
    assert run.liar.told["pull_trickle"] >= len(run.peers)
    assert all(run.liar.asked["PullModel", victim] for victim in run.peers)


def test_neighbor_that_claims_the_end_of_the_run_makes_no_peer_skip_rounds(tmp_path: Path) -> None:
    """A peer skipped to the last round: the round was that of the claim, whatever round the pulled model was of."""
    run = _run(tmp_path, [NEAR, NEAR] + [END] * (ROUNDS - 2), pulls=["other_round"])
    _check(run)
    assert all(run.liar.asked["PullModel", victim] for victim in run.peers)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_neighbor_that_lies_in_every_field_changes_no_round(tmp_path: Path, seed: int) -> None:
    parts = [NEAR, NEAR, NEAR, FAR, FAR, END]
    random.Random(seed).shuffle(parts)
    run = _run(tmp_path, [NEAR, FAR, *parts, SILENT, FAR, END, NEAR], seed=seed, lies=6)
    _check(run)
    liar = run.liar
    untold = (liar.lies | {NEAR, FAR, END, SILENT, "Heartbeat_answer"}) - liar.told.keys()
    assert not untold, f"lies that were not told: {untold}"
    assert sum(liar.told[f"pull_{kind}"] for kind in PULLS) >= len(run.peers)
    for victim in run.peers:
        states = [line["state"] for line in run.history(victim, "neighbor") if line["neighbor"] == liar.peer_id]
        assert "dead" in states, f"peer {victim} did not notice the silence"


def test_neighbor_that_lies_in_sums_reads_none_and_costs_the_others_its_round_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A sum that its members had refused, as one of them had lied, was waited for until its time was over."""
    caplog.set_level(logging.INFO, "peer")
    run = _run(tmp_path, [NEAR], kind=SumLiar, peers_total=5, settings=SUMMED)
    _check(run)
    liar = run.liar
    assert isinstance(liar, SumLiar)
    roster_lies = {"forged key", "forged announcement", "replayed roster"}
    untold = (
        {*PARTS, *roster_lies, "two sets", "wrong share", "too few tags", "wrong tag"} - {HONEST} - liar.told.keys()
    )
    assert not untold, f"lies that were not told: {untold}"
    assert liar.believed == [] == liar.revealed
    for p, peer in run.peers.items():
        others = {*run.peers} - {p}
        lost = 0
        for line in run.history(p, "round"):
            summed, part = {*line["summed"]}, PARTS[line["round_index"] % len(PARTS)]
            expected = {HONEST: [others | {liar.peer_id}], ABSENT: [others], WRONG_SHARES: [set()]}
            assert summed in expected.get(part, [set(), others | {liar.peer_id}]), (line["round_index"], part)
            lost += not summed
        assert peer.host.state.totals["sums_lost"] == lost > 0
        refused = {line["code"] for line in run.history(p, "refused") if line["neighbor"] == liar.peer_id}
        assert refused == {"identity_mismatch", "malformed", "contradicts_selection"}, "each kind of lie is on record"
    said = caplog.text
    assert "no sum, this peer keeps its own model" in said and "did not answer in time" not in said
    assert f"a share that peer {liar.peer_id} has not sealed for this sum" in said, "who has lied is named"


def test_peer_stays_one_round_deadline_at_most_for_neighbor_that_never_finishes(tmp_path: Path) -> None:
    """A peer that had completed its run stayed as long as a live neighbor claimed to be in an earlier round."""
    run = _run(tmp_path, [NEAR], lets_go=False)
    _check(run)
