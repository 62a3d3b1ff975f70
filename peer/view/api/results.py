"""`peer.Run`: what a run left, as numbers, a table, a picture and models."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from peer.api.arguments import given_path, named_in_python, refuse_unless
from peer.api.choices import TaskChoice
from peer.view.models.model_out import BEST, PERSONALIZED, export_model, module_of, peer_of, read_model

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure
    from torch import nn

    from peer.view.report.report import Report


class Run:
    """A finished, running or interrupted run, read from its directory.

    Args:
        directory: the ``out`` of a testbed or a simulation, one state directory, or a folder with several.
        task: the task object of the run, or ``path/to/file.py:object``, if the manifest does not name one that can be loaded.

    Raises:
        UsageError: there are no files of a run.
        GraphError: the graph file is not valid.
        StorageError: a file cannot be read.

    >>> import peer
    >>> run = peer.simulate(peer.Graph.make("line", peers=2, run={"rounds": 1}), progress=False)
    >>> list(run.models[1])
    ['cluster-0', 'cluster-1', 'personalized']
    >>> run.personalized(1).training
    False
    """

    @named_in_python()
    def __init__(self, directory: str | Path, *, task: TaskChoice = None) -> None:
        from peer.tasks.loading import absolute_task

        self.directory = given_path("directory", directory).absolute()  # the program may change its working directory
        from peer.tasks import Task

        refuse_unless(task is None or isinstance(task, str | Task), "task", "a peer.Task, or the name of a task", task)
        self._task = (absolute_task(task) or task) if isinstance(task, str) else task
        _ = self._report

    def remove_at_end(self, remove: Callable[[], object]) -> Run:
        """Call ``remove``, which removes the directory, when this object is gone, and return it."""
        weakref.finalize(self, remove)
        return self

    @cached_property
    def _report(self) -> Report:
        from peer.view.report.report import build_report

        report = build_report(self.directory)
        for problem in report.run.log.problems:
            warnings.warn(problem, RuntimeWarning, stacklevel=4)
        return report

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The numbers of `peer report --json`: ``metric_mean``, ``rounds``, ``payload_bytes_sent``, ... (docs/metrics.md).

        What the metric is, the object ``metric`` says.
        """
        return self._report.values

    @named_in_python()
    def frame(self) -> pd.DataFrame:
        """Return one row per peer and round, with the fields of the round lines (docs/history.md) and ``peer_id``.

        Nested fields have dotted names: ``seconds.train``. A round that a peer repeated after a restart is in it once.

        Raises:
            UsageError: pandas is not installed.
        """
        import pandas as pd

        from peer.view.report.history_table import rows

        return pd.DataFrame(rows(self._report.run))

    @named_in_python()
    def plot(self, metric: str | None = None) -> Figure:
        """Return a picture of a value over rounds: the mean over peers, with a band from the lowest to the highest.

        Args:
            metric: a numeric column of `frame`, such as ``loss``, ``seconds.train``. Default: the task's metric.

        Raises:
            UsageError: no round has this value; the message names those that there are.
        """
        from peer.view.report.plots import series_figure

        refuse_unless(metric is None or isinstance(metric, str), "metric", "a text", metric)
        return series_figure(self._report.run, metric)

    @named_in_python()
    def export(self, *exports: str) -> None:
        """Copy the rounds to trackers: ``tensorboard:LOGDIR``, ``mlflow:URI``, ``csv:FILE``, ``parquet:FILE``.

        Raises:
            UsageError: a tracker is unknown or not installed.
            StorageError: a tracker cannot write.
        """
        from peer.view.trackers.export import export

        for each in exports:
            refuse_unless(isinstance(each, str), "export", "a text", each)
        export(self._report, exports)

    @property
    def models(self) -> Mapping[int, Mapping[str, dict[str, np.ndarray]]]:
        """The models that each peer left: ``models[3]["personalized"]``, ``models[3]["cluster-0"]``; read when asked for.

        A model is a dict of named float32 arrays, as in its safetensors file.
        """
        return {peer.peer_id: _Models(peer.state_dir.models, self) for peer in self._report.run.peers}

    @named_in_python()
    def personalized(self, peer_id: int, *, best: bool = False) -> nn.Module:
        """Return what the run's final metric was measured with, as a PyTorch module on the CPU, in evaluation mode.

        It is the personalized model. Where an algorithm mixes the predictions of several models (blend, FedEM), the module
        holds all of them and gives class probabilities.

        Args:
            peer_id: whose model.
            best: that of the round with the best metric on the peer's validation samples.

        Raises:
            UsageError: the run has no such peer.
            StorageError: the peer left no personalized model, because it has not completed the run; or no best one, because it
                has no validation samples.
            TaskError: the task that makes the model cannot be loaded.
        """
        name = BEST if best else PERSONALIZED
        return module_of(read_model(peer_of(self._report, peer_id), name), self._task)[1]

    @named_in_python()
    def export_model(self, peer_id: int, to: str | Path, model: str | None = None, *, best: bool = False) -> Path:
        """Write a model of a peer as a file for other programs, with a model card beside it; return the card's path.

        The state dict is complete: it has frozen parameters and integer buffers, and passes a strict ``load_state_dict``.

        Args:
            peer_id: whose model.
            to: a file that ends in ``.pt`` or ``.safetensors`` (state dict), or in ``.onnx`` (graph; extra ``export``).
            model: ``personalized``, ``cluster-0``, ... Default: what the run's final metric was measured with. Where an
                algorithm mixes the predictions of all its models (blend, FedEM), these are several: the state dict of a
                ``torch.nn.ModuleList`` of the models, with their weights in the card; in ONNX, one graph.
            best: that of the round with the best metric on the peer's validation samples; without ``model``.

        Raises:
            UsageError: the run has no such peer or model; the ending is unknown; a package is not installed.
            StorageError: the peer left no such model, or only a part of one; the file cannot be written.
            TaskError: the task cannot be loaded; ONNX cannot express the model.
        """
        return export_model(self._report, peer_id, given_path("to", to), model, self._task, best=best)

    @override
    def __repr__(self) -> str:
        from peer.view.report.tables import of_peers, state_text

        found, metric = self._report.values, self._report.run.metric
        mean = found["metric_mean"]
        over = of_peers(found["metric_peers"], found)
        shown = "" if mean is None else f", {metric.name} {metric.text(mean)}{over}"
        planned = "" if found["rounds_total"] in (None, found["rounds"]) else f" of {found['rounds_total']}"
        rounds = f"{found['rounds']}{planned} rounds"
        return f"<peer.Run: {state_text(found)}, {found['algorithm']}, {len(found['peers'])} peers, {rounds}{shown}>"


class _Models(Mapping[str, "dict[str, np.ndarray]"]):
    """The model files of one peer, by name without extension."""

    def __init__(self, folder: Path, owner: Run) -> None:
        self._owner = owner  # a temporary directory stays as long as its run
        self._paths = {path.stem: path for path in sorted(folder.glob("*.safetensors"))}

    @override
    def __getitem__(self, name: str) -> dict[str, np.ndarray]:
        from peer.store.model_file import load_model

        return load_model(self._paths[name])[0]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    @override
    def __len__(self) -> int:
        return len(self._paths)
