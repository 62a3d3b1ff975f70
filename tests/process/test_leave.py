"""Goal: SIGTERM makes a peer leave in every stage: exit code 0, `left` and no suspicion at its neighbors; it can resume."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tools import invariants
from tools.beds import Bed
from tools.histories import lines_of
from tools.running import PATIENCE_S, behind_nat, on_loopback, running_peer, until

from coordinator_free_bootstrap import make_graph, parse_manifest, save_graph
from peer.core import events as ev
from peer.core.stages import Stage
from peer.runtime.assembly import LocalSettings, assemble
from peer.runtime.signals import Signals
from peer.runtime.world import AsyncioWorld

pytestmark = pytest.mark.process

Make = Callable[..., Bed]
POINTS = ("hello.end", "send.frame")
HUB = {
    "rounds": 20,
    "algorithm": "dfedavg",
    "model_options": {"hidden": 16},
    "timeouts": {"suspicion_s": 60.0, "round_deadline_s": 120.0},
}
SLOW = (
    "train.begin",
    "train.step",
    "train.end",
    "fold.begin",
    "persist.arrays",
    "close.begin",
    "close.end",
    "persist.end",
)


@pytest.mark.parametrize("point", [*POINTS, *(pytest.param(point, marks=pytest.mark.slow) for point in SLOW)])
def test_peer_that_leaves_at_any_point_of_a_round_is_marked_left_and_resumes(bed: Make, point: str) -> None:
    when = 1 if point == "hello.end" else 6
    run = bed(rounds=20, failpoints={1: f"{point}=leave@{when}"}, goodbye_s=60.0)
    assert run.until_ended(1) == 0
    assert run.fired(1) == 1, "the failpoint did not fire"
    assert run.summary(1)["status"] == "left"
    assert run.history(1)[-1]["kind"] == "leave"
    run.arm(1, "")
    run.do("restart", 1)
    run.finish()  # if its neighbors complete before it has caught up, it waits one suspicion time (60 s) for them
    for neighbor in run.graph.neighbors(1):
        assert not run.saw(neighbor, 1, "dead")
        if point != "hello.end":  # before the handshake is done there is no neighbor to notify
            assert run.saw(neighbor, 1, "left") and not run.saw(neighbor, 1, "suspect")
    invariants.completed(run)
    invariants.check(run)


@pytest.mark.slow
@pytest.mark.parametrize("action", ["leave", "kill"])
@pytest.mark.parametrize("who", [0, 1], ids=["hub", "leaf behind a firewall"])
def test_restart_of_a_peer_with_tunnels_and_limits_costs_no_round(bed: Make, who: int, action: str) -> None:
    """TLS, a leaf that only dials, and upload limits; the suspicion time is far longer than the restart takes."""
    graph = behind_nat(make_graph("star", 4, manifest=parse_manifest(HUB, "test")), 1)
    graph = replace(graph, nodes=tuple(replace(node, upload_limit=400_000) for node in graph.nodes))
    run = bed(graph=graph, insecure=False, failpoints={who: f"train.begin={action}@6"}, goodbye_s=60.0)
    assert run.until_ended(who) == (0 if action == "leave" else -9)
    run.arm(who, "")
    run.do("restart", who)
    assert not any(run.finish()["exit_codes"].values())
    invariants.completed(run)
    for peer_id in run.graph.ids:
        rounds = run.last_rounds(peer_id).values()
        assert len(rounds) == HUB["rounds"] and not any(line["rounds_alone"] or line["missing"] for line in rounds)


def test_all_peers_leave_at_once_and_resume(bed: Make) -> None:
    run = bed(rounds=8, failpoints={1: "train.begin=pause@4"})
    run.until_round(3)
    run.until(lambda: run.fired(1), "peer 1 pauses, and the others wait for it")
    run.arm(1, "")
    assert run.do("leave", *run.graph.ids) == "done"
    run.do("continue", 1)
    run.finish()
    assert {run.summary(p)["status"] for p in run.graph.ids} == {"left"}
    run.start()
    run.finish()
    invariants.completed(run)
    invariants.check(run)


@pytest.mark.slow
def test_peer_that_leaves_between_checkpoints_loses_no_round(bed: Make) -> None:
    run = bed(rounds=30, checkpoint_rounds=0, failpoints={1: "train.begin=leave@8"})
    assert run.until_ended(1) == 0
    assert run.fired(1) and run.summary(1)["status"] == "left"
    left_at = run.summary(1)["rounds_completed"]
    run.arm(1, "")
    run.do("restart", 1)
    run.finish()
    assert left_at >= 7 and run.history(1, "start")[-1]["resumed_from"] == left_at
    invariants.completed(run)


@pytest.mark.slow
def test_peer_leaves_while_it_waits_for_a_silent_neighbor(bed: Make) -> None:
    """The suspicion time is longer than this test waits for the end of the peer."""
    timeouts = {"suspicion_s": 3 * PATIENCE_S, "round_deadline_s": 6 * PATIENCE_S}
    run = bed(rounds=12, proxy=True, timeouts=timeouts, failpoints={2: "train.begin=pause@3"})
    run.until(lambda: run.fired(2), "peer 2 pauses")
    run.do("leave", 1)
    assert run.until_ended(1) == 0
    assert run.summary(1)["status"] == "left"
    run.do("continue", 2)
    run.do("restart", 1)
    run.finish()
    invariants.completed(run)


@pytest.mark.slow
def test_peer_leaves_while_it_catches_up(bed: Make) -> None:
    failpoints = {1: "train.begin=kill@3"}
    run = bed(rounds=100_000, kind="complete", peers=5, timeouts={"suspicion_s": 2.0}, failpoints=failpoints)
    run.until_ended(1)
    run.until_round(20, 0)
    run.arm(1, "")
    run.do("restart", 1)
    run.until(lambda: "catching up" in run.log(1) or run.history(1, "caught_up"), "peer 1 catches up")
    run.do("leave", 1)
    assert run.until_ended(1) == 0


def test_second_signal_stops_a_peer_whose_work_does_not_end(tmp_path: Path, signals: Signals) -> None:
    manifest = parse_manifest({"start": {"wait_for": "deadline", "deadline_s": 0.01}}, "test")
    parts = assemble(
        0, make_graph("ring", 3, manifest=manifest), LocalSettings.at(tmp_path, listen="127.0.0.1:0", insecure=True)
    )
    world = AsyncioWorld(parts)

    async def run() -> str:
        working, asked = asyncio.Event(), asyncio.Event()
        world.work = lambda _effect: working.set()  # type: ignore[method-assign]
        post = world.host.post

        def watched(event: ev.Event) -> None:
            post(event)
            if isinstance(event, ev.LeaveRequested):
                asked.set()

        world.host.post = watched  # type: ignore[method-assign]
        signals.tell = world.on_signal
        async with asyncio.timeout(30):
            with signals.in_loop():
                running = asyncio.create_task(world.run())
                await working.wait()
                os.kill(os.getpid(), signal.SIGTERM)
                await asked.wait()
                assert not running.done() and world.host.engine.stage is Stage.ASSIGNING
                os.kill(os.getpid(), signal.SIGTERM)
                return await running

    assert asyncio.run(run()) == "left"
    parts.lock.release()


HANGS = """
import threading
from pathlib import Path

