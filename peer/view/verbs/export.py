"""`peer export`: a model of a run as a file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coordinator_free_bootstrap.errors import written_as
from peer.view.options import BestModel


@written_as({"peer_id": "--peer", "to": "FILE"})
def export(
    directory: Annotated[Path, typer.Argument(help="The --out of a testbed, or one state directory.", readable=False)],
    to: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="File that ends in .pt or .safetensors (state dict), or in .onnx (graph). FILE.md is its model card.",
            show_default=False,
            readable=False,
        ),
    ],
    peer_id: Annotated[int, typer.Option("--peer", min=0, help="Peer whose model is exported.", show_default=False)],
    model: Annotated[
        str | None,
        typer.Option(
            help="personalized, cluster-0, cluster-1, ...",
            show_default="what the run's final metric was measured with",
        ),
    ] = None,
    best: BestModel = False,
    task: Annotated[
        str | None,
        typer.Option(help="Path of the task file, if it has moved: path/to/file.py:object.", show_default=False),
    ] = None,
) -> None:
    r"""Export a model of a run: a complete state dict for plain PyTorch, or an ONNX graph, with a model card.

    A state dict passes a strict load_state_dict: frozen parameters and integer buffers are in it. ONNX needs
    pip install 'coordinator-free\[export]'; the graph's outputs are compared with those of PyTorch first.

    With blend and fedem, and where fedspd mixes predictions, the default exports all models together: in ONNX as one graph,
    else as the state dict of a torch.nn.ModuleList of them; the card has their weights.

    Example: peer export out model.pt --peer 3

    Example: peer export out model.onnx --peer 3 --model cluster-1

    Example: peer export out model.pt --peer 3 --best
    """
    from peer.view.models.model_out import export_model
    from peer.view.report.report import build_report

    card = export_model(build_report(directory), peer_id, to, model, task, best=best)
    typer.echo(f"wrote {to} and {card}", err=True)
