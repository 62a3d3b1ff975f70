"""What may be removed from a state directory without harm to a run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coordinator_free_bootstrap.strict_json import loads
from peer.store.files import storage_errors, write_atomic
from peer.store.lines import parts_of
from peer.store.state_dir import StateDir

DAY_S = 86_400
KEPT = (b'{"kind":"start"', b'{"kind":"end"', b'{"kind":"leave"')  # they say whose history it is, and how it went


@dataclass(frozen=True)
class Prunable:
    """A folder to be removed, or a closed part of a history whose rounds are.

    Attributes:
        path: of it.
        what: it is.
        size_bytes: that become free.
    """

    path: Path
    what: str
    size_bytes: int

    def remove(self) -> None:
        """Remove it; a part of a history keeps its lines about starts and ends, and its number.

        Raises:
            StorageError: it cannot be removed.
        """
        with storage_errors("remove", self.path):
            if self.path.is_dir():
                shutil.rmtree(self.path)
            else:
                write_atomic(self.path, _kept(self.path))


def prunable(place: StateDir, days: float | None) -> Iterator[Prunable]:
    """Yield what may be removed from a state directory.

    Args:
        place: the state directory.
        days: closed parts of the history whose last line is older count too; None: none do.

    Raises:
        StorageError: something cannot be read.
    """
    with storage_errors("read", place.root):
        for folder in sorted(place.root.glob("discarded-*")):
            if folder.is_dir():
                size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
                yield Prunable(folder, "the state of another run, moved aside", size)
        if days is None:
            return
        for part in parts_of(place.history):
            if part != place.history and part.stat().st_mtime < time.time() - days * DAY_S:
                size = part.stat().st_size - len(_kept(part))
                if size:
                    yield Prunable(part, f"rounds {_span(part)}", size)


def _kept(part: Path) -> bytes:
    with part.open("rb") as lines:
        return b"".join(line for line in lines if line.startswith(KEPT))


def _span(part: Path) -> str:
    with part.open("rb") as lines:
        rounds = [loads(line.decode())["round_index"] for line in lines if line.startswith(b'{"kind":"round"')]
    return f"{min(rounds)} to {max(rounds)}" if rounds else "none"
