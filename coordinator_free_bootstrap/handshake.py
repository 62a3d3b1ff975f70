"""Check a neighbor's hello: may the two peers exchange models? Pure.

Each peer checks the other's hello against its own, so that both logs have the mismatch with both values. A refusal
contains no secret. Text from a neighbor is shortened and quoted before it is logged.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from coordinator_free_bootstrap.identity import INCARNATION_MAX
from coordinator_free_bootstrap.meaning import compare
from coordinator_free_bootstrap.settings import diff
from coordinator_free_bootstrap.strict_json import shown

_DIFFERENCES_SHOWN = 8
_IN_RECORDS = ("_version", "_digest")  # ends of the names of fields that records keep


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What two peers must agree on before they exchange models. A digest that differs is refused with both values.

    Attributes:
        wire_version: of the messages.
        manifest_digest: of ``manifest``.
        graph_digest: of peers and edges.
        schema_digest: of the models that travel.
        frozen_digest: of weights that are neither trained nor sent; "" where the model has none.
        initial_models_digest: "" where each peer draws its own models.
        manifest: canonical JSON, so that a refusal can name the keys that differ.
        meaning: the text of `coordinator_free_bootstrap.meaning.Meaning`.
    """

    wire_version: int
    manifest_digest: str
    graph_digest: str
    schema_digest: str
    frozen_digest: str = ""
    initial_models_digest: str = ""
    manifest: str = ""
    meaning: str = ""

    def digests(self) -> dict[str, str]:
        """Return what history and summary keep: the wire version and all digests, by short names."""
        digests = {
            each.name: str(getattr(self, each.name)) for each in fields(Compared) if each.name.endswith(_IN_RECORDS)
        }
        return {name.removesuffix("_digest"): value for name, value in digests.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction(Compared):
    """The part of a hello that is checked: the sender and its `Compared`; `peer.core.messages.Hello` has more."""

    sender: int
    incarnation: int  # the sender's restart count


def check_hello(
    mine: Introduction, theirs: Introduction, *, neighbors: Collection[int], last_incarnation: int = 0
) -> Refusal | None:
    """Return None if the hello is acceptable, else the refusal, with both values.

    The first mismatch is reported. Order: sender, wire version, incarnation, manifest, graph, meaning (classes, columns,
    scaling), schema, frozen weights, initial models.

    Args:
        mine: this peer's own hello.
        theirs: the hello received; no field of it is verified yet.
        neighbors: ids of this peer's neighbors in the graph file.
        last_incarnation: the highest incarnation of the sender seen so far; 0 if none.
    """
    if theirs.sender not in neighbors:
        return Refusal(
            RefusalCode.NOT_A_NEIGHBOR,
            f"sender: expected a neighbor of peer {mine.sender} in its graph file, one of {sorted(neighbors)}, got peer "
            f"{shown(theirs.sender)}. Add the edge to the graph file of every peer.",
        )
    if theirs.wire_version != mine.wire_version:
        return Refusal(RefusalCode.WIRE_VERSION, _wire_versions(mine, theirs))
    if theirs.incarnation < last_incarnation:
        return Refusal(
            RefusalCode.OLD_INCARNATION,
            f"incarnation of peer {theirs.sender}: expected {last_incarnation} or higher, which peer {mine.sender} has seen, "
            f"got {shown(theirs.incarnation)}. Use {last_incarnation + 1} or higher, and run peer {theirs.sender} only once.",
        )
    if not 0 < theirs.incarnation <= INCARNATION_MAX:
        return Refusal(
            RefusalCode.MALFORMED,
            f"incarnation of peer {theirs.sender}: expected 1 to {INCARNATION_MAX}, got {shown(theirs.incarnation)}",
        )
    if theirs.manifest_digest != mine.manifest_digest:
        sentence = _both(mine, theirs, "manifests", mine.manifest_digest, theirs.manifest_digest)
        return Refusal(RefusalCode.MANIFEST_MISMATCH, f"{sentence}; {_differences(mine, theirs)}")
    if theirs.graph_digest != mine.graph_digest:
        return Refusal(
            RefusalCode.GRAPH_MISMATCH, _both(mine, theirs, "graphs", mine.graph_digest, theirs.graph_digest)
        )
    compared = compare(mine.meaning, theirs.meaning, f"peer {mine.sender}", f"peer {theirs.sender}")
    if compared.refusal:
        return compared.refusal
    digests = (
        (RefusalCode.SCHEMA_MISMATCH, "model schemas", mine.schema_digest, theirs.schema_digest),
        (RefusalCode.FROZEN_MISMATCH, "frozen weights", mine.frozen_digest, theirs.frozen_digest),
        (
            RefusalCode.INITIAL_MODELS_MISMATCH,
            "initial models",
            mine.initial_models_digest,
            theirs.initial_models_digest,
        ),
    )
    for code, what, ours, other in digests:
        if ours != other:
            return Refusal(code, "; ".join((_both(mine, theirs, what, ours, other), *compared.causes)))
    return None


def remarks(mine: Introduction, theirs: Introduction) -> tuple[str, ...]:
    """Return a sentence for each difference of two accepted hellos that may be meant, such as another task file."""
    return compare(mine.meaning, theirs.meaning, f"peer {mine.sender}", f"peer {theirs.sender}").warnings


def _both(mine: Introduction, theirs: Introduction, what: str, ours: object, other: object) -> str:
    return (
        f"{what} differ: peer {mine.sender} has {shown(ours)}, peer {theirs.sender} has {shown(other)}; "
        f"give both the same {_SOURCE[what]}"
    )


def _wire_versions(mine: Introduction, theirs: Introduction) -> str:
    older, newer = sorted((mine, theirs), key=lambda each: each.wire_version)
    return (
        f"wire versions differ: peer {mine.sender} has {shown(mine.wire_version)}, peer {theirs.sender} has "
        f"{shown(theirs.wire_version)}; upgrade peer {shown(older.sender)} to the release of peer {shown(newer.sender)}"
    )


_SOURCE = {
    "manifests": "graph file",
    "graphs": "graph file",
    "model schemas": "task and model code",
    "frozen weights": "file of the base model (parameters that are not trained), model code and library versions",
    "initial models": "run.seed, model code and library versions",
}


def _differences(mine: Introduction, theirs: Introduction) -> str:
    differences = diff(mine.manifest, theirs.manifest)
    if not differences:
        return "but no key differs: one of the two digests is not the digest of its manifest"
    named = [
        f"{d.key}: peer {mine.sender} has {d.ours}, peer {theirs.sender} has {d.theirs}"
        for d in differences[:_DIFFERENCES_SHOWN]
    ]
    more = len(differences) - _DIFFERENCES_SHOWN
    return "; ".join(named + ([f"and {more} more keys"] if more > 0 else []))
