"""Goal: the Python API runs real peers as the command line does: same models, same errors, faults on request.

Method: testbeds of a few rounds from this process, whose threads forbid a fork; peers embedded in one event loop.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.histories import lines_of

import peer
from coordinator_free_bootstrap.errors import ConfigError, RunFailed, StorageError, TaskError, UsageError
from peer.bed.testbed.ports import on_free_ports
from peer.cli.run import run as peer_run
from peer.runtime import schedule, world
from peer.runtime.local_options import IN_FILE, LocalOptions
from peer.wire.server import PeerServer

pytestmark = pytest.mark.process
START = {"deadline_s": 20.0}
LONG = {"suspicion_s": 60.0}  # a peer marked dead by mistake would change the bits


def graph_of(kind: str = "ring", peers: int = 4, **run: object) -> peer.Graph:
    return peer.Graph.make(kind, peers=peers, run={"rounds": 6, "start": START, **run})


def same_models(left: peer.Run, right: peer.Run, *peer_ids: int) -> None:
    for peer_id in peer_ids or left.models:
        assert left.models[peer_id] and left.models[peer_id].keys() == right.models[peer_id].keys()
        for name, tensors in left.models[peer_id].items():
            assert all(np.array_equal(tensors[key], right.models[peer_id][name][key]) for key in tensors)


def test_a_testbed_gives_the_models_of_the_simulation_and_its_rounds_to_a_tracker(tmp_path: Path) -> None:
    graph = graph_of(start={"wait_for": "all"}, timeouts=LONG)
    tracked = tmp_path / "bed.csv"
    with peer.Testbed(graph, out=tmp_path / "bed", progress=False, export=f"csv:{tracked}") as bed:
        done = bed.wait()
    assert done.metrics["rounds"] == 6 and done.metrics["state"] == "complete"
    assert len(done.frame()) == 24
    assert len(tracked.read_text().splitlines()) == 1 + 24
    same_models(done, peer.simulate(graph, progress=False))


@pytest.mark.slow
def test_a_killed_peer_restarts_and_completes_the_run(tmp_path: Path) -> None:
    with peer.Testbed(graph_of(rounds=40), out=tmp_path / "bed", insecure=True) as bed:
        bed.kill(3)
        bed.restart(3)
        done = bed.wait()
    events = [json.loads(line)["do"] for line in (tmp_path / "bed" / "chaos.jsonl").read_text().splitlines()]
    assert events == ["kill", "restart"]
    assert done.metrics["rounds"] == 40 and done.metrics["state"] == "complete"


@pytest.mark.slow
def test_a_cut_edge_needs_proxies_and_is_recorded(tmp_path: Path) -> None:
    with (
        peer.Testbed(graph_of(rounds=40), out=tmp_path / "plain", insecure=True, progress=False) as bed,
        pytest.raises(UsageError, match="proxy"),
    ):
        bed.cut((0, 1))
    with peer.Testbed(graph_of(rounds=40), out=tmp_path / "bed", insecure=True, proxy=True, progress=False) as bed:
        bed.cut((0, 1))
        bed.heal()
        done = bed.wait()
    events = [json.loads(line)["text"] for line in (tmp_path / "bed" / "chaos.jsonl").read_text().splitlines()]
    assert events == ["cut 0-1", "heal"]
    assert done.metrics["state"] == "complete"


@pytest.mark.slow
def test_a_testbed_says_where_its_peers_are_and_that_it_is_over(tmp_path: Path) -> None:
    graph = graph_of(peers=2, kind="line", rounds=60)
    bed = peer.Testbed(graph, out=tmp_path / "bed", insecure=True, progress=False)
    assert "not started, 2 peers, 0 of 60 rounds" in repr(bed)
    with pytest.raises(UsageError, match="expected running peers, got none"):
        bed.status()
    with bed:
        states = bed.wait_round(3)
        assert states.keys() == {0, 1} and min(state.rounds_completed for state in states.values()) >= 3
        with pytest.raises(UsageError, match="expected 0 to 60, the rounds of the run, got 61"):
            bed.wait_round(61)
        bed.wait_round(60)
        bed.wait()
        for fault in (lambda: bed.kill(0), lambda: bed.restart(0), lambda: bed.cut((0, 1)), bed.heal):
            with pytest.raises(UsageError, match="got one that is over: every peer has ended"):
                fault()
    assert {state.status for state in bed.status().values()} == {"completed"}
    assert "complete, 2 peers, 60 of 60 rounds" in repr(bed)
    assert bed.wait_round(60).keys() == {0, 1}


@pytest.mark.slow
def test_a_round_that_cannot_come_is_not_waited_for(tmp_path: Path) -> None:
    graph = graph_of(peers=2, kind="line", rounds=100_000)
    with peer.Testbed(graph, out=tmp_path / "bed", insecure=True, progress=False) as bed:
        bed.wait_round(2)
        bed.kill(0, 1)
        with pytest.raises(RunFailed, match=r"not all have completed 90000 rounds: peer 0 dead after \d+, peer 1 dead"):
            bed.wait_round(90_000)
        assert "2 peers" in repr(bed) and {state.status for state in bed.status().values()} == {"dead"}


@pytest.mark.slow
def test_the_end_of_the_block_stops_the_peers_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    graph = graph_of(peers=2, kind="line", rounds=300)
    with peer.Testbed(graph, out=tmp_path / "bed", insecure=True) as bed:
        pass
    with pytest.raises(UsageError, match="expected running peers, got none"):
        bed.wait()
    with pytest.raises(UsageError, match=r"got another run: run.rounds was|peers were") as caught:  # noqa: SIM117
        with peer.Testbed(graph_of(rounds=2), out=written(tmp_path / "bed", graph), insecure=True):
            pass
    assert "Add fresh=" in str(caught.value)


def written(directory: Path, graph: peer.Graph) -> Path:
    """Return a directory that has an earlier run: a peer has written a line of history."""
    graph.save(directory / "graph.json")
    (directory / "peer-0").mkdir(exist_ok=True)
    (directory / "peer-0" / "history.jsonl").write_text('{"kind":"start"}\n')
    return directory


@pytest.mark.slow
def test_an_error_of_the_task_is_raised_here_with_the_class_and_the_trace(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from torch import nn\nfrom peer.tasks import Task\n\n\nclass Broken(Task):\n    classes = 2\n\n"
        "    def make_model(self):\n        return nn.Linear(2, 2)\n\n"
        "    def load_shard(self, peer_id):\n        raise KeyError('shard 7')\n\n\ntask = Broken()\n"
    )
    with pytest.raises(TaskError, match="shard 7") as caught:
        peer.Testbed(graph_of(), f"{tmp_path / 'broken.py'}:task", out=tmp_path / "bed").start()
    assert any("load_shard" in note for note in caught.value.__notes__)
    with pytest.raises(TaskError, match="peers of a testbed are other processes"):
        peer.Testbed(graph_of(), object())  # type: ignore[arg-type]


def test_a_failed_peer_is_named(tmp_path: Path) -> None:
    with (
        peer.Testbed(graph_of(learning_rate=1e30), out=tmp_path / "bed", insecure=True, progress=False) as bed,
        pytest.raises(RunFailed, match=r"failed with exit code 50: .*; see .*peer.log"),
        pytest.warns(RuntimeWarning, match=r"failed with exit code 50: .*; see .*peer.log") as told,
    ):
        bed.wait()
    assert len(told) == len({str(each.message) for each in told}) > 0  # each as soon as it fails, and once


def test_peers_that_would_wait_for_one_that_cannot_start_are_stopped(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import torch, peer\nfrom peer.tasks import Task\n\n\nclass Own(Task):\n    classes = 2\n\n"
        "    def make_model(self):\n        return torch.nn.Linear(2, 2)\n\n    def load_shard(self, peer_id):\n"
        "        if peer_id == 2:\n            raise FileNotFoundError('peer-2.csv')\n"
        "        x, y = torch.randn(40, 2), torch.arange(40) % 2\n"
        "        return peer.Shard(train_x=x[:30], train_y=y[:30], test_x=x[30:], test_y=y[30:])\n\n\ntask = Own()\n"
    )
    graph = graph_of(start={"deadline_s": 600.0})
    with (
        peer.Testbed(graph, f"{tmp_path / 'own.py'}:task", out=tmp_path / "bed", insecure=True, progress=False) as bed,
        pytest.raises(RunFailed, match=r"peer 2 failed with exit code 12: .*peer-2\.csv"),
        pytest.warns(RuntimeWarning, match="peer 2") as told,
    ):
        bed.wait()
    assert "peer 2 cannot start" in str(
        told[-1].message
    ) and "to run without it, set on_start_failure= to continue" in str(told[-1].message)
    with pytest.raises(UsageError, match="on_start_failure=: expected stop or continue, got 'wait'"):
        peer.Testbed(graph, out=tmp_path / "other", on_start_failure="wait", progress=False).start()  # type: ignore[arg-type]


def test_peers_in_one_event_loop_give_the_models_of_the_simulation(tmp_path: Path) -> None:
    graph = peer.Graph.of(on_free_ports(graph_of(peers=3, rounds=4, start={"wait_for": "all"}, timeouts=LONG)))

    async def all_peers() -> list[peer.Run]:
        return await asyncio.gather(
            *(peer.run_async(i, graph, state_dir=tmp_path / f"peer-{i}", insecure=True) for i in graph.ids)
        )

    runs = asyncio.run(all_peers())
    assert [run.metrics["rounds"] for run in runs] == [4, 4, 4]
    simulated = peer.simulate(graph, progress=False)
    for peer_id, run in enumerate(runs):
        same_models(run, simulated, peer_id)


def test_a_cancelled_peer_leaves_and_resumes(tmp_path: Path) -> None:
    start = {"wait_for": "deadline", "deadline_s": 0.1}
    graph = peer.Graph.of(on_free_ports(graph_of("line", 2, rounds=100_000, start=start)))
    place = tmp_path / "peer-0"

    async def cancelled(after: int) -> None:
        running = asyncio.ensure_future(peer.run_async(0, graph, state_dir=place, insecure=True))
        while len(lines_of(place / "history.jsonl", "round")) < after:
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled(1))
    assert len(lines_of(place / "history.jsonl", "leave")) == 1
    assert json.loads((place / "summary.json").read_text())["status"] == "left"
    asyncio.run(cancelled(len(lines_of(place / "history.jsonl", "round")) + 1))
    starts = [line["resumed_from"] for line in lines_of(place / "history.jsonl", "start")]
    assert starts[0] is None and starts[1] >= 1 and len(lines_of(place / "history.jsonl", "leave")) == 2


def test_run_raises_what_peer_run_would_print(tmp_path: Path) -> None:
    graph = peer.Graph.of(on_free_ports(graph_of("line", 2)))
    with pytest.raises(UsageError, match=r"stat_dir=: expected an option of peer.run, got .*did you mean state_dir"):
        peer.run(0, graph, stat_dir=tmp_path)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match=r"^device=: expected auto, cpu, .*, got 'tpu'"):
        peer.run(0, graph, state_dir=tmp_path, device="tpu", insecure=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        peer.run(0, graph, state_dir=tmp_path / "file" / "x", insecure=True)


def test_options_of_run_are_those_of_the_command_line() -> None:
    local = signature(peer_run).parameters.keys() - {
        "context",
        "peer_id",
        "neighbors",
        "options_file",
        "watch_graph",
        "owner",
    }
    assert set(LocalOptions.__annotations__) == local | set(IN_FILE)
    with pytest.raises(UsageError, match=r"^certs=: expected no value .*the peer runs in plaintext"):
        peer.run(0, graph_of("line", 2), insecure=True, certs="certs")
    with pytest.raises(UsageError, match=r"^export=: expected .*, got 'x'"):
        peer.run(0, graph_of("line", 2), insecure=True, export="x")


def alone(tmp_path: Path, **run: Any) -> tuple[peer.Graph, Path]:
    """Return a graph of two peers of which one may run alone, and its state directory."""
    start = {"wait_for": "deadline", "deadline_s": 0.1}
    return peer.Graph.of(on_free_ports(graph_of("line", 2, start=start, **run))), tmp_path / "peer-0"


async def until_true(check: Callable[[], bool]) -> None:
    while not check():
        await asyncio.sleep(0.01)


def test_a_peer_with_a_schedule_works_in_its_windows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schedule, "CHECK_S", 0.05)
    caplog.set_level("INFO", "peer")
    graph, place = alone(tmp_path, rounds=100_000)
    window = tmp_path / "window"

    async def windows() -> None:
        running = asyncio.ensure_future(
            peer.run_async(0, graph, state_dir=place, insecure=True, when=f"test -e {window}")
        )
        await until_true(lambda: "says no: waiting" in caplog.text)
        assert not lines_of(place / "history.jsonl", "start")
        window.touch()
        await until_true(lambda: bool(lines_of(place / "history.jsonl", "round")))
        window.unlink()
        await until_true(lambda: bool(lines_of(place / "history.jsonl", "leave")))
        window.touch()
        await until_true(lambda: len(lines_of(place / "history.jsonl", "start")) == 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(windows())
    assert lines_of(place / "history.jsonl", "start")[1]["resumed_from"] >= 1


def test_a_peer_that_stays_returns_when_it_is_cancelled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "peer")
    graph, place = alone(tmp_path, rounds=2)

    async def stayed(**options: Any) -> peer.Run:
        caplog.clear()
        running = asyncio.ensure_future(peer.run_async(0, graph, state_dir=place, insecure=True, **options))
        await until_true(lambda: "waiting for Ctrl-C" in caplog.text)
        assert not running.done()
        running.cancel()
        return await running

    assert asyncio.run(stayed(stay="completed")).metrics["rounds"] == 2
    with pytest.raises(ConfigError, match=r"^device=: expected .*, got 'cuda:900'"):
        asyncio.run(stayed(stay="error", device="cuda:900"))
    assert "stopped by an error" in caplog.text
    with pytest.raises(UsageError, match="stay=: expected never, completed or error, got 'always'"):
        peer.run(0, graph, state_dir=place, stay="always")  # type: ignore[arg-type]


@pytest.mark.slow
def test_log_lines_are_written_where_the_caller_asks_for_them(tmp_path: Path) -> None:
    graph, place = alone(tmp_path, rounds=1)
    graph.save(tmp_path / "graph.json")
    program = (
        "import peer, sys; g = peer.Graph.load(sys.argv[1]); peer.run(0, g, state_dir=sys.argv[2], insecure=True); "
        "print('with log_format', file=sys.stderr); "
        "peer.run(0, g, state_dir=sys.argv[2] + '-logged', insecure=True, log='json')"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "graph.json"), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    without, logged = done.stderr.split("with log_format\n")
    assert "{" not in without
    levels = [json.loads(line)["level"].lower() for line in logged.splitlines() if line.startswith("{")]
    assert "info" in levels


def test_a_tracker_gets_the_rounds_of_a_peer(tmp_path: Path) -> None:
    graph, place = alone(tmp_path, rounds=3)
    peer.run(0, graph, state_dir=place, insecure=True, export=f"csv:{tmp_path / 'peer.csv'}")
    assert len((tmp_path / "peer.csv").read_text().splitlines()) == 1 + 3


def test_run_in_a_running_loop_names_the_asyncio_form(tmp_path: Path) -> None:
    async def blocking() -> None:
        peer.run(0, graph_of("line", 2), state_dir=tmp_path)

    with pytest.raises(UsageError, match=r"await peer\.run_async"):
        asyncio.run(blocking())


STARTED = """
import sys
from pathlib import Path

