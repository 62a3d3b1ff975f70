"""A task or an algorithm that a program gives to a run: a name, a file, or an object of the program itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from coordinator_free_bootstrap import Graph, canonical_json
from coordinator_free_bootstrap.errors import ConfigProblem, Option, TaskError, UsageError
from coordinator_free_bootstrap.settings import diff
from peer.api.arguments import named_by_argument, refuse_unless
from peer.api.graph import check_names, with_run
from peer.rings import name_of_api

if TYPE_CHECKING:
    from peer.algorithms.base import Algorithm
    from peer.tasks.task import Task

TaskChoice: TypeAlias = "Task | str | None"
SamplesChoice: TypeAlias = "Task | str | Any | None"  # or samples, as `peer.Data` takes them
AlgorithmChoice: TypeAlias = "type[Algorithm] | str | None"


def graph_of(given: Graph | str | Path) -> Graph:
    """Return a graph, or that of a file.

    Raises:
        UsageError: it is neither.
        GraphError, ConfigError: the file cannot be used.
    """
    if isinstance(given, str | Path):
        return name_of_api("Graph").load(given)  # type: ignore[no-any-return]
    refuse_unless(isinstance(given, Graph), "graph", "a peer.Graph, or a path", given)
    return given


def require_named(file: Graph, graph: Graph) -> None:
    """Check that a graph file of a federation that changes says itself what a program gives: files name those before by content.

    Raises:
        UsageError: the program gives a task or an algorithm that the file does not name.
    """
    if given := diff(canonical_json(graph.manifest), canonical_json(file.manifest)):
        ours, theirs = (", ".join(f"{d.key} = {getattr(d, side)}" for d in given) for side in ("ours", "theirs"))
        expected = (
            f"a file that says {ours}, as this program does, since a next file names those before it by their content"
        )
        raise UsageError(ConfigProblem(Option("graph"), expected, theirs, "Make the first file of the federation so."))


def chosen(graph: Graph, task: SamplesChoice, algorithm: AlgorithmChoice) -> tuple[Graph, Task | None]:
    """Return the graph with task and algorithm in its manifest, and the task if it is an object.

    A class is made known to this process under its name; the manifest names an object ``module:Class``.

    Raises:
        ConfigError, TaskError: the task or the algorithm cannot be used.
        UsageError: the graph is not the first of its federation, and does not name them.
    """
    from peer.algorithms.registry import register
    from peer.tasks import Task
    from peer.tasks.dealt import DealtTask
    from peer.tasks.loading import as_task, same_task

    refuse_unless(isinstance(graph, Graph), "graph", "a peer.Graph", graph)
    name = algorithm if algorithm is None or isinstance(algorithm, str) else register(algorithm)
    found = None
    keys: dict[str, Any] = {} if name is None else {"algorithm": name}
    if task is not None:
        if hasattr(task, "__getitem__") and not isinstance(task, str | Task | type):
            data = name_of_api("Data")
            task = data(*task) if isinstance(task, tuple) and len(task) == 2 else data(task)
        kind = type(task)
        own = isinstance(task, str | Task) or (isinstance(task, type) and issubclass(task, Task))
        refuse_unless(own, "task", "a peer.Task, samples, or the name of a task", task, TaskError)
        label = task if isinstance(task, str) else f"{kind.__module__}:{kind.__qualname__}"
        keys["task"] = label
        if isinstance(task, DealtTask):
            keys["task_options"] = {}
        elif not same_task(label, graph.manifest.task):  # options of another task are refused
            keys |= {"task_options": {}, "model": None, "model_options": {}}
        found = None if isinstance(task, str) else task
    file = graph
    with named_by_argument({f"run.{key}": key for key in keys}):
        graph = with_run(graph, keys)
        check_names(graph)
    if file.continues:
        require_named(file, graph)
    checked = None if found is None else as_task(found, graph.manifest)
    return graph, checked.dealt(graph.manifest, len(graph.nodes)) if isinstance(checked, DealtTask) else checked
