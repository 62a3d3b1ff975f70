"""A script of faults: what happens to a running testbed or compose project and when, from a TOML file or a seed. Pure.

    [[event]]
    at_s = 5            # seconds after the start, or at_round = 10: when the first peer has completed 10 rounds
    do = "kill"         # a fault of peer.bed.chaos.faults
    peers = [3]
    for_s = 4           # seconds after which it is undone
    disk = "lose"       # the restarted peer has lost its state directory

A testbed does not start the peers that a ``join`` names; the join does.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem
from coordinator_free_bootstrap.ordinary_file import text_of, unreadable
from coordinator_free_bootstrap.seeds import generator
from coordinator_free_bootstrap.validation import counted, joined, sentences
from peer.bed.chaos.faults import FAULTS, FaultEvent
from peer.bed.chaos.toxics import Toxics


class Script(BaseModel):
    """The events of one run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    event: tuple[FaultEvent, ...] = ()

    def check(self, graph: Graph, source: str) -> None:
        """Raise ConfigError if an event names what the graph does not have, or no peer would ever start."""
        edges = {pair for a, b in graph.edges for pair in ((a, b), (b, a))}
        for index, event in enumerate(self.event):
            named = {*event.peers, *(peer for group in event.groups for peer in group)}
            unknown = [str(peer) for peer in sorted(named - set(graph.ids))]
            unknown += [f"{a}-{b}" for a, b in event.edges if (a, b) not in edges]
            if unknown:
                raise ConfigError(
                    f"{source}: event[{index}]: expected one of the {counted(len(graph.nodes), 'peer')} and "
                    f"{counted(len(graph.edges), 'edge')} of the graph file, got {unknown[0]} in {event.text()!r}"
                )
        if self.late >= set(graph.ids) and all(event.at_round for event in self.event if event.do == "join"):
            raise ConfigError(
                f"{source}: expected a peer that no join names, or a join with at_s, got a join for each of "
                f"{counted(len(graph.nodes), 'peer')}, and all at rounds, which nobody would complete"
            )

    @property
    def late(self) -> frozenset[int]:
        """The peers that do not run at the start."""
        return frozenset(peer for event in self.event if event.do == "join" for peer in event.peers)

    @property
    def needs_network(self) -> bool:
        """Whether peers must be connected through fault proxies."""
        return any(FAULTS[event.do].network for event in self.event)


def load_script(path: Path) -> Script:
    """Read a script.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or an event is wrong; one line for each wrong key.
    """
    try:
        data: dict[str, Any] = tomllib.loads(text_of(path))
    except OSError as error:
        raise ConfigError(unreadable(str(path), error, "Give a chaos script, as examples/chaos.toml.")) from error
    except (UnicodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        expected = "a chaos script in TOML, as examples/chaos.toml"
        raise ConfigError(ConfigProblem(str(path), expected, f"another text ({error})")) from error
    try:
        return Script.model_validate(data)
    except ValidationError as error:
        raise ConfigError(joined(str(path), sentences(error, Script, data))) from error


def parse_event(text: str) -> FaultEvent:
    """Return the event of one line such as ``do=cut edges=3-4,4-5 for_s=5`` or ``do=partition groups=0,1|2,3``.

    Raises:
        ConfigError: a word is not ``key=value``, or the event is wrong.
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
        return FaultEvent.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(joined("--now", sentences(error, FaultEvent, fields))) from error


def random_script(
    names: Iterable[str],
    peers: Sequence[int],
    edges: Sequence[tuple[int, int]],
    seed: int,
    seconds: float,
    *,
    every_s: float = 5.0,
    down_max: int | None = None,
) -> Script:
    """Return faults drawn from a seed, about one every ``every_s``, all undone by ``seconds``.

    Args:
        names: the faults to draw from, each with its weight in `FAULTS`.
        peers: ids of all peers.
        edges: of the graph, for faults of edges.
        seed: of the draws.
        seconds: length of the script.
        every_s: mean time between two faults; a fault lasts 0.5 to 2 times as long.
        down_max: how many peers may have a fault at the same time; None: a quarter of them, at least one.
    """
    draw = generator(seed, "chaos")
    weighted = [name for name in names for _ in range(FAULTS[name].weight)]
    limit = max(1, len(peers) // 4) if down_max is None else down_max
    events: list[FaultEvent] = []
    at_s, busy = 0.0, dict.fromkeys(peers, 0.0)
    while True:
        at_s += float(draw.uniform(0.5, 1.5)) * every_s
        for_s = round(float(draw.uniform(0.5, 2.0)) * every_s, 2)
        if at_s + for_s > seconds:
            return Script(event=tuple(events))
        name = str(draw.choice(weighted))
        fault, fields = FAULTS[name], {"do": name, "at_s": round(at_s, 2), "for_s": for_s}
        if "peers" in fault.needs:
            free = [peer for peer, until in busy.items() if until <= at_s]
            if len(busy) - len(free) >= limit:
                continue
            peer = int(draw.choice(free))
            busy[peer] = at_s + for_s
            fields["peers"] = (peer,)
            if "disk" in fault.takes and draw.random() < 0.2:
                fields["disk"] = "lose"
        elif "groups" in fault.needs:
            order = [int(peer) for peer in draw.permutation(peers)]
            half = len(order) // 2
            fields["groups"] = (tuple(order[:half]), tuple(order[half:]))
        else:
            a, b = edges[int(draw.integers(len(edges)))]
            fields["edges"] = ((a, b) if draw.random() < 0.5 else (b, a),)
        if "toxics" in fault.needs:
            fields["toxics"] = {"latency_ms": 200.0, "jitter_ms": 100.0}
        events.append(FaultEvent.model_validate(fields))
