"""The audit log of a site, ``audit.jsonl``: who connected with which key, what was sent to whom, what was refused.

Each line has the SHA-256 of the line before it, so none can be changed, removed or put in between unnoticed. A chain does not
show that its end is missing: note the last hash elsewhere, and `verify` says whether it is still there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap.ordinary_file import opened
from coordinator_free_bootstrap.strict_json import dumps, loads
from peer.store.files import storage_errors
from peer.store.lines import LINE_BYTES_MAX, PART_BYTES, LineFile, parts_of

# kind -> what it says; `docs/security.md` has this table
AUDIT_KINDS = {
    "start": "a process of this peer begins: the graph file it has, its key, its round",
    "key": "a caller shows a key for the first time in this process; `who` is a peer's id or an observer's name",
    "neighbor": "the state of a neighbor has changed: `alive` after a handshake",
    "sending": "before its first byte: a model goes to a neighbor; `pull`: which asked for it, to catch up",
    "sent": "after its last byte: how many went out, their XXH3-128, and the answer. Missing after a crash: all may have gone",
    "policy": "the owner's policy refuses a graph file, for this reason",
    "refused": "a message was refused, as in the history: at most 6 a minute of one sender and code",
    "leave": "the peer leaves before the end of the run",
    "end": "the run has ended",
}
_ENDS = frozenset({"start", "leave", "end"})


def hash_of(line: bytes) -> str:
    """Return the hash of a line, without its newline, as the next one has it."""
    return hashlib.sha256(line).hexdigest()


class AuditLog:
    """Append lines to an audit log, after those of earlier processes.

    Args:
        path: of the part that grows, see `peer.store.lines`.
        part_bytes: a part that has as many is closed.

    Raises:
        StorageError: the file cannot be opened or repaired.
    """

    def __init__(self, path: Path, part_bytes: int = PART_BYTES) -> None:
        self._file = LineFile(path, "audit.write", part_bytes)
        last = self._file.last_line()
        self._before = hash_of(last) if last else ""
        self._cut_bytes = self._file.cut_bytes

    def write(self, kind: str, **fields: Any) -> None:
        """Append a line of one of `AUDIT_KINDS`; that of a start says so if it follows an incomplete line, which was removed.

        Raises:
            StorageError: it could not be written.
        """
        assert kind in AUDIT_KINDS, kind
        if self._cut_bytes:
            fields, self._cut_bytes = fields | {"cut_bytes": self._cut_bytes}, 0
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = dumps({"kind": kind, "time": time, **fields, "before": self._before}, separators=(",", ":")).encode()
        self._file.append(line + b"\n", durable=kind in _ENDS)
        self._before = hash_of(line)
        if self._file.is_full:
            self._file.close_part()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass
class Verified:
    """What is known of an audit log.

    Attributes:
        lines: that the chain holds together.
        last: hash of the last of them.
        problem: why the next one does not follow, "" if all do.
        found: whether the hash that was asked for is that of one of them.
    """

    lines: int = 0
    last: str = ""
    problem: str = ""
    found: bool = False


def verify(path: Path, holds: str = "") -> Verified:
    """Check the chain of all parts of an audit log.

    Args:
        path: of the part that grows.
        holds: a hash that the log must have.

    Raises:
        StorageError: a part cannot be read.
    """
    result = Verified()
    for place, line in _lines(path):
        try:
            said = loads(line.decode())["before"]
        except (ValueError, KeyError, TypeError):
            said = None
        if said is None:
            result.problem = f"{place}: expected a JSON object with `before`"
        elif said != result.last:
            result.problem = (
                f"{place}: expected before {result.last or 'nothing'}, the hash of the line before, got {said}"
            )
        if result.problem:
            return result
        result.lines, result.last = result.lines + 1, hash_of(line)
        result.found |= result.last == holds
    return result


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each complete line of all parts, without its newline, and where it is; the writer removes an incomplete last one."""
    for part in parts_of(path):
        with storage_errors("read", part), opened(part) as file:
            number = 0
            while (line := file.readline(LINE_BYTES_MAX)).endswith(b"\n"):
                number += 1
                yield f"{part.name} line {number}", line[:-1]
            if line and part != path:
                yield f"{part.name} line {number + 1}", line
