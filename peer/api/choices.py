"""A task or an algorithm that a program gives to a run: a name, a file, or an object of the program itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import TaskError
from peer.api.arguments import named_by_argument, refuse_unless
from peer.api.graph import check_names, with_run
from peer.rings import name_of_api

if TYPE_CHECKING:
    from peer.algorithms.base import Algorithm
    from peer.tasks.task import Task

TaskChoice: TypeAlias = "Task | str | None"
SamplesChoice: TypeAlias = "Task | str | Any | None"  # or samples, as `peer.Data` takes them
AlgorithmChoice: TypeAlias = "type[Algorithm] | str | None"


def chosen(graph: Graph, task: SamplesChoice, algorithm: AlgorithmChoice) -> tuple[Graph, Task | None]:
    """Return the graph with task and algorithm in its manifest, and the task if it is an object.

    A class is made known to this process under its name; the manifest names an object ``module:Class``.

    Raises:
        ConfigError, TaskError: the task or the algorithm cannot be used.
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
    with named_by_argument({f"run.{key}": key for key in keys}):
        graph = with_run(graph, keys)
        check_names(graph)
    checked = None if found is None else as_task(found, graph.manifest)
    return graph, checked.dealt(graph.manifest, len(graph.nodes)) if isinstance(checked, DealtTask) else checked
