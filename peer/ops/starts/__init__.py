"""Starts of own projects: a task that runs at once, the data of four sites, a test, a graph file and a compose file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import chdir
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

from coordinator_free_bootstrap import dump_graph, make_graph, parse_manifest
from coordinator_free_bootstrap.errors import ConfigProblem, Option, UsageError
from coordinator_free_bootstrap.extras import require
from peer.ops.deploy.compose import write_compose
from peer.ops.deploy.given_data import DATA, GivenData
from peer.ops.deploy.text import fill, write
from peer.ops.starts.samples import apartments, pictures, sentences

SITES = 4
Template = Literal["tabular", "images", "text", "own-loop"]


@dataclass(frozen=True)
class StartOfProject:
    """What a template adds to its task file.

    Attributes:
        samples: writes the data of a site into a folder.
        run: settings of the run.
        learned: the condition that ``metric``, the mean over the sites, meets after the run, and not before it.
        needs: packages of extras, as ``import`` names them.
    """

    samples: Callable[[Path, int], None]
    run: Mapping[str, object]
    learned: str
    needs: tuple[str, ...] = ()


STARTS: dict[Template, StartOfProject] = {
    "tabular": StartOfProject(
        apartments, {"algorithm": "ditto", "rounds": 12, "learning_rate": 0.05, "momentum": 0.9}, "metric < 110"
    ),
    "images": StartOfProject(
        pictures,
        {"algorithm": "ditto", "rounds": 12, "local_epochs": 3, "learning_rate": 0.1, "momentum": 0.9},
        "metric > 0.8",
        ("PIL",),
    ),
    "text": StartOfProject(
        sentences, {"algorithm": "dfedavg", "rounds": 12, "optimizer": "adam", "learning_rate": 0.02}, "metric > 0.8"
    ),
    "own-loop": StartOfProject(
        apartments, {"algorithm": "dfedavg", "rounds": 12, "local_epochs": 2, "learning_rate": 0.01}, "metric < 250"
    ),
}


def write_start(folder: Path, template: Template) -> None:
    """Make a folder with a task of a template and all that it needs to run on this machine.

    Raises:
        UsageError: the folder exists or cannot be made, or a package of an extra is missing.
    """
    start = STARTS[template]
    require(start.needs, f"--template {template}")
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        got, fix = "one that exists", "Name another folder, or remove this one."
        raise UsageError(ConfigProblem(f"NAME {folder}", "a new folder", got, fix)) from error
    except OSError as error:
        raise UsageError(f"NAME {folder}: cannot be made: {error.strerror}. Name another folder.") from error
    (folder / DATA).mkdir()
    for site in range(SITES):
        start.samples(folder / DATA, site)
    task = (files(__name__) / f"{template.replace('-', '_')}.py").read_text(encoding="utf-8")
    manifest = parse_manifest({"task": "task.py:task", **start.run}, str(Option("template")))
    graph = make_graph("complete", SITES, manifest=manifest)
    write(folder / "task.py", task)
    write(folder / "test_task.py", fill("test_task.txt", learned=start.learned))
    write(folder / "README.md", fill("README.txt", name=folder.name, start=template))
    write(folder / "graph.json", dump_graph(graph))
    with chdir(folder):  # from here the paths in the graph file are valid
        write_compose(graph, Path(), data=GivenData.of(f"./{DATA}", graph))
