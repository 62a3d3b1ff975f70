"""The table of faults: each entry of `FAULTS` is one fault of chaos scripts, with its keys, its help and its executors.

Script validation, ``peer chaos --help``, random scripts, the table in docs/reliability.md, and the executors of testbeds
(`peer.bed.chaos.runner`) and of containers (`peer.ops.deploy.chaos`) all read this table. `peer.failpoints` has the same names
for what happens inside a process.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from coordinator_free_bootstrap import Graph
from peer.bed.chaos.toxics import Direction, Toxics
from peer.failpoints import SIGNALS


class Processes(Protocol):
    """What a testbed offers to the executors of faults."""

    graph: Graph

    def signal(self, peer_id: int, number: int) -> bool:
        """Send a signal to a peer's process; return False if it does not run."""

    def start(self, peer_id: int, *, lose_disk: bool) -> None:
        """Start a peer's process; end it first if it runs."""

    def set_toxics(self, directions: Iterable[Direction], toxics: Toxics) -> None:
        """Replace the toxics of directed edges; needs proxies."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        help: one sentence for people.
        keys: the keys of its event, the optional ones in brackets.
        processes: executes an event on a testbed; returns ``done``, or why not.
        undo: the fault that ends it after ``for_s``; None: ``for_s`` is not allowed.
        weight: how often random scripts draw it; 0: never.
        network: whether a testbed needs proxies for it.
        containers: executes it on (`peer.ops.deploy.chaos.Project`, container); None: not available there.
    """

    help: str
    keys: str
    processes: Callable[[Processes, FaultEvent], str]
    undo: str | None = None
    weight: int = 0
    network: bool = False
    containers: Callable[[Any, Any], None] | None = None

    @property
    def example(self) -> str:
        """The required keys with example values, as words of ``peer chaos --now``."""
        return " ".join(_EXAMPLES[key] for key in self.needs)

    @property
    def needs(self) -> list[str]:
        """The required keys."""
        return [key for key in self.keys.split() if not key.startswith("[")]

    @property
    def takes(self) -> list[str]:
        """All keys."""
        return [key.strip("[]") for key in self.keys.split()]


_EXAMPLES = {
    "peers": "peers=3",
    "edges": "edges=0-1",
    "groups": "groups=0,1|2,3",
    "toxics": "latency_ms=200",
}


def _signal(name: str) -> Callable[[Processes, FaultEvent], str]:
    def execute(bed: Processes, event: FaultEvent) -> str:
        number = getattr(signal, name)
        stopped = [peer for peer in event.peers if not bed.signal(peer, number)]
        return f"skipped, not running: {', '.join(map(str, stopped))}" if stopped else "done"

    return execute


def _start(bed: Processes, event: FaultEvent) -> str:
    for peer in event.peers:
        bed.start(peer, lose_disk=event.disk == "lose")
    return "done"


def _on_edges(
    help_: str,
    keys: str,
    toxics: Callable[[FaultEvent], Toxics],
    *,
    both: bool = True,
    undo: str | None = "heal",
    containers: Callable[[Any, Any], None] | None = None,
) -> Fault:
    def execute(bed: Processes, event: FaultEvent) -> str:
        directions = _edges(event, bed.graph)
        bed.set_toxics([*directions, *((b, a) for a, b in directions if both)], toxics(event))
        return "done"

    return Fault(help_, keys, execute, undo, 0 if undo is None else 1, True, containers)


def _edges(event: FaultEvent, graph: Graph) -> list[Direction]:
    """Return the edges that an event names: its own, those of its peers, those between its groups, or else all."""
    if event.edges:
        return [*event.edges]
    if event.peers:
        return [edge for edge in graph.edges if not {*event.peers}.isdisjoint(edge)]
    if event.groups:
        group_of = {peer: index for index, group in enumerate(event.groups) for peer in group}
        return [(a, b) for a, b in graph.edges if {a, b} <= group_of.keys() and group_of[a] != group_of[b]]
    return [*graph.edges]


def _blocked(event: FaultEvent) -> Toxics:
    return Toxics(reset=True) if event.mode == "reset" else Toxics(black_hole=True)


