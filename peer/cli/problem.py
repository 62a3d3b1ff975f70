"""The options of verbs that load data: from a graph file, a model file and the command line to a manifest and a task."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, get_type_hints

import typer
from pydantic import Field

from coordinator_free_bootstrap.errors import PeerError, written_as
from coordinator_free_bootstrap.generators import KIND_KEYS
from coordinator_free_bootstrap.options import fields_of, model_of, parsed
from coordinator_free_bootstrap.strict_json import loads
from peer.cli.declared import option_of, with_parameters
from peer.runtime.local_options import DataRoot as LocalDataRoot
from peer.runtime.local_options import Download as LocalDownload
from peer.runtime.local_options import LocalOptions

if TYPE_CHECKING:
    from coordinator_free_bootstrap import Manifest
    from peer.tasks.task import Task

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="RUN.KEY=VALUE", help="Set a manifest key, e.g. run.split_options.k=4. Repeatable."),
]
_LOCAL = fields_of(LocalOptions)
Exports = Annotated[list[str] | None, option_of("export", _LOCAL["export"])]


class ProblemKeys(TypedDict, total=False):
    """The keys of ``--set`` beside those of the manifest."""

    peers: Annotated[int | None, Field(None, ge=1, description="Number of peers.")]
    data_root: LocalDataRoot
    download: LocalDownload


KEYS = model_of(ProblemKeys)
ProblemSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A manifest key, e.g. run.task=mnist, run.split=iid or run.split_options.k=4; or peers=8, data_root=FOLDER of the "
        "built-in data sets, or download=true, to let torchvision download missing ones. Repeatable.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The task, split and number of peers that a verb is about: of a graph file, and of ``--set``."""

    graph: Annotated[
        Path | None,
        typer.Option(
            "--graph",
            metavar="GRAPH.JSON",
            help="Take task, split and number of peers from this graph file.",
            readable=False,
        ),
    ] = None
    settings: ProblemSettings = None

    @cached_property
    def local(self) -> Any:
        """Return the keys of ``--set`` that are not of the manifest.

        Raises:
            UsageError: a value is not allowed.
        """
        from coordinator_free_bootstrap.errors import UsageError

        return parsed(KEYS, self._split[0], error=UsageError)

    @property
    def run_settings(self) -> list[str]:
        """Return the settings of manifest keys."""
        return self._split[1]

    @cached_property
    def _split(self) -> tuple[dict[str, object], list[str]]:
        return local_settings(self.settings, KEYS.model_fields)

    @property
    def names_task(self) -> bool:
        """Return whether the options say which task it is: otherwise it is the one of the model file, or the default."""
        return self.graph is not None or "run.task" in set_keys(self.run_settings)

    def resolve(self, manifest: Manifest | None = None) -> tuple[Manifest, int]:
        """Return the manifest and the number of peers: ``manifest`` or the graph file's, changed by ``--set``.

        Raises:
            GraphError, ConfigError, UsageError: the graph file or a setting is wrong.
        """
        from coordinator_free_bootstrap import apply_settings, load_graph, parse_manifest
        from peer.tasks.loading import same_task

        count = self.local.peers or 8
        if self.graph is not None:
            graph = load_graph(self.graph)
            manifest, count = graph.manifest, self.local.peers or len(graph.nodes)
        run: dict[str, Any] = {} if manifest is None else manifest.model_dump(mode="json")
        given = dict(map(_pair, self.run_settings))
        task, split = given.get("run.task"), given.get("run.split")
        if task is not None and not same_task(task, run.get("task", task)):  # options of another task are refused
            run |= {"task_options": {}, "model": None, "model_options": {}}
        if split is not None and split != run.get("split", split):
            run["split_options"] = {}
        return parse_manifest(apply_settings(run, self.run_settings), ""), count

    def load(self, manifest: Manifest | None = None, shard: Path | None = None) -> tuple[Manifest, int, Task]:
        """Return the manifest and number of peers as `resolve` does, and the task with its data."""
        from peer.tasks.loading import load_task

        run, count = self.resolve(manifest)
        local = self.local
        return run, count, load_task(run, count, data_root=local.data_root, shard_path=shard, download=local.download)


def _pair(setting: str) -> tuple[str, str]:
    key, _, value = setting.partition("=")
    return key, value


def _value(key: str, text: str) -> object:
    """Return a value as ``--set`` reads it: JSON, or else a text; the name of a folder is a text."""
    try:
        return text if key == "data_root" else loads(text)
    except ValueError:
        return text


def local_settings(settings: list[str] | None, keys: Collection[str]) -> tuple[dict[str, object], list[str]]:
    """Return the values of those settings whose keys are not of the manifest but one of ``keys``, and the other settings."""
    local, others = dict[str, object](), list[str]()
    for setting in settings or []:
        key, text = _pair(setting)
        if "=" in setting and key in keys:
            local[key] = _value(key, text)
        else:
            others.append(setting)
    return local, others


def takes_problem(verb: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter ``problem`` of a verb by the options of `Problem`."""
    hints, fields = get_type_hints(verb, include_extras=True), get_type_hints(Problem, include_extras=True)
    parameters = [
        parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)
        for name, parameter in signature(verb).parameters.items()
        if name != "problem"
    ]
    parameters += [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=fields[name]) for name in ("graph", "settings")
    ]

    @wraps(verb)
    def with_problem(**values: Any) -> None:
        problem = Problem(graph=values.pop("graph"), settings=values.pop("settings"))
        with (
            written_as({**by_set(KEYS.model_fields), "task": "--set run.task", "peer_id": "--peer"}),
            named_by_set(problem.settings),
        ):
            verb(problem=problem, **values)

    return with_parameters(with_problem, parameters)


@contextmanager
def named_by_set(settings: list[str] | None) -> Iterator[None]:
    """Name a manifest key in an error of a block as the user wrote it, where ``--set`` gave it: ``--set run.rounds: ...``."""
    try:
        yield
    except PeerError as error:
        keys = {part for key in set_keys(settings or []) for part in (key, key.rpartition(".")[0])}
        lines = (f"--set {line}" if line.partition(":")[0] in keys else line for line in str(error).split("\n"))
        error.args = ("\n".join(lines),)
        raise


def names_settings(verb: Callable[..., None]) -> Callable[..., None]:
    """Do as `named_by_set` in a verb with a parameter ``settings``."""

    @wraps(verb)
    def naming(**values: Any) -> None:
        with named_by_set(values["settings"]):
            verb(**values)

    return naming


def by_set(names: Iterable[str]) -> dict[str, str]:
    """Return how messages name options that a verb reads with ``--set``."""
    return {name: f"--set {name}" for name in names}


# keys of a kind of graph, as a verb reads them
IN_KIND = {name: f"--kind {name}" for name in KIND_KEYS}


def set_keys(settings: list[str]) -> frozenset[str]:
    """Return the keys that settings in the form of ``--set`` name."""
    return frozenset(setting.partition("=")[0] for setting in settings)
