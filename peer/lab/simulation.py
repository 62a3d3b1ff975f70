"""`peer.simulate`: all peers of a graph in this process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.options import model_of, parsed
from peer.api.arguments import given_path, named_in_python, refuse_unless
from peer.api.choices import AlgorithmChoice, SamplesChoice, chosen
from peer.api.graph import Graph as MadeGraph
from peer.lab.options import SimulatedOptions
from peer.store.scratch import ScratchFolder
from peer.view.api.results import Run
from peer.view.live.progress import Progress


@named_in_python()
def simulate(
    graph: Graph | Any,
    task: SamplesChoice = None,
    *,
    algorithm: AlgorithmChoice = None,
    out: str | Path | None = None,
    progress: bool = True,
    revisions: Sequence[Graph] = (),
    **options: Unpack[SimulatedOptions],
) -> Run:
    """Run all peers of a graph in this process, without sockets and faults, and return what they left.

    In lockstep on a CPU the models are, bit for bit, those of a testbed of processes with the same graph.

    Args:
        graph: peers, edges and settings; samples alone, as `Data` takes them, are dealt at random to the 8 peers of
            `Graph.make`'s default.
        task: a `Task` object, the name of a task, or ``path/to/file.py:object``; or samples, such as ``(x, y)``, which become a
            `Data`. Default: the graph's.
        algorithm: a subclass of `Algorithm`, or the name of one. Default: the graph's.
        out: folder of the run directory; it replaces a completed simulation, and continues from an interrupted one with the same
            graph and settings. None: the files vanish with the returned object.
        progress: show how the targets are interpreted and a progress bar, in a notebook or on stderr.
        revisions: the graph files after it (`peer graph next`), each with the ``from_round`` in which all peers change to it;
            such a run is not resumed.
        options: ``data_root``, folder of the built-in data sets; ``device`` (``cpu``, ``cuda``, ``cuda:N``, ``mps`` or
            ``auto``); ``amp="bf16"`` for mixed precision; ``threads`` of PyTorch, of which more than one may change the last
            bits; ``stacked``: train all peers' models of a round as one (default: on a GPU).

    Raises:
        UsageError: an option is unknown or out of range.
        ConfigError, TaskError, ShardError: the manifest, task or data cannot be used.
        StorageError: the run directory cannot be written.
        UsageError, CheckpointCorrupt: it has the state of real peers, or of another simulation that was interrupted.

    Ctrl-C, or an error of the task, ends the run early; with ``out`` the completed rounds are kept, and the same call continues
    from the last checkpoint (manifest key ``checkpoint_rounds``). A second Ctrl-C does not wait for the peers to leave.

    >>> from peer.api.graph import Graph
    >>> graph = Graph.make("ring", peers=4, run={"rounds": 2})
    >>> run = simulate(graph, progress=False)
    >>> run.metrics["rounds"], len(run.frame())
    (2, 8)
    """
    import torch

    from peer.lab.simulated import SimulatedSettings
    from peer.lab.simulated import simulate as run_all
    from peer.tasks.effect import refuse_unused_options
    from peer.tasks.loading import absolute_task

    refuse_unless(isinstance(progress, bool), "progress", "true or false", progress)
    graphs = isinstance(revisions, Sequence) and all(isinstance(each, Graph) for each in revisions)
    refuse_unless(graphs, "revisions", "a list of peer.Graph", revisions)
    if not isinstance(graph, Graph):
        samples = task is None and hasattr(graph, "__getitem__")
        refuse_unless(samples, "graph", "a peer.Graph, or samples without a task", graph)
        graph, task = MadeGraph.make(run={"split": "iid"}), graph
    graph, task_object = chosen(graph, task, algorithm)
    read = parsed(model_of(SimulatedOptions), options, error=UsageError, owner="peer.simulate").model_dump()
    refuse_unused_options(graph.manifest, data_root=read["data_root"], shard=None, download=False)
    place = absolute_task(graph.manifest.task)
    folder = ScratchFolder("simulated") if out is None else None
    directory = folder.path if folder is not None else given_path("out", out).absolute()
    settings = SimulatedSettings(**read, task=task_object, tell=_say if folder is None else None)
    before = torch.get_num_threads()
    try:
        with Progress("rounds", graph.manifest.rounds, shown=progress) as bar:
            run_all(graph, directory, settings, bar.update, lambda goal: bar.say(f"learns {goal}"), revisions)
    except BaseException:
        if folder is not None:
            folder.remove()
        raise
    finally:
        torch.set_num_threads(before)
    run = Run(directory, task=task_object or place)
    return run if folder is None else run.remove_at_end(folder.remove)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)
