"""Goal: a federation in containers outlives every change, done with compose as docs/deploy.md says, with a kill in each.

Method: each change is the next graph file, and SIGHUP for one peer after the other, one of which is killed as it takes the
file. A peer joins, one leaves for good, two edges are rewired, a key and an address are replaced, and a peer of an earlier commit
is upgraded.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import docker
import pytest
import yaml
from engine import IMAGE
from own_task import DATA, graph_with_own_task
from project import Project, rounds_done

from coordinator_free_bootstrap import load_graph
from peer.ops.deploy.compose import write_compose
from peer.ops.deploy.given_data import GivenData, data_here
from peer.store.history import read_history

pytestmark = pytest.mark.compose

PEERS, LEAVER, JOINER, RENEWED, MOVED, UPGRADED = 5, 4, 5, 1, 2, 3
STAYERS = (0, 1, 2, 3)
REMOVED = 52  # the exit code of a peer that is in the graph file no more
EARLIER = f"{IMAGE}-earlier"
END_ROUNDS = 600  # the last file must be everywhere before its rounds are over
OVERRIDE = "docker-compose.override.yml"
KEYS = f"/federation/peer-{RENEWED}"


class Changing:
    """A project whose graph file changes while its peers train."""

    def __init__(self, project: Project, data: GivenData) -> None:
        self.project, self.data = project, data
        self.killed: list[tuple[str, int]] = []
        self.running = list(range(PEERS))
        self.file = project.folder / "deploy" / "graph.json"

    def next(self, *words: object) -> None:
        """Make the next graph file."""
        following = self.file.with_name("next.json")
        command = [sys.executable, "-m", "peer", "graph", "next", self.file, *map(str, words), "--out", following]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        following.replace(self.file)

    def deploy(self) -> None:
        """Write the services of the present file; pin keys, and start new peers."""
        write_compose(load_graph(self.file), self.project.folder, data=self.data)
        self.project.compose("up", "-d")

    def deliver(self, change: str, victim: int | None = None) -> None:
        """Send SIGHUP to one peer after the other, and wait until it goes on; one is killed as it takes the file."""
        for peer_id in self.running:
            before = len(self.project.log(f"peer-{peer_id}"))
            self.project.compose("kill", "-s", "HUP", f"peer-{peer_id}")
            if peer_id == victim:
                self.kill(change, peer_id)
            else:
                self.project.until(lambda i=peer_id, b=before: self._has_file(i, b), f"peer {peer_id} takes the file")
            self.trains(peer_id)

    def trains(self, peer_id: int) -> None:
        """Wait until a peer has completed another round."""
        before = len(self.project.log(f"peer-{peer_id}"))
        self.project.until(
            lambda: rounds_done(self.project.log(f"peer-{peer_id}")[before:]) > 0, f"peer {peer_id} goes on"
        )

    def _has_file(self, peer_id: int, before: int) -> bool:
        new = self.project.log(f"peer-{peer_id}")[before:]
        assert "was not taken" not in new, new
        return "changed from graph file" in new

    def version(self, peer_id: int) -> str:
        """Return the version of a peer's package."""
        code, output = self.project.execute(f"peer-{peer_id}", "import peer; print(peer.__version__)")
        assert code == 0, output
        return output

    def kill(self, change: str, peer_id: int) -> None:
        """Kill the process of a peer and start it again."""
        container = self.project.peer(peer_id)
        container.kill()
        container.wait()
        container.reload()
        assert container.attrs["State"]["ExitCode"] == 137
        self.killed.append((change, peer_id))
        container.start()


def join(federation: Changing) -> None:
    new = ("--add-peer", f"{JOINER}=peer-{JOINER}:7400", "--add-edge", f"{JOINER}-0", "--add-edge", f"{JOINER}-2")
    federation.next(*new)
    federation.deploy()
    federation.deliver("join", 0)
    federation.running.append(JOINER)
    federation.trains(JOINER)


def leave(federation: Changing) -> None:
    federation.next("--remove-peer", LEAVER)
    federation.project.compose("up", "keys")
    federation.running.remove(LEAVER)
    federation.deliver("leave", 2)
    federation.project.compose("kill", "-s", "HUP", f"peer-{LEAVER}")
    assert federation.project.exit_code(f"peer-{LEAVER}") == REMOVED, federation.project.log(f"peer-{LEAVER}")
    write_compose(load_graph(federation.file), federation.project.folder, data=federation.data)


def rewire(federation: Changing) -> None:
    federation.next("--remove-edge", "0-1", "--remove-edge", "2-3", "--add-edge", "0-3", "--add-edge", f"1-{JOINER}")
    federation.project.compose("up", "keys")
    federation.deliver("rewire", 1)


