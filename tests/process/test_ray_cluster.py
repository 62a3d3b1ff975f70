"""`peer experiment run` on a real Ray cluster of two nodes on this machine: results, data, kills of driver and node.

Each node has one core and its own temporary folder. The table with the data is mounted where only the driver sees it.
"""

import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from tools.running import running, until
from tools.warm_parent import executed

from peer.bed.testbed.ports import free_ports

PEER = (sys.executable, "-m", "peer", "experiment", "run")
TIMES = {"seconds", "run_seconds", "cpu_seconds", "date", "command", "machine"}
ADDRESS = "127.0.0.2"  # Ray replaces 127.0.0.1 by the machine's address
TOKEN = ("RAY_AUTH_MODE=token", f"RAY_AUTH_TOKEN={secrets.token_hex(32)}")
MEMORY, OBJECTS = 2_000_000_000, 100_000_000
ROUNDS, LABELS = 40, {f"{case}, seed {seed}" for case in ("DFCA", "local", "IFCA") for seed in (1, 2)}

FILE = f"""
title = "A table"
source = "this test"
peers = 8
seeds = 2
train_samples = 800
test_samples = 200
graph = {{ kind = "ring" }}
run = {{ task = "tabular", split = "iid", rounds = {ROUNDS}, local_epochs = 2, model_options = {{ hidden = 16 }} }}
[[case]]
name = "DFCA"
run = {{ algorithm = "dfca" }}
[[case]]
name = "local"
run = {{ algorithm = "local" }}
[[case]]
name = "IFCA"
method = "ifca-server"
"""


def may_mount():
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.timeout(900),  # two nodes and two tables on two busy cores
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'coordinator-free[ray]'"
    ),
    pytest.mark.skipif(not may_mount(), reason="needs unshare and permission to mount"),
]


class RayNode:
    """One node of the cluster: `ray start --block`, whose folder is short because Unix sockets lie in it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        folder.mkdir()
        self.log = folder / "log"
        ray = Path(sys.executable).with_name("ray")
        self.command = [
            "env",
            f"TMPDIR={folder}",
            "GRPC_ENABLE_FORK_SUPPORT=0",
            *TOKEN,
            ray,
            "start",
            "--block",
            "--num-cpus=1",
            f"--memory={MEMORY}",
        ]
        self.command += [
            "--disable-usage-stats",
            "--min-worker-port=0",
            "--max-worker-port=0",
            f"--object-store-memory={OBJECTS}",
            *options,
        ]

    def is_up(self) -> bool:
        return "Ray runtime started" in self.log.read_text()

    def children(self) -> dict[int, str]:
        """Return the processes below this node, each with its command line."""
        found, left = {}, [self.pid]
        while left:
            pid = left.pop()
            try:
                tasks = list(Path(f"/proc/{pid}/task").iterdir())
                left += [int(child) for task in tasks for child in (task / "children").read_text().split()]
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found

    def runs(self) -> dict[int, str]:
        """Return the labels of the runs that this node does, by process."""
        labels = {pid: line.partition("ray::")[2].strip() for pid, line in self.children().items()}
        return {pid: label for pid, label in labels.items() if label in LABELS}

    def kill_in_a_run(self, log: Path) -> str:
        """Kill this node while it does a run; return the label of the run."""
        stopped = {}

        def has_a_run() -> bool:
            for pid, label in self.runs().items():
                os.kill(pid, signal.SIGSTOP)
                if self.runs().get(pid) == label:  # it cannot have ended in between
                    stopped[pid] = label
                    return True
                os.kill(pid, signal.SIGCONT)
            return False

        until(has_a_run, "the second node does a run", logs=[log], poll_s=0.02)
        raylet = next(pid for pid, line in self.children().items() if "/raylet/raylet " in line)
        (worker,) = stopped
        for pid in (raylet, worker):
            os.kill(pid, signal.SIGKILL)
        return stopped[worker]


@pytest.fixture(scope="module")
def nodes():
    port, client = free_ports(2)
    base = Path(tempfile.mkdtemp(prefix="ray"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        head = RayNode(
            base / "1",
            *("--head", f"--node-ip-address={ADDRESS}", f"--port={port}", f"--ray-client-server-port={client}"),
            *("--include-dashboard=false", f"--temp-dir={base}/1/s"),
        )
        other = RayNode(base / "2", f"--address={ADDRESS}:{port}", f"--node-ip-address={ADDRESS}")
        for node in (head, other):
            node.pid = stack.enter_context(running(*node.command, log=node.log)).pid
            until(node.is_up, f"{node.log} says that Ray runs", logs=[node.log])
        head.address, head.client = f"{ADDRESS}:{port}", f"ray://{ADDRESS}:{client}"
        yield head, other


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """An experiment file, and a folder with its data that the nodes do not look into."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "table.toml").write_text(FILE)
    (folder / "source").mkdir()
    rows = "".join(f"{i % 17},{i % 5},{i % 13},{(i % 17 + i % 5) % 3}\n" for i in range(1200))
    (folder / "source" / "t.csv").write_text("a,b,c,y\n" + rows)
    return folder


