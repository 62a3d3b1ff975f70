"""Goal: the owner of a device decides. A peer whose policy refuses a run says so and connects to nobody; its neighbors go on.

Method: real peers. The bytes of a day are counted on a clock that the test moves.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tools.histories import lines_of
from tools.running import PATIENCE_S, ends, on_loopback, running_peer
from tools.warm_parent import executed
from torch import nn

import peer
from coordinator_free_bootstrap import Graph, make_graph, parse_manifest, save_graph, user_file
from coordinator_free_bootstrap.errors import PolicyError
from peer.runtime.assembly import LocalSettings
from peer.runtime.day_quota import DayQuota
from peer.runtime.process import opened
from peer.runtime.schedule import Schedule
from peer.runtime.windows import run_in_windows
from peer.store.history import read_history
from peer.store.state_dir import StateDir

pytestmark = pytest.mark.process

STRICT = 1
RUN: dict[str, Any] = {"algorithm": "dfedavg", "rounds": 6, "model_options": {"hidden": 16}}
TASK = """
import numpy as np
from torch import nn
from peer.tasks import Shard, Task

open("executed", "a").write("x")

class Own(Task):
    classes = 2

    def make_model(self):
        return nn.Linear(3, 2)

    def load_shard(self, peer_id):
        x = np.random.default_rng(peer_id).normal(size=(30, 3)).astype(np.float32)
        y = (x[:, 0] > 0).astype(int)
        return Shard(train_x=x[:20], train_y=y[:20], test_x=x[20:], test_y=y[20:])
