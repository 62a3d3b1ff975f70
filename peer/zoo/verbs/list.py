"""`peer list`: what can be named in a graph file, read from the tables and registries of the program."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from inspect import get_annotations, getdoc
from typing import Annotated, Literal, get_args

import typer
from pydantic import BaseModel

from peer.cli.json_output import AsJson, print_json
from peer.rings import part

What = Literal["tasks", "splits", "models", "algorithms", "encodings", "faults"]


@dataclass(frozen=True)
class ListedOption:
    """One key of an entry: its name, its default as JSON (None: unknown or none), and its meaning."""

    key: str
    default: str | None
    meaning: str


@dataclass(frozen=True)
class Listed:
    """One name: a sentence on it, a command that uses it, and its options."""

    name: str
    about: str
    example: str
    options: tuple[ListedOption, ...] = ()


def list_names(
    what: Annotated[
        What, typer.Argument(metavar="WHAT", help=f"One of: {', '.join(get_args(What))}.", show_default=False)
    ],
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show only this one, with its options.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List tasks, splits, models, algorithms, encodings or faults, each with one line and an example.

    Example: peer list splits dirichlet
    """
    from coordinator_free_bootstrap.errors import UsageError
    from coordinator_free_bootstrap.validation import unknown_name

    entries = _READ[what]()
    if name is not None:
        if name not in (known := [entry.name for entry in entries]):
            raise UsageError(unknown_name(f"peer list {what}", name, known))
        entries = [entry for entry in entries if entry.name == name]
    if as_json:
        print_json({what: [asdict(entry) for entry in entries]}, indent=2)
        return
    for entry in entries:
        typer.echo(f"{entry.name}: {entry.about}\n    {entry.example}")
        for option in entry.options if name is not None else ():
            default = "" if option.default is None else f" (default {option.default})"
            typer.echo(f"    {option.key}{default}: {option.meaning}")


def _tasks() -> list[Listed]:
    from peer.tasks.loading import installed_tasks
    from peer.zoo.tasks.datasets import DATASETS

    entries = []
    for each in DATASETS.values():
        # the default split rotates square images, so tasks of other samples need another split
        split = {"linear": " --set run.split=linear_synth", "tabular": " --set run.split=iid"}.get(each.name, "")
        root = f" --set data_root={each.files}" if each.reads_files else ""
        options = _declared("task_options", each.options)
        entries.append(Listed(each.name, each.about, f"peer testbed --set run.task={each.name}{split}{root}", options))
    return entries + [
        Listed(name, "A task of an installed package.", f"peer testbed --set run.task={name}")
        for name in installed_tasks()
    ]


def _splits() -> list[Listed]:
    from peer.zoo.tasks.splits import splits

    entries = []
    for name, each in splits().items():
        options = _declared("split_options", each.options)
        example = " ".join(filter(None, [f"peer data show --set run.split={name}", each.needs]))
        entries.append(Listed(name, each.about, example, options))
    own = "Samples of each device's own shard file or folder."
    return [*entries, Listed("shard", own, "peer graph make --set run.split=shard; peer run --shard FILE")]


def _declared(section: str, options: type[BaseModel]) -> tuple[ListedOption, ...]:
    """Return the declared options of a section of the manifest, those of the class itself before those of all its kind."""
    own = [name for kind in options.__mro__ for name in get_annotations(kind)]
    fields = {name: options.model_fields[name] for name in dict.fromkeys(own) if name in options.model_fields}
    return tuple(
        ListedOption(
            f"run.{section}.{name}",
            None if field.default is None else json.dumps(field.default),
            field.description or "",
        )
        for name, field in fields.items()
    )


def _models() -> list[Listed]:
    from peer.zoo.tasks.models import models

    entries = [
        Listed(
            name,
            each.about,
            f"peer testbed --set run.model={name}",
            _declared("model_options", each.options),
        )
        for name, each in models().items()
    ]
    about = "A model of torchvision by its name there; run.model_options go to its constructor."
    example = "peer testbed --set run.task=cifar10 --set data_root=DIR --set run.model=torchvision:resnet18"
    return [*entries, Listed("torchvision:NAME", about, example)]


def _algorithms() -> list[Listed]:
    from peer.algorithms.registry import algorithms
    from peer.cli.graph import described

    return [
        Listed(
            name,
            (getdoc(each) or "").splitlines()[0].replace("`", ""),
            f"peer testbed --set run.algorithm={name}",
            tuple(ListedOption(*row) for row in described(each.Options, "run.options")),
        )
        for name, each in sorted(algorithms().items())
    ]


def _encodings() -> list[Listed]:
    from peer.core.encoding import MEANINGS

    return [Listed(name, f"{text}.", f"peer testbed --set run.encoding={name}") for name, text in MEANINGS.items()]


def _faults() -> list[Listed]:

    return [
        Listed(name, each.help, f"peer chaos out --now '{f'do={name} {each.example}'.strip()}'")
        for name, each in part("FAULTS").items()
    ]


_READ: dict[str, Callable[[], list[Listed]]] = {
    "tasks": _tasks,
    "splits": _splits,
    "models": _models,
    "algorithms": _algorithms,
    "encodings": _encodings,
    "faults": _faults,
}
