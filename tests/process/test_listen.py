"""`peer watch graph.json`: what an observer hears becomes a run directory; it reconnects and says what it missed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tools.running import PATIENCE_S, on_loopback
from wire_support import LIMITS, TIMEOUTS, Recorder

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest
from coordinator_free_bootstrap.errors import UsageError
from peer.view.live import listen
from peer.view.live.listen import Listener
from peer.view.report.report import build_report
from peer.view.state.tail import OBSERVED, RunTail
from peer.view.state.view import View
from peer.wire.round_ring import RoundRing
from peer.wire.server import PeerServer

pytestmark = pytest.mark.process


class Told(Recorder):
    """A peer that says how far it is."""

    def __init__(self, *, ring: RoundRing | None = None, incarnation: int = 1) -> None:
        super().__init__(0)
        self.rounds, self.incarnation, self.done, self.phase = ring or RoundRing(), incarnation, 0, "running"
        self.neighbor, self.more, self.accuracy = "alive", {}, 0.5

    def complete(self, *rounds: int) -> None:
        for index in rounds:
            self.accuracy = index / 100
            self.rounds.add(
                {"round_index": index, "metric_value": self.accuracy, "models_sent": 1, "folded": [[1, 1, 0, 0, 0]]}
            )
            self.done = index + 1

    def status(self) -> dict[str, Any]:
        empty: dict[str, Any] = {"waiting_for": [1], "owed_to": [], "neighbor_rounds": {"1": 2}, "silent_s": {"1": 0.5}}
        numbers = {"rounds_total": 100, "waiting_s": 1.0, "unchanged_s": 1.0, "suspicion_s": 5.0, "cluster_index": 0}
        metric = {"name": "accuracy", "higher_is_better": True, "share": True, "value": self.accuracy}
        return {
            **empty, **numbers, "peer_id": 0, "incarnation": self.incarnation, "phase": self.phase, "stage": "exchange",
            "round_index": self.done, "persisted_round": self.done - 1, "neighbors": {"1": self.neighbor}, "metric": metric,
            "totals": {}, "refusals": {}, "storage_error": "",
            **self.more,
        }  # fmt: skip


def graph_of() -> Graph:
    graph = on_loopback(make_graph("ring", 3))
    return replace(graph, manifest=parse_manifest({"rounds": 100}, "test"))


@asynccontextmanager
async def served(peer: Told, graph: Graph) -> AsyncIterator[PeerServer]:
    server = PeerServer(peer, graph.node(0).address, limits=LIMITS, timeouts=TIMEOUTS)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(PATIENCE_S)  # its streams end by themselves, with a last status


@asynccontextmanager
async def listening(graph: Graph, directory: Path) -> AsyncIterator[Listener]:
    listener = Listener(graph, None, directory, interval_s=0.05)
    task = asyncio.create_task(listener.run())
    try:
        yield listener
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def heard(listener: Listener, rounds: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while listener.notes[0].next_round < rounds:
            await asyncio.sleep(0.01)


async def ended(listener: Listener) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not listener.notes[0].ended:
            await asyncio.sleep(0.01)


def run_in(directory: Path) -> RunTail:
    tail = RunTail(directory)
    tail.refresh()
    return tail


def rounds_of(directory: Path) -> list[int]:
    lines = (json.loads(line) for line in (directory / "peer-0" / "history.jsonl").read_text().splitlines())
    return [line["round_index"] for line in lines if line["kind"] == "round"]


def test_a_listener_that_reconnects_misses_nothing_that_the_peer_keeps(tmp_path: Path) -> None:
    async def test() -> None:
        graph, peer = graph_of(), Told()
        peer.complete(0, 1, 2)
        async with served(peer, graph):
            async with listening(graph, tmp_path) as first:
                await heard(first, 3)
            peer.complete(3, 4)
            peer.neighbor = "dead"
            async with listening(graph, tmp_path) as second:
                await heard(second, 5)
                peer.complete(5)
                await heard(second, 6)

    asyncio.run(test())
    assert rounds_of(tmp_path) == list(range(6))
    run = run_in(tmp_path)
    state = run.log.newest(0)
    assert (state.gaps, state.totals.models_sent, state.neighbors) == ((), 6, {1: "dead"})
    row = View(run.log, run.graph).everything()["peers"][0]
    assert (row["status"], row["round"], row["metric"]) == ("running", 6, 0.05)
    assert View(run.log, run.graph).at_round(3)["peers"][0]["metric"] == 0.03


def test_a_listener_says_which_rounds_the_peer_did_not_keep(tmp_path: Path) -> None:
    async def test() -> None:
        graph, peer = graph_of(), Told(ring=RoundRing(size=4))
        peer.complete(0, 1)
        async with served(peer, graph):
            async with listening(graph, tmp_path) as first:
                await heard(first, 2)
            peer.complete(*range(2, 20))
            async with listening(graph, tmp_path) as second:
                await heard(second, 20)

    asyncio.run(test())
    assert rounds_of(tmp_path) == [0, 1, 16, 17, 18, 19]
    assert run_in(tmp_path).log.newest(0).gaps == ((2, 15),)
    assert "peer 0: the observer missed rounds 2 to 15" in build_report(tmp_path).values["notes"]


def test_a_listener_hears_a_restarted_peer_and_the_end_of_its_run(tmp_path: Path) -> None:
    async def test() -> None:
        graph, peer = graph_of(), Told()
        peer.complete(0, 1, 2)
        async with listening(graph, tmp_path) as listener:
            async with served(peer, graph):
                await heard(listener, 3)
            again = Told(ring=RoundRing(2), incarnation=2)  # resumes at its checkpoint of round 1
            again.complete(2, 3)
            async with served(again, graph):
                await heard(listener, 4)
                again.phase = "finished"
            await ended(listener)

    asyncio.run(test())
    assert rounds_of(tmp_path) == [0, 1, 2, 2, 3]
    state = run_in(tmp_path).log.newest(0)
    assert (state.incarnations, state.gaps, state.status) == ((1, 2), (), "completed")
    kinds = [event.kind for _, event in run_in(tmp_path).log.news if event.peer == 0]
    assert kinds.count("start") == 2


@pytest.mark.parametrize(("outcome", "code"), [("diverged", 50), ("refused", 10), ("failed", 30)])
def test_the_ending_and_the_exit_code_are_those_that_the_peer_says(tmp_path: Path, outcome: str, code: int) -> None:
    async def test() -> None:
        graph, peer = graph_of(), Told()
        peer.complete(0, 1)
        async with listening(graph, tmp_path) as listener:
            async with served(peer, graph):
                await heard(listener, 2)
                peer.more = {"outcome": outcome, "exit_code": code}
            await ended(listener)

    asyncio.run(test())
    run = run_in(tmp_path)
    row = View(run.log, run.graph).everything()["peers"][0]
    assert (row["status"], row["exit_code"], row["round"]) == (outcome, code, 2)


def test_a_peer_that_left_is_heard_again_when_it_comes_back(tmp_path: Path) -> None:
    async def test() -> None:
        graph, peer = graph_of(), Told()
        peer.complete(0)
        async with listening(graph, tmp_path) as listener:
            async with served(peer, graph):
                await heard(listener, 1)
                peer.more = {"outcome": "left", "exit_code": 0}
            await ended(listener)
            assert run_in(tmp_path).log.newest(0).status == "left"
            again = Told(ring=RoundRing(1), incarnation=2)
            async with served(again, graph):
                again.complete(1)
                await heard(listener, 2)

    asyncio.run(test())
    state = run_in(tmp_path).log.newest(0)
    assert (state.status, state.incarnations, rounds_of(tmp_path)) == ("running", (1, 2), [0, 1])


def test_clusters_are_written_where_the_peer_tells_them_and_nothing_else_of_its_state(tmp_path: Path) -> None:
    async def test() -> None:
        graph, peer = graph_of(), Told(ring=RoundRing(clusters=True))
        peer.more = {"true_cluster": 1, "routes": {"1": "tunnel"}}
        peer.rounds.add({"round_index": 0, "state": {"mixture": [0.25, 0.75], "weights": [9]}})
        peer.rounds.batch = lambda since, after=-1, own=peer.rounds.batch: told_more(own(since, after))  # type: ignore[method-assign]
        async with served(peer, graph), listening(graph, tmp_path) as listener:
            await heard(listener, 1)

    def told_more(batch: Any) -> Any:
        return replace(
            batch, records=tuple(text.replace('"state":{', '"state":{"weights":[9],') for text in batch.records)
        )

    asyncio.run(test())
    run = run_in(tmp_path)
    found = View(run.log, run.graph).everything()
    row = found["peers"][0]
    assert (row["mixture"], row["true_cluster"]) == ([0.25, 0.75], 1)
    assert "weights" not in (tmp_path / "peer-0" / "history.jsonl").read_text()
    assert {edge["kind"] for edge in found["edges"] if edge["a"] == 0 and edge["b"] == 1} == {"tunnel"}


def test_a_goodbye_after_the_last_round_is_a_completed_run(tmp_path: Path) -> None:
    async def test() -> None:
        graph, peer = graph_of(), Told()
        peer.complete(99)
        peer.phase = "leaving"
        async with listening(graph, tmp_path) as listener:
            async with served(peer, graph):
                await heard(listener, 100)
            await ended(listener)

    asyncio.run(test())
    assert run_in(tmp_path).log.newest(0).status == "completed"


def test_the_reason_of_a_peer_without_an_answer_is_written_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with listening(graph_of(), tmp_path), asyncio.timeout(PATIENCE_S):
            while len((tmp_path / OBSERVED).read_text().splitlines()) < 3:
                await asyncio.sleep(0.01)

    asyncio.run(test())
    lines = [json.loads(line) for line in (tmp_path / OBSERVED).read_text().splitlines()]
    assert sorted((line["peer_id"], line["kind"]) for line in lines) == [(0, "silent"), (1, "silent"), (2, "silent")]
    assert run_in(tmp_path).log.newest(1).status == "silent"


@pytest.mark.parametrize(
    "record",
    [
        "{",
        "[]",
        "{}",
        '{"round_index": -1}',
        '{"round_index": "x"}',
        '{"round_index": 1, "metric_value": "<img>"}',
        '{"round_index": 1, "missing": [[1]]}',
        '{"round_index": 1, "folded": [["<b>"]]}',
        '{"round_index": 1, "time": "yesterday"}',
        '{"round_index": 1, "round_index": 2}',
        " " * (listen.RECORD_CHARACTERS_MAX + 1),
    ],
)
def test_a_wrong_record_is_not_written(tmp_path: Path, record: str) -> None:
    async def test() -> None:
        graph, peer = graph_of(), Told()
        peer.rounds.batch = lambda since, after=-1: replace(RoundRing().batch(0), records=(record,))  # type: ignore[method-assign]
        async with served(peer, graph), listening(graph, tmp_path), asyncio.timeout(PATIENCE_S):
            while "not a valid round record" not in (tmp_path / OBSERVED).read_text():
                await asyncio.sleep(0.01)

    asyncio.run(test())
    assert rounds_of(tmp_path) == []
    assert "not a valid round record" in run_in(tmp_path).log.newest(0).silent


def test_a_folder_of_another_graph_is_not_written_to(tmp_path: Path) -> None:
    asyncio.run(made(graph_of(), tmp_path))
    with pytest.raises(UsageError, match="got the run of another graph"):
        asyncio.run(made(on_loopback(make_graph("ring", 4)), tmp_path))


async def made(graph: Graph, directory: Path) -> None:
    async with listening(graph, directory):
        pass
