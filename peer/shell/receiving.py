"""The part of the shell that receives: neighbors' calls, the engine's answers, screening and folding."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np

from coordinator_free_bootstrap.errors import Refusal, RemoteProtocolError
from peer import failpoints
from peer.algorithms.base import FoldedArrival
from peer.assembly import Assembled
from peer.core import effects as do
from peer.core import events as ev
from peer.core.averaging import norm_squared
from peer.core.decisions import Rejection
from peer.core.messages import ModelHeader, PushReply
from peer.core.screening import check_norm, clip
from peer.shell.inbound import InboundCalls
from peer.shell.speaking import Speaking
from peer.wire.codec import Payload, decode, encode
from peer.wire.inbound import Admission, PullRequest
from peer.wire.security import MutualTls

log = logging.getLogger("peer")


class Receiving(Speaking):
    """Executes effects about arrivals and answers the wire (`peer.wire.inbound.Inbound`)."""

    def __init__(self, parts: Assembled, tls: MutualTls | None = None) -> None:
        super().__init__(parts, tls)
        self.calls = InboundCalls(
            self.engine, self.post, self._hello_for, self._screen, self._on_refused, self._reached
        )
        calls = self.calls
        self.hello, self.beat, self.announce = calls.hello, calls.beat, calls.announce
        self.offered, self.arrived, self.cut, self.refused = calls.offered, calls.arrived, calls.cut, calls.refused

    def _reached(self, neighbor: int) -> None:
        if neighbor in self._links:  # a hello may come between listening and opening the links
            self._links[neighbor].reconnect()

    async def pull(self, caller: int | None, request: PullRequest) -> tuple[ModelHeader, Payload] | Refusal:
        """Give a neighbor that catches up the present model of one slot."""
        rejection = self.engine.admits(request.sender, request.incarnation)
        if rejection is None and not 0 <= request.slot < len(self.bench.models):
            rejection = Rejection(Refusal.SLOT_OUT_OF_RANGE, f"slot {request.slot} of {len(self.bench.models)} pulled")
        if rejection is not None:
            return self.calls.reject(request.sender, rejection)
        round_index = self.engine.round_index
        model = await self._on(self._fold, self.parts.algorithm.published, self.bench, request.slot)
        payload = await self._on(self._fold, encode, model, self.parts.schema, self.manifest.encoding)
        header = ModelHeader(
            sender=self.peer_id,
            incarnation=self.engine.incarnation,
            round_index=round_index,
            step=0,
            slot=request.slot,
            index=0,
            total=1,
            sample_count=max(1, self.bench.learner.count()),
            degree=len(self.engine.neighbors),
            mass=1.0,
            scalars=(),
            size_bytes=self.engine.model_bytes,
            encoding=self.manifest.encoding,
        )
        return header, payload

    def _do_admit(self, effect: do.Admit) -> None:
        model = None
        if self.manifest.encoding == "float32":
            model = self.bench.models.reserve()
            buffer = model.view(np.uint8)
        else:
            buffer = np.empty(self.engine.model_bytes, np.uint8)
        self.calls.admit(effect.stream, buffer, model)

    def _do_reply(self, effect: do.Reply) -> None:
        if effect.refusal is not None:
            stream = self.calls.streams.get(effect.stream)
            self._on_refused(stream.header.sender if stream else None, effect.refusal, effect.reason)
        self.calls.answer(effect.stream, PushReply(effect.outcome, effect.refusal, effect.reason))

    async def _screen(self, admission: Admission) -> Any:
        bound = self.manifest.screening.norm_bound
        if admission.norm_squared is not None and bound is None and not self.parts.algorithm.inspects_arrivals:
            return check_norm(admission.norm_squared, 0.0, None)
        return await self._on(self._fold, self._screen_decoded, admission, bound)

    def _screen_decoded(self, admission: Admission, bound: float | None) -> Any:
        header, algorithm = admission.header, self.parts.algorithm
        try:
            model = decode(admission.buffer, self.parts.schema, header.encoding)
        except RemoteProtocolError as error:
            return Rejection(error.code, error.sentence)
        found = norm_squared(model) if admission.norm_squared is None else admission.norm_squared
        rejection = check_norm(found, self._own_norms.get(header.slot, 0.0), bound)
        if rejection is None and algorithm.inspects_arrivals:
            rejection = algorithm.screen_arrival(self.bench, header, model)
        return rejection

    def _do_fold(self, effect: do.Fold) -> None:
        self._spawn(self._folded(effect))

    async def _folded(self, effect: do.Fold) -> None:
        stream = self.calls.take(effect.stream)
        self._fold_seconds += await self._on(self._fold, self._fold_arrival, effect, stream)
        self.post(ev.Folded(effect.stream))

    def _fold_arrival(self, effect: do.Fold, stream: Any) -> float:
        began = time.monotonic()
        failpoints.reach("fold.begin")
        arrival = stream.model
        if arrival is None:
            arrival = decode(stream.admission.buffer, self.parts.schema, effect.header.encoding)
        radius = self.manifest.screening.clip
        if radius is not None and effect.header.slot in self._centers:
            clip(arrival, self._centers[effect.header.slot], radius)
        for target in effect.targets:
            self.bench.models.fold(target.slot, arrival, target.weight)
        keep = not effect.targets
        self.bench.arrivals.append(FoldedArrival(effect.header, arrival if keep else None))
        if stream.model is not None and not keep:
            self.bench.models.give_back(stream.model)
        failpoints.reach("fold.end")
        return time.monotonic() - began
