"""Checkpoints: a peer's models and engine state on disk, each one whole or refused (invariant I7).

    checkpoints/checkpoint-0000000007/arrays.safetensors    the models and other arrays
    checkpoints/checkpoint-0000000007/manifest.json         whose, which round, the state, digests; sealed by a digest

The directory is written under a temporary name, flushed, and renamed; the number is a sequence that only grows, also
when a peer resumes at an earlier round. Reading trusts nothing: the manifest's own digest first, then whose it is,
then the payload's digest.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from coordinator_free_bootstrap.errors import CheckpointCorrupt, StorageError
from peer import failpoints
from peer.store.files import fsync_path, seal, storage_error, storage_errors, unseal, write_atomic

FORMAT_VERSION = 1
MANIFEST_BYTES_MAX = 64 << 20  # state is counters and dedupe marks: kilobytes; a larger file is not read into memory
_NAME = re.compile(r"checkpoint-(\d{10})")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # how safetensors reports an errno


@dataclass(frozen=True)
class Checkpoint:
    """What a peer was at the end of a round.

    Attributes:
        round_index: the last completed round.
        arrays: name -> array, fresh and writable; the caller owns them.
        state: the JSON object that was saved.
        path: where it lies.
        rejected: newer checkpoints that could not be used, each with the reason.
    """

    round_index: int
    arrays: dict[str, np.ndarray]
    state: dict[str, Any]
    path: Path
    rejected: list[tuple[Path, str]] = field(default_factory=list)


class CheckpointStore:
    """The checkpoints of one peer in one run; the last `keep` good ones stay on disk.

    After `load_latest`, `rejected` lists each newer checkpoint that was not usable and why. Rejected ones are never
    counted as kept; they are removed once `keep` new ones have been saved. The caller holds the `StateLock` of the
    state directory.
    """

    def __init__(
        self,
        directory: Path,
        *,
        peer_id: int,
        manifest_digest: str,
        graph_digest: str,
        schema_digest: str,
        keep: int = 2,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.directory = Path(directory)
        self.keep = keep
        self.rejected: list[tuple[Path, str]] = []
        self._saved_count = 0
        self._owner = {
            "peer_id": peer_id,
            "manifest_digest": manifest_digest,
            "graph_digest": graph_digest,
            "schema_digest": schema_digest,
        }

    def save(self, round_index: int, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> Path:
        """Write one checkpoint durably and return its path; afterwards only the last `keep` remain.

        Args:
            round_index: the last completed round.
            arrays: name -> array of any numeric dtype; read, never changed. No copy is made of contiguous arrays.
            state: JSON object: counters, dedupe marks, random states as integers.

        Raises:
            StorageError: it could not be written (full, read-only, ...); earlier checkpoints are untouched.
        """
        with storage_errors("write checkpoints to", self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            for leftover in self.directory.glob(".checkpoint-*"):  # of a peer that was killed while writing
                shutil.rmtree(leftover)
        sequence = max(self._sequences(), default=0) + 1
        final = self.directory / f"checkpoint-{sequence:010d}"
        temporary = self.directory / f".{final.name}"
        try:
            with storage_errors("write checkpoint", final):
                failpoints.reach("persist.begin")
                temporary.mkdir()
                payload = _write_arrays(temporary / "arrays.safetensors", arrays)
                failpoints.reach("persist.arrays")
                manifest = {
                    "version": FORMAT_VERSION,
                    "sequence": sequence,
                    "round_index": round_index,
                    **self._owner,
                    "arrays": payload,
                    "state": state,
                }
                write_atomic(temporary / "manifest.json", seal(manifest))
                failpoints.reach("persist.sealed")
                os.rename(temporary, final)
                failpoints.reach("persist.renamed")
                fsync_path(self.directory)
        except StorageError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._saved_count += 1
        self._prune()
        failpoints.reach("persist.end")
        return final

    def load_latest(self) -> Checkpoint | None:
        """Return the newest usable checkpoint, or None; `rejected` tells what was passed over and why.

        Raises:
            StorageError: the directory itself cannot be read.
        """
        self.rejected = []
        for sequence in sorted(self._sequences(), reverse=True):
            path = self.directory / f"checkpoint-{sequence:010d}"
            try:
                return self._load(path, sequence)
            except CheckpointCorrupt as error:
                self.rejected.append((path, str(error)))
        return None

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
            raise CheckpointCorrupt(f"torn: {Path(error.filename).name} is missing") from error
        except OSError as error:
            raise CheckpointCorrupt(f"unreadable: {error}") from error
        return Checkpoint(manifest["round_index"], arrays, manifest["state"], path, list(self.rejected))

    def _read_manifest(self, path: Path, sequence: int) -> dict[str, Any]:
        if path.stat().st_size > MANIFEST_BYTES_MAX:
            raise CheckpointCorrupt(f"rotten: manifest.json is larger than {MANIFEST_BYTES_MAX} bytes")
        try:
            manifest = unseal(path.read_bytes())
        except CheckpointCorrupt as error:
            raise CheckpointCorrupt(f"torn or rotten: manifest.json: {error}") from error
        if not isinstance(manifest, dict) or "version" not in manifest:
            raise CheckpointCorrupt("misdirected: manifest.json is the file of something else")
        if manifest["version"] != FORMAT_VERSION:
            raise CheckpointCorrupt(f"future: format version {manifest['version']}; this is {FORMAT_VERSION}")
        _check_form(manifest)
        for key, expected in self._owner.items():
            if manifest[key] != expected:
                raise CheckpointCorrupt(f"foreign: its {key} is {manifest[key]}; this peer's is {expected}")
        if manifest["sequence"] != sequence:
            raise CheckpointCorrupt(f"misdirected: it was written as number {manifest['sequence']}, not {sequence}")
        return dict(manifest)

    def _prune(self) -> None:
        rejected = {path.name for path, _ in self.rejected}
        paths = [self.directory / f"checkpoint-{sequence:010d}" for sequence in sorted(self._sequences())]
        good = [path for path in paths if path.name not in rejected]
        stale = good[: -self.keep]
        if self._saved_count >= self.keep:
            stale = [path for path in paths if path not in good[-self.keep :]]
        for path in stale:  # a failure here costs disk space, not safety; the next save tries again
            shutil.rmtree(path, ignore_errors=True)


def _check_form(manifest: dict[str, Any]) -> None:
    """Refuse a manifest that lacks a field, or has one of another type: it was sealed by something else."""
    form: dict[str, type] = dict.fromkeys(("manifest_digest", "graph_digest", "schema_digest"), str)
    form |= {"sequence": int, "round_index": int, "peer_id": int, "arrays": dict, "state": dict}
    wrong = [key for key, kind in form.items() if not isinstance(manifest.get(key), kind)]
    if not wrong and not {"size_bytes", "sha256"} <= manifest["arrays"].keys():
        wrong = ["arrays"]
    if wrong:
        raise CheckpointCorrupt(f"misdirected: manifest.json lacks {', '.join(wrong)}")


def _write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Write and flush the payload; return its size and digest, computed from the file as the kernel has it."""
    try:
        # safetensors reads raw memory: an array that is not contiguous would be written scrambled
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    except SafetensorError as error:
        found = _OS_ERROR.search(str(error))
        if found is None:
            raise StorageError(f"cannot write {path}: {error}") from error
        raise storage_error("write", path, OSError(int(found[1]), os.strerror(int(found[1])))) from error
    fsync_path(path)
    return {"size_bytes": path.stat().st_size, "sha256": _digest(path)}


def _read_arrays(path: Path, expected: dict[str, Any]) -> dict[str, np.ndarray]:
    size_bytes = path.stat().st_size
    if size_bytes != expected["size_bytes"]:
        raise CheckpointCorrupt(f"torn: {path.name} has {size_bytes} of {expected['size_bytes']} bytes")
    if _digest(path) != expected["sha256"]:
        raise CheckpointCorrupt(f"rotten: the SHA-256 digest of {path.name} is not the one in the manifest")
    try:
        return {name: np.require(array, requirements=["W", "O"]) for name, array in load_file(path).items()}
    except SafetensorError as error:
        raise CheckpointCorrupt(f"rotten: {path.name}: {error}") from error


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
