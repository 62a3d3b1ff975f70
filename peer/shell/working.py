"""The part of the shell that works on tensors and disk: training, evaluation, checkpoints."""

from __future__ import annotations

import logging
import time
from typing import Any

from coordinator_free_bootstrap.errors import StorageError
from peer import failpoints
from peer.algorithms.work import perform
from peer.assembly import checkpoint_arrays
from peer.core import effects as do
from peer.core import events as ev
from peer.core.averaging import norm_squared
from peer.shell.receiving import Receiving

log = logging.getLogger("peer")


class Working(Receiving):
    """Executes the algorithm's work on the compute thread and checkpoints on the disk thread."""

    def _do_work(self, effect: do.Work) -> None:
        self._spawn(self._work(effect))

    async def _work(self, effect: do.Work) -> None:
        self.post(await self._on(self._compute, self._perform, effect))

    def _perform(self, effect: do.Work) -> ev.Event:
        named = effect.kind in ("train", "close")
        if named:
            failpoints.reach(f"{effect.kind}.begin")
        done = perform(effect, self.parts.algorithm, self.bench, time.monotonic)
        if named:
            failpoints.reach(f"{effect.kind}.end")
        screening = self.manifest.screening
        if effect.kind == "assign":
            slots = range(len(self.bench.models))
            if screening.norm_bound is not None:
                self._own_norms = {slot: norm_squared(self.bench.models.model(slot)) for slot in slots}
            if screening.clip is not None:
                self._centers = {slot: self.bench.models.share(slot) for slot in slots}
        return done

    def _do_persist(self, effect: do.Persist) -> None:
        self._spawn(self._persist(effect, checkpoint_arrays(self.bench)))

    async def _persist(self, effect: do.Persist, arrays: dict[str, Any]) -> None:
        began, problem = time.monotonic(), ""
        try:
            await self._on(self._disk, self.parts.checkpoints.save, effect.round_index, arrays, effect.state)
        except StorageError as error:
            problem = str(error)
        size_bytes = sum(array.nbytes for array in arrays.values())
        fields = {"round_index": effect.round_index, "seconds": time.monotonic() - began, "bytes": size_bytes}
        self._record("checkpoint", fields | {"error": problem or None})
        self.post(ev.Persisted(effect.round_index, problem))