@pytest.fixture(scope="module")
def local(table):
    """The results of a run without Ray."""
    arguments = ["table.toml", "--data-root", "source", "--out", "local"]
    done = executed("experiment", "run", *arguments, cwd=table)
    assert done.returncode == 0, done.stderr
    return results(table / "local")


def driver(table, out, *options):
    """Return the command of a driver that alone sees the data at its data root."""
    data = table / f"data-{out}"
    data.mkdir(exist_ok=True)
    script = 'mount -t tmpfs none "$0" && cp source/t.csv "$0" && exec "$@"'
    arguments = ["table.toml", "--data-root", data, "--out", out, *options]
    return ["env", "-C", table, *TOKEN, "unshare", "-m", "sh", "-c", script, data, *PEER, *arguments]


def results(folder):
    return {
        path.relative_to(folder): {
            key: value for key, value in json.loads(path.read_text()).items() if key not in TIMES
        }
        for path in folder.rglob("seed-*.json")
    }


def test_a_command_outside_the_cluster_reaches_it_over_the_client_server(nodes, table, local):
    options = ("--backend", f"simulated@{nodes[0].client}", "--case", "local")
    done = subprocess.run([*map(str, driver(table, "outside", *options))], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert results(table / "outside") == {path: result for path, result in local.items() if "local" in path.parts}


def test_runs_on_two_nodes_continue_after_a_kill_of_the_command_and_of_a_node(nodes, table, local):
    """The command is killed after its first result; one that continues loses a node, and only the run that was on it."""
    head, other = nodes
    out, logs = table / "killed", [table / "killed.log", table / "again.log"]
    command = driver(table, "killed", "--backend", f"simulated@{head.address}", "--keep")
    with running(*command, log=logs[0]) as first:
        until(lambda: list(out.rglob("seed-*.json")), "the first result", logs=logs[:1], poll_s=0.02, patience_s=600)
        first.kill()
    found = results(out)
    assert 0 < len(found) < len(local), "the command was not killed between two results"
    until(lambda: not head.runs() and not other.runs(), "the runs of the killed command end", logs=logs[:1])
    with running(*command, log=logs[1]) as again:
        label = other.kill_in_a_run(logs[1])
        assert again.wait() == 0, logs[1].read_text()
    text = logs[1].read_text()
    assert f"{len(found)} of {len(local)} results done already" in text
    assert f"{len(local) - len(found)} run" in text and f"on 2 nodes: {ADDRESS}" in text
    assert f"of {ROUNDS * (len(local) - len(found))} rounds, " in text
    assert f"{label}: its worker is lost" in text
    assert text.count("its worker is lost") <= 2, text  # it may start once more on the node before its end is known
    assert results(out) == local
    for path in local:
        assert len(list((out / path.with_suffix("")).glob("peer-*/history.jsonl"))) == 8
    assert (logs[0].read_text() + text).count("MB of data") <= 2, "a node got its data twice"
    for node in nodes:
        assert [path.name for path in node.folder.rglob("data/*/*")] == ["t.csv"]
    assert not list(head.folder.rglob("run-*")), "a run directory was left"