"""


@pytest.fixture(autouse=True)
def _no_policy_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_file, "approvals", [])


def graph_of(kind: str, peers: int, **run: Any) -> Graph:
    return on_loopback(make_graph(kind, peers, manifest=parse_manifest({**RUN, **run}, "test")))


def lines(folder: Path, peer_id: int, kind: str) -> list[dict[str, Any]]:
    return lines_of(StateDir.of_peer(folder, peer_id).history, kind)


def test_a_refused_run_ends_with_a_sentence_before_any_connection_and_the_neighbors_go_on(tmp_path: Path) -> None:
    save_graph(graph_of("complete", 3, start={"wait_for": "deadline", "deadline_s": 3.0}), tmp_path / "graph.json")
    policy = tmp_path / "policy.toml"
    policy.write_text("# site 1\nepsilon_max = 3.0\nplaintext = true\n")
    logs = {i: tmp_path / f"{i}.log" for i in range(3)}
    with ExitStack() as stack:
        options = {STRICT: ("--policy", policy)}
        peers = {
            i: stack.enter_context(running_peer(i, tmp_path, "--insecure", *options.get(i, ()))) for i in (STRICT, 0, 2)
        }
        assert peers[STRICT].wait(PATIENCE_S) == 14, ends(logs.values())
        assert [peers[i].wait(PATIENCE_S) for i in (0, 2)] == [0, 0], ends(logs.values())
    said = logs[STRICT].read_text()
    sentence = (
        f"{policy}, line 2, epsilon_max: expected run.privacy.epsilon_max or target_epsilon of at most 3, got none. "
        "The owner of this device decides: ask for another graph file, or change the policy."
    )
    assert said.count(sentence) == 1 and "Traceback" not in said
    audit = [json.loads(line) for line in StateDir.of_peer(tmp_path, STRICT).audit.read_text().splitlines()]
    assert [(line["kind"], line["reason"]) for line in audit] == [("policy", sentence)]
    assert not StateDir.of_peer(tmp_path, STRICT).checkpoints.exists()
    for other in (0, 2):
        (start,), rounds = lines(tmp_path, other, "start"), lines(tmp_path, other, "round")
        assert (
            start
            and len(rounds) == RUN["rounds"]
            and all([row[0] for row in line["folded"]] == [2 - other] for line in rounds)
        )
        met = {line["neighbor"]: line["state"] for line in lines(tmp_path, other, "neighbor")}
        assert met.get(STRICT, "unknown") in ("unknown", "dead"), "it has said nothing"


def test_an_approved_task_runs_and_a_changed_one_is_not_executed(tmp_path: Path) -> None:
    save_graph(
        graph_of(
            "line", 2, task="own.py:Own", rounds=1, model_options={}, start={"wait_for": "deadline", "deadline_s": 0.1}
        ),
        tmp_path / "graph.json",
    )
    (tmp_path / "own.py").write_text(TASK)
    (tmp_path / "policy.toml").write_text("plaintext = true\n")
    trace = tmp_path / "executed"

    def run(code: int) -> str:
        words = (
            "run",
            "--id",
            "0",
            "--neighbors",
            "graph.json",
            "--insecure",
            "--policy",
            "policy.toml",
            "--discard-state",
        )
        done = executed(*words, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return done.stderr

    assert "no approved: expected run.task to be an approved file, got own.py with SHA-256" in run(14)
    assert not trace.exists()
    assert executed("policy", "approve", "own.py", "--by", "Ada", cwd=tmp_path).returncode == 0
    assert "policy.toml allows this run" in run(51), "alone, but it ran"
    assert trace.read_text()
    trace.unlink()
    (tmp_path / "own.py").write_text(TASK + "# changed\n")
    assert "expected run.task to be an approved file" in run(14)
    assert not trace.exists()


def test_python_programs_are_bound_by_the_policy_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(TASK + "\nfrom peer import Algorithm\nclass Mine(Algorithm):\n    name = 'mine'\n")
    (tmp_path / "policy.toml").write_text("plaintext = true\n")
    graph = peer.Graph.of(graph_of("line", 2, model_options={}))
    for given in ({"task": "own.py:Own"}, {"algorithm": "own.py:Mine"}):
        with pytest.raises(PolicyError, match="to be an approved file"):
            peer.run(0, graph, **given, state_dir=tmp_path / "0", insecure=True, policy=tmp_path / "policy.toml")  # type: ignore[arg-type]
    monkeypatch.setattr(user_file, "approvals", [])  # as in another program
    joins: dict[str, Any] = {"model": nn.Linear(3, 2), "evaluate": lambda model: 0.0, "samples": 3}
    with pytest.raises(PolicyError, match="to be an approved file"):
        peer.join(graph, 0, **joins, algorithm="own.py:Mine", state_dir=tmp_path / "0", policy=tmp_path / "policy.toml")
    assert not (tmp_path / "executed").exists()


def test_bytes_of_a_day_make_a_peer_wait_for_the_next_day(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each day has room for two rounds and a half; the neighbor waits for its only neighbor meanwhile."""
    caplog.set_level("INFO", "peer")
    graph = graph_of("line", 2, start={"wait_for": "never_alone"})
    now = datetime(2026, 1, 10, 12, tzinfo=UTC)
    homes = [StateDir.of_peer(tmp_path, i) for i in (0, 1)]
    settings = LocalSettings.at(homes[0].root, insecure=True)
    world = opened(0, graph, settings)
    world.parts.lock.release()
    most = int(2.5 * world.host.state.model_bytes)
    quota = DayQuota(most, "policy.toml, line 1, bytes_a_day", homes[0].history)

    async def run() -> tuple[str, str]:
        nonlocal now
        tomorrow = asyncio.Event()

        async def pause(_seconds: float) -> None:  # so only the end of a round can close the day
            await tomorrow.wait()
            tomorrow.clear()

        async def ready() -> Any:
            return await asyncio.to_thread(opened, 0, graph, settings)

        schedule = Schedule(quota=quota, clock=lambda: now, pause=pause)
        limited = asyncio.ensure_future(run_in_windows(ready, schedule))
        other = asyncio.ensure_future(peer.run_async(1, peer.Graph.of(graph), state_dir=homes[1].root, insecure=True))
        nights = 0
        while not limited.done():
            if caplog.text.count("bytes_a_day): waiting") > nights:
                nights += 1
                now += timedelta(days=1)
                tomorrow.set()
            await asyncio.sleep(0.01)
        return await limited, str((await other).metrics["state"])

    assert asyncio.run(run()) == ("completed", "complete")
    days = list(quota.sent.values())
    assert len(days) >= 3 and all(0 < sent <= most for sent in days), "the limit was reached, and never passed"
    counted = [line for line in read_history(homes[0].history) if "wire_bytes_sent" in line]
    assert sum(days) == sum(line["wire_bytes_sent"] for line in counted)
    assert {line["round_index"] for line in counted if line["kind"] == "round"} == {*range(RUN["rounds"])}
    assert "leaving until it may work again" in caplog.text
