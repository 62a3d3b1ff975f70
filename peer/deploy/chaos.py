"""Faults for the peers of a compose project, from a seed: kill and start again, pause, cut from the network.

Needs the Docker SDK and the engine's socket. Everything that it breaks it mends, also when it is stopped.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from coordinator_free_bootstrap.errors import UsageError

log = logging.getLogger("peer")
Kind = Literal["kill", "pause", "cut"]
KINDS: tuple[Kind, ...] = ("kill", "pause", "cut")
GAP_S = (2.0, 8.0)  # between two faults
CONFLICT = 409  # the engine's answer for a container that is not in the state asked for
FREEZES_MAX, FREEZE_PAUSE_S = 20, 0.25
LENGTH_S = (1.0, 8.0)  # of a fault: shorter and longer than the usual suspicion time of 5 s


@dataclass(frozen=True)
class Fault:
    """At ``at_s`` after the start, peer ``peer_id`` suffers ``kind`` for ``length_s`` seconds."""

    at_s: float
    kind: Kind
    peer_id: int
    length_s: float


def script(seed: int, seconds: float, peer_ids: list[int]) -> list[Fault]:
    """Return the faults of a seed, one at a time, in order; the same for the same arguments on every machine."""
    faults: list[Fault] = []
    draw, now = random.Random(seed), 0.0
    while True:
        now += draw.uniform(*GAP_S)
        fault = Fault(now, draw.choice(KINDS), draw.choice(peer_ids), draw.uniform(*LENGTH_S))
        now += fault.length_s
        if now > seconds:
            return faults
        faults.append(fault)


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
        """Return the project that a container belongs to.

        Raises:
            UsageError: it belongs to none.
        """
        labels = client.containers.get(container_id).labels
        if "com.docker.compose.project" not in labels:
            raise UsageError("chaos: this container is of no compose project; name one with --project")
        return cls(client, labels["com.docker.compose.project"])

    def peers(self) -> dict[int, Any]:
        """Return peer id -> container, also of those that have ended."""
        found = {}
        for container in self._client.containers.list(
            all=True, filters={"label": f"com.docker.compose.project={self._name}"}
        ):
            kind, _, number = container.labels.get("com.docker.compose.service", "").partition("-")
            if kind == "peer" and number.isdigit():
                found[int(number)] = container
        return dict(sorted(found.items()))

    def inflict(self, fault: Fault) -> bool:
        """Carry out one fault and mend it; return whether it fired: a peer that has ended is spared.

        What the engine itself fails to do is told and does not count; the next fault comes all the same.
        """
        from docker.errors import APIError

        container = self.peers()[fault.peer_id]
        if container.status != "running":
            return False
        try:
            for _ in {"kill": _kill, "pause": _pause, "cut": self._cut}[fault.kind](container):
                time.sleep(fault.length_s)
        except APIError as error:
            if error.is_server_error():
                log.warning("%s peer %d: the engine could not: %s", fault.kind, fault.peer_id, error.explanation)
            elif error.status_code != CONFLICT:  # that one means: it ended in this very moment
                raise
            return False
        return True

    def _cut(self, container: Any) -> Iterator[None]:
        service = container.labels["com.docker.compose.service"]
        networks = [self._client.networks.get(name) for name in container.attrs["NetworkSettings"]["Networks"]]
        for network in networks:
            network.disconnect(container)
        try:
            yield
        finally:
            for network in networks:
                network.connect(container, aliases=[service])


def _kill(container: Any) -> Iterator[None]:
    container.kill()  # which the engine takes for somebody's wish, so that its restart policy does nothing
    try:
        yield
    finally:
        container.start()


def _pause(container: Any) -> Iterator[None]:
    _freeze(container)
    try:
        yield
    finally:
        container.unpause()


def _freeze(container: Any) -> None:
    """Pause a container; runc gives up on one that its processor quota holds back just then, so ask it again."""
    from docker.errors import APIError

    for asked in range(1, FREEZES_MAX + 1):
        try:
            container.pause()
            return
        except APIError as error:
            if "unable to freeze" not in str(error) or asked == FREEZES_MAX:
                raise
        time.sleep(FREEZE_PAUSE_S)


def wreak(project: Project, faults: list[Fault]) -> dict[Kind, int]:
    """Carry out a script in real time; return how many faults of each kind fired. Ends early when all peers have ended."""
    began, fired = time.monotonic(), dict.fromkeys(KINDS, 0)
    for fault in faults:
        time.sleep(max(0.0, began + fault.at_s - time.monotonic()))
        if project.inflict(fault):
            fired[fault.kind] += 1
            log.info("%s peer %d for %.1f s", fault.kind, fault.peer_id, fault.length_s)
        elif all(container.status in ("exited", "dead") for container in project.peers().values()):
            break
    return fired
