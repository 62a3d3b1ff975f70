"""`peer evaluate` and `peer predict`: use a model file of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from peer.cli.problem import AsJson, Problem, problem_options

ModelFile = Annotated[
    Path, typer.Option("--model", metavar="FILE.safetensors", help="Model file of a run.", show_default=False)
]


@problem_options("graph", "task", "split", "peers", "settings", "data_root")
def evaluate(
    problem: Problem,
    model: ModelFile,
    peer_id: Annotated[int, typer.Option("--peer", min=0, help="Peer whose data are used.")] = 0,
    shard: Annotated[Path | None, typer.Option(help="Shard file to use instead.", show_default=False)] = None,
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    as_json: AsJson = False,
) -> None:
    """Evaluate a model file on one peer's data; the task is the one in the file unless options name another.

    Example: peer evaluate --model out/peer-3/models/personalized.safetensors --peer 3
    """
    from peer.learning.saved import SavedModel, evaluated

    saved = SavedModel.read(model)
    known = saved.metadata.get("peers", "")
    if problem.peers is None and problem.graph is None and known.isdigit():
        problem = replace(problem, peers=int(known))
    task = problem.load(saved.manifest(), shard)[2]
    result = evaluated(saved, task, peer_id, part)
    if as_json:
        typer.echo(json.dumps(result))
        return
    shown = (f"{key} {value:.4f}" if isinstance(value, float) else f"{key} {value}" for key, value in result.items())
    typer.echo(", ".join(shown))


@problem_options("task", "settings")
def predict(
    problem: Problem,
    model: ModelFile,
    inputs: Annotated[
        Path,
        typer.Option("--input", metavar="FILE", help="Samples as .npy or .csv, or one picture.", show_default=False),
    ],
    as_json: AsJson = False,
) -> None:
    """Predict with a model file: class and probability of each sample, or the value in regression.

    Example: peer predict --model out/peer-3/models/personalized.safetensors --input samples.npy
    """
    from peer.learning.saved import SavedModel
    from peer.tasks.inputs import read_inputs

    saved = SavedModel.read(model)
    manifest = problem.resolve(saved.manifest())[0]
    outputs = saved.predict(manifest, read_inputs(inputs, saved.sample_shape(), manifest))
    if saved.metadata.get("kind") == "regression":
        rows = [{"value": row.tolist()} for row in outputs]
    else:
        from scipy.special import softmax

        probabilities = softmax(outputs.astype("float64"), axis=1)
        rows = [{"class": int(p.argmax()), "probability": float(p.max())} for p in probabilities]
    if as_json:
        typer.echo(json.dumps({"model": str(model), "predictions": rows}))
        return
    for number, row in enumerate(rows):
        typer.echo(f"{number}: " + ", ".join(f"{key} {value}" for key, value in row.items()))
