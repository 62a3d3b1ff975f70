"""The files that a built-in data set is read from."""

from __future__ import annotations

from pathlib import Path

from coordinator_free_bootstrap.errors import ConfigProblem, Option, TaskError
from coordinator_free_bootstrap.manifest import Manifest
from peer.zoo.tasks.datasets import DATASETS, joinable


def data_files(manifest: Manifest, data_root: Path | None) -> list[Path]:
    """Return the files of a manifest's data set, sorted; none if it reads no files, or is a user's task.

    Args:
        manifest: its task and task_options are read.
        data_root: folder of the data sets, or the file of task ``tabular``.

    Raises:
        TaskError: there are none below the data root.
    """
    if data_root is None or manifest.task not in DATASETS or not DATASETS[manifest.task].reads_files:
        return []
    if data_root.is_file():
        return [data_root]
    second = manifest.task_options.get("second")
    sets = [(manifest.task, str(manifest.task_options.get("split", "balanced")))]
    sets += [(str(second), "balanced")] if second in joinable() else []
    found: set[Path] = set()
    for name, split in sets:
        layout = DATASETS[name].layout.format(split=split)
        files = {path for path in data_root.glob(layout) if path.is_file()}
        if not files:
            expected = f"the file {data_root / layout}, which task {name!r} reads"
            raise TaskError(ConfigProblem(Option("data_root"), expected, "none", "Put it there."))
        found |= files
    return sorted(found)
