"""A wrongly configured peer logs its error and is unhealthy; the others continue. Isolation of containers and peers."""

import pytest
from engine import IMAGE
from project import Project, rounds_done

from coordinator_free_bootstrap import Graph, Node, parse_manifest

pytestmark = pytest.mark.compose

GOOD = (0, 1, 2, 3)  # a ring: 0 and 2 are not neighbors, nor are 1 and 3
BAD = {
    4: "address of peer 4: expected an address that other machines can reach, got the loopback address 127.0.0.1:7400",
    5: "/shards/peer-5.safetensors",
    6: "/state",
    7: "expected a free port of this machine, got 0.0.0.0:7400",
    9: "expected one of 0, 1, 2, 3, 4, 5, 6, 7, got 9",  # a service for which the graph has no peer
}
# The engine always mounts /proc, /sys and /dev/mqueue; they are kernel file systems and vanish with the container.
WRITABLE = """
import os
found = []
for folder, names, files in os.walk("/"):
    names[:] = [n for n in names if os.path.join(folder, n) not in ("/proc", "/sys", "/state", "/tmp", "/dev/mqueue")]
    found += [p for p in (folder, *(os.path.join(folder, f) for f in files)) if os.path.isdir(p) or os.path.isfile(p)
              if not os.path.islink(p) and os.access(p, os.W_OK)]
print(found, os.access("/state", os.W_OK), os.path.ismount("/tmp"), os.geteuid())
"""
CONNECT = """
import sys
import grpc
from coordinator_free_bootstrap import dns_name, load_graph
from peer.identity.certificates import Certificate
from peer.identity.files import KeyFiles, load_key_pair
from peer.wire.options import SERVICE
own, other = int(sys.argv[1]), int(sys.argv[2])
graph = load_graph("/graph/graph.json")
pair = load_key_pair(KeyFiles.of(__import__("pathlib").Path("/keys"), own))
root = Certificate.from_text(graph.node(other).certificates[0], "graph").pem()
credentials = grpc.ssl_channel_credentials(root, pair.private_key, pair.chain)
named = [("grpc.ssl_target_name_override", dns_name("federation", other))]
with grpc.secure_channel(f"peer-{other}:7400", credentials, options=named) as channel:
    try:
        print("answer", len(channel.unary_unary(f"/{SERVICE}/Status")(b"", timeout=10)))
    except grpc.RpcError as error:
        print("refused", error.code().name)
"""
PLAINTEXT = """
import sys
import grpc
from peer.wire.options import SERVICE
with grpc.insecure_channel(f"peer-{sys.argv[1]}:7400") as channel:
    try:
        print("answer", len(channel.unary_unary(f"/{SERVICE}/Status")(b"", timeout=10)))
    except grpc.RpcError as error:
        print("refused", error.code().name)
"""


def bad_services(usual):
    """Return the override that misconfigures services 5, 7 and 9; the graph misconfigures 4, the volume 6."""
    soon = {"healthcheck": {"interval": "6s", "start_period": "1s", "retries": 2}}  # 0 s means the 60 s of the image
    services = {f"peer-{peer_id}": dict(soon) for peer_id in BAD}
    services["peer-5"]["command"] = [*usual("5"), "--shard", "/shards/peer-5.safetensors"]
    services["peer-7"]["command"] = [*usual("7"), "--metrics", "0.0.0.0:7400"]
    services["peer-9"] |= {
        "image": IMAGE,
        "command": usual("9"),
        "volumes": ["graph:/graph:ro", "peer-9-state:/state"],
        "networks": ["federation"],
        "depends_on": {"keys": {"condition": "service_completed_successfully"}},
    }
    services["peer-9"]["healthcheck"] = {"test": ["CMD", "peer", "health", "--insecure"], **soon["healthcheck"]}
    return {"services": services, "volumes": {"peer-9-state": {}}}


def usual(peer_id):
    places = ["--neighbors", "/graph/graph.json", "--state-dir", "/state", "--certs", "/keys"]
    return ["run", "--id", peer_id, *places, "--listen", "0.0.0.0:7400", "--require-own-address", "--stay", "error"]


