"""`peer evaluate` and `peer predict`: use a model file that a run has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peer.cli.problem import AsJson, DataRoot, GraphOption, PeersOption, Settings, SplitOption, TaskOption

if TYPE_CHECKING:
    from coordinator_free_bootstrap import Manifest
    from peer.learning.saved import SavedModel

ModelFile = Annotated[
    Path, typer.Option("--model", metavar="FILE.safetensors", help="Model file of a run.", show_default=False)
]


def evaluate(
    model: ModelFile,
    peer_id: Annotated[int, typer.Option("--peer", min=0, help="On whose data, where a task deals them.")] = 0,
    shard: Annotated[Path | None, typer.Option(help="On this shard instead.", show_default=False)] = None,
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    graph: GraphOption = None,
    task: TaskOption = None,
    split: SplitOption = None,
    peers: PeersOption = None,
    settings: Settings = None,
    data_root: DataRoot = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model file on one peer's data; the file itself says for which task, unless options say otherwise.

    Example: peer evaluate --model out/peer-3/models/personalized.safetensors --peer 3
    """
    from peer.cli.problem import resolve
    from peer.learning.saved import SavedModel, evaluated
    from peer.tasks.loading import load_task

    saved = SavedModel.read(model)
    known = saved.metadata.get("peers", "")
    manifest, count = resolve(
        graph,
        task,
        split,
        peers or (int(known) if known.isdigit() and graph is None else None),
        settings,
        saved.manifest(),
    )
    loaded = load_task(manifest, count, data_root=data_root, shard_path=shard)
    result = evaluated(saved, loaded, peer_id, part)
    if as_json:
        typer.echo(json.dumps(result))
        return
    typer.echo(
        ", ".join(
            f"{key} {value:.4f}" if isinstance(value, float) else f"{key} {value}" for key, value in result.items()
        )
    )


def predict(
    model: ModelFile,
    inputs: Annotated[
        Path,
        typer.Option("--input", metavar="FILE", help="Samples as .npy or .csv, or one picture.", show_default=False),
    ],
    task: TaskOption = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Predict with a model file: class and probability per sample, or the value in regression.

    Example: peer predict --model out/peer-3/models/personalized.safetensors --input samples.npy
    """
    from peer.learning.saved import SavedModel
    from peer.tasks.inputs import read_inputs

    saved = SavedModel.read(model)
    manifest = _manifest(saved, task, settings)
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


def _manifest(saved: SavedModel, task: str | None, settings: list[str] | None) -> Manifest:
    from peer.cli.problem import resolve

    return resolve(None, task, None, None, settings, saved.manifest())[0]
