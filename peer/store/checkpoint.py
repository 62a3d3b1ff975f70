"""Checkpoints: models and engine state of a peer on disk; each is complete or refused (invariant I7).

    checkpoints/checkpoint-0000000007/arrays.safetensors    the models and other arrays
    checkpoints/checkpoint-0000000007/manifest.json         owner, round, engine state, digests; sealed with its own digest

The directory is written under a temporary name, flushed, and renamed. The number is a sequence that only grows, also
when a peer resumes at an earlier round. A reader checks the digest of the manifest, its owner, and the digest of the
arrays.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from coordinator_free_bootstrap.errors import CheckpointCorrupt, StorageError
from coordinator_free_bootstrap.graph import run_digest
from coordinator_free_bootstrap.ordinary_file import content_of, opened, ordinary_file
from peer import failpoints
from peer.core.checkpoint import Checkpoint
from peer.store.files import fsync_path, seal, storage_error, storage_errors, unseal, write_atomic

FORMAT_VERSION = 1
KEPT = 2  # good checkpoints that stay on disk
MANIFEST_BYTES_MAX = 64 << 20  # a manifest has kilobytes; a larger file is not read into memory
_NAME = re.compile(r"checkpoint-(\d{10})")
_OTHERS_FAULT = frozenset({None, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EMFILE})  # None: no file
_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # how safetensors reports an errno


class CheckpointStore:
    """The checkpoints of one peer in one run; the last `KEPT` good ones stay on disk.

    ``continues``: `Graph.run_digest` of the graph files whose checkpoints are good, too.

    After `load_latest`, `rejected` lists each newer checkpoint that is not usable, with the reason, and `foreign` the reasons
    of those that another peer or run has made. Rejected ones do not count as kept; they are removed after `KEPT` saves. The
    caller holds the `StateLock` of the state directory.
    """

    def __init__(
        self,
        directory: Path,
        *,
        peer_id: int,
        manifest_digest: str,
        graph_digest: str,
        schema_digest: str,
        frozen_digest: str = "",
        continues: Collection[str] = (),
    ) -> None:
        self.directory = Path(directory)
        self.rejected: list[tuple[Path, str]] = []
        self.foreign: list[str] = []
        self._saved_count = 0
        self._kept, self._points = KEPT, "persist"  # the name of its failpoints
        self._continues = frozenset(continues)
        self._owner: dict[str, Any] = {
            "peer_id": peer_id,
            "manifest_digest": manifest_digest,
            "graph_digest": graph_digest,
            "schema_digest": schema_digest,
            "frozen_digest": frozen_digest,
        }

    def beside(self, directory: Path) -> CheckpointStore:
        """Return a store of the same peer and run in another directory, which keeps one checkpoint: the state of a training."""
        store = CheckpointStore(directory, **self._owner)
        store._kept, store._points = 1, "partial"
        return store

    def save(self, round_index: int, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> Path:
        """Write one checkpoint durably and return its path; afterwards the last `KEPT` remain.

        Args:
            round_index: the last completed round.
            arrays: name -> array of any numeric dtype, read only; contiguous arrays are not copied.
            state: a JSON object.

        Raises:
            StorageError: it cannot be written (disk full, read-only, ...); earlier checkpoints are unchanged.
        """
        with storage_errors("write checkpoints to", self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            for leftover in self.directory.glob(".checkpoint-*"):  # of a process that was killed during a write
                shutil.rmtree(leftover)
        sequence = max(self._sequences(), default=0) + 1
        final = self.directory / f"checkpoint-{sequence:010d}"
        temporary = self.directory / f".{final.name}"
        try:
            with storage_errors("write checkpoint", final):
                failpoints.reach(f"{self._points}.begin")
                temporary.mkdir()
                payload = _write_arrays(temporary / "arrays.safetensors", arrays)
                failpoints.reach(f"{self._points}.arrays")
                manifest = {
                    "version": FORMAT_VERSION,
                    "sequence": sequence,
                    "round_index": round_index,
                    **self._owner,
                    "arrays": payload,
                    "state": state,
                }
                write_atomic(temporary / "manifest.json", seal(manifest))
                failpoints.reach(f"{self._points}.sealed")
                os.rename(temporary, final)
                failpoints.reach(f"{self._points}.renamed")
                fsync_path(self.directory)
        except StorageError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._saved_count += 1
        self._prune()
        failpoints.reach(f"{self._points}.end")
        return final

    def load_latest(self) -> Checkpoint | None:
        """Return the newest usable checkpoint, or None; `rejected` then lists the skipped ones.

        Raises:
            StorageError: the directory itself cannot be read, or a file in it is no ordinary file or not this user's.
        """
        self.rejected, self.foreign = [], []
        for sequence in sorted(self._sequences(), reverse=True):
            path = self.directory / f"checkpoint-{sequence:010d}"
            try:
                return self._load(path, sequence)
            except CheckpointCorrupt as error:
                self.rejected.append((path, str(error)))
        return None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever saved, so that nothing can be lost.

        Raises:
            StorageError: the directory cannot be read.
        """
        return not self._sequences()

    def _sequences(self) -> list[int]:
        with storage_errors("read", self.directory):
            try:
                names = os.listdir(self.directory)
            except FileNotFoundError:
                return []
        return [int(match[1]) for match in map(_NAME.fullmatch, names) if match]

    def _load(self, path: Path, sequence: int) -> Checkpoint:
        try:
            manifest = self._read_manifest(path / "manifest.json", sequence)
            arrays = _read_arrays(path / "arrays.safetensors", manifest["arrays"])
        except FileNotFoundError as error:
            raise CheckpointCorrupt(f"incomplete: {Path(error.filename).name} is missing") from error
        except OSError as error:
            if error.errno in _OTHERS_FAULT:  # the checkpoint may be whole, and an earlier one would replace it
                raise storage_error("read", path, error) from error
            raise CheckpointCorrupt(f"unreadable: {error}") from error
        return Checkpoint(manifest["round_index"], arrays, manifest["state"])

    def _read_manifest(self, path: Path, sequence: int) -> dict[str, Any]:
        try:
            manifest = unseal(content_of(path, MANIFEST_BYTES_MAX))
        except CheckpointCorrupt as error:
            raise CheckpointCorrupt(f"incomplete or damaged: manifest.json: {error}") from error
        if not isinstance(manifest, dict) or "version" not in manifest:
            raise CheckpointCorrupt("misplaced: manifest.json is not the manifest of a checkpoint")
        if manifest["version"] != FORMAT_VERSION:
            raise CheckpointCorrupt(f"another format: expected version {FORMAT_VERSION}, got {manifest['version']}")
        _check_form(manifest)
        earlier = run_digest(manifest["graph_digest"], manifest["manifest_digest"]) in self._continues
        for key, expected in self._owner.items():
            if manifest[key] != expected and not (earlier and key in ("graph_digest", "manifest_digest")):
                self.foreign.append(f"other peer or run: expected {key} {expected}, got {manifest[key]}")
                raise CheckpointCorrupt(self.foreign[-1])
        if manifest["sequence"] != sequence:
            raise CheckpointCorrupt(f"misplaced: expected checkpoint {sequence}, got {manifest['sequence']}")
        return dict(manifest)

    def _prune(self) -> None:
        rejected = {path.name for path, _ in self.rejected}
        paths = [self.directory / f"checkpoint-{sequence:010d}" for sequence in sorted(self._sequences())]
        good = [path for path in paths if path.name not in rejected]
        stale = good[: -self._kept]
        if self._saved_count >= self._kept:
            stale = [path for path in paths if path not in good[-self._kept :]]
        for path in stale:  # a failure costs disk space only; the next save tries again
            shutil.rmtree(path, ignore_errors=True)


