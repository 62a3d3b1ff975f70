"""What a peer does with the models of its neighbors: reserve a buffer, screen, clip, fold or keep; and take pulled ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import LocalProtocolError, Refusal, RefusalCode, RemoteProtocolError
from peer.algorithms.base import Algorithm
from peer.algorithms.model_tests import FIRST_STEP
from peer.algorithms.workspace import FoldedArrival, Workspace
from peer.core import effects as do
from peer.core import events as ev
from peer.core.arrivals import Arrival
from peer.core.averaging import Vector, check_norm, clip, norm_squared
from peer.core.deltas import DeltaReceiver
from peer.core.encoding import DELTAS, ModelFormat, Payload, decode
from peer.core.messages import ModelHeader
from peer.core.model_tests import drawn
from peer.core.sum_parts import SumParts


class Receiving:
    """Checks the bytes and values of arrivals, and folds them into the models of the workspace.

    Args:
        algorithm: may inspect arrivals, and says how many it keeps.
        workspace: with the models.
        model_format: of what arrives.
        clock: monotonic seconds, only to time folds.
        sums: the secrets of secure sums; None: the run has none.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        workspace: Workspace,
        model_format: ModelFormat,
        clock: Callable[[], float],
        sums: SumParts | None = None,
    ) -> None:
        self._algorithm = algorithm
        self._workspace = workspace
        self._screening = workspace.manifest.screening
        self._format = model_format
        self._clock = clock
        self._sums = sums
        self._total: NDArray[np.uint32] | None = None  # of the masked models of the round
        self._bases = DeltaReceiver(model_format.schema)
        self._own_norms: dict[int, float] = {}  # squared norms and models at the start of the round, for screening
        self._centers: dict[int, Vector] = {}
        self._fold_seconds = 0.0

    def begin_round(self) -> None:
        """Note the models at the start of a round: norm bound and clipping compare arrivals with them."""
        self._total = None
        models, slots = self._workspace.models, range(self._algorithm.slots)
        if self._screening.norm_bound is not None:
            self._own_norms = {slot: norm_squared(models.part.of(models.model(slot))) for slot in slots}
        if self._screening.clip is not None:
            self._centers = {slot: models.share_part(slot) for slot in slots}

    def take_fold_seconds(self) -> float:
        """Return the seconds spent in folds since the last call."""
        seconds, self._fold_seconds = self._fold_seconds, 0.0
        return seconds

    # ---- arrivals -------------------------------------------------------------------------------------------------------

    def rejects_header(self, header: ModelHeader) -> Refusal | None:
        """Return why a header cannot be right: its encoding, size or base."""
        form = self._format
        if header.encoding != form.encoding and not (form.uses_deltas and header.encoding == form.whole):
            reason = f"encoding: expected {form.encoding}, that of the run, got {header.encoding!r}"
            return Refusal(RefusalCode.WRONG_ENCODING, reason)
        expected = form.model_bytes if header.encoding == form.encoding else form.whole_bytes
        if header.size_bytes != expected:
            reason = f"model: expected {expected} bytes by the schema, got {header.size_bytes}"
            return Refusal(RefusalCode.WRONG_SIZE, reason)
        if (header.base != 0) != (header.encoding in DELTAS):
            return Refusal(RefusalCode.MALFORMED, f"base {header.base:016x} with encoding {header.encoding}")
        return None

    def reserve(self, arrival: Arrival) -> None:
        """Give an arrival its buffer."""
        if arrival.header.encoding != "float32":
            arrival.buffer = np.empty(arrival.header.size_bytes, np.uint8)
        else:
            arrival.model = self._workspace.models.acquire_buffer()
            arrival.buffer = arrival.model.view(np.uint8)

    def screens_by_norm(self) -> bool:
        """Return whether an arrival whose norm is known needs no look at its values."""
        return self._screening.norm_bound is None and not self._algorithm.inspects_arrivals

    def screen(self, arrival: Arrival) -> Refusal | None:
        """Return why a complete model is not taken: its values, its norm, or the algorithm's own check."""
        header, known_norm = arrival.header, arrival.norm_squared
        if self._format.is_masked:
            return None  # no value says anything before the sum is opened
        if known_norm is not None and self.screens_by_norm():
            return check_norm(known_norm, 0.0, None)
        try:
            model = self._model_of(arrival)
        except RemoteProtocolError as error:
            return error.refusal
        norm = norm_squared(model) if known_norm is None else known_norm
        rejection = check_norm(norm, self._own_norms.get(header.slot, 0.0), self._screening.norm_bound)
        if rejection is None and self._algorithm.inspects_arrivals:
            rejection = self._algorithm.screen_arrival(self._workspace, header, model)
        return rejection

    def fold(self, effect: do.FoldArrival) -> None:
        """Clip an arrival and fold it into its targets, or keep it until the round closes.

        Raises:
            LocalProtocolError: the algorithm keeps more arrivals than it says.
        """
        began = self._clock()
        if self._format.is_masked:
            self._add(effect.arrival)
            self._fold_seconds += self._clock() - began
            return
        models, arrivals = self._workspace.models, self._workspace.arrivals
        header, model = effect.arrival.header, self._model_of(effect.arrival)
        effect.arrival.drop()
        if self._format.uses_deltas:
            self._bases.keep(header, model)
        if self._is_tested(header):
            self._workspace.delivered.keep(header.sender, header.slot, header.round_index, model)
        radius, center = self._screening.clip, self._centers.get(header.slot)
        clips = radius is not None and center is not None
        if not model.flags.writeable and (clips or not effect.targets):
            model = model.copy()
        if radius is not None and center is not None:
            clip(model, center, radius)
        if not effect.targets:
            kept = sum(other.model is not None for other in arrivals)
            if kept >= self._algorithm.kept_models():
                raise LocalProtocolError(
                    f"algorithm '{self._algorithm.name}' keeps arrival {kept + 1} of a step; its kept_models says "
                    f"{self._algorithm.kept_models()}"
                )
        for target in effect.targets:
            models.fold(target.slot, model, target.weight)
        arrivals.append(FoldedArrival(header, None if effect.targets else model))
        if effect.targets and model.flags.writeable:
            models.release_buffer(model)
        self._fold_seconds += self._clock() - began

    def _add(self, arrival: Arrival) -> None:
        """Add a masked model to those of the round."""
        values = arrival.buffer.view("<u4")
        if self._total is None:
            self._total = values if values.flags.writeable else values.copy()
        else:
            np.add(self._total, values, out=self._total)
        arrival.drop()
        self._workspace.arrivals.append(FoldedArrival(arrival.header, None))

    def open_sum(self) -> Vector | None:
        """Fold the mean of the round's masked models, and return it, float32 [d]; None if their sum is not to be opened."""
        total, self._total, sums = self._total, None, self._sums
        if total is None or sums is None or not sums.is_open or sums.members is None:
            return None
        algorithm = self._algorithm
        mean = sums.opened(total, algorithm.weights_at(algorithm.peer_id))
        self._workspace.models.fold(0, mean, sum(algorithm.mixing_weight(n) for n in sums.members))
        return mean

    def _is_tested(self, header: ModelHeader) -> bool:
        space = self._workspace
        if header.step != FIRST_STEP or space.round_index + 1 != space.manifest.rounds:
            return False
        return header.sender in self._tested

    @cached_property
    def _tested(self) -> frozenset[int]:
        space = self._workspace
        return drawn(space.manifest.seed, space.peer_id, space.graph.neighbors(space.peer_id))

    def _model_of(self, arrival: Arrival) -> Vector:
        header = arrival.header
        if arrival.model is None and header.encoding in DELTAS:
            arrival.model = self._bases.restore(header, arrival.buffer)
        return decode(arrival.buffer, self._format.schema, header.encoding) if arrival.model is None else arrival.model

    # ---- pulls ----------------------------------------------------------------------------------------------------------

    def pulled(self, neighbor: int, replies: Sequence[tuple[ModelHeader, Payload]]) -> ev.PullDone:
        """Take the models of all slots that a neighbor was asked for, if every one passes; return the engine's event.

        Raises:
            RemoteProtocolError: one of them does not; none is used.
        """
        models, own = list[Vector](), self._workspace.models
        for slot, (header, payload) in enumerate(replies):
            if header.encoding != self._format.whole:
                raise RemoteProtocolError(
                    RefusalCode.WRONG_ENCODING, f"a pulled model has encoding {header.encoding!r}"
                )
            model = decode(payload, self._format.schema, header.encoding)
            own_norm = norm_squared(own.part.of(own.model(slot)))
            rejection = check_norm(norm_squared(model), own_norm, self._screening.norm_bound)
            if rejection is not None:
                raise RemoteProtocolError(rejection.code, f"a pulled model: {rejection.reason}")
            models.append(model)
        self._workspace.pulled[neighbor] = models
        return ev.PullDone(neighbor, True, max((header.round_index for header, _ in replies), default=0))

    def drop_pulled(self) -> None:
        """Free pulled models that were not adopted."""
        self._workspace.pulled.clear()