from peer import Graph
from peer.bed.testbed.ports import on_free_ports
from peer.bed.testbed.testbed import Supervisor
from peer.bed.testbed.warm_up import warm_up

if __name__ == "__main__":
    graph = on_free_ports(Graph.load(sys.argv[1]))
    warm_up(graph, None)
    bed = Supervisor(graph, Path(sys.argv[2]), insecure=True, start_method="spawn")
    bed.start()
    print(bed.run())
"""


@pytest.mark.slow
def test_started_peers_as_on_macos_give_the_models_of_forked_ones(tmp_path: Path) -> None:
    graph = graph_of("line", 2, rounds=3, start={"wait_for": "all"}, timeouts=LONG)
    graph.save(tmp_path / "graph.json")
    (tmp_path / "started.py").write_text(STARTED)
    command = [sys.executable, "started.py", "graph.json", "started"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.stdout in {"{0: 0, 1: 0}\n", "{1: 0, 0: 0}\n"}, found.stderr
    same_models(peer.Run(tmp_path / "started"), peer.simulate(graph, progress=False))


def test_a_server_that_does_not_end_does_not_keep_a_completed_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(PeerServer, "stop", never)
    monkeypatch.setattr(world, "CLOSE_S", 0.05)
    graph, place = alone(tmp_path, rounds=2)
    done = peer.run(0, graph, state_dir=place, insecure=True)
    assert done.metrics["rounds"] == 2
    assert "the server has not ended within 0.05 s: going on without it" in caplog.messages