@pytest.fixture(scope="module")
def project(host, tmp_path_factory):
    """Four good peers and five bad ones, running."""
    run = {"rounds": 100_000, "start": {"wait_for": "all", "deadline_s": 10.0}}
    edges = [(a, (a + 1) % 4) for a in GOOD] + [(good, bad) for good in (0, 2) for bad in (4, 5, 6, 7)]
    graph = Graph(tuple(Node(i, f"peer-{i}:7400") for i in range(8)), tuple(edges), parse_manifest(run, "test"))
    folder = tmp_path_factory.mktemp("bad")
    with Project(host, folder, graph, bad_services(usual)) as project:
        path = folder / "deploy" / "graph.json"
        path.write_text(path.read_text().replace("peer-4:7400", "127.0.0.1:7400"))
        services = [f"peer-{i}" for i in (*GOOD, *BAD)]
        volume = {project.volume("peer-6-state"): {"bind": "/state"}}
        project.client.containers.run(
            IMAGE,
            ["-c", "touch /state/kept; chown root:root /state"],
            entrypoint="sh",
            user="0",
            remove=True,
            volumes=volume,
        )
        project.compose("up", "-d", *services)
        project.until_live(GOOD)
        yield project


@pytest.mark.parametrize("peer_id", BAD)
def test_a_misconfigured_peer_logs_its_error_and_is_unhealthy(project, peer_id):
    service = f"peer-{peer_id}"
    project.until(lambda: BAD[peer_id] in project.log(service), f"{service} logs its error")
    project.until(lambda: project.health(service) == "unhealthy", f"{service} is unhealthy")
    assert "Up (unhealthy)" in project.compose("ps", service)
    assert "Traceback" not in project.log(service)
    assert project.container(service).attrs["RestartCount"] == 0


@pytest.mark.parametrize("peer_id", GOOD)
def test_the_other_peers_continue_and_are_healthy(project, peer_id):
    project.until(lambda: rounds_done(project.log(f"peer-{peer_id}")) >= 3, f"peer {peer_id} continues")
    project.until(lambda: project.health(f"peer-{peer_id}") == "healthy", f"peer {peer_id} is healthy")


@pytest.mark.parametrize("peer_id", GOOD)
def test_only_the_state_volume_and_a_temporary_folder_in_memory_can_be_written(project, peer_id):
    assert project.execute(f"peer-{peer_id}", WRITABLE) == (0, "[] True True 10001\n")


def test_a_container_has_only_its_own_key(project):
    code, listing = project.execute("peer-1", "import os; print(sorted(os.listdir('/keys')))")
    assert (code, listing) == (0, "['peer-1.key', 'peer-1.pem']\n")


@pytest.mark.parametrize(("own", "other", "answered"), [(0, 1, True), (1, 2, True), (0, 2, False), (1, 3, False)])
def test_only_neighbors_can_connect(project, own, other, answered):
    code, said = project.execute(f"peer-{own}", CONNECT, str(own), str(other))
    assert code == 0, said
    assert said.startswith("answer" if answered else "refused"), said


def test_plaintext_is_refused_even_between_neighbors(project):
    assert project.execute("peer-0", PLAINTEXT, "1")[1].startswith("refused")


def test_the_private_network_has_no_route_to_the_outside(project):
    program = """
import socket
try:
    socket.create_connection(("192.0.2.1", 80), timeout=3)
except OSError as error:
    print("no route", type(error).__name__)
"""
    code, said = project.execute("peer-0", program)
    assert (code, said.startswith("no route")) == (0, True), said


def test_all_peers_leave_on_sigterm(project):
    project.compose("stop", "-t", "60", *(f"peer-{i}" for i in (*GOOD, *BAD)))
    for peer_id in GOOD:
        assert project.exit_code(f"peer-{peer_id}") == 0
        assert "left after" in project.log(f"peer-{peer_id}")
    for peer_id in BAD:
        assert project.exit_code(f"peer-{peer_id}") not in (0, 137), "SIGTERM did not end it, it was killed"
