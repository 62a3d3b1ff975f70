"""`peer experiment`: repeat the papers' experiments and compare with the published numbers."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator_free_bootstrap.errors import ConfigProblem, Option
from coordinator_free_bootstrap.options import refuse_given
from peer.cli.declared import takes_options
from peer.cli.problem import Settings, names_settings
from peer.lab.options import SimulatedOptions

if TYPE_CHECKING:
    from rich.console import Console

    from peer.lab.blocks import Block
    from peer.lab.scaling import Scale
    from peer.lab.spec import Experiment
    from peer.lab.table import ResultTable

app = typer.Typer(
    name="experiment",
    help="Repeat the papers' experiments and compare with the published numbers.",
    no_args_is_help=True,
)


@app.command(
    epilog="Example: peer experiment run papers/dfca/dfca-table1-mnist-k2.toml --scale 0.1 --seeds 3 --data-root data"
)
@takes_options("local", SimulatedOptions, "device", "amp", "data_root", "threads", "start_from")
@names_settings
def run(
    *,
    file: Annotated[Path, typer.Argument(help="Experiment file, see papers/.", show_default=False, readable=False)],
    scale: Annotated[float, typer.Option(help="Share of the peers and data; samples per peer do not change.")] = 1.0,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each case. Default: as in the paper.")] = None,
    backend: Annotated[
        str,
        typer.Option(
            metavar="BACKEND[@RAY]",
            help="simulated: one process; on a GPU all peers' models of a round are trained as one; stacked, one-by-one: the "
            "same, always or never trained as one; processes: a testbed with real sockets. @RAY: run the cases "
            "and seeds as tasks of a Ray cluster, many at a time, with the same results: @local, Ray on this machine for this "
            "command; @auto, the cluster that this machine is a node of; @HOST:PORT of it; @ray://HOST:PORT of another. Needs "
            "coordinator-free\\[ray] here and on every node; nodes without the files of --data-root get them once.",
        ),
    ] = "simulated",
    at_once: Annotated[
        int,
        typer.Option(
            "--jobs", min=1, help="Runs at the same time, each in a process of its own. Of --backend simulated."
        ),
    ] = 1,
    local: SimulatedOptions,
    out: Annotated[
        Path, typer.Option(help="Folder for results: one JSON file per case and seed.", readable=False)
    ] = Path("out/experiments"),
    cases: Annotated[
        list[str] | None,
        typer.Option(
            "--case",
            help="Run only this case; in a file with settings also a setting, or a case in all of them. Repeatable.",
        ),
    ] = None,
    settings: Settings = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the run directories, with models, for peer report.")
    ] = False,
) -> None:
    """Run the cases of an experiment for each seed; results that exist with the same settings are not repeated.

    An interrupted command continues with the case and seed that was running when it is given again, with Ray too; with --keep,
    but not with Ray, from its last round, else from its first. With Ray, a run takes --threads cores of a node, and with
    --device cuda the part of a GPU that it needs; a run whose node is lost starts again elsewhere.
    """
    from rich.console import Console

    from coordinator_free_bootstrap.validation import counted
    from peer.lab.jobs import backend_named, check_data, device_of, jobs_of, refresh_labels, runs_left
    from peer.lab.parallel import Orders, run_jobs
    from peer.lab.progress import TableProgress
    from peer.lab.scaling import Scale
    from peer.lab.simulated import SimulatedSettings
    from peer.lab.spec import load_experiment
    from peer.lab.unfinished import refuse_other_runs

    kind, ray, stacked = backend_named(backend)
    if kind != "simulated":
        refuse_given(f"{Option('backend')} is {kind}", amp=local.get("amp"), threads=local.get("threads"))
    if at_once > 1 and (ray is not None or kind != "simulated"):
        why = "Ray decides how many run" if ray is not None else f"{Option('backend')} is {kind}"
        refuse_given(why, jobs=at_once)
    console = Console(stderr=True, highlight=False, markup=False)
    experiment = load_experiment(file)
    chosen = Scale(scale, tuple(settings or ()))
    if ray is None:
        on = device_of(kind, local.get("device"))
    else:
        from peer.lab.ray_runs import device_on_ray, run_on_ray

        on = device_on_ray(local.get("device"), kind)
    given: dict[str, Any] = {**local, "device": on}
    here = SimulatedSettings(**given, stacked=stacked, models=keep)
    jobs = jobs_of(experiment, chosen, seeds or experiment.seeds, kind, here, cases or [])
    _make_folder(out / experiment.file)
    _announce(console, experiment, chosen)
    refresh_labels(jobs, out)
    left = runs_left(jobs, out)
    measured = sum(len(job.measured_by) for job in left)
    if measured < len(jobs):
        console.print(f"{len(jobs) - measured} of {counted(len(jobs), 'result')} done already")
    if len(left) < measured:
        console.print(
            f"{counted(measured, 'result')} from {counted(len(left), 'run')}: some cases measure the same run"
        )
    command = shlex.join(["peer", *sys.argv[1:]])
    refuse_other_runs(left, out)
    progress = TableProgress(console, left)
    if ray is not None and left:
        run_on_ray(ray, left, out, keep=keep, command=command, progress=progress)
    elif left:
        console.print("\n".join(check_data(left)), soft_wrap=True)
        with progress:
            run_jobs(at_once, left, Orders(out, keep, command), progress)
    typer.echo(out / experiment.file)


def _announce(console: Console, experiment: Experiment, scale: Scale) -> None:
    """Say what is run, and what not."""
    from peer.lab.jobs import skipped

    console.print(f"{experiment.title}: {scale.sentence(experiment)}")
    if experiment.needs:
        console.print(f"needs {experiment.needs}")
    for case in experiment.case:
        reason = skipped(case)
        if reason:
            console.print(f"{case.name}: not run: {reason}", style="yellow")


@app.command(epilog="Example: peer experiment table out/experiments --out papers/dfca")
def table(
    directory: Annotated[
        Path,
        typer.Argument(
            help="The --out folder of peer experiment run, or that of one experiment in it; or a folder with the subfolder "
            "results of --out.",
            readable=False,
        ),
    ] = Path("out/experiments"),
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            metavar="FILE.md|FOLDER",
            help="Markdown file to write the tables to; of a folder with results, a page with the notes of its experiment files. "
            "Or a folder: results/ gets the tables as JSON, a file for each experiment, which keeps tables of other scales, and "
            "figures/ pictures of the metric over rounds, of test and of training samples. Repeatable.",
            readable=False,
        ),
    ] = None,
) -> None:
    """Show measured and published numbers side by side, with scale, machine, date and command."""
    from rich.console import Console

    from coordinator_free_bootstrap.errors import UsageError
    from coordinator_free_bootstrap.ordinary_file import unwritable
    from peer.lab.blocks import read_blocks
    from peer.lab.page import page
    from peer.lab.render import markdown as as_markdown
    from peer.lab.render import rendered
    from peer.lab.table_files import read_tables, table_files

    files = table_files(directory)
    blocks = [] if files else read_blocks(directory)
    folders = [path for path in out or () if path.suffix != ".md"]
    for folder in folders:
        if files:
            expected = f"FILE.md, as {directory} has tables and no results of single runs"
            raise UsageError(ConfigProblem(Option("out"), expected, str(folder)))
        if folder.resolve() == directory.resolve():
            raise UsageError(ConfigProblem(Option("out"), "another folder than that of the results", str(folder)))
    tables = [found for path in files for found in read_tables(path)] or [block.table() for block in blocks]
    Console().print(rendered(tables))
    for path in out or ():
        if path in folders:
            _write_folder(path, tables, blocks)
            continue
        try:
            path.write_text(page(directory, tables) if files else as_markdown(tables), encoding="utf-8")
        except OSError as error:
            raise UsageError(unwritable(Option("out"), path, error)) from error
        typer.echo(f"wrote {path}", err=True)


def _write_folder(folder: Path, tables: Sequence[ResultTable], blocks: Sequence[Block]) -> None:
    """Write the tables as JSON and, if matplotlib is installed, the pictures of curves."""
    from coordinator_free_bootstrap.extras import is_installed, missing
    from coordinator_free_bootstrap.validation import counted
    from peer.lab.jobs import slug
    from peer.lab.page import FIGURES
    from peer.lab.table_files import FOLDER, write_tables

    _make_folder(folder / FOLDER)
    typer.echo(f"wrote {', '.join(map(str, write_tables(folder / FOLDER, tables)))}", err=True)
    if not is_installed("matplotlib"):
        typer.echo(f"no pictures: {missing('matplotlib')}", err=True)
        return
    from peer.lab.curves import save_curves

    _make_folder(folder / FIGURES)
    parts = [part for block in blocks for part in block.parts()]
    for part in parts:
        save_curves(part, folder / FIGURES / f"{slug(part.title)}.png")
    typer.echo(f"wrote pictures of {counted(len(parts), 'table')} to {folder / FIGURES}", err=True)


def _make_folder(folder: Path) -> None:
    """Create a folder of --out; raise UsageError if it cannot be made or written."""
    from coordinator_free_bootstrap.errors import UsageError
    from coordinator_free_bootstrap.ordinary_file import unwritable

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(unwritable(Option("out"), folder, error, "Name another folder.")) from error
    if not os.access(folder, os.W_OK):
        raise UsageError(
            unwritable(Option("out"), folder, PermissionError("permission denied"), "Name another folder.")
        )
