"""Options shared by the verbs that load data: from a graph file, a model file or the command line to a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from coordinator_free_bootstrap import Manifest

GraphOption = Annotated[
    Path | None, typer.Option("--graph", metavar="GRAPH.JSON", help="Take task, split and number of peers from it.")
]
TaskOption = Annotated[
    str | None, typer.Option("--task", help="A built-in task, an installed one, or path/to/file.py:object.")
]
SplitOption = Annotated[str | None, typer.Option("--split", help="How the data are dealt.")]
PeersOption = Annotated[int | None, typer.Option("--peers", min=1, help="Number of peers.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="RUN.KEY=VALUE", help="A manifest key, such as run.split_options.k=4; repeatable."),
]
DataRoot = Annotated[Path | None, typer.Option("--data-root", help="Folder of the data sets.")]
Download = Annotated[bool, typer.Option("--download", help="Let torchvision fetch missing files.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


def with_task(task: str | None, settings: list[str] | None) -> list[str]:
    """Return what ``--task`` and ``--set`` stand for together, as ``--set`` alone would say it; the latter wins."""
    return [*([] if task is None else [f"run.task={task}"]), *(settings or [])]


def resolve(
    graph_file: Path | None,
    task: str | None = None,
    split: str | None = None,
    peers: int | None = None,
    settings: list[str] | None = None,
    manifest: Manifest | None = None,
) -> tuple[Manifest, int]:
    """Return the manifest and N: ``manifest`` or the graph file's, changed by what the command line says.

    Raises:
        GraphError, ConfigError: the graph file or a setting is wrong.
    """
    from coordinator_free_bootstrap import apply_settings, load_graph, parse_manifest

    count = peers or 8
    if graph_file is not None:
        graph = load_graph(graph_file)
        manifest, count = graph.manifest, peers or len(graph.nodes)
    run: dict[str, Any] = {} if manifest is None else manifest.model_dump(mode="json")
    if task is not None and task != run.get("task", task):  # options of another task would be refused
        run |= {"task_options": {}, "model": None, "model_options": {}}
    if split is not None and split != run.get("split", split):
        run["split_options"] = {}
    run |= {key: value for key, value in (("task", task), ("split", split)) if value is not None}
    return parse_manifest(apply_settings(run, settings or []), "command line"), count
