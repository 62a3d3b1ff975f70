"""What a testbed does once before it forks: import what peers need, decode the data set, try the task."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap.errors import ConfigProblem, PeerError, TaskError
from coordinator_free_bootstrap.extras import named_packages
from coordinator_free_bootstrap.graph import Graph
from peer.runtime.imports import importing
from peer.store.garbage import freeze_for_life
from peer.store.system import START_METHOD


def warm_up(graph: Graph, data_root: Path | None) -> None:
    """Import what peers need, decode the data set, and freeze the objects before forking.

    Raises:
        ConfigError, TaskError: the algorithm, its options, or the built-in data set or split is wrong.
        UsageError: a package that they need is not installed.
    """
    with importing():
        import torch

        from peer.algorithms.registry import algorithm_for
        from peer.tasks.loading import preload
        from peer.tasks.sources import source_named

        # numpy's set functions and torch.get_default_device import these when they are first called
        for module in ("peer.runtime.process", "peer.observe.logs", "numpy.ma", "torch.utils._device"):
            importlib.import_module(module)
    algorithm_for(graph, graph.ids[0])
    torch.set_num_threads(1)
    if (
        graph.manifest.optimizer != "sgd" or source_named(graph.manifest.task) is None
    ):  # a user's task may have an optimizer
        torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # the first one imports torch._dynamo
    preload(graph.manifest, len(graph.nodes), data_root)
    gc.collect()
    freeze_for_life()


def check_task_first(graph: Graph, data_root: Path | None) -> str:
    """Try the task with the first peer's data, once for all peers: load the shard, train one step, evaluate.

    Return how the run interprets its targets, and its metric.

    A forked process does it, because a user's code may start threads, which the parent of a testbed must not have.

    Raises:
        PeerError: the first fault; a note on it holds the whole trace.
    """
    context: Any = multiprocessing.get_context(START_METHOD)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_check_task, args=(graph, data_root, sender), name="task-check")
    process.start()
    sender.close()
    try:
        found: tuple[type[PeerError], str, str] | str = receiver.recv()
    except EOFError:  # it ended without a result
        process.join()
        expected, fix = (
            f"a task that can be checked, as {graph.manifest.task}",
            f"Run peer task check {graph.manifest.task}.",
        )
        got = f"a process that ended with exit code {process.exitcode}"
        raise TaskError(ConfigProblem("run.task", expected, got, fix)) from None
    process.join()
    if isinstance(found, str):
        return found
    kind, text, trace = found
    error = kind(text)
    error.add_note(trace)
    raise error


def _check_task(graph: Graph, data_root: Path | None, sender: Connection) -> None:
    """Send how the targets are interpreted, or the class, text and trace of the error."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent answers Ctrl-C
    os.dup2(2, 1)  # what the code of a user prints is not part of the report
    try:
        learns = _try_task(graph, data_root)
    except PeerError as error:
        sender.send((type(error), str(error), "".join(traceback.format_exception(error))))
    else:
        sender.send(learns)


@named_packages()
def _try_task(graph: Graph, data_root: Path | None) -> str:
    from coordinator_free_bootstrap.meaning import goal
    from peer.algorithms.registry import algorithm_named
    from peer.learning.check import try_learner
    from peer.learning.learner import TorchLearner
    from peer.tasks.loading import load_task
    from peer.tasks.training_data import training_data

    manifest, first = graph.manifest, graph.ids[0]
    task = load_task(manifest, len(graph.nodes), data_root=data_root)
    learner = TorchLearner(
        task, training_data(task, first, manifest), batch_size=manifest.batch_size, unit=manifest.local_unit
    )
    algorithm_named(manifest.algorithm).travelling(manifest, learner.schema)
    try_learner(learner, manifest.learning_rate)
    return goal(learner.meaning)
