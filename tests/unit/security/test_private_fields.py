"""The table of docs/security.md of what leaves a private peer: complete, and true of runs of each algorithm.

Method: each algorithm runs twice with equal noise, and other labels of the training samples of peer 0. A field of its messages
that differs between the two depends on its samples, so the table must say that it has noise.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from coordinator_free_bootstrap.errors import ConfigError
from peer.algorithms.registry import algorithm_for, algorithms
from peer.core.messages import ModelHeader
from peer.lab.network import SimulatedPeer
from peer.wire.generated import peer_pb2
from tests.tools.simulated import peers_of

PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
CHANGED = 0
RUN: dict[str, Any] = {
    "task": "digits",
    "split": "rotated_hard",
    "split_options": {"samples_per_peer": 80, "test_per_peer": 40},
    "rounds": 4,
    "model": "mlp",
    "batch_size": 20,
    "privacy": {"clip_norm": 1.0, "noise_multiplier": 0.2, "delta": 1e-3},
}
SETTINGS: dict[str, dict[str, Any]] = {"dfca": {"options": {"warmup_rounds": 2}}, "fedspd": {"options": {}}}


def graph_of(name: str) -> Graph:
    made = make_graph("complete", 3, seed=3)
    return Graph(made.nodes, made.edges, Manifest(**RUN | SETTINGS.get(name, {}) | {"algorithm": name}))


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def table() -> Iterator[tuple[str, str, list[str], str]]:
    """Yield message, field, algorithms (none: all) and protection."""
    for line in PAGE.split("compares\nthis table", 1)[1].split("\n## ", 1)[0].splitlines():
        if not line.startswith("| `"):
            continue
        messages, given, _, protection = (cell.strip() for cell in line.strip("| ").split(" | "))
        listed, _, of = given.partition(" of ")
        for message in names(messages):
            every = [field.name for field in peer_pb2.DESCRIPTOR.message_types_by_name[message].fields]
            for field in every if listed == "all" else names(listed):
                yield message, field, names(of), protection


def private_algorithms() -> set[str]:
    found = set()
    for name in algorithms():
        try:
            graph = graph_of(name)
            algorithm_for(graph, 0).uses(0)
        except ConfigError:
            continue
        found.add(name)
    return found


def test_the_table_has_each_field_of_each_message_once():
    said = [(message, field) for message, field, _, _ in table()]
    there = {
        (message.name, field.name)
        for message in peer_pb2.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
    }
    assert set(said) == there
    twice = {pair for pair in said if said.count(pair) > 1}
    assert twice == {("ModelHeader", "numbers")}, "only this one has a row for an algorithm"


def test_the_page_names_the_algorithms_that_are_covered():
    listed = PAGE.split("- **Algorithms.**", 1)[1].split(". ", 1)[0]
    assert set(names(listed)) == private_algorithms()
    assert len(private_algorithms()) < len(algorithms())


def sent_by_the_changed_peer(
    name: str, monkeypatch: pytest.MonkeyPatch, *, change: bool
) -> dict[tuple[str, str], set[Any]]:
    """Run an algorithm; return what peer 0 sent, its models too: for each field the set of (round, step, value)."""
    sent: dict[tuple[str, str], set[Any]] = defaultdict(set)
    seeds = iter(range(10_000))
    philox = np.random.Philox
    push, tell = SimulatedPeer.push, SimulatedPeer.send_control

    def note(kind: str, message: Any) -> None:
        for field in fields(message):
            sent[kind, field.name].add((message.round_index, message.step, getattr(message, field.name)))

    def spied_push(self: SimulatedPeer, neighbor: int, header: ModelHeader) -> None:
        if self.peer_id == CHANGED:
            note("ModelHeader", header)
            model = self.host.workspace.models.share(header.slot).tobytes()
            sent["PushFrame", "chunk"].add((header.round_index, header.step, model))
        push(self, neighbor, header)

    def spied_tell(self: SimulatedPeer, neighbor: int, message: Any) -> None:
        if self.peer_id == CHANGED:
            note(f"{type(message).__name__}Request", message)
        tell(self, neighbor, message)

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedPeer, "push", spied_push)
        patch.setattr(SimulatedPeer, "send_control", spied_tell)
        patch.setattr(np.random, "Philox", lambda key=None: philox(key=next(seeds) if key is None else key))
        peers = peers_of(graph_of(name))
        if change:
            targets = peers[CHANGED].learner.learner.samples()._targets
            targets._values = torch.flip(targets._values, [0])
        peers.network.run()
    return sent


@pytest.mark.parametrize("name", sorted(private_algorithms()))
def test_what_depends_on_samples_has_noise(name, monkeypatch):
    first, same, other = (sent_by_the_changed_peer(name, monkeypatch, change=change) for change in (False, False, True))
    assert first == same, "equal noise and samples give equal messages"
    dependent = {field for field in first.keys() | other.keys() if first.get(field) != other.get(field)}
    said = {(message, field): protection for message, field, of, protection in table() if not of or name in of}
    assert {field for field in dependent if not said.get(field, "").startswith("noise")} == set()
    if name != "local":
        assert ("PushFrame", "chunk") in dependent
    if name in ("dfca", "ifca", "blend"):
        assert ("ModelHeader", "slot") in dependent
    numbers = {
        field: {number for _, _, value in sent for number in ([value] if isinstance(value, int) else value)}
        for field, sent in first.items()
        if field[1] in ("sample_count", "numbers")
    }
    for field, found in numbers.items():
        protection = said[field]
        if not protection.startswith("noise"):
            assert found <= {float(word) for word in protection.split() if word.isdigit()}, (field, protection)
