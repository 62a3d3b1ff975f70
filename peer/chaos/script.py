"""A script of faults: what happens to a running testbed and when, from a TOML file or drawn from a seed. Pure.

    [[event]]
    at_s = 5            # seconds after the start, or at_round = 10: when the first peer has completed 10 rounds
    do = "kill"         # kill, stop, leave, restart, continue, join, cut, one_way, slow, partition, heal
    peers = [3]
    for_s = 4           # undo it after so long: restart, continue or heal
    disk = "lose"       # with kill and restart: the peer comes back without its disk

Peers that a ``join`` names are not there at the start; they appear for the first time with it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.seeds import generator
from coordinator_free_bootstrap.validation import joined, sentences
from peer.chaos.toxics import Toxics

ON_PEERS = ("kill", "stop", "leave", "restart", "continue", "join")
ON_EDGES = ("cut", "one_way", "slow")
UNDO = {"kill": "restart", "stop": "continue", "leave": "restart"} | dict.fromkeys((*ON_EDGES, "partition"), "heal")
NETWORK = (*ON_EDGES, "partition", "heal")


class Event(BaseModel):
    """One fault, or the end of one."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    do: Literal["kill", "stop", "leave", "restart", "continue", "join", "cut", "one_way", "slow", "partition", "heal"]
    at_s: float | None = Field(None, ge=0, description="seconds after the start of the script")
    at_round: int | None = Field(None, ge=1, description="when the first peer has completed this many rounds")
    peers: tuple[int, ...] = Field((), description="whom kill, stop, leave, restart, continue and join are about")
    disk: Literal["keep", "lose"] = Field("keep", description="whether restarted peers find their state directory")
    edges: tuple[tuple[int, int], ...] = Field((), description="edges to cut, slow or heal; one_way: from, to")
    groups: tuple[tuple[int, ...], ...] = Field((), description="partition: no byte passes between two groups")
    mode: Literal["drop", "reset"] = Field("drop", description="cut, partition: a pulled cable, or reset connections")
    toxics: Toxics = Field(
        default_factory=Toxics, description="slow: latency_ms, jitter_ms, bandwidth_kb_s, slice_bytes"
    )
    for_s: float | None = Field(None, gt=0, description="undo it after this long")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needs = "peers" if self.do in ON_PEERS else "edges" if self.do in ON_EDGES else None
        needs = "groups" if self.do == "partition" else needs
        for name in ("peers", "edges", "groups"):
            if name == needs and not getattr(self, name):
                raise ValueError(f"do = {self.do!r} needs {name}")
            if name != needs and getattr(self, name) and (self.do, name) != ("heal", "edges"):
                raise ValueError(f"do = {self.do!r} takes no {name}")
        if self.for_s is not None and self.do not in UNDO:
            raise ValueError(f"do = {self.do!r} cannot be undone: leave for_s out")
        if self.at_s is not None and self.at_round is not None:
            raise ValueError("give at_s or at_round, not both")
        if self.do == "slow" and self.toxics.is_clean:
            raise ValueError("do = 'slow' needs toxics, for example {latency_ms = 200, jitter_ms = 50}")
        return self

    def undo(self) -> Event:
        """Return the event that ends this one."""
        if self.do in ON_PEERS:
            return Event.model_validate({"do": UNDO[self.do], "peers": self.peers, "disk": self.disk})
        both_ways = tuple(edge for a, b in self.edges for edge in ((a, b), (b, a)))
        return Event(do="heal", edges=both_ways)  # of a partition: all edges

    def words(self) -> str:
        """Return the event in one line for people and timelines."""
        on = ""
        if self.peers:
            on = f" {', '.join(map(str, self.peers))}"
        elif self.edges:
            arrow = "->" if self.do == "one_way" else "-"
            on = " " + ", ".join(f"{a}{arrow}{b}" for a, b in self.edges)
        elif self.groups:
            on = " " + " | ".join(" ".join(map(str, group)) for group in self.groups)
        return self.do + on + (" without disk" if self.disk == "lose" else "")


