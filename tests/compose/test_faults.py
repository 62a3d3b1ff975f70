"""Faults in containers: the random script of the chaos profile, a lost volume, and a peer that is not restarted."""

import json
import math
import re
from pathlib import Path

import pytest
from engine import IMAGE
from project import Project, rounds_done

from coordinator_free_bootstrap import make_graph, parse_manifest
from peer.store.history import read_history

pytestmark = pytest.mark.compose

PEERS, LOST_DISK, LOST_FOR_GOOD, SECONDS = 6, 5, 0, 45
SURVIVORS = tuple(i for i in range(PEERS) if i != LOST_FOR_GOOD)
AFTER = 20  # rounds that each survivor completes after the last fault
READ = "import pathlib, sys; print(pathlib.Path(sys.argv[1]).read_text())"


@pytest.fixture(scope="module")
def survived(host, tmp_path_factory, eventful_seed):
    """A run with all faults, in which one peer was killed and not restarted; the others leave after some more rounds."""
    run = {"rounds": 100_000, "options": {"warmup_rounds": 8}, "start": {"wait_for": "all", "deadline_s": 600.0}}
    graph = make_graph("regular", PEERS, degree=4, manifest=parse_manifest(run, "test"))
    socket = Path(host.removeprefix("unix://"))
    override = {"services": {"chaos": {"volumes": [f"{socket}:/var/run/docker.sock"]}}}
    seed = eventful_seed(SECONDS, list(range(PEERS)))
    environment = {
        "DOCKER_GID": str(socket.stat().st_gid),
        "REPORT_PATIENCE": "5",
        "CHAOS_SEED": str(seed),
        "CHAOS_SECONDS": str(SECONDS),
        "PEER_CPUS": "0.25",  # so that six peers leave time to the engine
    }
    folder = tmp_path_factory.mktemp("faults")
    with Project(host, folder, graph, override, **environment) as project:
        project.compose("up", "-d", *(f"peer-{i}" for i in range(PEERS)))
        project.until_live(graph.ids)
        project.compose("--profile", "chaos", "up", "-d", "--no-deps", "chaos", "report")
        assert project.exit_code("chaos") == 0, project.log("chaos")
        log_bytes = lose_disk(project)
        project.until(lambda: rejoined(project, log_bytes), "the peer without a disk rejoins")
        project.peer(LOST_FOR_GOOD).kill()
        for peer_id in SURVIVORS:
            goes_on(project, peer_id)
        project.compose("stop", "-t", "300", *(f"peer-{i}" for i in SURVIVORS))
        codes = {i: project.exit_code(f"peer-{i}") for i in SURVIVORS}
        project.exit_code("report")
        yield project, codes


def lose_disk(project):
    """Kill a peer, empty its state volume, start it again; return the length of its log before."""
    container = project.peer(LOST_DISK)
    container.kill()
    volume = project.volume(f"peer-{LOST_DISK}-state")
    project.client.containers.run(
        IMAGE, ["-c", "rm -rf /state/*"], entrypoint="sh", remove=True, volumes={volume: {"bind": "/state"}}
    )
    log_bytes = len(container.logs())
    container.start()
    return log_bytes


def rejoined(project, log_bytes):
    return rounds_done(project.peer(LOST_DISK).logs()[log_bytes:].decode()) > 0


def goes_on(project, peer_id):
    """Wait until a peer has completed some more rounds."""
    last = rounds_done(project.log(f"peer-{peer_id}")) + AFTER
    project.until(lambda: rounds_done(project.log(f"peer-{peer_id}")) >= last, f"peer {peer_id} completes round {last}")


def histories(project):
    return {i: read_history(project.folder / "results" / f"peer-{i}" / "history.jsonl") for i in range(PEERS)}


def test_every_fault_fired(survived):
    log = survived[0].log("chaos")  # the counts on stdout may come before the last line of stderr
    fired = {kind: int(count) for kind, count in re.findall(r"(kill|pause|isolate) (\d+)", log)}
    assert set(fired) == {"kill", "pause", "isolate"}, log
    assert all(fired.values()), log


def test_the_survivors_go_on_and_leave(survived):
    project, codes = survived
    assert set(codes.values()) == {0}, codes
    for peer_id in codes:
        summary = json.loads((project.folder / "results" / f"peer-{peer_id}" / "summary.json").read_text())
        assert summary["status"] == "left" and summary["rounds_completed"] > AFTER
        assert summary["metric"]["value"] > 0.8
        assert math.isfinite(summary["loss"])


def test_the_report_shows_the_killed_peer(survived):
    project = survived[0]
    report = json.loads((project.folder / "results" / "report.json").read_text())
    assert report["state"] == "incomplete"
    assert report["peers"][LOST_FOR_GOOD]["status"] == "dead"
    assert project.container("report").attrs["State"]["ExitCode"] == 1


def test_no_model_is_folded_twice_by_one_incarnation(survived):
    for peer_id, history in histories(survived[0]).items():
        rounds = [line for line in history if line["kind"] == "round"]
        folded = [(line["incarnation"], line["round_index"], *entry) for line in rounds for entry in line["folded"]]
        assert len(folded) == len(set(folded)), peer_id
        assert folded


def test_rounds_and_incarnations_only_grow(survived):
    for peer_id, history in histories(survived[0]).items():
        incarnations = [line["incarnation"] for line in history]
        assert incarnations == sorted(incarnations), peer_id
        for incarnation in set(incarnations):
            rounds = [
                line["round_index"]
                for line in history
                if line["kind"] == "round" and line["incarnation"] == incarnation
            ]
            assert rounds == sorted(set(rounds)), peer_id


def test_after_a_lost_disk_a_peer_starts_a_new_incarnation(survived):
    starts = [line for line in histories(survived[0])[LOST_DISK] if line["kind"] == "start"]
    assert len(starts) == 1  # the earlier ones were on the lost disk
    assert starts[0]["resumed_from"] is None


def test_neighbors_log_a_dead_and_a_returned_peer(survived):
    project = survived[0]
    log = "".join(project.log(f"peer-{n}") for n in project.graph.neighbors(LOST_FOR_GOOD))
    assert f"neighbor {LOST_FOR_GOOD} marked dead" in log
    log = "".join(project.log(f"peer-{n}") for n in project.graph.neighbors(LOST_DISK))
    assert re.search(rf"neighbor {LOST_DISK} marked alive, was (dead|suspect)", log)
