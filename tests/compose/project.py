"""One compose project on the engine of the tests, written by `peer deploy compose`."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import yaml
from engine import IMAGE, run
from tools.running import until

from coordinator_free_bootstrap import Graph
from peer.ops.deploy.compose import write_compose
from peer.ops.deploy.given_data import GivenData

PATIENCE_S = 800.0  # only a hang lasts so long


class Project:
    """A folder with a compose file; `compose` runs docker-compose in it."""

    def __init__(
        self,
        host: str,
        folder: Path,
        graph: Graph,
        override: dict[str, Any] | None = None,
        data: GivenData | None = None,
        **environment: str,
    ) -> None:
        self.name = f"test-{folder.name.replace('_', '-').lower()}-{int(time.time())}"
        self.folder = folder
        self.graph = graph
        self.client = docker.DockerClient(host, timeout=600)
        self.environment = {"DOCKER_HOST": host, "PEER_IMAGE": IMAGE, **environment}
        write_compose(graph, folder, data=data)
        if override:
            (folder / "docker-compose.override.yml").write_text(yaml.safe_dump(override))

    def __enter__(self) -> Project:
        return self

    def __exit__(self, *_: object) -> None:
        self.compose("--profile", "chaos", "--profile", "page", "down", "-v", "--remove-orphans", "-t", "5")
        self.client.close()

    def compose(self, *arguments: str) -> str:
        """Run one docker-compose command and return its output."""
        return run("docker-compose", "-p", self.name, *arguments, cwd=self.folder, env=self.environment)

    def started(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a docker-compose command in the foreground, with its output as a pipe."""
        command = ["docker-compose", "-p", self.name, *arguments]
        environment = os.environ | self.environment
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def container(self, service: str) -> Any:
        """Return the container of a service.

        Raises:
            LookupError: it does not exist yet.
        """
        labels = [f"com.docker.compose.project={self.name}", f"com.docker.compose.service={service}"]
        found = self.client.containers.list(all=True, filters={"label": labels}, ignore_removed=True)
        if not found:
            raise LookupError(service)
        return found[0]

    def peer(self, peer_id: int) -> Any:
        """Return the container of a peer."""
        return self.container(f"peer-{peer_id}")

    def volume(self, name: str) -> str:
        """Return the engine's name of a volume; create the volume if it does not exist."""
        return str(
            self.client.volumes.create(f"{self.name}_{name}", labels={"com.docker.compose.project": self.name}).name
        )

    def log(self, service: str) -> str:
        """Return the log of a service."""
        return str(self.container(service).logs().decode())

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Poll until a function returns a true value, and return it; fail with the ends of all logs."""
        return until(holds, what, evidence=self._logs, not_yet=(LookupError,), patience_s=PATIENCE_S)

    def _logs(self) -> str:
        return self.compose("logs", "--no-color", "--tail", "8")

    def until_live(self, peer_ids: tuple[int, ...]) -> None:
        """Wait until these peers listen."""
        for peer_id in peer_ids:
            self.until(lambda i=peer_id: "listening on port" in self.log(f"peer-{i}"), f"peer {peer_id} listens")

    def exit_code(self, service: str) -> int:
        """Wait for the end of a service and return its exit code."""
        return int(self.until(lambda: self._ended(service), f"{service} ends")["ExitCode"])

    def _ended(self, service: str) -> dict[str, Any] | None:
        state = self.container(service).attrs["State"]
        return state if state["Status"] == "exited" else None

    def health(self, service: str) -> str:
        """Return the health of a service: starting, healthy or unhealthy."""
        return str(self.container(service).attrs["State"]["Health"]["Status"])

    def execute(self, service: str, program: str, *arguments: str) -> tuple[int, str]:
        """Run a Python program in the container of a service, as its user; return exit code and output."""
        code, output = self.container(service).exec_run(["python", "-c", program, *arguments])
        return int(code), output.decode()


def rounds_done(log: str) -> int:
    """Return the number of the last completed round in a peer's log."""
    found = re.findall(r"round (\d+) of \d+ done", log)
    return int(found[-1]) if found else 0
