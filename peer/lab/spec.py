"""An experiment file in TOML: one row of a paper's table. Each case is a cell: what to run, and the paper's number.

title = "DFCA, Table 1: MNIST, k = 2"
source = "DFCA, Table 1"
peers = 120
[graph]
kind = "erdos-renyi"
p = 0.1
[run]                       # manifest keys of all cases; `run.seed` and `run.data_seed` are the seed's
task = "mnist"
[[case]]
name = "DFCA-GI"
published = 93.7            # percent
published_std = 0.07
run.algorithm = "dfca"
[sweep]                     # optional: each case is run with each value
key = "graph.degree"
values = [3, 6, 12]
[[setting]]                 # optional: each case is run in each setting, in place of one file for each
name = "FashionMNIST"
run.task = "fmnist"
"""

from __future__ import annotations

import copy
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coordinator_free_bootstrap import Kind, Manifest, make_graph, parse_manifest
from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem
from coordinator_free_bootstrap.options import given_keys
from coordinator_free_bootstrap.ordinary_file import text_of, unreadable
from coordinator_free_bootstrap.validation import joined, sentences
from peer.algorithms.registry import algorithms
from peer.lab.algorithm_server import AlgorithmServerOptions, check_server
from peer.lab.ifca_server import IfcaServerOptions, check_ifca_server
from peer.tasks.effect import keys_without_effect, problem_without_effect
from peer.tasks.given_keys import is_set

Percent = Annotated[float, Field(ge=0, le=100)]
Method = Literal["peers", "ifca-server", "server", "published"]
FIXED_SHAPES = ("complete", "ring", "torus", "star", "line")


class _SpecSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class GraphSpec(_SpecSection):
    """How the graph is drawn: a kind of `peer graph make` and its one parameter."""

    kind: Kind = "erdos-renyi"
    p: float | None = Field(None, gt=0, le=1, description="erdos-renyi: probability of an edge at full scale")
    degree: float | None = Field(None, gt=0, description="average degree at full scale, instead of p")


class Sweep(_SpecSection):
    """A setting and its values; each case becomes one case for each value, except those with ``sweep = false``."""

    key: str = Field(
        pattern=r"^(graph\.degree|run\.\w+(\.\w+)?)$",
        description="graph.degree, or a manifest key such as run.clusters",
    )
    values: list[Annotated[int | float, Field(gt=0)]] = Field(min_length=2)


class Swept(_SpecSection):
    """The position of a case in a sweep: the key, the value, and the name of the case that was repeated."""

    key: str
    value: int | float
    case: str


class Setting(_SpecSection):
    """One setting of a comparison, such as a data set and its split; each case of the file becomes one case for each setting."""

    name: str = Field(min_length=1, max_length=40)
    run: dict[str, Any] = Field(default_factory=dict, description="manifest keys beside the file's own")
    graph: GraphSpec | None = Field(None, description="instead of the file's own")


class Placed(_SpecSection):
    """The position of a case in a comparison: the name of its setting (column), and of the case that was repeated (row)."""

    setting: str
    case: str


class ServerOptions(IfcaServerOptions, AlgorithmServerOptions):
    """Options of a case with a server; each method has its own."""

    def without_effect(self, method: Method) -> list[ConfigProblem]:
        """Return a problem for each option that was given and that a method does not have."""
        own = {"ifca-server": set(IfcaServerOptions.model_fields), "server": set(AlgorithmServerOptions.model_fields)}
        why = f'method = "{method}" has no such option'
        unused = sorted(self.model_fields_set - own.get(method, set()))
        return [ConfigProblem.without_effect(f"server.{name}", getattr(self, name), why) for name in unused]


