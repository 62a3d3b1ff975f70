"""Check a neighbor's hello: may the two peers exchange models? Pure.

Each peer checks the other's hello against its own, so that both logs have the mismatch with both values. A refusal
contains no secret. Text from a neighbor is shortened and quoted before it is logged.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from coordinator_free_bootstrap.errors import Refusal
from coordinator_free_bootstrap.identity import INCARNATION_MAX
from coordinator_free_bootstrap.meaning import compare
from coordinator_free_bootstrap.settings import diff
from coordinator_free_bootstrap.strict_json import shown

_DIFFERENCES_SHOWN = 8


class HelloFields(Protocol):
    """The fields of a hello that the check reads; `peer.core.messages.Hello` has them."""

    @property
    def sender(self) -> int: ...  # noqa: D102
    @property
    def incarnation(self) -> int: ...  # noqa: D102
    @property
    def wire_version(self) -> int: ...  # noqa: D102
    @property
    def manifest_digest(self) -> str: ...  # noqa: D102
    @property
    def graph_digest(self) -> str: ...  # noqa: D102
    @property
    def schema_digest(self) -> str: ...  # noqa: D102
    @property
    def frozen_digest(self) -> str: ...  # noqa: D102
    @property
    def initial_models_digest(self) -> str: ...  # noqa: D102
    @property
    def manifest(self) -> str: ...  # noqa: D102
    @property
    def meaning(self) -> str: ...  # noqa: D102


def check_hello(
    mine: HelloFields, theirs: HelloFields, *, neighbors: Collection[int], last_incarnation: int = 0
) -> tuple[Refusal, str] | None:
    """Return None if the hello is acceptable, else the refusal code and a sentence with both values.

    The first mismatch is reported. Order: sender, wire version, incarnation, manifest, graph, meaning (classes, columns,
    scaling), schema, frozen weights, initial models.

    Args:
        mine: this peer's own hello.
        theirs: the hello received; no field of it is verified yet.
        neighbors: ids of this peer's neighbors in the graph file.
        last_incarnation: the highest incarnation of the sender seen so far; 0 if none.
    """
    if theirs.sender not in neighbors:
        return Refusal.NOT_A_NEIGHBOR, (
            f"peer {shown(theirs.sender)} is not a neighbor of peer {mine.sender} in its graph file; "
            f"its neighbors are {sorted(neighbors)}; add the edge to the graph file of every peer"
        )
    if theirs.wire_version != mine.wire_version:
        return Refusal.WIRE_VERSION, _both(mine, theirs, "wire versions", mine.wire_version, theirs.wire_version)
    if theirs.incarnation < last_incarnation:
        return Refusal.OLD_INCARNATION, (
            f"peer {theirs.sender} claims incarnation {shown(theirs.incarnation)}, but peer {mine.sender} has seen "
            f"incarnation {last_incarnation}; take {last_incarnation + 1} or higher, and run peer {theirs.sender} only once"
        )
    if not 0 < theirs.incarnation <= INCARNATION_MAX:
        return Refusal.MALFORMED, (
            f"peer {theirs.sender} claims incarnation {shown(theirs.incarnation)}; allowed: 1 to {INCARNATION_MAX}"
        )
    if theirs.manifest_digest != mine.manifest_digest:
        sentence = _both(mine, theirs, "manifests", mine.manifest_digest, theirs.manifest_digest)
        return Refusal.MANIFEST_MISMATCH, f"{sentence}; {_differences(mine, theirs)}"
    if theirs.graph_digest != mine.graph_digest:
        return Refusal.GRAPH_MISMATCH, _both(mine, theirs, "graphs", mine.graph_digest, theirs.graph_digest)
    found = compare(mine.meaning, theirs.meaning, f"peer {mine.sender}", f"peer {theirs.sender}")
    if found.refusal:
        return Refusal.MEANING_MISMATCH, found.refusal
    digests = (
        (Refusal.SCHEMA_MISMATCH, "model schemas", mine.schema_digest, theirs.schema_digest),
        (Refusal.FROZEN_MISMATCH, "frozen weights", mine.frozen_digest, theirs.frozen_digest),
        (Refusal.INITIAL_MODELS_MISMATCH, "initial models", mine.initial_models_digest, theirs.initial_models_digest),
    )
    for refusal, what, ours, other in digests:
        if ours != other:
            return refusal, "; ".join((_both(mine, theirs, what, ours, other), *found.causes))
    return None


def remarks(mine: HelloFields, theirs: HelloFields) -> tuple[str, ...]:
    """Return a sentence for each difference of two accepted hellos that may be meant, such as another task file."""
    return compare(mine.meaning, theirs.meaning, f"peer {mine.sender}", f"peer {theirs.sender}").warnings


def _both(mine: HelloFields, theirs: HelloFields, what: str, ours: object, other: object) -> str:
    return (
        f"{what} differ: peer {mine.sender} has {shown(ours)}, peer {theirs.sender} has {shown(other)}; "
        f"give both the same {_SOURCE[what]}"
    )


_SOURCE = {
    "wire versions": "version of this program",
    "manifests": "graph file",
    "graphs": "graph file",
    "model schemas": "task and model code",
    "frozen weights": "file of the base model (parameters that are not trained), model code and library versions",
    "initial models": "run.seed, model code and library versions",
}


def _differences(mine: HelloFields, theirs: HelloFields) -> str:
    differences = diff(mine.manifest, theirs.manifest)
    if not differences:
        return "but no key differs: one of the two digests is not the digest of its manifest"
    named = [
        f"{d.key}: peer {mine.sender} has {d.ours}, peer {theirs.sender} has {d.theirs}"
        for d in differences[:_DIFFERENCES_SHOWN]
    ]
    more = len(differences) - _DIFFERENCES_SHOWN
    return "; ".join(named + ([f"and {more} more keys"] if more > 0 else []))
