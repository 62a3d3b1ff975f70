"""`peer data`: split a data set into shard files, and show the data of each peer."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator_free_bootstrap.validation import refuse_without
from peer.cli.json_output import AsJson, print_json
from peer.cli.problem import Problem, problem_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from peer.tasks.shard import Kind, Shard
    from peer.tasks.task import Task
    from peer.zoo.tasks.summary import ShardSummary

app = typer.Typer(name="data", help="Split data sets between peers, and show each peer's data.", no_args_is_help=True)
ALL = ("graph", "task", "split", "peers", "settings", "data_root", "download")


@app.command(
    epilog="Example: peer data split --task fmnist --split rotated_soft --peers 100 --data-root D --out shards/"
)
@problem_options(*ALL)
def split(
    problem: Problem,
    out: Annotated[Path, typer.Option(help="Folder for peer-0.safetensors, peer-1.safetensors, ...", readable=False)],
    as_json: AsJson = False,
) -> None:
    """Write one shard file per peer, to copy to devices; `peer run --shard FILE` trains on it."""
    from coordinator_free_bootstrap.validation import counted

    _, count, task = problem.load()
    _make_folder(out)
    readings = Readings()
    summaries = [_write(task, peer_id, out / f"peer-{peer_id}.safetensors", readings) for peer_id in range(count)]
    typer.echo(f"{counted(count, 'shard')} written to {out}", err=True)
    _print(summaries, as_json)


@app.command(epilog="Example: peer data shard --task my_task.py:task --peer 3")
@problem_options(*ALL)
def shard(
    problem: Problem,
    peer_id: Annotated[int, typer.Option("--peer", min=0, help="Id of the peer.")],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write.", show_default="peer-<id>.safetensors", readable=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the shard file of one peer, on the machine that has its data; `peer run --shard FILE` trains on it.

    Only `load_shard` of this peer is called: the data of the others need not be here.
    """
    from coordinator_free_bootstrap.errors import UsageError
    from peer.zoo.tasks.datasets import DATASETS

    manifest, count, task = problem.load()
    known = problem.graph is not None or problem.peers is not None or manifest.task in DATASETS
    if known and peer_id >= count:
        raise UsageError(f"--peer: expected 0 to {count - 1} with {count} peers, got {peer_id}")
    path = out or Path(f"peer-{peer_id}.safetensors")
    _make_folder(path.parent)
    summary = _write(task, peer_id, path, Readings())
    typer.echo(f"shard of peer {peer_id} written to {path}", err=True)
    _print([summary], as_json)


@app.command(epilog="Example: peer data show --task mnist --split rotated_soft --peers 20 --data-root D --out data.png")
@problem_options(*ALL)
def show(
    problem: Problem,
    shards: Annotated[
        Path | None,
        typer.Option(help="Folder of shard files to check and show instead.", show_default=False, readable=False),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Picture to write, PNG.", readable=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Show classes, rotations and sizes of each peer's data, as a table and as a picture."""
    from coordinator_free_bootstrap.errors import UsageError
    from peer.tasks.user_code import shard_of
    from peer.zoo.tasks.summary import save_plot, summarize

    if shards is not None:
        named = problem.graph is not None or problem.task is not None
        refuse_without(
            "without --shards", False, peers=problem.peers, data_root=problem.data_root, download=problem.download
        )
        refuse_without("with --task or --graph", named, split=problem.split, set=problem.settings or None)
        paths = sorted(shards.glob("peer-*.safetensors"), key=lambda p: (len(p.name), p.name))
        if not paths:
            raise UsageError(f"--shards: {shards} has no peer-<id>.safetensors; make them with peer data split")
        numbers = [p.stem.removeprefix("peer-") for p in paths]
        found = (
            (int(n) if n.isdigit() else i, _checked(p, problem))
            for i, (n, p) in enumerate(zip(numbers, paths, strict=True))
        )
    else:
        _, count, task = problem.load()
        found = ((peer_id, shard_of(task, peer_id)) for peer_id in range(count))
    readings = Readings()
    # one shard in memory at a time
    summaries = [summarize(peer_id, readings.say(peer_id, shard)) for peer_id, shard in found]
    if out is not None:
        save_plot(summaries, out)
        typer.echo(f"picture written to {out}", err=True)
    _print(summaries, as_json)


class Readings:
    """Says on stderr how the data were read, where it was detected; the same words once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, peer_id: int, shard: Shard) -> Shard:
        """Return the shard, after saying how its data were read."""
        reading = None if shard.preprocessing is None else shard.preprocessing.reading
        if reading is not None and reading not in self._said:
            self._said.add(reading)
            typer.echo(f"note: data of peer {peer_id} read as {reading}", err=True)
        return shard


def _make_folder(folder: Path) -> None:
    from coordinator_free_bootstrap.errors import StorageError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"--out: {folder} cannot be made: {error}") from error


def _write(task: Task, peer_id: int, path: Path, readings: Readings) -> ShardSummary:
    """Write the shard file of a peer, with what a run needs to know of its task; return its summary."""
    from peer.tasks.shard_file import save_shard
    from peer.tasks.user_code import shard_of
    from peer.zoo.tasks.summary import summarize

    shard = shard_of(task, peer_id).checked(task.kind, task.classes)
    metadata = {"kind": task.kind, "classes": json.dumps(task.classes)}
    shard = replace(
        shard,
        metadata=metadata | shard.metadata,
        preprocessing=shard.preprocessing or task.preprocessing,
        class_names=shard.class_names or task.class_names,
    )
    save_shard(path, readings.say(peer_id, shard))
    return summarize(peer_id, shard)


def _checked(path: Path, problem: Problem) -> Shard:
    """Return a shard file, checked as `peer run` does: for the named task, else for the task kind in its metadata."""
    from coordinator_free_bootstrap.errors import ShardError
    from peer.tasks.shard_file import load_shard_file
    from peer.zoo.tasks.builtin import classes_of

    if problem.graph is None and problem.task is None:
        shard = load_shard_file(path)
        classes = classes_of(shard, path)
        kind: Kind = "regression" if classes is None else "classification"
    else:
        task = problem.load(shard=path)[2]
        shard, kind, classes = task.load_shard(0), task.kind, task.classes
    try:
        return shard.checked(kind, classes)
    except ShardError as error:
        raise ShardError(f"{path}: {error}") from error


def _print(summaries: list[ShardSummary], as_json: bool) -> None:
    if as_json:
        print_json({"peers": [asdict(s) for s in summaries]})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("peer", "train", "validation", "test", "classes", "rotations", "true clusters")
    for s in summaries:
        sizes = (str(s.peer), str(s.train), str(s.validation), str(s.test))
        table.add_row(*sizes, _text(s.classes), _text(s.degrees), _text(s.clusters))
    Console().print(table)


def _text(counts: Mapping[int, int]) -> str:
    return " ".join(f"{key}:{count}" for key, count in counts.items()) or "-"
