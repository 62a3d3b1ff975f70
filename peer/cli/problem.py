"""The options of verbs that load data: from a graph file, a model file and the command line to a manifest and a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from coordinator_free_bootstrap.options import fields_of
from peer.cli.declared import option_of
from peer.runtime.local_options import LocalOptions

if TYPE_CHECKING:
    from coordinator_free_bootstrap import Manifest
    from peer.tasks.task import Task

TaskOption = Annotated[
    str | None, typer.Option("--task", help="Name of a built-in or installed task, or path/to/file.py:object.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="RUN.KEY=VALUE", help="Set a manifest key, e.g. run.split_options.k=4. Repeatable."),
]
_LOCAL = fields_of(LocalOptions)
DataRoot = Annotated[Path | None, option_of("data_root", _LOCAL["data_root"])]
Download = Annotated[bool, option_of("download", _LOCAL["download"])]
Exports = Annotated[list[str] | None, option_of("export", _LOCAL["export"])]
Amp = Annotated[str | None, option_of("amp", _LOCAL["amp"])]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The options that say which task, split and number of peers a verb is about."""

    graph: Annotated[
        Path | None,
        typer.Option(
            "--graph",
            metavar="GRAPH.JSON",
            help="Take task, split and number of peers from this graph file.",
            readable=False,
        ),
    ] = None
    task: TaskOption = None
    split: Annotated[str | None, typer.Option("--split", help="How the data are split between peers.")] = None
    peers: Annotated[int | None, typer.Option("--peers", min=1, help="Number of peers.")] = None
    settings: Settings = None
    data_root: DataRoot = None
    download: Download = False

    def resolve(self, manifest: Manifest | None = None) -> tuple[Manifest, int]:
        """Return the manifest and the number of peers: ``manifest`` or the graph file's, changed by the other options.

        Raises:
            GraphError, ConfigError: the graph file or a setting is wrong.
        """
        from coordinator_free_bootstrap import apply_settings, load_graph, parse_manifest
        from peer.tasks.loading import same_task

        count = self.peers or 8
        if self.graph is not None:
            graph = load_graph(self.graph)
            manifest, count = graph.manifest, self.peers or len(graph.nodes)
        run: dict[str, Any] = {} if manifest is None else manifest.model_dump(mode="json")
        if self.task is not None and not same_task(
            self.task, run.get("task", self.task)
        ):  # options of another task are refused
            run |= {"task_options": {}, "model": None, "model_options": {}}
        if self.split is not None and self.split != run.get("split", self.split):
            run["split_options"] = {}
        run |= {key: value for key, value in (("task", self.task), ("split", self.split)) if value is not None}
        return parse_manifest(apply_settings(run, self.settings or []), "command line"), count

    def load(self, manifest: Manifest | None = None, shard: Path | None = None) -> tuple[Manifest, int, Task]:
        """Return the manifest and number of peers as `resolve` does, and the task with its data."""
        from peer.tasks.loading import load_task

        run, count = self.resolve(manifest)
        return run, count, load_task(run, count, data_root=self.data_root, shard_path=shard, download=self.download)


def problem_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter ``problem`` of a verb by the options of these fields of `Problem`."""

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        hints, fields = get_type_hints(verb, include_extras=True), get_type_hints(Problem, include_extras=True)
        parameters = [
            parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)
            for name, parameter in signature(verb).parameters.items()
            if name != "problem"
        ]
        parameters += [
            Parameter(name, Parameter.KEYWORD_ONLY, default=getattr(Problem, name), annotation=fields[name])
            for name in names
        ]

        @wraps(verb)
        def with_problem(**values: Any) -> None:
            verb(problem=Problem(**{name: values.pop(name) for name in names}), **values)

        with_problem.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        with_problem.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_problem

    return decorate


def task_settings(task: str | None, settings: list[str] | None) -> list[str]:
    """Return ``--task`` and ``--set`` together in the form of ``--set``; later settings win."""
    return [*([] if task is None else [f"run.task={task}"]), *(settings or [])]


def set_keys(settings: list[str]) -> frozenset[str]:
    """Return the keys that settings in the form of ``--set`` name."""
    return frozenset(setting.partition("=")[0] for setting in settings)
