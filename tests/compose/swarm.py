"""A Docker Swarm of the engine of the tests and, as root, of a second engine in a network namespace; and stacks on it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from engine import IMAGE, NoEngine, run, second
from tools.namespaces import ip, why_not
from tools.running import until

from coordinator_free_bootstrap import Graph
from peer.ops.deploy.swarm import Stack, write_swarm
from peer.store.history import parse_lines

MANAGER, WORKER = "198.18.0.1", "198.18.0.2"  # of a range for tests of networks
GATEWAY = "docker_gwbridge"  # a network of the engine, made by its swarm
PATIENCE_S = 800.0  # only a hang lasts so long
USER = 10001


@dataclass(frozen=True)
class Swarm:
    """The engines: addresses by host name of the node, the manager first; with one alone, the reason."""

    hosts: dict[str, str]
    alone_because: str = ""

    @property
    def manager(self) -> str:
        """Return the host name of the manager."""
        return next(iter(self.hosts))

    def command(self, *arguments: str | Path, cwd: Path | None = None, **environment: str) -> str:
        """Run the docker client on the manager."""
        environment = {"DOCKER_HOST": self.hosts[self.manager], **environment}
        return run("docker", *arguments, cwd=cwd, env=environment)

    def set_availability(self, node: str, availability: str) -> None:
        """Drain a node, or make it active again."""
        found = self.command("node", "ls", "--filter", f"name={node}", "--format", "{{.ID}}").split()
        self.command("node", "update", "--availability", availability, *found)


@contextmanager
def swarm(host: str) -> Iterator[Swarm]:
    """Make a swarm of the engine at an address, with a second engine if there can be one.

    Raises:
        NoEngine: the engine is part of a swarm already, which these tests leave alone.
    """
    if run("docker", "-H", host, "info", "--format", "{{.Swarm.LocalNodeState}}").strip() != "inactive":
        raise NoEngine("the engine is part of a swarm already")
    with ExitStack() as stack:
        try:
            other = stack.enter_context(_second_engine(host))
        except NoEngine as error:
            alone, other = str(error), ""
        address = MANAGER if other else "127.0.0.1"
        run("docker", "-H", host, "swarm", "init", "--advertise-addr", address, "--listen-addr", address)
        stack.callback(_leave, host)
        hosts = {socket.gethostname(): host}
        if other:
            token = run("docker", "-H", host, "swarm", "join-token", "-q", "worker").strip()
            run("docker", "-H", other, "swarm", "join", "--token", token, "--advertise-addr", WORKER, f"{MANAGER}:2377")
            stack.callback(_leave, other)
            hosts[run("docker", "-H", other, "info", "--format", "{{.Name}}").strip()] = other
        yield Swarm(hosts, "" if other else alone)


def _leave(host: str) -> None:
    """Leave the swarm and remove its gateway; a busy engine needs several attempts, and the tasks' containers go first."""

    def left() -> bool:
        if run("docker", "-H", host, "info", "--format", "{{.Swarm.LocalNodeState}}").strip() != "inactive":
            run("docker", "-H", host, "swarm", "leave", "--force")
        run("docker", "-H", host, "network", "rm", GATEWAY)
        return True

    until(left, "the engine leaves its swarm", not_yet=(RuntimeError,), patience_s=PATIENCE_S)


@contextmanager
def _second_engine(host: str) -> Iterator[str]:
    """Start an engine in a network namespace that a pair of interfaces connects with this one; it has a host name of its own."""
    if reason := why_not("dockerd", "nsenter", "unshare"):
        raise NoEngine(reason)
    if taken := ip("-o", "address", "show", "to", MANAGER).strip():
        raise RuntimeError(
            f"the address {MANAGER} of the swarm is taken: {taken}; if killed tests have left it (cf...), delete the interface "
            "(ip link delete) and the namespace cf...-worker (ip netns delete)"
        )
    name = f"cf{os.getpid()}-worker"
    with ExitStack() as stack:
        ip("netns", "add", name)
        stack.callback(ip, "netns", "delete", name)
        ip("link", "add", f"cf{os.getpid()}", "type", "veth", "peer", "wire", "netns", name)
        ip("address", "add", f"{MANAGER}/30", "dev", f"cf{os.getpid()}")
        ip("link", "set", f"cf{os.getpid()}", "up")
        ip("-n", name, "address", "add", f"{WORKER}/30", "dev", "wire")
        ip("-n", name, "link", "set", "wire", "up")
        ip("-n", name, "link", "set", "lo", "up")
        named = ("unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh")
        # Only the network's namespace: ip netns exec would also hide the control groups.
        yield stack.enter_context(second(host, "nsenter", f"--net=/run/netns/{name}", *named))


