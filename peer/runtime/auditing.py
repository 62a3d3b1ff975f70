"""What a running peer writes to the audit log of its site; without a disk it goes on, and its log and status say so."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from coordinator_free_bootstrap import Subject, digest
from coordinator_free_bootstrap.errors import StorageError
from peer import __version__
from peer.host import PeerHost
from peer.store.audit import AuditLog
from peer.store.files import storage_errors
from peer.store.identity_files import StateLock
from peer.store.state_dir import StateDir
from peer.wire.frames import SentModel

log = logging.getLogger("peer")
# lines of the history that are in the audit log too, and their fields there
RECORDED = {
    "neighbor": ("neighbor", "state", "reason"),
    "refused": ("neighbor", "code", "reason"),
    "leave": ("rounds_completed",),
    "end": ("rounds_completed",),
}


def note_refused(state_dir: StateDir, reason: str) -> None:
    """Write to the audit log of a peer that does not run that its owner's policy refuses the graph file.

    Raises:
        StorageError: it cannot be written, or the peer runs.
    """
    with storage_errors("create", state_dir.root):
        state_dir.root.mkdir(parents=True, exist_ok=True)
    with StateLock(state_dir.root):
        audit = AuditLog(state_dir.audit)
        try:
            audit.write("policy", reason=reason)
        finally:
            audit.close()


class Auditing:
    """Turns what happens into lines.

    Args:
        state_dir: of the peer.
        host: of the peer.

    Raises:
        StorageError: the audit log cannot be opened.
    """

    def __init__(self, state_dir: StateDir, host: PeerHost) -> None:
        self._log, self._host = AuditLog(state_dir.audit), host

    def start(self, key: str | None, policy: str | None) -> None:
        """Note what this process begins with: its key (None: plaintext), and the SHA-256 of the policy that allows it."""
        host, graph = self._host, self._host.state.graph
        self._write(
            "start",
            peer_id=host.peer_id,
            incarnation=host.state.incarnation,
            round_index=host.engine.round_index,
            federation=host.manifest.federation,
            graph=graph.digest,
            manifest=digest(host.manifest),
            continues=list(graph.continues),
            key=key,
            release=__version__,
            policy=policy,
        )

    def key(self, who: Subject, key: str) -> None:
        """Note the key of a caller."""
        self._write("key", who=who, key=key)

    def sent(self, model: SentModel, *, pull: bool = False) -> None:
        """Note a model, before its first byte and after its last one."""
        header = model.header
        whose = {
            "neighbor": model.receiver,
            "round_index": header.round_index,
            "step": header.step,
            "slot": header.slot,
        }
        if pull:
            whose["pull"] = True
        if model.answer:
            self._write("sent", **whose, bytes=model.bytes, xxh3=model.digest, answer=model.answer)
        else:
            self._write("sending", **whose, bytes=header.size_bytes, encoding=header.encoding)

    def recorded(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Note a line of the history, where it belongs here."""
        if kind in RECORDED:
            self._write(kind, **{name: fields[name] for name in RECORDED[kind] if name in fields})

    def policy(self, reason: str) -> None:
        """Note that the owner's policy refuses a graph file."""
        self._write("policy", reason=reason)

    def close(self) -> None:
        """Close the file."""
        self._log.close()

    def _write(self, kind: str, **fields: Any) -> None:
        try:
            self._log.write(kind, **fields)
            self._host.audit_error = ""
        except StorageError as error:
            if not self._host.audit_error:
                log.error("%s; continuing without audit log", error)
            self._host.audit_error = str(error)
