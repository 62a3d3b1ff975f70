"""Run a script of faults on the peer containers of a compose project, through the Docker SDK and the engine's socket.

Each fault is undone, also when the script is interrupted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from coordinator_free_bootstrap.errors import ConfigProblem, Option, UsageError
from peer.bed.chaos.faults import FAULTS, FaultEvent
from peer.bed.chaos.script import Script, random_script

log = logging.getLogger("peer")
NAMES = [name for name, fault in FAULTS.items() if fault.weight and fault.containers]
EVERY_S = 4.0  # mean time between two faults; they last 2 to 8 s, below and above the default suspicion time of 5 s
CONFLICT = 409  # the engine's answer for a container that is not in the required state
PAUSE_ATTEMPTS_MAX, PAUSE_RETRY_S = 20, 0.25


def container_script(seed: int, seconds: float, peers: Iterable[int]) -> Script:
    """Return the faults of a seed, one at a time."""
    return random_script(NAMES, [*peers], (), seed, seconds, every_s=EVERY_S, down_max=1)


class Project:
    """The peer containers of one compose project.

    Args:
        client: of the Docker SDK.
        name: of the project.
    """

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._name = name

    @classmethod
    def of_this_container(cls, client: Any, container_id: str) -> Project:
        """Return the project of a container.

        Raises:
            UsageError: the container belongs to no project.
        """
        labels = client.containers.get(container_id).labels
        if "com.docker.compose.project" not in labels:
            expected = "the name of a compose project, as this container belongs to none"
            raise UsageError(ConfigProblem(Option("project"), expected, "nothing"))
        return cls(client, labels["com.docker.compose.project"])

    def peers(self) -> dict[int, Any]:
        """Return peer id -> container, including those that have ended."""
        found = {}
        for container in self._client.containers.list(
            all=True, filters={"label": f"com.docker.compose.project={self._name}"}
        ):
            kind, _, number = container.labels.get("com.docker.compose.service", "").partition("-")
            if kind == "peer" and number.isdigit():
                found[int(number)] = container
        return dict(sorted(found.items()))

    def execute(self, event: FaultEvent) -> bool:
        """Execute an event on its one peer, undo it after ``for_s``, and return whether it fired.

        It does not fire on a peer that has ended, or where the engine fails; the failure is logged.

        Raises:
            docker.errors.APIError: the engine refuses the request.
        """
        from docker.errors import APIError

        (peer_id,) = event.peers
        container = self.peers()[peer_id]
        if container.status != "running":
            return False
        try:
            self._call(event.do, container)
            try:
                time.sleep(event.for_s or 0.0)
            finally:
                self._call(event.undo().do, container)
        except APIError as error:
            if error.is_server_error():
                log.warning("chaos: the engine failed to execute %s: %s", event.text(), error.explanation)
            elif error.status_code != CONFLICT:  # CONFLICT: the peer has ended meanwhile
                raise
            return False
        return True

    def _call(self, name: str, container: Any) -> None:
        executor = FAULTS[name].containers
        assert executor is not None  # NAMES has only faults that containers can execute and undo
        executor(self, container)

    def pause(self, container: Any) -> None:
        """Freeze a container; repeat it while runc fails because the CPU quota throttles the container."""
        from docker.errors import APIError

        for attempt in range(1, PAUSE_ATTEMPTS_MAX + 1):
            try:
                container.pause()
                return
            except APIError as error:
                if "unable to freeze" not in str(error) or attempt == PAUSE_ATTEMPTS_MAX:
                    raise
            time.sleep(PAUSE_RETRY_S)

    def disconnect(self, container: Any) -> None:
        """Remove a container from its networks; its attributes keep their names for `connect`."""
        for network in self._networks(container):
            network.disconnect(container)

    def connect(self, container: Any) -> None:
        """Add a disconnected container to its networks again."""
        for network in self._networks(container):
            network.connect(container, aliases=[container.labels["com.docker.compose.service"]])

    def _networks(self, container: Any) -> list[Any]:
        return [self._client.networks.get(name) for name in container.attrs["NetworkSettings"]["Networks"]]


def run_faults(project: Project, script: Script) -> dict[str, int]:
    """Execute a script in real time until all peers have ended; return how often each fault fired."""
    began, fired = time.monotonic(), dict.fromkeys(NAMES, 0)
    for event in script.event:
        time.sleep(max(0.0, began + (event.at_s or 0.0) - time.monotonic()))
        if project.execute(event):
            fired[event.do] += 1
            log.info("chaos: %s for %.1f s", event.text(), event.for_s)
        elif all(container.status in ("exited", "dead") for container in project.peers().values()):
            break
    return fired