class Deployed:
    """A stack on a swarm, written by `peer deploy swarm`; its services, containers and volumes go with it."""

    def __init__(self, swarm: Swarm, folder: Path, graph: Graph, stack: Stack, page_port: int = 7480) -> None:
        self.swarm, self.graph, self.folder, self.page_port = swarm, graph, folder, page_port
        self.name, self.removed = f"{folder.name}-{os.getpid()}", False
        self.clients = {node: docker.DockerClient(host, timeout=600) for node, host in swarm.hosts.items()}
        self.manager = self.clients[swarm.manager]
        self.deploy(stack)

    def __enter__(self) -> Deployed:
        return self

    def remove(self) -> None:
        """Begin to remove the services; a second time it does nothing, since a network that is being removed is an error."""
        if not self.removed:
            self.removed = True
            self.swarm.command("stack", "rm", self.name)

    def __exit__(self, *_: object) -> None:
        self.remove()
        mine = {"label": f"com.docker.stack.namespace={self.name}"}
        for client in self.clients.values():
            self.until(
                lambda c=client: not c.containers.list(all=True, filters=mine, sparse=True), "all containers are gone"
            )
            for volume in client.volumes.list(filters=mine):
                volume.remove()
            client.close()

    def deploy(self, stack: Stack) -> None:
        """Write the files and give them to the swarm."""
        write_swarm(self.graph, self.folder, stack)
        options = ["--resolve-image", "never", "-c", "stack.yml"]  # no registry
        variables = {"PEER_PROBE": "5s", "PEER_START": "900s", "PAGE_PORT": str(self.page_port)}
        self.swarm.command("stack", "deploy", *options, self.name, cwd=self.folder, **variables)

    def task(self, service: str) -> dict[str, Any]:
        """Return the task of a service that runs.

        Raises:
            LookupError: none runs now.
        """
        tasks = self.manager.services.get(f"{self.name}_{service}").tasks({"desired-state": "running"})
        found = [task for task in tasks if task["Status"]["State"] == "running"]
        if not found:
            raise LookupError(service)
        return dict(found[0])

    def node(self, service: str) -> str:
        """Return the host name of the node on which a service runs."""
        return str(self.manager.nodes.get(self.task(service)["NodeID"]).attrs["Description"]["Hostname"])

    def container(self, service: str) -> Any:
        """Return the container of a service that runs.

        Raises:
            LookupError: none runs now.
        """
        task = self.task(service)
        try:
            return self.clients[self.node(service)].containers.get(task["Status"]["ContainerStatus"]["ContainerID"])
        except docker.errors.NotFound as error:
            raise LookupError(service) from error

    def history(self, peer_id: int) -> list[dict[str, Any]]:
        """Return the history in the state directory of a peer that runs; [] if it does not."""
        try:
            code, output = self.container(f"peer-{peer_id}").exec_run(["cat", "/state/history.jsonl"])
        except (LookupError, docker.errors.APIError):
            return []
        return list(parse_lines(output)) if code == 0 else []

    def starts(self, peer_id: int) -> list[dict[str, Any]]:
        """Return the lines of a peer's starts."""
        return [line for line in self.history(peer_id) if line["kind"] == "start"]

    def rounds(self, peer_id: int, incarnation: int | None = None) -> list[int]:
        """Return the rounds that a peer has completed, in the order of its history; of one incarnation if it is given."""
        lines = (line for line in self.history(peer_id) if line["kind"] == "round")
        return [line["round_index"] for line in lines if incarnation in (None, line["incarnation"])]

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Poll until a function returns a true value, and return it; fail with the tasks and the ends of their logs."""
        return until(holds, what, evidence=self._tasks, not_yet=(LookupError,), patience_s=PATIENCE_S, poll_s=0.5)

    def _tasks(self) -> str:
        tasks = self.swarm.command("stack", "ps", "--no-trunc", self.name)
        names = [f"{self.name}_peer-{i}" for i in self.graph.ids]
        return tasks + "".join(self.swarm.command("service", "logs", "--tail", "6", name) for name in names)

    def link(self) -> str:
        """Return the link of the page, "" if it has not printed one."""
        found = re.findall(r"page: (http://\S+)", self.container("page").logs().decode())
        return found[-1] if found else ""

    def update(self, image: str) -> None:
        """Run the loop of the documentation that gives each service another image; only sooner satisfied with each."""
        loop = (
            f"for s in $(docker stack services -q {self.name}); do docker service update --no-resolve-image "
            f"--update-monitor 1s --image {image} $s || exit 1; done"
        )
        run("sh", "-c", loop, env={"DOCKER_HOST": self.swarm.hosts[self.swarm.manager]})


def shared_folder(folder: Path, graph: Graph) -> str:
    """Make the folder of states that all nodes share; the nodes of these tests share a file system."""
    for peer_id in graph.ids:
        place = folder / f"peer-{peer_id}"
        place.mkdir(parents=True)
        os.chown(place, USER, USER)
    return str(folder)


def another_image(host: str) -> str:
    """Give the image of the tests another label, and return the name of the new one."""
    name = f"{IMAGE}:next"
    dockerfile = f"FROM {IMAGE}\nLABEL next=yes\n"
    subprocess.run(
        ["docker", "-H", host, "build", "-q", "-t", name, "-"],
        check=True,
        input=dockerfile,
        text=True,
        capture_output=True,
        env=os.environ | {"DOCKER_BUILDKIT": "0"},
    )
    return name
