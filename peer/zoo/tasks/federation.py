"""What all sites of a run with shared scaling have together: from the history of a peer, or from data that are all here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

from coordinator_free_bootstrap.errors import ConfigProblem, TaskError, UsageError
from coordinator_free_bootstrap.strict_json import loads
from peer.store.files import storage_errors
from peer.store.lines import parts_of
from peer.store.records import ScalingLine
from peer.tasks.shard import Shard
from peer.tasks.sites import AllSites, form_of, numbers_of
from peer.tasks.task import Task

HISTORY = "history.jsonl"


def of_shards(found: Iterable[tuple[int, Shard]], task: Task) -> ScalingLine:
    """Return what the peers with these shards will agree on; every site must have its least number of samples.

    Raises:
        TaskError: the task has no shared scaling, or data cannot take part.
        ShardError: a site has too few samples.
    """
    sites, pending = {}, None
    for peer_id, given in found:
        if (form := form_of(task, given)) is None:
            fix = "Set run.task_options.standardize=shared, or preprocessing = 'shared' in the task."
            raise TaskError(ConfigProblem("--federation", "a task with shared scaling", "another", fix))
        pending = given.preprocessing or task.preprocessing
        sites[peer_id] = numbers_of(form, given.checked(task.kind, task.classes))
    if pending is None:
        raise TaskError("--federation: expected the data of one or more peers, got none")
    return cast("ScalingLine", {"kind": "scaling"} | AllSites.of(sites).fields(pending))


def histories_in(folder: Path) -> list[Path]:
    """Return the history of a state directory, or those of a run directory; [] in a folder of other files."""
    own = folder / HISTORY
    return [own] if own.is_file() else sorted(folder.glob(f"peer-*/{HISTORY}"))


def of_histories(paths: Iterable[Path]) -> ScalingLine:
    """Return what the peers with these histories have agreed on.

    Raises:
        StorageError: one cannot be read.
        UsageError: none of them has begun a run with shared scaling.
    """
    searched = list(paths)
    for path in searched:
        for part in parts_of(path):
            for line in _lines_of(part):
                return line
    fix = "Peers write it once they have agreed, before round 0 of a run with shared scaling."
    raise UsageError(ConfigProblem("--federation", f"a line `scaling` in {searched[0]}", "none", fix))


def _lines_of(path: Path) -> Iterator[ScalingLine]:
    with storage_errors("read", path), path.open(encoding="utf-8", errors="replace") as lines:
        for text in lines:
            if '"scaling"' not in text or not text.endswith("\n"):  # a line may be under way
                continue
            line = loads(text)
            if isinstance(line, dict) and line.get("kind") == "scaling":
                yield cast("ScalingLine", line)