def renew_key(federation: Changing) -> None:
    run = federation.project.compose
    run("run", "--rm", "keys", "keygen", "--id", str(RENEWED), "--out", f"{KEYS}/new")
    run("run", "--rm", "keys", "graph", "pin", "--rotate", "/graph/graph.json", f"{KEYS}/new/peer-{RENEWED}.pem")
    federation.deliver("key", RENEWED)
    run("run", "--rm", "--entrypoint", "sh", "keys", "-c", f"mv {KEYS}/new/* {KEYS} && rmdir {KEYS}/new")
    run("kill", "-s", "HUP", f"peer-{RENEWED}")
    federation.trains(RENEWED)
    run("up", "keys")  # pins the keys that there are: the old one is valid no more
    federation.deliver("key")


def move(federation: Changing) -> None:
    federation.next("--move", f"{MOVED}=site-{MOVED}:7400")
    federation.project.compose("up", "keys")
    federation.deliver("address", MOVED)


def upgrade(federation: Changing) -> None:
    assert "+" in federation.version(UPGRADED), "it began with the earlier commit"
    override(federation.project.folder, {})
    federation.project.compose("up", "-d", "--no-deps", f"peer-{UPGRADED}")
    federation.trains(UPGRADED)
    assert "+" not in federation.version(UPGRADED)
    federation.kill("upgrade", UPGRADED)
    federation.trains(UPGRADED)


CHANGES = (join, leave, rewire, renew_key, move, upgrade)


def override(folder: Path, upgraded: dict[str, str]) -> None:
    """Write what this test adds to the compose file."""
    alias = {"networks": {"federation": {"aliases": [f"site-{MOVED}"]}}}
    services = {f"peer-{MOVED}": alias, f"peer-{UPGRADED}": upgraded}
    (folder / OVERRIDE).write_text(yaml.safe_dump({"services": {name: of for name, of in services.items() if of}}))


@pytest.fixture
def earlier_image(host: str, earlier: Path) -> str:
    """An image with the packages of an earlier commit of this wire version."""
    site = "/opt/peer/lib/python3*/site-packages"
    (earlier / "Dockerfile").write_text(
        f"FROM {IMAGE}\nUSER root\nCOPY . /earlier\n"
        f"RUN cd {site} && rm -r peer coordinator_free_bootstrap && cp -r /earlier/* . && rm -r /earlier\nUSER 10001:10001\n"
    )
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.add(earlier, arcname=".")
    content.seek(0)
    client = docker.DockerClient(host, timeout=600)
    client.images.build(fileobj=content, custom_context=True, tag=EARLIER)
    client.close()
    return EARLIER


def test_a_federation_in_containers_outlives_every_change(host, tmp_path, earlier_image, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = {"rounds": 1_000_000, "start": {"wait_for": "all", "deadline_s": 600.0}, "timeouts": {"suspicion_s": 20.0}}
    graph = graph_with_own_task(tmp_path, PEERS, more_sites=1, **run)
    data, folder = data_here(DATA, graph), tmp_path / "project"
    environment = {"PEER_STAY": "never", "PEER_RESTART": "no", "PEER_CPUS": "0.2", "REPORT_PATIENCE": "20"}
    with Project(host, folder, graph, data=data, **environment) as project:
        override(folder, {"image": earlier_image})
        federation = Changing(project, data)
        project.compose("up", "-d", *(f"peer-{i}" for i in range(PEERS)))
        for peer_id in range(PEERS):
            federation.trains(peer_id)
        for change in CHANGES:
            change(federation)
        last = max(rounds_done(project.log(f"peer-{i}")) for i in federation.running) + END_ROUNDS
        federation.next("--rounds", last)
        project.compose("up", "keys")
        federation.deliver("the end")
        assert {i: project.exit_code(f"peer-{i}") for i in federation.running} == dict.fromkeys((*STAYERS, JOINER), 0)
        assert [change for change, _ in federation.killed] == ["join", "leave", "rewire", "key", "address", "upgrade"]
        project.compose("up", "report")
        for peer_id in STAYERS:
            lines = read_history(folder / "results" / f"peer-{peer_id}" / "history.jsonl")
            rounds = {
                line["round_index"]: line for line in lines if line["kind"] == "round"
            }  # undone ones are done again
            folds = Counter((s, r, step, slot) for line in rounds.values() for s, _, r, step, slot in line["folded"])
            assert folds and max(folds.values()) == 1, "nothing is folded twice"
            assert max(rounds) == last - 1
