"""`peer experiment`: repeat the papers' experiments and compare with the published numbers."""

from __future__ import annotations

import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from coordinator_free_bootstrap.validation import refuse_without
from peer.cli.problem import Amp, DataRoot, Settings

app = typer.Typer(
    name="experiment",
    help="Repeat the papers' experiments and compare with the published numbers.",
    no_args_is_help=True,
)


@app.command(
    epilog="Example: peer experiment run papers/dfca/dfca-table1-mnist-k2.toml --scale 0.1 --seeds 3 --data-root data"
)
def run(
    file: Annotated[Path, typer.Argument(help="Experiment file, see papers/.", show_default=False, readable=False)],
    scale: Annotated[float, typer.Option(help="Share of the peers and data; samples per peer do not change.")] = 1.0,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each case. Default: as in the paper.")] = None,
    backend: Annotated[
        str, typer.Option(help="simulated: one process; processes: a testbed with real sockets.")
    ] = "simulated",
    device: Annotated[
        str | None,
        typer.Option(
            help="simulated: cpu, cuda, cuda:N, mps or auto; a GPU trains all models stacked. processes: always auto.",
            show_default="cpu; processes: auto",
        ),
    ] = None,
    amp: Amp = None,
    out: Annotated[
        Path, typer.Option(help="Folder for results: one JSON file per case and seed.", readable=False)
    ] = Path("out/experiments"),
    data_root: DataRoot = None,
    cases: Annotated[
        list[str] | None,
        typer.Option(
            "--case",
            help="Run only this case; in a file with settings also a setting, or a case in all of them. Repeatable.",
        ),
    ] = None,
    settings: Settings = None,
    threads: Annotated[
        int, typer.Option(min=1, help="simulated: PyTorch threads, and receivers that fold at the same time.")
    ] = 1,
    stacked: Annotated[
        bool | None, typer.Option("--stacked/--one-by-one", help="simulated: train all peers' models in one batch.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the run directories, with models, for peer report.")
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run the cases and seeds as tasks of a Ray cluster, many at a time, with the same results. ADDRESS: local, Ray "
            "on this machine for this command; auto, the cluster that this machine is a node of; HOST:PORT of it; "
            "ray://HOST:PORT of another. Needs coordinator-free[ray] here and on every node; nodes without the files of "
            "--data-root get them once.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run the cases of an experiment for each seed; results that exist with the same settings are not repeated.

    An interrupted command continues with the case and seed that was running when it is given again, with --ray too; with --keep,
    but not with --ray, from its last round, else from its first. With --ray, a run takes --threads cores of a node, and with
    --device cuda the part of a GPU that it needs; a run whose node is lost starts again elsewhere.
    """
    from rich.console import Console

    from coordinator_free_bootstrap.errors import UsageError
    from coordinator_free_bootstrap.validation import counted
    from peer.lab.jobs import check_data, device_of, jobs_of, refresh_labels, runs_left, skipped
    from peer.lab.progress import TableProgress
    from peer.lab.runner import run_job
    from peer.lab.scaling import Scale
    from peer.lab.simulated import SimulatedSettings
    from peer.lab.spec import load_experiment
    from peer.lab.unfinished import refuse_other_runs

    if backend not in ("simulated", "processes"):
        raise UsageError(f"--backend: expected simulated or processes, got {backend!r}")
    refuse_without("with --backend simulated", backend == "simulated", stacked=stacked, amp=amp)
    console = Console(stderr=True, highlight=False, markup=False)
    experiment = load_experiment(file)
    chosen = Scale(scale, tuple(settings or ()))
    if ray is None:
        on = device_of(backend, device)  # type: ignore[arg-type]
    else:
        from peer.lab.ray_runs import device_on_ray, run_on_ray

        on = device_on_ray(device, backend)
    local = SimulatedSettings(
        data_root=data_root, device=on, amp=amp, threads=threads, fold_threads=threads, stacked=stacked, models=keep
    )
    jobs = jobs_of(experiment, chosen, seeds or experiment.seeds, backend, local, cases or [])  # type: ignore[arg-type]
    _make_folder(out / experiment.file, "--out")
    console.print(f"{experiment.title}: {chosen.sentence(experiment)}")
    if experiment.needs:
        console.print(f"needs {experiment.needs}")
    for case in experiment.case:
        reason = skipped(case)
        if reason:
            console.print(f"{case.name}: not run: {reason}", style="yellow")
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
            for job in left:
                on_round = partial(progress.on_round, job)
                results = run_job(job, out, keep=keep, command=command, on_round=on_round, tell=progress.say)
                progress.done(job, results)
    typer.echo(out / experiment.file)


@app.command(
    epilog="Example: peer experiment table out/experiments --save papers/dfca/results --curves papers/dfca/figures"
)
def table(
    directory: Annotated[
        Path,
        typer.Argument(
            help="The --out folder of peer experiment run, or that of one experiment in it; or a folder with the subfolder "
            "results of --save.",
            readable=False,
        ),
    ] = Path("out/experiments"),
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FOLDER",
            help="Folder for the tables as JSON: a file for each experiment, which keeps its tables of other scales.",
            readable=False,
        ),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(
            help="Markdown file to write the tables to; of a folder with results, a page with the notes of its experiment files.",
            readable=False,
        ),
    ] = None,
    curves: Annotated[
        Path | None,
        typer.Option(
            help="Folder for PNG pictures of the metric over rounds, of test and of training samples.", readable=False
        ),
    ] = None,
) -> None:
    """Show measured and published numbers side by side, with scale, machine, date and command."""
    from rich.console import Console

    from coordinator_free_bootstrap.errors import UsageError
    from coordinator_free_bootstrap.validation import counted
    from peer.lab.blocks import read_blocks
    from peer.lab.jobs import slug
    from peer.lab.page import page
    from peer.lab.render import markdown as as_markdown
    from peer.lab.render import rendered
    from peer.lab.table_files import read_tables, table_files, write_tables

    files = table_files(directory)
    blocks = [] if files else read_blocks(directory)
    if files:
        refuse_without("with the results of single runs", False, save=save, curves=curves)
    tables = [found for path in files for found in read_tables(path)] or [block.table() for block in blocks]
    Console().print(rendered(tables))
    if save is not None:
        _make_folder(save, "--save")
        typer.echo(f"wrote {', '.join(map(str, write_tables(save, tables)))}", err=True)
    if markdown is not None:
        try:
            markdown.write_text(page(directory, tables) if files else as_markdown(tables), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--markdown: {markdown} cannot be written: {error.strerror}") from error
        typer.echo(f"wrote {markdown}", err=True)
    if curves is not None:
        from peer.lab.curves import save_curves

        _make_folder(curves, "--curves")
        parts = [part for block in blocks for part in block.parts()]
        for part in parts:
            save_curves(part, curves / f"{slug(part.title)}.png")
        typer.echo(f"wrote pictures of {counted(len(parts), 'table')} to {curves}", err=True)


def _make_folder(folder: Path, option: str) -> None:
    """Create a folder; raise UsageError if it cannot be made or written."""
    from coordinator_free_bootstrap.errors import UsageError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option}: {folder} cannot be made ({error.strerror}); name another folder") from error
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{option}: {folder} cannot be written; name another folder")
