"""The models that neighbors delivered in the last round, in a file without a name: however many neighbors, none is in memory."""

from __future__ import annotations

import errno
import logging
import tempfile
from pathlib import Path
from typing import IO

import numpy as np
from typing_extensions import override

from peer.algorithms.delivered import DeliveredModels, DeliveredPlace
from peer.core.averaging import Vector

log = logging.getLogger("peer")


class DeliveredFile(DeliveredModels):
    """Takes 4 d bytes of the disk per neighbor and slot in the last round, and gives them back with it, also after a kill.

    Args:
        directory: of the file system to use, the state directory.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._starts: dict[DeliveredPlace, int] = {}  # bytes from the beginning of the file
        self._size = 0  # of one model, in values

    @override
    def _put(self, place: DeliveredPlace, model: Vector) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115  closed by `drop`
        self._size = model.size
        start = self._starts.setdefault(place, len(self._starts) * model.nbytes)
        self._file.seek(start)
        model.tofile(self._file)

    @override
    def _get(self, place: DeliveredPlace) -> Vector:
        assert self._file is not None
        self._file.seek(self._starts[place])
        model = np.fromfile(self._file, np.float32, self._size)
        if model.size != self._size:
            raise OSError(errno.EIO, "the file of delivered models ends early")
        return model

    @override
    def drop(self) -> None:
        super().drop()
        self._starts.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    @override
    def _failed(self, neighbor: int, error: OSError) -> None:
        log.warning(
            "the model of peer %d cannot be kept for the tests after the last round: %s; it is not tested",
            neighbor,
            error,
            extra={"neighbor": neighbor, "message_kind": "model_tests"},
        )