# fmt: off
FAULTS = {
    "kill": Fault("End peers with SIGKILL; the undo is restart.", "peers [disk]", _signal(SIGNALS["kill"]),
                  undo="restart", weight=2, containers=lambda _, container: container.kill()),
    "pause": Fault("Suspend peers with SIGSTOP; the undo is continue.", "peers", _signal(SIGNALS["pause"]),
                   undo="continue", weight=1, containers=lambda project, container: project.pause(container)),
    "leave": Fault("Ask peers to leave with SIGTERM; the undo is restart.", "peers [disk]", _signal(SIGNALS["leave"]),
                   undo="restart", weight=1),
    "restart": Fault('Start peers again; with disk = "lose" from an empty state directory.', "peers [disk]", _start,
                     containers=lambda _, container: container.start()),
    "continue": Fault("Let paused peers run again.", "peers", _signal("SIGCONT"),
                      containers=lambda _, container: container.unpause()),
    "join": Fault("Start peers for the first time; a testbed does not start them before.", "peers", _start),
    "cut": _on_edges('Block edges: bytes stop and connections stay open; with mode = "reset" connections are reset.',
                     "edges [mode]", _blocked),
    "one_way": _on_edges("Block edges from the first peer to the second, not back.", "edges [mode]", _blocked, both=False),
    "slow": _on_edges("Add latency, jitter, a bandwidth limit or slicing to edges.", "edges toxics", lambda event: event.toxics),
    "partition": _on_edges("Block all edges between groups of peers.", "groups [mode]", _blocked),
    "isolate": _on_edges("Block all edges of peers.", "peers [mode]", _blocked,
                         containers=lambda project, container: project.disconnect(container)),
    "heal": _on_edges("Remove the faults of given edges, of all edges of given peers, or of every edge.", "[edges] [peers]",
                      lambda _: Toxics(), undo=None, containers=lambda project, container: project.connect(container)),
}
# fmt: on

if TYPE_CHECKING:
    Name = str
else:
    Name = Literal[tuple(FAULTS)]


class FaultEvent(BaseModel):
    """One fault at one time: what a script's ``[[event]]`` holds."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    do: Name
    at_s: float | None = Field(None, ge=0, description="seconds after the start of the script")
    at_round: int | None = Field(None, ge=1, description="when the first peer has completed this many rounds")
    peers: tuple[int, ...] = Field((), description="ids of peers")
    disk: Literal["keep", "lose"] = Field("keep", description="whether restarted peers keep their state directory")
    edges: tuple[Direction, ...] = Field((), description="pairs of ids; one_way: from, to")
    groups: tuple[tuple[int, ...], ...] = Field((), description="groups of ids between which edges are blocked")
    mode: Literal["drop", "reset"] = Field("drop", description="bytes stop, or connections are reset")
    toxics: Toxics = Field(Toxics(), description="latency_ms, jitter_ms, bandwidth_kb_s, slice_bytes")
    for_s: float | None = Field(None, gt=0, description="undo it after this many seconds")

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        fault, given = FAULTS[self.do], {*self.parameters()}
        for key in fault.needs:
            if key not in given:
                raise ValueError(f"expected {key} beside do = {self.do!r}, got none")
        for key in sorted(given.difference(fault.takes)):
            raise ValueError(f"expected no {key} beside do = {self.do!r}, got one")
        if self.for_s is not None and fault.undo is None:
            raise ValueError(f"expected no for_s beside do = {self.do!r}, which cannot be undone, got {self.for_s:g}")
        if self.at_s is not None and self.at_round is not None:
            raise ValueError("expected at_s or at_round, got both")
        return self

    def parameters(self) -> dict[str, Any]:
        """Return the keys that say what the fault is about, without those at their default."""
        return self.model_dump(exclude_defaults=True, exclude={"do", "at_s", "at_round", "for_s"})

    def undo(self) -> FaultEvent:
        """Return the event that ends this one; of a partition, it heals all edges."""
        name = str(FAULTS[self.do].undo)
        taken = {*FAULTS[name].needs, *FAULTS[name].takes}
        return FaultEvent.model_validate(
            {"do": name} | {key: value for key, value in self.parameters().items() if key in taken}
        )

    def text(self) -> str:
        """Return the event in one line."""
        arrow = "->" if self.do == "one_way" else "-"
        parts = [self.do, ", ".join(map(str, self.peers)), ", ".join(f"{a}{arrow}{b}" for a, b in self.edges)]
        parts.append(" | ".join(" ".join(map(str, group)) for group in self.groups))
        return " ".join(filter(None, parts)) + (" without disk" if self.disk == "lose" else "")
