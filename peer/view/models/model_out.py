"""A model of a run as a file for other programs, with a model card beside it: `Run.export_model` and `peer export`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator_free_bootstrap.errors import ConfigProblem, Option, StorageError, UsageError
from coordinator_free_bootstrap.validation import alternatives
from peer.api.choices import TaskChoice

if TYPE_CHECKING:
    from torch import nn

    from coordinator_free_bootstrap import Manifest
    from peer.view.models.saved import SavedModel
    from peer.view.report.report import Report
    from peer.view.state.run_files import PeerRun

PERSONALIZED, BEST = "personalized", "best"  # names of files


def peer_of(report: Report, peer_id: int) -> PeerRun:
    """Return what a peer left.

    Raises:
        UsageError: the run has no such peer.
    """
    peers = {peer.peer_id: peer for peer in report.run.peers}
    if peer_id not in peers:
        raise UsageError(ConfigProblem(Option("peer_id"), f"one of {', '.join(map(str, peers))}", repr(peer_id)))
    return peers[peer_id]


def read_model(peer: PeerRun, name: str = PERSONALIZED) -> SavedModel:
    """Return a model file of a peer, by its name without the ending.

    Raises:
        StorageError: the peer left no such file.
    """
    from peer.view.models.saved import SavedModel, best_in

    path = peer.state_dir.models / f"{name}.safetensors"
    if name == BEST:
        path = best_in(peer.state_dir.models)
    if not path.is_file():
        left = sorted(file.stem for file in peer.state_dir.models.glob("*.safetensors"))
        when = ", which a peer writes when it has completed the run" if name == PERSONALIZED else ""
        raise StorageError(
            f"peer {peer.peer_id}: expected {path}{when}, got only the models {', '.join(left) or '(none)'}"
        )
    return SavedModel.read(path)


def module_of(saved: SavedModel, task: TaskChoice = None) -> tuple[Manifest, nn.Module]:
    """Return the manifest of a saved model, and the model on the CPU in evaluation mode.

    ``task`` makes it in place of the manifest's task: an object, or ``path/to/file.py:object`` of a file that moved.

    Raises:
        StorageError: the metadata are incomplete, or the file holds only a part of a model.
        TaskError: the task cannot be loaded.
    """
    manifest = saved.located() if task is None else saved.known_manifest()
    if isinstance(task, str):
        manifest = manifest.model_copy(update={"task": task})
    return manifest, saved.module(manifest, None if isinstance(task, str) else task)


def export_model(
    report: Report,
    peer_id: int,
    to: Path,
    name: str | None = None,
    task: TaskChoice = None,
    *,
    best: bool = False,
) -> Path:
    """Write a model of a peer to ``to``, and its card to ``to`` with ``.md`` added; return the path of the card.

    See `peer.view.api.results.Run.export_model`.
    """
    from peer.store.files import write_atomic
    from peer.view.models.formats import FORMATS, check_packages, example_inputs
    from peer.view.models.model_card import Exported, model_card

    if to.suffix not in FORMATS:
        raise UsageError(ConfigProblem(Option("to"), f"a file that ends in {alternatives(FORMATS)}", str(to)))
    if to.suffix == ".onnx":
        check_packages()
    peer = peer_of(report, peer_id)
    if best and name is not None:
        raise UsageError(ConfigProblem.without_effect(Option("model"), name, f"{Option('best')} names the model"))
    chosen = BEST if best else name or PERSONALIZED
    saved = _chosen(peer, chosen)
    manifest, module = module_of(saved, task)
    name = saved.metadata["predictor"] if saved.weights and chosen != BEST else chosen
    about = {**saved.metadata, "exported": name}
    example = None if saved.several_inputs else example_inputs(saved.sample_shape(), saved.input_dtype())
    content = FORMATS[to.suffix](module, example, about)
    exported = Exported(
        file=to.name,
        sha256=hashlib.sha256(content).hexdigest(),
        name=name,
        measured=saved.other_predictor() is None,
        parameters=_sizes(module),
        models=max(len(saved.weights), 1),
        weights=saved.weights,
    )
    write_atomic(to, content)
    card = to.with_name(f"{to.name}.md")
    write_atomic(card, model_card(exported, manifest, saved.metadata, peer, report).encode())
    return card


def _chosen(peer: PeerRun, name: str) -> SavedModel:
    """Return a model file by its name; that of a predictor of several models, such as mixture, means the personalized file."""
    from peer.algorithms.predictor import PREDICTORS

    names = sorted(file.stem for file in peer.state_dir.models.glob("*.safetensors"))
    if name in (PERSONALIZED, BEST, *names):
        return read_model(peer, name)
    measured = ""
    if name in PREDICTORS and PERSONALIZED in names:
        saved = read_model(peer)
        if saved.weights and saved.metadata["predictor"] == name:
            return saved
        measured = f"The run's final metric was measured with the {saved.metadata.get('predictor')}."
    expected = f"one of the peer's models ({', '.join(names) or 'none'})"
    raise UsageError(ConfigProblem(Option("model"), expected, repr(name), measured))


def _sizes(module: nn.Module) -> tuple[int, int, int]:
    """Return the numbers of trainable and frozen parameters, and of elements of persistent buffers."""
    from torch import Tensor

    named = dict(module.named_parameters())
    trained = sum(p.numel() for p in named.values() if p.requires_grad)
    frozen = sum(p.numel() for p in named.values()) - trained
    shared = dict(module.named_parameters(remove_duplicate=False))
    buffers = sum(t.numel() for name, t in module.state_dict().items() if name not in shared and isinstance(t, Tensor))
    return trained, frozen, buffers
