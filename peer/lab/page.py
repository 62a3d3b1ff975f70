"""The page of a folder with experiment files and their tables: what was measured, how, and what was not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coordinator_free_bootstrap.errors import UsageError
from peer.lab.jobs import slug
from peer.lab.render import markdown_lines
from peer.lab.spec import Experiment, load_experiment
from peer.lab.table import ResultTable
from peer.lab.table_files import FOLDER

FIGURES = "figures"  # pictures of `peer experiment table --out FOLDER`, beside the experiment files


def page(directory: Path, tables: Sequence[ResultTable]) -> str:
    """Return the Markdown page of a folder: a section for each experiment file that has tables, and a list of the others.

    Raises:
        ConfigError: an experiment file of the folder is wrong.
        UsageError: tables have no experiment file.
    """
    experiments = [load_experiment(path) for path in sorted(directory.glob("*.toml"))]
    if strays := sorted({table.experiment for table in tables} - {experiment.file for experiment in experiments}):
        raise UsageError(
            f"{directory}: expected {strays[0]}.toml beside {FOLDER}/{strays[0]}.json, got no such file. Copy it here"
        )
    of = {e.file: [table for table in tables if table.experiment == e.file] for e in experiments}
    lines = [
        f"# {directory.resolve().name}: measured tables",
        "",
        "`peer experiment table` wrote this page from the experiment files and the folder `results`. Do not edit it.",
        "",
    ]
    for experiment in experiments:
        if of[experiment.file]:
            lines += _section(experiment, of[experiment.file], directory)
    missing = [experiment for experiment in experiments if not of[experiment.file]]
    return "\n".join([*lines, *(_without_tables(missing) if missing else [])]).rstrip("\n") + "\n"


def _section(experiment: Experiment, tables: Sequence[ResultTable], directory: Path) -> list[str]:
    lines = [
        f"## {experiment.title}",
        "",
        f"[{experiment.file}.toml]({experiment.file}.toml): {experiment.source}.",
        "",
    ]
    lines += [*(f"- {note}" for note in experiment.notes), *([""] if experiment.notes else [])]
    picture = f"{FIGURES}/{slug(experiment.title)}.png"
    if (directory / picture).exists():
        lines += [f"![the metric over rounds: mean over the seeds, with their range]({picture})", ""]
    return [*lines, *(line for table in tables for line in markdown_lines(table))]


def _without_tables(experiments: Sequence[Experiment]) -> list[str]:
    rows = [f"| [{e.file}.toml]({e.file}.toml) | {e.title} | {e.needs} |" for e in experiments]
    return ["## Not measured", "", "| file | experiment | needs |", "| --- | --- | --- |", *rows]
