"""What a peer sends of its models: a step's offers, encoded once for all neighbors, and the models that a neighbor pulls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coordinator_free_bootstrap.errors import DivergedError, Refusal, RefusalCode
from peer.algorithms.base import Algorithm
from peer.algorithms.workspace import Workspace
from peer.core import effects as do
from peer.core import events as ev
from peer.core.averaging import Vector
from peer.core.deltas import DeltaSender
from peer.core.encoding import ErrorFeedback, ModelFormat, Payload, Sliced, encode
from peer.core.messages import ModelHeader, PushReply
from peer.core.model_store import SnapshotKey
from peer.core.state import State


class Sending:
    """Holds the snapshots of the last rounds and their payloads.

    Args:
        state: names the incarnations and the round; only read.
        algorithm: says what of a slot is offered and published.
        workspace: with the models.
        model_format: of what is sent.
        published: float32 [d], the last published models, of a checkpoint; only deltas need them.
    """

    def __init__(
        self,
        state: State,
        algorithm: Algorithm,
        workspace: Workspace,
        model_format: ModelFormat,
        published: dict[str, Vector],
    ) -> None:
        self._state = state
        self._algorithm = algorithm
        self._workspace = workspace
        self._format = model_format
        self._payloads: dict[SnapshotKey, Payload] = {}
        self._feedback: dict[int, ErrorFeedback] = {}
        self._summed: tuple[int, Vector] | None = None  # the last sum's mean, and the round that it began
        self._sent = (
            DeltaSender(model_format.schema, model_format.encoding, published) if model_format.uses_deltas else None
        )

    # ---- snapshots ------------------------------------------------------------------------------------------------------

    def take_snapshot(self, effect: do.TakeSnapshot) -> None:
        """Keep the present models of some slots as a step's offers."""
        models = self._workspace.models
        for slot in effect.slots:
            key = SnapshotKey(effect.round_index, effect.step, slot)
            models.take_snapshot(key, self._algorithm.outgoing(self._workspace, slot))
            self._require_in_range(key, models.get_snapshot(key))
            if self._sent is not None:
                self._sent.offer(key, models.get_snapshot(key), self._only_receiver())

    def _require_in_range(self, key: SnapshotKey, model: Vector) -> None:
        """Check that a model fits a secure sum.

        Raises:
            DivergedError: a value is too large for it.
        """
        bound = self._state.manifest.secure_sum
        if bound is not None and not (largest := float(np.abs(model).max(initial=0.0))) <= bound:
            raise DivergedError(
                f"peer {self._state.peer_id}, round {key.round_index}: expected values of at most {bound:g}, run.secure_sum, in "
                f"a model that is summed, got {largest:g}. Raise the key, or keep such tensors back (run.private_parameters)."
            )

    def _only_receiver(self) -> int | None:
        """Return the neighbor that gets this round's models where a round has one edge, else None."""
        return next(iter(self._state.plan.receivers), None) if self._state.manifest.edges == "one" else None

    def drop_snapshots(self, before_round: int) -> None:
        """Free the snapshots and payloads of earlier rounds."""
        self._workspace.models.drop_snapshots(before_round)
        if self._sent is not None:
            self._sent.drop(before_round)
        for key in [key for key in self._payloads if key.round_index < before_round]:
            del self._payloads[key]

    def published_models(self) -> dict[str, Vector]:
        """Return the last published models, float32 [d], for a checkpoint; {} without deltas."""
        return self._sent.models() if self._sent is not None else {}

    # ---- offers ---------------------------------------------------------------------------------------------------------

    def message_to(self, neighbor: int, header: ModelHeader) -> Callable[[], tuple[ModelHeader, Payload | Sliced]]:
        """Return a function that gives the header to send and encodes the offered model, once for all neighbors.

        The snapshot is taken now. The header differs from the given one where a whole model is sent in place of a delta.

        Raises:
            LocalProtocolError: the snapshot is dropped, or was never taken.
        """
        key = SnapshotKey(header.round_index, header.step, header.slot)
        if (sums := self._state.sums) is not None:
            snapshot, weights = self._workspace.models.get_snapshot(key), self._algorithm.weights_at(neighbor)
            masked = sums.masked(neighbor, header.round_index, weights, snapshot)
            return lambda: (header, masked)
        if (payload := self._payloads.get(key)) is not None:
            return lambda: (header, payload)
        snapshot, sent = self._workspace.models.get_snapshot(key), self._sent
        if sent is None:
            return lambda: (header, self._encoded(key, snapshot))
        incarnation, published = self._state.neighbors[neighbor].incarnation, sent.published(key)
        return lambda: sent.message(neighbor, incarnation, header, published())

    def push_answered(self, neighbor: int, header: ModelHeader, reply: PushReply) -> ev.SendAnswered:
        """Note a neighbor's answer to a model of `message_to`, with the header that was sent; return the engine's event."""
        if self._sent is not None:
            self._sent.answered(neighbor, self._state.neighbors[neighbor].incarnation, header, reply)
        return ev.SendAnswered(neighbor, reply if isinstance(reply, Refusal) else None, header.size_bytes)

    def _encoded(self, key: SnapshotKey, snapshot: Vector) -> Payload:
        if key not in self._payloads:
            schema, encoding = self._format.schema, self._format.encoding
            if encoding == "int8":
                feedback = self._feedback.setdefault(key.slot, ErrorFeedback(schema))
                self._payloads[key] = feedback.encode(snapshot, encoding)
            else:
                self._payloads[key] = encode(snapshot, schema, encoding)
        return self._payloads[key]

    # ---- pulls ----------------------------------------------------------------------------------------------------------

    def publish(self, round_index: int, mean: Vector | None) -> None:
        """Let neighbors that catch up have the mean of a sum, float32 [d], as the model of a round; None: none was opened."""
        if mean is not None:
            self._summed = round_index, mean

    def present(self, slot: int) -> tuple[ModelHeader, Callable[[], Payload]] | Refusal:
        """Return the present model of one slot for a neighbor that catches up: what the algorithm publishes, encoded on call.

        With secure sums it is the mean of the last sum, which has nothing of this peer's own model; there may be none yet.
        """
        state, summed = self._state, self._summed
        if state.sums is not None and summed is None:
            return Refusal(
                RefusalCode.NO_BASE, "no sum was opened since this peer started; ask another neighbor, or later"
            )
        header = ModelHeader(
            sender=state.peer_id,
            incarnation=state.incarnation,
            round_index=state.round.index if summed is None else summed[0],
            step=0,
            slot=slot,
            index=0,
            total=1,
            sample_count=state.algorithm_state.sample_count,  # as in offers: 1 in private runs
            mass=1.0,
            size_bytes=self._format.whole_bytes,
            encoding=self._format.whole,
        )

        def encoded() -> Payload:
            part = self._workspace.models.part
            model = part.of(self._algorithm.published(self._workspace, slot)) if summed is None else summed[1]
            return encode(model, self._format.schema, self._format.whole)

        return header, encoded