class Case(_SpecSection):
    """One cell of the table."""

    name: str = Field(min_length=1, max_length=100)
    published: Percent | None = Field(None, description="the paper's number, percent; none where it gives none")
    published_std: Percent | None = Field(None, description="its standard deviation over the paper's runs")
    method: Method = Field(
        "peers",
        description="peers of this runtime, IFCA with a server, run.algorithm with a server, or a published number without a run",
    )
    metric: str = Field(
        "metric_value",
        pattern=r"^(metric_value|metric_at_best|metric_before_final|metric_shared|best_center_\d)$",
        description="the measured number; metric_at_best: on the test data, of each peer's round with the best validation "
        "metric; best_center_N: of the best FedSoft center on true distribution N",
    )
    run: dict[str, Any] = Field(default_factory=dict, description="manifest keys beside the file's own")
    graph: GraphSpec | None = Field(None, description="instead of the file's own")
    server: ServerOptions = Field(default_factory=ServerOptions, description="options of ifca-server and server")
    note: str = ""
    sweep: bool = Field(True, description="false: run once, because the sweep's key has no effect on this case")
    swept: Swept | None = None  # set by `load_experiment`
    placed: Placed | None = None  # likewise


class Experiment(_SpecSection):
    """One experiment file."""

    title: str = Field(min_length=1)
    source: str = Field(min_length=1, description="paper and table")
    peers: int = Field(ge=2, le=10_000, description="N at full scale")
    seeds: int = Field(5, ge=1, le=1000, description="runs in the paper, and the default of --seeds")
    train_samples: int = Field(ge=1, description="training samples dealt to all peers at full scale")
    test_samples: int = Field(ge=1, description="test samples dealt to all peers at full scale")
    needs: str = Field("", description="data that this project does not include, in words")
    notes: list[str] = Field(
        default_factory=list, description="differences from the paper, and choices that the paper leaves open"
    )
    graph: GraphSpec
    run: dict[str, Any]
    sweep: Sweep | None = None
    setting: list[Setting] = Field(
        default_factory=list, description="each case is run in each; a table has a column for each"
    )
    case: list[Case] = Field(min_length=1)
    file: str = ""  # its name without .toml; set by `load_experiment`

    def manifest_keys(self, case: Case) -> dict[str, Any]:
        """Return the manifest of a case as plain values; option sections are merged key by key."""
        return merged(self.run, case.run)

    def manifest(self, case: Case) -> Manifest:
        """Return the validated manifest of a case.

        Raises:
            ConfigError: a key is unknown or its value not allowed.
        """
        return parse_manifest(self.manifest_keys(case), f"{self.file}.toml, case {case.name!r}")