import torch

import peer


class Hangs(peer.Task):
    kind = "regression"

    def make_model(self):
        return torch.nn.Linear(1, 1)

    def load_data(self, peer_id):
        return torch.ones(4, 1)

    def count(self, data):
        return len(data)

    def evaluate(self, model, data):
        return {"mse": 1.0}

    def train(self, model, data, budget):
        if budget.round:
            Path(__file__).with_name("hangs").touch()
            threading.Event().wait()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(data).mean().backward()
        optimizer.step()


task = Hangs()
"""


def test_second_signal_ends_a_process_whose_task_never_returns(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(HANGS)
    run = {"task": f"{tmp_path / 'own.py'}:task", "algorithm": "local", "start": {"deadline_s": 0.1}}
    save_graph(on_loopback(make_graph("line", 2, manifest=parse_manifest(run, "test"))), tmp_path / "graph.json")
    with running_peer(0, tmp_path, "--insecure") as process:
        log = tmp_path / "0.log"
        until((tmp_path / "hangs").exists, "the task hangs")
        process.terminate()
        until(lambda: "asked to stop: telling" in log.read_text(), "the first signal is answered")
        process.terminate()
        assert process.wait(PATIENCE_S) == 0, log.read_text()
    assert lines_of(tmp_path / "peer-0" / "history.jsonl", "leave")
    assert json.loads((tmp_path / "peer-0" / "summary.json").read_text())["status"] == "left"


def test_testbed_resumes_after_all_peers_were_killed(bed: Make) -> None:
    run = bed(rounds=10, failpoints={1: "train.begin=pause@5"})
    run.until_round(4)
    run.until(lambda: run.fired(1), "peer 1 pauses, and the others wait for it")
    run.arm(1, "")
    for pid in run.state()["processes"].values():
        os.kill(pid, signal.SIGKILL)
    run.finish()
    run.start()
    run.finish()
    assert all(run.history(p, "start")[-1]["resumed_from"] >= 3 for p in run.graph.ids)
    invariants.completed(run)
    invariants.check(run)
