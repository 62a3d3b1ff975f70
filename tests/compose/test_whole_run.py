"""`docker-compose up` from start to end: report, models compared with the process testbed, users, time and memory."""

import re
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from project import Project, rounds_done
from safetensors import safe_open

from coordinator_free_bootstrap import load_graph, save_graph
from peer.bed.testbed.directory import with_settings
from peer.bed.testbed.ports import free_ports

pytestmark = pytest.mark.compose

ROOT = Path(__file__).parents[2]
PRIVATE_MB_MAX = 400.0
# Peers of a busy machine listen late and are silent for long; no fault is awaited here.
PATIENT = ["run.rounds=60", "run.start.deadline_s=600", "run.timeouts.suspicion_s=120"]


def private_mb(pid):
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(n) for n in re.findall(r"^Private_(?:Clean|Dirty):\s+(\d+) kB", text, re.MULTILINE)) / 1000


def listening_at(container):
    line = next(line for line in container.logs(timestamps=True).decode().splitlines() if "listening on port" in line)
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z.*", r"\1+00:00", line)).timestamp()


def measured(containers, began):
    """Return the seconds until the last container listened, the private memory of each, and the users of all processes."""
    return {
        "live_s": max(map(listening_at, containers.values())) - began,
        "private_mb": {i: private_mb(c.attrs["State"]["Pid"]) for i, c in containers.items()},
        "users": {row[1] for c in containers.values() for row in c.top(ps_args="-eo pid,uid")["Processes"]},
    }


@pytest.fixture(scope="module")
def finished(host, tmp_path_factory):
    """A finished run of the repository's graph: the project, exit code and output of `up`, and measurements.

    No peer can end before it is measured: peer 0 is stopped after its first round, and the others need its models.
    """
    graph = with_settings(load_graph(ROOT / "deploy" / "graph.json"), PATIENT)
    with Project(host, tmp_path_factory.mktemp("whole"), graph, REPORT_PATIENCE="600") as project:
        ids, began = project.graph.ids, time.time()
        with project.started("up", "--no-color") as process:
            project.until(lambda: rounds_done(project.log("peer-0")), "peer 0 completes a round")
            containers = {peer_id: project.peer(peer_id) for peer_id in ids}
            containers[0].kill("SIGSTOP")
            try:
                numbers = measured(containers, began)
            finally:
                containers[0].kill("SIGCONT")
            output, _ = process.communicate()
            code = process.returncode
        yield project, code, output, numbers


def test_up_ends_with_the_table_of_peer_report(finished):
    project, code, output, _ = finished
    assert code == 0
    printed = [line.partition("|")[2].strip() for line in output.splitlines() if line.startswith("report_1")]
    table = subprocess.run(
        [sys.executable, "-m", "peer", "report", project.folder / "results"], check=True, capture_output=True, text=True
    ).stdout
    expected = [line.strip() for line in table.splitlines()]
    assert printed[-len(expected) :] == expected
    assert sum("completed" in line for line in expected) == 8
    after = [line for line in output.splitlines() if line.startswith(("peer-", "keys_1"))]
    assert output.rindex(printed[-2]) > output.rindex(after[-1])  # no other service prints after the report


def test_a_finished_service_is_not_restarted(finished):
    project = finished[0]
    for service in (*(f"peer-{i}" for i in project.graph.ids), "keys", "report"):
        container = project.container(service)
        assert (container.status, container.attrs["State"]["ExitCode"], container.attrs["RestartCount"]) == (
            "exited",
            0,
            0,
        )


def test_the_models_are_those_of_the_process_testbed_bit_for_bit(finished, tmp_path):
    project = finished[0]
    ports = iter(free_ports(len(project.graph.nodes)))
    local = replace(
        project.graph, nodes=tuple(replace(n, address=f"127.0.0.1:{next(ports)}") for n in project.graph.nodes)
    )
    save_graph(local, tmp_path / "graph.json")
    command = [
        sys.executable,
        "-m",
        "peer",
        "testbed",
        tmp_path / "graph.json",
        "--out",
        tmp_path / "out",
        "--set",
        "threads=1",
    ]
    subprocess.run(command, check=True, capture_output=True)
    paths = sorted((tmp_path / "out").glob("peer-*/models/*.safetensors"))
    assert len(paths) == 8 * (project.graph.manifest.clusters + 1)
    for path in paths:
        assert content(project.folder / "results" / path.relative_to(tmp_path / "out")) == content(path), path


def content(path):
    """Return the bytes of all tensors, and the metadata, whose order in the file varies."""
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name).tobytes() for name in file.keys()}, file.metadata()  # noqa: SIM118


def test_no_container_runs_as_root(finished):
    project, _, _, numbers = finished
    assert numbers["users"] == {"10001"}
    for service in ("keys", "report", "peer-0"):
        assert project.container(service).attrs["Config"]["User"] == "10001:10001"


def test_start_up_and_memory(finished, capsys):
    numbers = finished[3]
    memory = sorted(numbers["private_mb"].values())
    with capsys.disabled():
        print(
            f"\n8 peers live after {numbers['live_s']:.1f} s; private memory {memory[0]:.0f} to {memory[-1]:.0f} MB each"
        )
    assert memory[-1] < PRIVATE_MB_MAX
