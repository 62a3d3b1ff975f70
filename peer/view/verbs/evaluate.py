"""`peer evaluate` and `peer predict`: use a model file of a run."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator_free_bootstrap.errors import written_as
from peer.cli.json_output import AsJson, print_json
from peer.cli.problem import KEYS, Problem, Settings, names_settings, set_keys, takes_problem
from peer.view.options import BestModel

if TYPE_CHECKING:
    from coordinator_free_bootstrap import Manifest
    from peer.view.models.saved import SavedModel

ModelFile = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL.safetensors",
        help="Model file of a run, or a peer's state directory: its personalized model.",
        show_default=False,
        readable=False,
    ),
]


@takes_problem
def evaluate(
    problem: Problem,
    model: ModelFile,
    peer_id: Annotated[int, typer.Option("--peer", min=0, help="Peer whose data are used.")] = 0,
    shard: Annotated[
        Path | None, typer.Option(help="Shard file to use instead.", show_default=False, readable=False)
    ] = None,
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    best: BestModel = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model file on one peer's data; the task is the one in the file unless options name another.

    A task file is looked for in the current folder, and in the folders above the model file.

    Example: peer evaluate out/peer-3/models/personalized.safetensors --peer 3
    """
    from peer.view.models.saved import SavedModel, evaluated

    saved = SavedModel.chosen(model, best=best)
    known = saved.metadata.get("peers", "")
    if problem.graph is None and known.isdigit():  # the first of equal keys: a given one wins
        problem = replace(problem, settings=[f"peers={known}", *(problem.settings or [])])
    manifest, _, task = problem.load(_manifest(saved, problem), shard)
    result = evaluated(saved, manifest, task, peer_id, part)
    _warn(saved)
    if as_json:
        print_json(result)
        return
    shown = (f"{key} {value:.4f}" if isinstance(value, float) else f"{key} {value}" for key, value in result.items())
    typer.echo(", ".join(shown))


@written_as({"task": "--set run.task"})
@names_settings
def predict(
    model: ModelFile,
    inputs: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="Raw samples: .npy, .npz, .safetensors, a .csv, .tsv or .parquet table, a picture, or a folder of pictures.",
            show_default=False,
            readable=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Write the predictions as a table.", show_default=False, readable=False),
    ] = None,
    preprocessed: Annotated[
        bool, typer.Option("--preprocessed", help="The samples are inputs of the model: do not scale them.")
    ] = False,
    settings: Settings = None,
    best: BestModel = False,
    as_json: AsJson = False,
) -> None:
    """Predict with a model file: class and probability of each raw sample, or the value in regression.

    The samples are scaled as in training, by the preprocessing in the model file.

    Example: peer predict out/peer-3/models/personalized.safetensors samples.csv --out predictions.csv
    """
    from coordinator_free_bootstrap.errors import UsageError
    from peer.store.files import write_atomic
    from peer.view.models.saved import SavedModel

    if out is not None and out.suffix != ".csv":
        raise UsageError(f"--out: expected a file whose name ends in .csv, got {out}")
    saved = SavedModel.chosen(model, best=best)
    if local := sorted(set_keys(settings or []) & KEYS.model_fields.keys()):
        raise UsageError(
            f"--set: expected keys of the manifest, as peer predict reads no data set, got {', '.join(local)}."
        )
    problem = Problem(settings=settings)
    manifest = problem.resolve(_manifest(saved, problem))[0]
    samples = saved.read_inputs(manifest, inputs, preprocessed=preprocessed)
    found = saved.predictions(manifest, samples.x)
    rows = [
        {"row": number} | ({} if samples.files is None else {"file": samples.files[number]}) | row
        for number, row in enumerate(found)
    ]
    _warn(saved)
    if samples.reading:
        typer.echo(f"note: read as {samples.reading}", err=True)
    if samples.unused:
        typer.echo(f"note: the model does not read: {', '.join(samples.unused)}", err=True)
    if out is not None:
        write_atomic(out, _as_csv(rows).encode())
        typer.echo(f"{len(rows)} predictions written to {out}", err=True)
    if as_json:
        print_json({"model": str(saved.path), "metric": saved.metadata.get("metric"), "predictions": rows})
    elif out is None:
        for row in rows:
            name = row.get("file", row["row"])
            typer.echo(f"{name}: " + ", ".join(f"{key} {row[key]}" for key in row if key not in {"row", "file"}))


def _manifest(saved: SavedModel, problem: Problem) -> Manifest | None:
    """Return the manifest in a model file, with the task file's present path, unless options name another task."""
    if problem.names_task:
        return saved.manifest()
    return saved.located()


def _warn(saved: SavedModel) -> None:
    """Print on stderr which round's model the best one is, and that the run's final metric is that of another predictor."""
    if saved.best is not None:
        typer.echo(f"note: {saved.best}", err=True)
    if (other := saved.other_predictor()) is not None:
        typer.echo(f"note: the run's final metric is that of another predictor than this model: {other}", err=True)


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with one row per prediction; several values have one column each: value_0, value_1, ..."""
    flat = []
    for row in rows:
        several = row.get("value") if isinstance(row.get("value"), list) else None
        values = {} if several is None else {f"value_{i}": value for i, value in enumerate(several)}
        flat.append({key: value for key, value in row.items() if several is None or key != "value"} | values)
    text = io.StringIO()
    table = csv.DictWriter(text, list(flat[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(flat)
    return text.getvalue()
