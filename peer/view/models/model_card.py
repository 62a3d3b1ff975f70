"""The model card of an exported model: data, algorithm, rounds, metrics and SHA-256, as Markdown.

Form: Margaret Mitchell et al., "Model Cards for Model Reporting", 2019, arXiv 1810.03993, as far as a run knows its fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from coordinator_free_bootstrap import Manifest
from coordinator_free_bootstrap.strict_json import printable
from coordinator_free_bootstrap.validation import counted
from peer.core.metric import Metric
from peer.view.report.report import Report
from peer.view.report.tables import state_text
from peer.view.state.leaks import last_leak
from peer.view.state.leaks import shown as shown_leak
from peer.view.state.run_files import PeerRun

VALUE_CHARACTERS_MAX = 400

_LOAD = {
    ".pt": 'model.load_state_dict(torch.load("{file}", weights_only=True))',
    ".safetensors": 'model.load_state_dict(safetensors.torch.load_file("{file}"))',
}


@dataclass(frozen=True)
class Exported:
    """What was exported, for its card.

    Attributes:
        file: name of the file, with its ending.
        sha256: of the file.
        name: personalized, cluster-N, or the predictor that combines ``models`` models with ``weights``.
        measured: whether the run's final metric is that of this model.
        parameters: number of trainable parameters, frozen ones, and elements of buffers.
    """

    file: str
    sha256: str
    name: str
    measured: bool
    parameters: tuple[int, int, int]
    models: int = 1
    weights: tuple[float, ...] = ()


def model_card(exported: Exported, manifest: Manifest, metadata: Mapping[str, str], peer: PeerRun, run: Report) -> str:
    """Return the card; ``metadata`` are those of the model file in the run."""
    sections = [
        ("File", _file(exported, metadata)),
        ("Training data", _data(manifest, metadata, peer)),
        ("Algorithm", [*_algorithm(manifest, metadata), ("run", state_text(run.values))]),
        ("Metrics", _metrics(exported, metadata, peer, run)),
    ]
    text = [f"# Model card: {exported.file}", _what(exported, metadata)]
    text += [f"## {title}\n\n{_table(rows)}" for title, rows in sections]
    text += [f"## Use\n\n{_use(exported, metadata)}", f"## Limits\n\n{_limits(exported, metadata)}"]
    return "\n\n".join(text) + "\n"


def _what(exported: Exported, metadata: Mapping[str, str]) -> str:
    owner, algorithm = metadata.get("peer_id", "?"), metadata.get("algorithm", "?")
    if exported.models > 1:
        how = f"{exported.models} models of peer {owner} that predict together ({exported.name})"
    elif "best_round" in metadata:
        how = f"The best model of peer {owner} by its validation samples"
    elif exported.name == "personalized":
        how = f"The personalized model of peer {owner}"
    else:
        how = f"The model {exported.name} of peer {owner}"
    return f"{how}, trained by federated learning between peers without a server, with the algorithm {algorithm}."


def _file(exported: Exported, metadata: Mapping[str, str]) -> list[tuple[str, object]]:
    trained, frozen, buffers = exported.parameters
    weights = [("weights of the models", ", ".join(f"{w:.6g}" for w in exported.weights))] if exported.weights else []
    return [
        ("SHA-256", exported.sha256),
        ("model", exported.name),
        *weights,
        ("trained parameters", trained),
        ("frozen parameters", frozen),
        ("values of buffers", buffers),
        ("one input", f"{metadata.get('input_dtype')} {metadata.get('sample_shape')}"),
        ("kind, outputs", f"{metadata.get('kind')}, {metadata.get('outputs')}"),
        ("class names", metadata.get("class_names", "not named")),
    ]


def _data(manifest: Manifest, metadata: Mapping[str, str], peer: PeerRun) -> list[tuple[str, object]]:
    leak = last_leak(peer.state_dir)
    return [
        ("task", manifest.task),
        ("options of the task", manifest.task_options or "none"),
        ("split", f"{manifest.split}, {json.dumps(manifest.split_options)}, seed {manifest.data_seed}"),
        ("training samples of this peer", peer.last.get("samples", "not known")),
        ("peers", metadata.get("peers", "not known")),
        ("preprocessing", metadata.get("preprocessing", "not declared")),
        ("differential privacy of its training samples", _privacy(manifest, metadata)),
        ("training samples told by the loss of sent models", "not measured" if leak is None else shown_leak(leak)),
    ]


def _privacy(manifest: Manifest, metadata: Mapping[str, str]) -> str:
    if "epsilon" not in metadata:
        return "none"
    spent = f"epsilon {float(metadata['epsilon']):.3g}, delta {manifest.privacy.delta:g}"
    return f"{spent}, for one training sample more or less, over all rounds and restarts; not of test samples"


def _algorithm(manifest: Manifest, metadata: Mapping[str, str]) -> list[tuple[str, object]]:
    return [
        ("algorithm", metadata.get("algorithm", manifest.algorithm)),
        ("options", manifest.options or "none"),
        ("rounds completed", f"{metadata.get('rounds_completed', 'not known')} of {manifest.rounds}"),
        (
            "local training",
            f"{counted(manifest.local_epochs, manifest.local_unit)} a round, batches of {manifest.step_samples} samples",
        ),
        (
            "optimizer",
            f"{manifest.optimizer}, learning rate {manifest.learning_rate:g} ({manifest.learning_rate_schedule}), momentum "
            f"{manifest.momentum:g}",
        ),
        ("seed", manifest.seed),
        *_start(metadata),
    ]


def _start(metadata: Mapping[str, str]) -> list[tuple[str, object]]:
    """Return where the first models came from, if not from the seed; others may have changed the file."""
    try:
        start = json.loads(metadata.get("start_from", "null"))
        if start is None:
            return []
        rounds = "" if start["rounds"] is None else f" after {counted(int(start['rounds']), 'round')}"
        new = f"; new: {', '.join(map(str, start['new']))}" if start["new"] else ""
        told = f"{start['source']}{rounds}, SHA-256 {start['sha256']}, {counted(int(start['taken']), 'tensor')}{new}"
    except (ValueError, TypeError, KeyError):
        return [("first models", "not readable")]
    return [("first models", printable(told))]


def _metrics(exported: Exported, metadata: Mapping[str, str], peer: PeerRun, run: Report) -> list[tuple[str, Any]]:
    metric, last = run.run.metric, peer.last
    whose = "of this model" if exported.measured else "of the run's final predictor, which is not this model"
    values = run.values
    count, known = len(values["peers"]), values["metric_peers"]
    mean_of = "the" if known in (0, count) else f"{known} of {count}"
    chosen: list[tuple[str, Any]] = []
    if "best_round" in metadata:
        value = metric.text(float(metadata["metric_validation"]), 4)
        chosen = [("best round, counted from 0", metadata["best_round"])]
        chosen.append((f"{metric.label} on the validation samples of this peer, of this model", value))
    return [
        *chosen,
        (f"{metric.label} on the test samples of this peer, {whose}", _number(metric, last.get("metric_value"))),
        ("loss, of the same", _number(Metric("loss", False, False), last.get("loss"))),
        (f"{metric.label}, mean of {mean_of} peers", _number(metric, values["metric_mean"])),
        (f"{metric.label}, worst peer", _number(metric, values["metric_worst"])),
    ]


def _number(metric: Metric, value: float | None) -> str:
    return "not measured" if value is None else metric.text(value, 4)


def _use(exported: Exported, metadata: Mapping[str, str]) -> str:
    ending = exported.file[exported.file.rindex(".") :]
    if ending == ".onnx":
        lines = [f'session = onnxruntime.InferenceSession("{exported.file}")', 'session.run(None, {"input": inputs})']
    else:
        made = "make_model()"
        if exported.models > 1:
            made = f"torch.nn.ModuleList(make_model() for _ in range({exported.models}))"
        lines = [f"model = {made}", _LOAD[ending].format(file=exported.file), "model.eval()"]
    scaling = "raw inputs" if "preprocessing" not in metadata else "inputs (raw / divisor - mean) / std"
    outputs = "class probabilities" if exported.models > 1 and metadata.get("kind") == "classification" else "outputs"
    block = "\n".join(f"    {line}" for line in lines)
    state = "" if ending == ".onnx" else " `make_model` is that of the task; the state dict is complete."
    return f"{block}\n\nThe model takes {scaling} and gives {outputs}.{state}"


def _limits(exported: Exported, metadata: Mapping[str, str]) -> str:
    sentences = [
        "The metrics are those of the run; no data from elsewhere were used.",
        "A model can reveal training data; `preprocessing` holds statistics of the training data of this peer."
        if "epsilon" not in metadata
        else "What the model can reveal of one training sample is bounded by the epsilon above.",
    ]
    if "best_round" in metadata:
        sentences.insert(0, "The run's metrics are those of the model after the last round, not of this model.")
    elif not exported.measured:
        sentences.insert(0, f"The run evaluated another predictor ({metadata.get('predictor')}), not this model.")
    return " ".join(sentences)


def _table(rows: Iterable[tuple[str, Any]]) -> str:
    shown = [f"| {_cell(key)} | {_cell(value)} |" for key, value in rows]
    return "\n".join(["| | |", "| --- | --- |", *shown])


def _cell(value: Any) -> str:
    text = value if isinstance(value, str | int) else json.dumps(value)
    return printable(str(text), VALUE_CHARACTERS_MAX).replace("|", "\\|").replace("\n", " ")
