"""Deltas: a model is sent as its change since the last model that its receiver has acknowledged. Pure.

A sender has one *published* model per slot; where a round has one edge, one per slot and neighbor, since each neighbor gets a
model only once in a cycle of rounds. What it sends next is the published model plus the encoded change to the new one, and
that is the next published model: what an encoding leaves out is in the next change by itself (error feedback, as in EF21:
Richtarik et al. 2021, arXiv:2106.05203). Whether a neighbor gets the change or the whole published model, it has the same model
afterwards, bit for bit, so faults change the bytes sent and no result.

A model that deltas start from, the *base*, is named by the hash of its bytes. A receiver without the named base refuses with
`no_base` and gets the whole model. So both ends agree after a restart, a lost acknowledgment or a duplicate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import xxhash

from coordinator_free_bootstrap.errors import Refusal, RefusalCode, RemoteProtocolError
from peer.core.averaging import Vector
from peer.core.encoding import FULL, Payload, decode, encode, payload_size
from peer.core.messages import ModelHeader, Outcome, PushReply
from peer.core.model_store import SnapshotKey
from peer.core.schema import Schema


def name_of(model: Vector) -> int:
    """Return the name of a base: XXH3-64 of the little-endian float32 values; never 0, which means no base."""
    return xxhash.xxh3_64_intdigest(model.astype("<f4", copy=False).data) or 1


@dataclass(frozen=True, eq=False)
class Published:
    """A slot as its receivers have it.

    Attributes:
        model: float32 [d], never mutated.
        name: of the model.
        base: name of the published model before; 0 for the first one.
        change: payload of the change since then; None for the first one.
    """

    model: Vector
    name: int
    base: int = 0
    change: Payload | None = None


class Publication:
    """A snapshot, published when it is first needed. A function of what was offered before, so two threads may compute it."""

    def __init__(self, snapshot: Vector, before: Publication | None, published: Published | None = None) -> None:
        self._source: tuple[Vector, Publication | None] | None = (snapshot, before)
        self._published = published

    def published(self, schema: Schema, encoding: str) -> Published:
        """Return what is published of the snapshot: the model before plus the encoded change."""
        source = self._source  # read first: it is freed once the result is there
        if self._published is not None or source is None:
            assert self._published is not None
            return self._published
        snapshot, before = source
        if before is None:
            self._published = Published(snapshot, name_of(snapshot))
        else:
            last = before.published(schema, encoding)
            change = encode(snapshot - last.model, schema, encoding)
            model = last.model + decode(change, schema, encoding)
            self._published = Published(model, name_of(model), last.name, change)
        self._source = None
        return self._published


class DeltaSender:
    """What this peer has published, and which models its neighbors have.

    Every offered snapshot is published, also one that no neighbor takes any more: what follows depends on it.

    Args:
        schema: of the models.
        encoding: one of `peer.core.encoding.DELTAS`.
        published: the last published models, of a checkpoint.
    """

    def __init__(self, schema: Schema, encoding: str, published: dict[str, Vector]) -> None:
        self._schema, self._encoding = schema, encoding
        self._last = {
            name: Publication(model, None, Published(model, name_of(model))) for name, model in published.items()
        }
        self._offers: dict[SnapshotKey, Publication] = {}  # of the rounds whose snapshots are kept
        self._known: dict[tuple[int, int], tuple[int, int]] = {}  # (neighbor, slot) -> (its incarnation, name)

    def models(self) -> dict[str, Vector]:
        """Return the last published models by slot, or slot and neighbor, for a checkpoint."""
        return {name: last.published(self._schema, self._encoding).model for name, last in self._last.items()}

    def offer(self, key: SnapshotKey, snapshot: Vector, only: int | None = None) -> None:
        """Offer a snapshot, which is never mutated again, to all neighbors or to one only."""
        name = str(key.slot) if only is None else f"{key.slot}/{only}"
        self._last[name] = self._offers[key] = Publication(snapshot, self._last.get(name))

    def published(self, key: SnapshotKey) -> Callable[[], Published]:
        """Return a function that publishes an offered snapshot, once."""
        return partial(self._offers[key].published, self._schema, self._encoding)

    def message(
        self, neighbor: int, incarnation: int, header: ModelHeader, published: Published
    ) -> tuple[ModelHeader, Payload]:
        """Return header and payload for a neighbor in its incarnation: the change if it has the base, else the whole model."""
        if published.change is not None and self._known.get((neighbor, header.slot)) == (incarnation, published.base):
            return replace(header, base=published.base), published.change
        size_bytes = payload_size(self._schema, FULL)
        return replace(header, encoding=FULL, size_bytes=size_bytes), encode(published.model, self._schema, FULL)

    def answered(self, neighbor: int, incarnation: int, header: ModelHeader, reply: PushReply) -> None:
        """Note which model a neighbor has now; a wrong note costs one refusal."""
        pair = neighbor, header.slot
        offer = self._offers.get(SnapshotKey(header.round_index, header.step, header.slot))
        if offer is not None and reply in (Outcome.FOLDED, Outcome.DUPLICATE):
            self._known[pair] = incarnation, offer.published(self._schema, self._encoding).name
        elif isinstance(reply, Refusal) and reply.code is RefusalCode.NO_BASE:
            self._known.pop(pair, None)

    def drop(self, before_round: int) -> None:
        """Free what was offered in earlier rounds, except the last published models."""
        for key in [key for key in self._offers if key.round_index < before_round]:
            self._offers.pop(key).published(self._schema, self._encoding)


class DeltaReceiver:
    """The last folded model of each neighbor and slot: the bases of their next deltas. Memory: one model for each."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._bases: dict[tuple[int, int], tuple[int, Vector]] = {}

    def restore(self, header: ModelHeader, payload: Payload) -> Vector:
        """Return the model of a delta, float32 [d], new.

        Raises:
            RemoteProtocolError: NO_BASE, or a fault of the payload.
        """
        name, base = self._bases.get((header.sender, header.slot), (0, None))
        if base is None or name != header.base:
            own = f"{name:016x}" if name else "none"
            sentence = f"ModelHeader.base: expected {own}, the model of this slot, got {header.base:016x}. Send the whole model."
            raise RemoteProtocolError(RefusalCode.NO_BASE, sentence)
        change = decode(payload, self._schema, header.encoding)
        with np.errstate(over="ignore"):  # an infinity is refused by `norm_squared`
            restored: Vector = np.add(base, change, out=change)
        return restored

    def keep(self, header: ModelHeader, model: Vector) -> None:
        """Keep a copy of a model that is folded."""
        _, base = self._bases.get((header.sender, header.slot), (0, None))
        if base is None:
            base = np.empty_like(model)
        np.copyto(base, model)
        self._bases[header.sender, header.slot] = name_of(base), base