def merged(keys: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return manifest keys with changes; option sections are merged key by key."""
    result = dict(keys)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = {**result[key], **value} if both else value
    return result


def load_experiment(path: Path) -> Experiment:
    """Read and check an experiment file.

    Raises:
        ConfigError: it cannot be read, is not TOML, or a key or option is wrong; one line per problem, with file and key.
    """
    try:
        data = tomllib.loads(text_of(path))
    except OSError as error:
        fix = "Give an experiment file, such as papers/suite/suite.toml."
        raise ConfigError(unreadable(str(path), error, fix)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(ConfigProblem(str(path), "an experiment file in TOML", f"another text ({error})")) from error
    try:
        experiment = Experiment.model_validate({**data, "file": path.stem})
    except ValidationError as error:
        raise ConfigError(joined(str(path), sentences(error, Experiment, data))) from error
    if experiment.sweep is not None:
        experiment = experiment.model_copy(update={"case": _swept_cases(experiment, experiment.sweep)})
    written = experiment.case
    if experiment.setting:
        experiment = experiment.model_copy(update={"case": _placed_cases(experiment)})
    _check(experiment, path)
    if problems := list(_without_effect(experiment, written)):
        raise ConfigError(joined(str(path), problems))
    return experiment


def _swept_cases(experiment: Experiment, sweep: Sweep) -> list[Case]:
    """Return each case once for each value of the sweep."""
    cases = []
    section, *path = sweep.key.split(".")
    for case in experiment.case:
        if not case.sweep:
            cases.append(case)
            continue
        for value in sweep.values:
            graph, run = case.graph or experiment.graph, copy.deepcopy(case.run)
            if section == "graph":
                graph = graph.model_copy(update={"p": None, "degree": float(value)})
            else:
                target = run if len(path) == 1 else run.setdefault(path[0], {})
                target[path[-1]] = value
            swept = Swept(key=sweep.key, value=value, case=case.name)
            name = f"{case.name}, {path[-1]} = {value:g}"
            cases.append(case.model_copy(update={"name": name, "graph": graph, "run": run, "swept": swept}))
    return cases


def _placed_cases(experiment: Experiment) -> list[Case]:
    """Return each case once for each setting; what a case says wins over its setting."""
    cases = []
    for setting in experiment.setting:
        for case in experiment.case:
            changes = {
                "name": f"{setting.name}: {case.name}",
                "run": merged(setting.run, case.run),
                "graph": case.graph or setting.graph,
                "placed": Placed(setting=setting.name, case=case.name),
            }
            cases.append(case.model_copy(update=changes))
    return cases


def _check(experiment: Experiment, path: Path) -> None:
    counts = Counter(case.name for case in experiment.case)
    problems = [f"case: expected each name once, got {name!r} {n} times" for name, n in counts.items() if n > 1]
    if any(case.published is not None and case.swept is not None for case in experiment.case):
        problems.append(
            "case: expected no published value beside a sweep, got one. One number cannot belong to all values."
        )
    if any(case.published is not None and case.placed is not None for case in experiment.case):
        problems.append(
            "case: expected no published value beside settings, got one. One number cannot belong to all settings."
        )
    if experiment.sweep is None and not all(case.sweep for case in experiment.case):
        problems.append("case: expected sweep only in a file with [sweep], got sweep = false")
    for case in experiment.case:
        where, graph = f"case {case.name!r}", case.graph or experiment.graph
        for key in ("seed", "data_seed"):
            if key in experiment.run or key in case.run:
                problems.append(f"{where}: expected no run.{key}, got one. Each seed of the experiment sets it.")
        given = graph.model_dump(exclude_none=True, exclude={"kind"})
        allowed = 0 if graph.kind in FIXED_SHAPES else 1
        if len(given) != allowed:
            problems.append(f"{where}: graph: expected {allowed} of p and degree with {graph.kind}, got {given}")
        problems += [f"{where}: {problem}" for problem in case.server.without_effect(case.method)]
        if graph.p is not None and graph.kind != "erdos-renyi":
            problems.append(f"{where}: graph.p: expected degree in place of p with {graph.kind}, got {graph.p}")
    if problems:
        raise ConfigError(joined(str(path), problems))
    for case in experiment.case:
        if case.method != "published":
            check_algorithm(experiment.manifest(case), case, f"{path}, case {case.name!r}")


def _without_effect(experiment: Experiment, written: list[Case]) -> Iterator[str]:
    """Yield a problem for each key that has no effect in any case that it is set for.

    Args:
        experiment: complete.
        written: its cases before they were repeated in each setting.
    """
    manifests = {case.name: experiment.manifest(case) for case in experiment.case if case.method != "published"}
    unused = {n: keys_without_effect(m) for n, m in manifests.items() if m.algorithm in algorithms()}

    def problems(where: str, run: dict[str, Any], cases: Iterable[Case]) -> Iterator[str]:
        names = [case.name for case in cases if case.method != "published"]
        if not names or not all(name in unused for name in names):
            return
        given = frozenset(given_keys(run))
        for key, why in unused[names[0]].items():
            if is_set(key, given) and all(key in unused[name] for name in names):
                yield f"{where}{problem_without_effect(manifests[names[0]], key, why)}"

    yield from problems("", experiment.run, experiment.case)
    for setting in experiment.setting:
        placed = [case for case in experiment.case if case.placed and case.placed.setting == setting.name]
        yield from problems(f"setting {setting.name!r}: ", setting.run, placed)
    for case in written:
        repeated = [each for each in experiment.case if (each.placed.case if each.placed else each.name) == case.name]
        yield from problems(f"case {case.name!r}: ", case.run, repeated)


def check_algorithm(manifest: Manifest, case: Case, source: str) -> None:
    """Construct the algorithm of a case, so that a wrong option is an error before the first run.

    Raises:
        ConfigError: an option is unknown, not allowed beside the others, or not read by the case's method.
    """
    try:
        if case.method == "ifca-server":
            check_ifca_server(manifest)
        elif manifest.algorithm in algorithms():  # `skipped` names the others
            if case.method == "server":
                check_server(manifest, case.server)
            algorithms()[manifest.algorithm](manifest, 0, make_graph("line", 2, manifest=manifest))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
