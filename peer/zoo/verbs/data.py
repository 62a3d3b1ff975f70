"""`peer data`: split a data set into shard files, and show the data of each peer."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator_free_bootstrap.options import refuse_given
from peer.cli.json_output import AsJson, print_json
from peer.cli.problem import Problem, takes_problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from peer.store.records import ScalingLine
    from peer.tasks.shard import Kind, Shard
    from peer.tasks.task import Task
    from peer.zoo.tasks.summary import ShardSummary

app = typer.Typer(name="data", help="Split data sets between peers, and show each peer's data.", no_args_is_help=True)


@app.command(epilog="Example: peer data split --set run.task=fmnist --set peers=100 --set data_root=D --out shards")
@takes_problem
def split(
    problem: Problem,
    out: Annotated[
        Path, typer.Option(help="Folder for peer-0.safetensors, peer-1.safetensors, ...", readable=False)
    ] = Path("shards"),
    peer_id: Annotated[
        int | None,
        typer.Option("--peer", min=0, help="Write the shard of this peer only, on the machine that has its data."),
    ] = None,
) -> None:
    """Write one shard file per peer, to copy to devices; `peer run --shard FILE` trains on it.

    With --peer, only `load_shard` of this peer is called: the data of the others need not be here.

    Example: peer data split --set run.task=my_task.py:task --peer 3
    """
    from coordinator_free_bootstrap.errors import ConfigProblem, Option, UsageError
    from coordinator_free_bootstrap.validation import counted
    from peer.zoo.tasks.datasets import DATASETS

    manifest, count, task = problem.load()
    known = problem.graph is not None or problem.local.peers is not None or manifest.task in DATASETS
    if peer_id is not None and known and peer_id >= count:
        raise UsageError(
            ConfigProblem(Option("peer_id"), f"0 to {count - 1} with {counted(count, 'peer')}", str(peer_id))
        )
    _make_folder(out)
    readings = Readings()
    ids = range(count) if peer_id is None else [peer_id]
    summaries = [_write(task, each, out / f"peer-{each}.safetensors", readings) for each in ids]
    typer.echo(f"{counted(len(summaries), 'shard')} written to {out}", err=True)
    _print(summaries)


@app.command(epilog="Example: peer data show --set run.task=mnist --set peers=20 --set data_root=D --out data.png")
@takes_problem
def show(
    problem: Problem,
    shards: Annotated[
        Path | None,
        typer.Argument(help="Folder of shard files to check and show instead.", show_default=False, readable=False),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Picture to write, PNG.", readable=False)] = None,
    federation: Annotated[
        bool,
        typer.Option(
            "--federation",
            help="Show the numbers that all peers scale with, in a run with shared scaling: of data that are all here, or of the "
            "state or run directory given in place of shard files.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show classes, rotations and sizes of each peer's data, as a table and as a picture."""
    from coordinator_free_bootstrap.errors import ConfigProblem, UsageError
    from peer.tasks.user_code import shard_of
    from peer.zoo.tasks.summary import save_plot, summarize

    if federation:
        refuse_given("--federation is given", out=out)
        _show_federation(problem, shards, as_json=as_json)
        return
    if shards is not None:
        local = problem.local
        refuse_given("SHARDS are given", peers=local.peers, data_root=local.data_root, download=local.download)
        if not problem.names_task:
            refuse_given("neither run.task nor --graph is given", set=problem.settings or None)
        paths = sorted(shards.glob("peer-*.safetensors"), key=lambda p: (len(p.name), p.name))
        if not paths:
            fix = "Make them with peer data split."
            raise UsageError(ConfigProblem("SHARDS", f"peer-<id>.safetensors in {shards}", "none", fix))
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
    if as_json:
        print_json({"peers": [asdict(s) for s in summaries]})
    else:
        _print(summaries)


def _show_federation(problem: Problem, folder: Path | None, *, as_json: bool) -> None:
    from peer.tasks.user_code import shard_of
    from peer.zoo.tasks.federation import histories_in, of_histories, of_shards

    if folder is not None:
        given = problem.local
        refuse_given("a directory is given", peers=given.peers, data_root=given.data_root, set=problem.settings or None)
        agreed = of_histories(histories_in(folder) or [folder / "history.jsonl"])
    else:
        _, count, task = problem.load()
        agreed = of_shards(((peer_id, shard_of(task, peer_id)) for peer_id in range(count)), task)
    if as_json:
        print_json({name: value for name, value in agreed.items() if name not in ("kind", "t", "time", "incarnation")})
    else:
        _print_federation(agreed)


def _print_federation(agreed: ScalingLine) -> None:
    from rich.console import Console
    from rich.table import Table

    samples, classes = agreed["samples"], agreed.get("classes") or {}
    sites = Table("peer", "samples", "classes")
    for peer, count in samples.items():
        sites.add_row(peer, str(count), _text(dict(enumerate(classes.get(peer, ())))))
    counts = [sum(each) for each in zip(*classes.values(), strict=True)]
    sites.add_row("all", str(sum(samples.values())), _text(dict(enumerate(counts))))
    mean, deviation = agreed.get("mean") or [], agreed.get("deviation") or []
    features = Table("feature", "mean", "deviation")
    names = agreed.get("columns") or [str(number) for number in range(len(mean))]
    for name, center, spread in zip(names, mean, deviation, strict=True):
        features.add_row(name, f"{center:.6g}", f"{spread:.6g}")
    console = Console()
    console.print(sites)
    console.print(features)
    console.print(f"smallest site: {min(samples.values())} samples; digest {agreed['digest'][:16]}")


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

    if not problem.names_task:
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


def _print(summaries: list[ShardSummary]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("peer", "train", "validation", "test", "classes", "rotations", "true clusters")
    for s in summaries:
        sizes = (str(s.peer), str(s.train), str(s.validation), str(s.test))
        table.add_row(*sizes, _text(s.classes), _text(s.degrees), _text(s.clusters))
    Console().print(table)


def _text(counts: Mapping[int, int]) -> str:
    return " ".join(f"{key}:{count}" for key, count in counts.items()) or "-"
