"""Goal: a peer of `peer.run` takes the next graph file as one of `peer run --watch-graph`; what cannot follow a file says so.

Method: peers embedded in one event loop, whose file is replaced while they train; programs that join, before and after a change.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_revisions import Federation
from tools.running import PATIENCE_S

import peer
from coordinator_free_bootstrap.errors import GraphError, RemovedError, UsageError

pytestmark = pytest.mark.process
JOINED = "peer.api.joined:Joined"  # the task of a program that joins


async def until(holds: Callable[[], bool], running: Sequence[asyncio.Future[Any]]) -> None:
    """Wait for a condition; a peer that ends before raises its error."""
    while not holds():
        for ended in (task for task in running if task.done()):
            raise AssertionError(f"a peer has ended: {ended}")
        await asyncio.sleep(0.1)


def test_peers_of_a_program_take_the_next_files_and_one_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = Federation(tmp_path, 3, rounds=100_000)
    caplog.set_level(logging.INFO, "peer")

    def starts(*peer_ids: int) -> int:
        return min(len(federation.lines(i, "start")) for i in peer_ids)

    async def more_rounds(running: Sequence[asyncio.Future[Any]]) -> None:
        for i in range(len(running)):
            enough = len(federation.rounds(i)) + 3
            await until(lambda i=i, e=enough: len(federation.rounds(i)) >= e, running)

    async def program() -> list[Any]:
        place, options = str(tmp_path / "graph.json"), {"insecure": True, "watch_graph": True}
        running = [
            asyncio.ensure_future(peer.run_async(i, place, state_dir=tmp_path / f"peer-{i}", **options))
            for i in range(3)
        ]
        await more_rounds(running)
        await asyncio.to_thread(federation.next, "--set", "run.learning_rate=0.02")
        await until(lambda: starts(0, 1, 2) == 2, running)
        await more_rounds(running)
        await asyncio.to_thread(federation.next, "--remove-peer", 2)
        await asyncio.wait(running[2:])
        await until(lambda: starts(0, 1) == 3, running[:2])
        await more_rounds(running[:2])
        for task in running[:2]:
            task.cancel()
        return await asyncio.gather(*running, return_exceptions=True)

    first, second, removed = asyncio.run(asyncio.wait_for(program(), PATIENCE_S))
    assert isinstance(removed, RemovedError), removed
    assert {type(each) for each in (first, second)} == {asyncio.CancelledError}
    for i in (0, 1):
        rounds = federation.rounds(i)
        assert rounds == list(range(len(rounds)))
        assert [bool(line["resumed_from"]) for line in federation.lines(i, "start")] == [False, True, True]


class Sum(peer.Task):
    """A task of a program; the graph file does not name it."""

    classes = 2

    def make_model(self) -> torch.nn.Module:
        return torch.nn.Linear(2, 2)

    def load_shard(self, peer_id: int) -> peer.Shard:
        x = np.random.default_rng(peer_id).normal(size=(30, 2)).astype(np.float32)
        y = (x.sum(1) > 0).astype(np.int64)
        parts = {"train": slice(10), "val": slice(10, 20), "test": slice(20, 30)}
        return peer.Shard(**{f"{part}_{name}": v[at] for part, at in parts.items() for name, v in (("x", x), ("y", y))})


def test_what_cannot_follow_a_file_is_refused_before_it_starts(tmp_path: Path) -> None:
    graph = peer.Graph.make("line", peers=2, run={"rounds": 2})
    graph.save(tmp_path / "graph.json")
    given = {"state_dir": tmp_path / "state", "insecure": True, "watch_graph": True}
    with pytest.raises(UsageError, match=r"watch_graph=: expected a graph file, got a peer.Graph"):
        peer.run(0, graph, **given)
    with pytest.raises(UsageError, match=r"graph=: expected a file that says .*:Sum\", .*got run.task = \"digits\""):
        peer.run(0, tmp_path / "graph.json", Sum(), **given)
    with pytest.raises(UsageError, match=r"watch_graph=: expected a task that loads the data of one peer, got samples"):
        peer.run(0, tmp_path / "graph.json", (np.zeros((40, 2)), np.arange(40) % 2), **given)
    with pytest.raises(GraphError, match=r"nothing\.json"):
        peer.run(0, tmp_path / "nothing.json", **given)
    assert not os.path.exists(tmp_path / "state")


def joined(home: Path, peer_id: int) -> int:
    model = torch.nn.Linear(2, 2)
    torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    options: dict[str, Any] = {"state_dir": home / f"peer-{peer_id}", "insecure": True}
    evaluate = lambda module: 0.5  # noqa: E731
    with peer.join(home / "graph.json", peer_id, model=model, evaluate=evaluate, samples=4, **options) as federation:
        for _ in federation:
            optimizer.zero_grad()
            model(torch.ones(4, 2)).square().mean().backward()
            optimizer.step()
    assert federation.run is not None
    return int(federation.run.metrics["rounds"])


@pytest.mark.parametrize("named", [True, False])
def test_a_program_that_joins_goes_on_with_the_next_file_if_the_first_names_its_task(
    tmp_path: Path, named: bool
) -> None:
    federation = Federation(tmp_path, 2, rounds=2, **({"task": JOINED} if named else {}))

    async def both() -> list[Any]:
        calls = (asyncio.to_thread(joined, tmp_path, i) for i in range(2))
        return await asyncio.gather(*calls, return_exceptions=True)

    assert asyncio.run(both()) == [2, 2]
    federation.next("--rounds", 4)
    found = asyncio.run(both())
    if named:
        assert found == [4, 4]
    else:
        assert [type(each) for each in found] == [UsageError] * 2
        assert f'graph=: expected a file that says run.task = "{JOINED}"' in str(found[0])
