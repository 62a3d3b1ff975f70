"""Warm start: the first values of a run's models come from a model file, or from an earlier run, in place of the run's seed.

``run.start_from`` tells all peers: the SHA-256 of the file that they all start from, or ``own``, where each peer has its own.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem, Option, StorageError, UsageError
from coordinator_free_bootstrap.ordinary_file import opened, ordinary_file
from coordinator_free_bootstrap.validation import counted
from peer.core.averaging import Vector
from peer.core.schema import Schema
from peer.store.files import write_atomic

log = logging.getLogger("peer")
OWN = "own"
NAMED = 5  # tensors that a message names
_CLUSTER = re.compile(r"cluster-(\d+)\.safetensors")


@dataclass(frozen=True)
class WarmStart:
    """Where the first models come from.

    Attributes:
        models: float32 tensors by name, of one model for all slots, or of one for each.
        source: name of the file, or of the folder of a run, without the path on this machine.
        sha256: of the file; of several files, of their digests one after the other.
        rounds: completed by the run that made them, if it says so.
    """

    models: tuple[dict[str, np.ndarray], ...]
    source: str
    sha256: str
    rounds: int | None

    def check(self, schema: Schema, slots: int, *, differ: bool) -> None:
        """Check that a model of a run can start here.

        Args:
            schema: of a whole model.
            slots: models of the algorithm that travel.
            differ: whether their first values must differ.

        Raises:
            ConfigError: no tensor fits, a value is not finite, or the number of models is another.
        """
        if not self.taken(schema):
            found = f"{', '.join(sorted(self.models[0])[:NAMED])}, ..."
            expected = f"tensors named as those of the model: {', '.join(spec.name for spec in schema.tensors[:NAMED])}"
            raise ConfigError(ConfigProblem(Option("start_from"), f"{expected}, with their shapes", found, _OTHER))
        for name in self.taken(schema):
            if not all(np.isfinite(model[name]).all() for model in self.models):
                raise ConfigError(ConfigProblem(Option("start_from"), "finite values", f"NaN or Inf in {name}", _OTHER))
        if len(self.models) not in (1, slots):
            found = counted(len(self.models), "model")
            raise ConfigError(ConfigProblem(Option("start_from"), f"1 model, or {slots}", found, _OTHER))
        if differ and len(self.models) < slots and not self.new(schema):
            expected = f"{slots} models that differ, since the algorithm holds so many, or a file without some tensors"
            fix = f"Give the folder of a run with {slots} cluster models, or another run.algorithm."
            raise ConfigError(ConfigProblem(Option("start_from"), expected, "one model with all of them", fix))

    def taken(self, schema: Schema) -> list[str]:
        """Return the names of the tensors that start here."""
        return [spec.name for spec in schema.tensors if _fits(self.models[0], spec.name, spec.shape)]

    def new(self, schema: Schema) -> dict[str, str]:
        """Return the other tensors of the model, which the seed of the run draws, and why."""
        first, reasons = self.models[0], {}
        for spec in schema.tensors:
            if not _fits(first, spec.name, spec.shape):
                other = None if spec.name not in first else f"its shape is {_shape(first[spec.name].shape)} there"
                reasons[spec.name] = other or "not in the file"
        return reasons

    def into(self, model: Vector, schema: Schema, slot: int) -> Vector:
        """Return a model, float32 [d], with the tensors that start here in place of its own; the vector is changed."""
        tensors = self.models[slot % len(self.models)]
        for spec, part in schema.slices():
            if _fits(tensors, spec.name, spec.shape):
                model[part] = tensors[spec.name].reshape(-1)
        return model

    def about(self, schema: Schema) -> dict[str, Any]:
        """Return where the models come from, for history, model files and cards."""
        return {
            "source": self.source,
            "sha256": self.sha256,
            "rounds": self.rounds,
            "taken": len(self.taken(schema)),
            "new": sorted(self.new(schema)),
        }

    def sentence(self, schema: Schema) -> str:
        """Return what was taken, for the log."""
        taken, new = self.taken(schema), self.new(schema)
        rounds = "" if self.rounds is None else f", after {counted(self.rounds, 'round')} there"
        said = f"starts from {self.source} ({self.sha256[:12]}{rounds}): {len(taken)} of {counted(len(schema.tensors), 'tensor')}"
        why = "; ".join(f"{name} ({reason})" for name, reason in list(new.items())[:NAMED])
        more = f"; and {len(new) - NAMED} more" if len(new) > NAMED else ""
        return f"{said}; new: {why}{more}" if new else said

    def keep(self, folder: Path) -> None:
        """Write the models into a folder, from which a restart reads them: the file may be gone by then.

        Raises:
            StorageError: they cannot be written.
        """
        folder.mkdir(exist_ok=True)
        metadata = {"source": self.source, "sha256": self.sha256, "rounds": json.dumps(self.rounds)}
        for slot, model in enumerate(self.models):
            write_atomic(folder / f"cluster-{slot}.safetensors", save(model, {"start_from": json.dumps(metadata)}))


_OTHER = "Give another file or run."


def start_of(wanted: str | None, given: Path | None, peer_id: int, kept: Path | None = None) -> WarmStart | None:
    """Return where the first models of a peer come from; None: from the seed of the run.

    Args:
        wanted: ``run.start_from``.
        given: ``--start-from``: a model file, the folder of a run, or that of a peer in it.
        peer_id: whose models of a run are meant.
        kept: folder of `WarmStart.keep`, if there is one.

    Raises:
        UsageError: one of the two is missing.
        ConfigError: the file is another one.
        StorageError: it cannot be read.
    """
    if wanted is None:
        if given is not None:
            digest = _sha256(given) if given.is_file() else OWN
            why = f"run.start_from is not set; make the graph file with --set run.start_from={digest}"
            raise UsageError(ConfigProblem.without_effect(Option("start_from"), given, why))
        return None
    if kept is not None and (kept / "cluster-0.safetensors").exists():
        return _kept(kept)
    if given is None:
        what = (
            "the model file or run that this peer starts from" if wanted == OWN else f"the file with SHA-256 {wanted}"
        )
        raise UsageError(ConfigProblem(Option("start_from"), what, "nothing", "run.start_from asks for it."))
    files = [given] if given.is_file() else _files_of(given, peer_id)
    digests = [_sha256(file) for file in files]
    digest = digests[0] if len(files) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    if wanted not in (OWN, digest):
        fix = "Give the file that run.start_from names."
        raise ConfigError(ConfigProblem(Option("start_from"), f"a file with SHA-256 {wanted}", digest, fix))
    loaded = [_load(file) for file in files]
    return WarmStart(tuple(model for model, _ in loaded), given.name, digest, _rounds(loaded[0][1]))


def _kept(folder: Path) -> WarmStart:
    files = sorted(folder.glob("cluster-*.safetensors"), key=_slot)
    loaded = [_load(file) for file in files]
    about = json.loads(loaded[0][1]["start_from"])
    return WarmStart(tuple(model for model, _ in loaded), about["source"], about["sha256"], json.loads(about["rounds"]))


def _files_of(folder: Path, peer_id: int) -> list[Path]:
    """Return the cluster models of a peer in the folder of a run, or in that of the peer."""
    for place in (folder / f"peer-{peer_id}" / "models", folder / "models", folder):
        if files := sorted(
            (file for file in place.glob("cluster-*.safetensors") if _CLUSTER.fullmatch(file.name)), key=_slot
        ):
            return files
    raise StorageError(
        f"{Option('start_from')}: expected a model file, or the folder of a run with models of peer {peer_id}, got {folder}"
    )


def _slot(file: Path) -> int:
    match = _CLUSTER.fullmatch(file.name)
    return int(match[1]) if match else -1


def _load(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the tensors of numbers with a point as float32, and the metadata."""
    try:
        with safe_open(ordinary_file(path), framework="pt") as file:  # NumPy has no bfloat16
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
    except (OSError, SafetensorError, TypeError, KeyError, MemoryError) as error:
        raise StorageError(f"cannot read model file {path}: {error}. Give a safetensors file.") from error
    return {name: each.float().numpy() for name, each in tensors.items() if each.is_floating_point()}, metadata


def _rounds(metadata: dict[str, str]) -> int | None:
    text = metadata.get("rounds_completed", "")
    return int(text) if text.isdecimal() else None


def _sha256(path: Path) -> str:
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fits(tensors: dict[str, np.ndarray], name: str, shape: tuple[int, ...]) -> bool:
    return name in tensors and tensors[name].shape == tuple(shape)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one value"