def _check_form(manifest: dict[str, Any]) -> None:
    """Check that the manifest has every field with its type; other files of this program are sealed too."""
    form: dict[str, type] = dict.fromkeys(("manifest_digest", "graph_digest", "schema_digest", "frozen_digest"), str)
    form |= {"sequence": int, "round_index": int, "peer_id": int, "arrays": dict, "state": dict}
    wrong = [key for key, kind in form.items() if not isinstance(manifest.get(key), kind)]
    if not wrong and not {"size_bytes", "sha256"} <= manifest["arrays"].keys():
        wrong = ["arrays"]
    if wrong:
        raise CheckpointCorrupt(f"misplaced: manifest.json lacks {', '.join(wrong)}")


def _write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Write and flush the arrays; return size and digest of the file, read back."""
    try:
        # safetensors reads raw memory and would write a non-contiguous array in wrong order
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    except SafetensorError as error:
        match = _OS_ERROR.search(str(error))
        if match is None:
            raise StorageError(f"cannot write {path}: {error}") from error
        raise storage_error("write", path, OSError(int(match[1]), os.strerror(int(match[1])))) from error
    fsync_path(path)
    return {"size_bytes": path.stat().st_size, "sha256": _digest(path)}


def _read_arrays(path: Path, expected: dict[str, Any]) -> dict[str, np.ndarray]:
    size_bytes = ordinary_file(path).stat().st_size
    if size_bytes != expected["size_bytes"]:
        raise CheckpointCorrupt(f"incomplete: {path.name} has {size_bytes} of {expected['size_bytes']} bytes")
    if _digest(path) != expected["sha256"]:
        raise CheckpointCorrupt(f"damaged: the SHA-256 digest of {path.name} is not the one in the manifest")
    try:
        return {name: np.require(array, requirements=["W", "O"]) for name, array in load_file(path).items()}
    except (SafetensorError, TypeError, KeyError, MemoryError) as error:
        raise CheckpointCorrupt(f"damaged: {path.name}: {error}") from error


def _digest(path: Path) -> str:
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