class Script(BaseModel):
    """The events of one run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    event: tuple[Event, ...] = ()

    def check(self, graph: Graph, source: str) -> None:
        """Raise ConfigError where the script names peers or edges that the graph has not."""
        edges = {pair for a, b in graph.edges for pair in ((a, b), (b, a))}
        for index, event in enumerate(self.event):
            named = {*event.peers, *(peer for group in event.groups for peer in group)}
            unknown = [str(peer) for peer in sorted(named - set(graph.ids))]
            unknown += [f"{a}-{b}" for a, b in event.edges if (a, b) not in edges]
            if unknown:
                raise ConfigError(
                    f"{source}: event[{index}]: found {unknown[0]} in {event.words()!r}; allowed: the "
                    f"{len(graph.nodes)} peers and {len(graph.edges)} edges of the graph file"
                )

    @property
    def late(self) -> frozenset[int]:
        """The peers that are not there at the start."""
        return frozenset(peer for event in self.event if event.do == "join" for peer in event.peers)

    @property
    def needs_network(self) -> bool:
        """Whether peers must be joined through fault proxies."""
        return any(event.do in NETWORK for event in self.event)


def load_script(path: Path) -> Script:
    """Read a script.

    Raises:
        ConfigError: the file is missing, no TOML, or an event is wrong; each wrong key has a line.
    """
    try:
        data: dict[str, Any] = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}; allowed: a chaos script in TOML, see examples/chaos.toml") from error
    try:
        return Script.model_validate(data)
    except ValidationError as error:
        raise ConfigError(joined(str(path), sentences(error, Script, data))) from error


def event_of_words(text: str) -> Event:
    """Return the event of one line such as ``do=cut edges=3-4,4-5 for_s=5`` or ``do=partition groups=0,1|2,3``.

    Raises:
        ConfigError: a word is no ``key=value``, or the event is wrong.
    """
    fields: dict[str, Any] = {}
    for word in text.split():
        key, _, value = word.partition("=")
        if key == "peers":
            fields[key] = value.split(",")
        elif key == "edges":
            fields[key] = [edge.split("-") for edge in value.split(",")]
        elif key == "groups":
            fields[key] = [group.split(",") for group in value.split("|")]
        elif key in Toxics.model_fields:
            fields.setdefault("toxics", {})[key] = value
        else:
            fields[key] = value
    try:
        return Event.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(joined("--now", sentences(error, Event, fields))) from error


def random_script(graph: Graph, seed: int, seconds: float, *, every_s: float = 5.0, network: bool = True) -> Script:
    """Return faults drawn from a seed, about one every ``every_s``, all over by ``seconds``.

    At any time at most a quarter of the peers is down or stopped (one, in a small graph), so that a run goes on.
    """
    draw = generator(seed, "chaos")
    kinds = ["kill", "kill", "stop", "leave"] + (["cut", "one_way", "slow", "partition"] if network else [])
    events: list[Event] = []
    at_s, busy = 0.0, dict.fromkeys(graph.ids, 0.0)
    while True:
        at_s += float(draw.uniform(0.5, 1.5)) * every_s
        for_s = round(float(draw.uniform(0.5, 2.0)) * every_s, 2)
        if at_s + for_s > seconds:
            return Script(event=tuple(events))
        kind = str(draw.choice(kinds))
        common = {"do": kind, "at_s": round(at_s, 2), "for_s": for_s}
        if kind in ON_PEERS:
            free = [peer for peer, until in busy.items() if until <= at_s]
            allowed = max(1, len(graph.nodes) // 4) - (len(busy) - len(free))
            if allowed < 1:
                continue
            peer = int(draw.choice(free))
            busy[peer] = at_s + for_s
            lose = kind == "kill" and draw.random() < 0.3
            events.append(Event.model_validate(common | {"peers": (peer,), "disk": "lose" if lose else "keep"}))
        elif kind == "partition":
            order = [int(peer) for peer in draw.permutation(graph.ids)]
            half = len(order) // 2
            events.append(Event.model_validate(common | {"groups": (tuple(order[:half]), tuple(order[half:]))}))
        else:
            a, b = graph.edges[int(draw.integers(len(graph.edges)))]
            edge = (a, b) if draw.random() < 0.5 else (b, a)
            toxics = {"latency_ms": 200.0, "jitter_ms": 100.0} if kind == "slow" else {}
            events.append(Event.model_validate(common | {"edges": (edge,), "toxics": toxics}))
