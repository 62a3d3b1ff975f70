"""The runs of an experiment: one for each case and seed, and one for all cases that only measure it differently."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from coordinator_free_bootstrap import Graph, canonical_json
from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem, Option, ShardError, TaskError, UsageError
from coordinator_free_bootstrap.meaning import goal
from coordinator_free_bootstrap.ordinary_file import text_of
from coordinator_free_bootstrap.strict_json import printable
from coordinator_free_bootstrap.user_file import names_file
from peer.algorithms.registry import algorithm_for, algorithms
from peer.lab.scaling import Scale, scaled_graph
from peer.lab.simulated import SimulatedSettings
from peer.lab.spec import Case, Experiment, ServerOptions, check_algorithm
from peer.learning.device import device_named
from peer.learning.learner import TorchLearner
from peer.store.files import write_json
from peer.tasks.effect import used_data_root
from peer.tasks.loading import load_task
from peer.tasks.user_code import data_of

log = logging.getLogger("peer")
Backend = Literal["simulated", "processes"]
DATA_KEYS = {"task", "task_options", "split", "split_options"}


@dataclass(frozen=True)
class Job:
    """One run: a case with a seed at a scale.

    Attributes:
        also: further cases that measure the same run; each has a result of its own.
    """

    experiment: Experiment
    case: Case
    seed: int
    scale: Scale
    backend: Backend
    settings: SimulatedSettings = field(default_factory=SimulatedSettings)
    also: tuple[Case, ...] = ()

    @property
    def label(self) -> str:
        """Name of the run within its experiment."""
        return f"{self.case.name}, seed {self.seed}"

    def graph(self) -> Graph:
        """Return the graph, with its manifest."""
        return scaled_graph(self.experiment, self.case, self.seed, self.scale)

    @property
    def server(self) -> ServerOptions:
        """The server's options at this scale: it draws the same share of the clients."""
        options, full = self.case.server, self.experiment.peers
        if options.selected is None:
            return options
        selected = max(1, round(options.selected * self.scale.peers(self.experiment) / full))
        return options.model_copy(update={"selected": selected})

    @property
    def measured_by(self) -> tuple[Case, ...]:
        """All cases that measure this run, its own first."""
        return (self.case, *self.also)

    def place(self, out: Path, case: Case | None = None) -> Path:
        """Return the path of the result of a case; without one, of this run's own case."""
        return out / self.experiment.file / slug((case or self.case).name) / f"seed-{self.seed}.json"

    def directory(self, out: Path) -> Path:
        """Return the path of the run directory."""
        return self.place(out).with_suffix("")

    def labels(self, case: Case) -> dict[str, Any]:
        """Return what the file sets in a result and no run changes: titles, the row's position, the paper's number."""
        return {
            "title": self.experiment.title,
            "source": self.experiment.source,
            "case": case.name,
            "place": [each.name for each in self.experiment.case].index(case.name),
            "published": case.published,
            "published_std": case.published_std,
        }

    def digest(self) -> str:
        """Return a digest of everything that determines the run, except the machine; what is measured of it is not in it."""
        graph = self.graph()
        parts = [canonical_json(graph.manifest), graph.digest, self.case.method, self.server.model_dump_json()]
        named, own = (
            self.settings.device.partition(":")[0],
            self.backend == "processes" or self.settings.device == "auto",
        )
        device = device_of(self.backend, self.settings.device).partition(":")[0] if own else named
        # old results name no device: all are of CPUs
        parts += [
            self.backend,
            *([] if device == "cpu" else [device]),
            *([] if self.settings.amp is None else [self.settings.amp]),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def rounds(self) -> int:
        """Return the number of rounds, for the progress display."""
        restarts = self.case.server.restarts if self.case.method == "ifca-server" else 1
        return self.graph().manifest.rounds * restarts


def backend_named(text: str) -> tuple[Backend, str | None, bool | None]:
    """Return what ``--backend`` names: the backend, the address of a Ray cluster, and whether models are trained as one.

    Raises:
        UsageError: another name, or no address after ``@``.
    """
    kind, at, address = text.partition("@")
    stacked = {"stacked": True, "one-by-one": False}.get(kind)
    if kind not in ("simulated", "stacked", "one-by-one", "processes") or (at and not address):
        raise UsageError(
            f"{Option('backend')}: expected simulated, stacked, one-by-one or processes, and after one of the first three "
            f"@ADDRESS of a Ray cluster, got {text!r}."
        )
    return "processes" if kind == "processes" else "simulated", address if at else None, stacked


def device_of(backend: Backend, wanted: str | None) -> str:
    """Return the device of a backend: cpu, cuda or cuda:N.

    Args:
        backend: simulated, or processes, whose peers choose their device themselves.
        wanted: the user's choice; None: the backend's default.

    Raises:
        ConfigError: the device does not exist, or the peers of the backend would choose another one.
    """
    if backend == "simulated":
        return device_named(wanted or "cpu")
    own = device_named("auto")
    if wanted is not None and device_named(wanted) != own:
        raise ConfigError(
            f"{Option('device')}: expected {own}, which peers choose themselves with {Option('backend')} processes, got "
            f"{wanted}. Leave {Option('device')} out, or use {Option('backend')} simulated."
        )
    return own


def slug(name: str) -> str:
    """Return a name as part of a path: ``DFCA-GI`` -> ``dfca-gi``."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def skipped(case: Case) -> str | None:
    """Return the reason why a case is not run, or None."""
    if case.method == "published":
        return "published number, without a run"
    name = case.run.get("algorithm")
    if case.method in ("peers", "server") and name not in (None, *algorithms()) and not names_file(str(name)):
        return f"no algorithm {name!r} in this version"
    return None


def names_of(case: Case) -> tuple[str, ...]:
    """Return what ``--case`` may call a case: its name, and where the file has settings the name of its row or its column."""
    return (case.name,) if case.placed is None else (case.name, case.placed.case, case.placed.setting)


def jobs_of(
    experiment: Experiment, scale: Scale, seeds: int, backend: Backend, settings: SimulatedSettings, only: list[str]
) -> list[Job]:
    """Return the runs of all cases, seed by seed: after an interruption, all cases have the same seeds.

    Raises:
        ConfigError: ``only`` names an unknown case, or a setting of the scale does not fit a case.
    """
    names = {slug(name): name for case in experiment.case for name in names_of(case)}
    for name in only:
        if slug(name) not in names:
            raise ConfigError(f"{Option('case')}: expected one of {', '.join(names.values())}, got {name!r}")
    wanted = [
        case for case in experiment.case if not only or any(slug(name) in map(slug, only) for name in names_of(case))
    ]
    jobs = [
        Job(experiment, case, seed, scale, backend, settings)
        for seed in range(1, seeds + 1)
        for case in wanted
        if skipped(case) is None
    ]
    for job in jobs[: len(wanted)]:
        graph = job.graph()
        check_algorithm(graph.manifest, job.case, f"case {job.case.name!r}")
        if job.case.method == "peers":
            algorithm_for(graph, graph.ids[0])
    manifests = [job.graph().manifest for job in jobs[: len(wanted)]]
    if (
        manifests
        and settings.data_root is not None
        and all(used_data_root(m, settings.data_root) is None for m in manifests)
    ):
        why = f"no task of {experiment.file} uses it"
        raise UsageError(ConfigProblem.without_effect(Option("data_root"), settings.data_root, why))
    return jobs


def check_data(jobs: Sequence[Job]) -> list[str]:
    """Load and deal the data of each case once: a wrong option or a missing file is an error before the first run.

    Returns:
        A line on how the runs interpret their targets, and their metric; if that differs, one with the name of each first case.

    Raises:
        TaskError, ShardError: the data of a case cannot be loaded or dealt; the message names the case.
    """
    first_of: dict[str, Job] = {}
    for job in jobs:
        first_of.setdefault(job.case.name, job)  # seeds of a case have the same options and files
    checked, found = set(), dict[str, str]()
    for job in first_of.values():
        graph = job.graph()
        manifest, root = graph.manifest, used_data_root(graph.manifest, job.settings.data_root)
        data = repr(manifest.model_dump(include=DATA_KEYS)), len(graph.nodes)
        if data in checked:
            continue
        checked.add(data)
        try:
            task = load_task(manifest, len(graph.nodes), data_root=root)
            found.setdefault(goal(TorchLearner(task, data_of(task, graph.ids[0])).meaning), job.case.name)
        except (TaskError, ShardError) as error:
            raise type(error)(f"case {job.case.name!r}: {error}") from error
    return [f"{name} learns {said}" if len(found) > 1 else f"learns {said}" for said, name in found.items()]


def runs_left(jobs: Sequence[Job], out: Path) -> list[Job]:
    """Return the runs whose results are missing or have other settings; cases that measure the same run share one."""
    left: dict[str, Job] = {}
    for job in jobs:
        if done_already(job, out):
            continue
        digest = job.digest()
        first = left.setdefault(digest, job)
        if first is not job:
            left[digest] = replace(first, also=(*first.also, job.case))
    return list(left.values())


def done_already(job: Job, out: Path) -> bool:
    """Return whether a result of the job's own case with the same settings and measurement exists."""
    found = read_result(job.place(out))
    if found is None or found.get("digest") != job.digest():
        return False
    return found.get("measures") == job.case.metric


def refresh_labels(jobs: Sequence[Job], out: Path) -> None:
    """Update titles, positions and published numbers of existing results from the file."""
    for job in jobs:
        found, labels = read_result(job.place(out), warn=False), job.labels(job.case)
        if found is not None and found != found | labels:
            write_json(job.place(out), found | labels)


def read_result(path: Path, *, warn: bool = True) -> dict[str, Any] | None:
    """Return a result; None if the file is missing, or is no result, which gives a warning."""
    try:
        value = json.loads(text_of(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        value, reason = None, printable(str(error))
    else:
        reason = "expected a JSON object"
    if isinstance(value, dict):
        return value
    if warn:
        log.warning("%s: could not be read and is left out (%s); peer experiment run makes it again", path, reason)
    return None
