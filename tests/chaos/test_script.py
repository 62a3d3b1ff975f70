"""Scripts of faults: what is accepted, what is refused and how, drawn from a seed; and the three commands on a real run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coordinator_free_bootstrap import Graph, make_graph
from coordinator_free_bootstrap.errors import ConfigError
from peer.chaos.script import NETWORK, ON_PEERS, Script, event_of_words, load_script, random_script
from peer.observe.faults import spans

GRAPH: Graph = make_graph("erdos-renyi", 8, seed=1, degree=4.0)
EXAMPLE = Path(__file__).parents[2] / "examples" / "chaos.toml"


def test_the_example_is_a_valid_script_for_eight_peers() -> None:
    script = load_script(EXAMPLE)
    script.check(GRAPH, str(EXAMPLE))
    assert script.needs_network and {event.do for event in script.event} >= {"kill", "stop", "partition", "leave"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[event]]\ndo = "explode"\npeers = [1]', "event[0].do: found 'explode'; allowed: 'kill'"),
        ('[[event]]\ndo = "kill"', "do = 'kill' needs peers"),
        ('[[event]]\ndo = "cut"\nedges = [[0, 1]]\npeers = [1]', "takes no peers"),
        ('[[event]]\ndo = "heal"\nfor_s = 2', "cannot be undone"),
        ('[[event]]\ndo = "kill"\npeers = [1]\nat_s = 1\nat_round = 2', "at_s or at_round"),
        ('[[event]]\ndo = "slow"\nedges = [[0, 1]]', "needs toxics"),
        ('[[event]]\ndo = "kill"\npeer = 3', "no such key"),
        ("event = 3", "event"),
        ("[[event", "examples/chaos.toml"),
    ],
)
def test_a_wrong_script_is_refused_with_the_file_the_key_and_what_is_allowed(
    tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "chaos.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_script(path)
    assert says in str(error.value).replace('"', "'") and "chaos.toml" in str(error.value)


def test_a_script_for_another_graph_is_refused() -> None:
    with pytest.raises(ConfigError, match="found 9"):
        Script(event=(event_of_words("do=kill peers=9"),)).check(GRAPH, "x")
    absent = next((0, b) for b in range(1, 8) if (0, b) not in GRAPH.edges)
    with pytest.raises(ConfigError, match=f"found 0-{absent[1]}"):
        Script(event=(event_of_words(f"do=cut edges=0-{absent[1]}"),)).check(GRAPH, "x")


def test_one_event_in_words() -> None:
    event = event_of_words("do=partition groups=0,1|2,3 for_s=5")
    assert event.groups == ((0, 1), (2, 3)) and event.undo().do == "heal"
    assert event_of_words("do=slow edges=0-1 latency_ms=20").toxics.latency_ms == 20
    assert event_of_words("do=kill peers=3 disk=lose for_s=1").undo().disk == "lose"
    with pytest.raises(ConfigError):
        event_of_words("kill 3")


def test_random_scripts_repeat_with_their_seed_fit_the_graph_and_end_in_time() -> None:
    for seed in range(20):
        script = random_script(GRAPH, seed, 60.0)
        assert script == random_script(GRAPH, seed, 60.0) and script.event
        script.check(GRAPH, "random")
        assert all((event.at_s or 0) + (event.for_s or 0) <= 60.0 for event in script.event)
        down: list[tuple[float, float]] = [
            (event.at_s or 0, (event.at_s or 0) + (event.for_s or 0)) for event in script.event if event.do in ON_PEERS
        ]
        for begin, _ in down:
            assert sum(b <= begin < e for b, e in down) <= 2, "at most a quarter of eight peers is down"
    assert random_script(GRAPH, 1, 60.0) != random_script(GRAPH, 2, 60.0)
    assert not any(event.do in NETWORK for event in random_script(GRAPH, 3, 60.0, network=False).event)


def test_spans_pair_each_fault_with_its_end() -> None:
    def line(at: float, do: str, **fields: object) -> dict[str, object]:
        return {"at": at, "do": do, "words": do, "result": "done", **fields}

    lines = [
        line(1, "kill", peers=[1, 2]),
        line(2, "restart", peers=[1]),
        line(3, "cut", edges=[[0, 1]]),
        line(4, "heal", edges=[[1, 0]]),
        line(5, "stop", peers=[3]) | {"result": "skipped, not running: 3"},
        line(6, "partition", groups=[[0], [1]]),
    ]
    found = [(s.kind, s.peer, s.begin_s, s.end_s) for s in spans(lines, 0.0, 10.0)]
    assert found == [
        ("kill", 1, 1, 2), ("kill", 2, 1, 10.0), ("network", None, 3, 4), ("network", None, 6, 10.0)
    ]  # fmt: skip


@pytest.mark.chaos
def test_the_commands_act_on_a_running_testbed_and_the_report_draws_it(tmp_path: Path) -> None:
    """As a user types them: peer testbed --chaos, peer chaos DIR, peer status DIR, peer report DIR."""
    out, script = tmp_path / "out", tmp_path / "chaos.toml"
    script.write_text('[[event]]\nat_round = 3\ndo = "kill"\npeers = [1]\nfor_s = 1\n')
    peer = [sys.executable, "-m", "peer"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    settings = ["--set", "run.rounds=120", "--kind", "ring", "--peers", "4", "--proxy", "--out", str(out)]
    command = [*peer, "testbed", *settings, "--chaos", str(script)]
    testbed = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(*arguments: str, code: int = 0) -> str:
        command = [*peer, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    try:
        deadline = time.monotonic() + 90
        while not (out / "chaos.jsonl").exists() and time.monotonic() < deadline:
            assert testbed.poll() is None, testbed.stdout.read()
            time.sleep(0.05)
        run("chaos", str(out), "--now", "do=stop peers=2 for_s=30")
        status = run("status", str(out), code=40).splitlines()  # the stopped peer is silent
        run("chaos", str(out), "--now", "do=continue peers=2")
        output, _ = testbed.communicate(timeout=120)
        assert testbed.returncode == 0, output
    finally:
        testbed.kill()
        testbed.wait()
        testbed.stdout.close()
    assert status[2].startswith("peer 2: peer 2 at") and "neighbors alive" in status[0], status
    words = [json.loads(line)["words"] for line in (out / "chaos.jsonl").read_text().splitlines()]
    assert words[:4] in (
        ["kill 1", "restart 1", "stop 2", "continue 2"],
        ["kill 1", "stop 2", "restart 1", "continue 2"],
    )
    run("report", str(out))
    assert (out / "report" / "faults.png").stat().st_size > 10_000
