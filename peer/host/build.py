"""Build a peer: check that its models fit the limits, then make algorithm, models and engine, new or from a checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from coordinator_free_bootstrap import Compared, Graph, canonical_json, digest
from coordinator_free_bootstrap.errors import (
    CheckpointCorrupt,
    ConfigError,
    ConfigProblem,
    GraphError,
    LocalProtocolError,
    Option,
)
from coordinator_free_bootstrap.handshake import told
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.meaning import with_algorithm
from coordinator_free_bootstrap.user_file import digest_of_code
from peer.algorithms.base import Algorithm
from peer.algorithms.learner import ABILITIES, Ability, Learner, SharedScaling
from peer.algorithms.predictor import Best
from peer.algorithms.registry import algorithm_for, algorithms
from peer.algorithms.saved_state import restored
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector
from peer.core.checkpoint import Checkpoint
from peer.core.constants import DEFAULTS, Constants
from peer.core.encoding import MASKED, ModelFormat
from peer.core.engine import Engine
from peer.core.messages import WIRE_VERSION, Numbers
from peer.core.model_store import SPARE_BUFFERS_MAX, ModelStore
from peer.core.part import TravellingPart
from peer.core.schema import Schema
from peer.core.sites import Sites
from peer.core.state import State
from peer.core.sum_parts import SumParts
from peer.host.host import PeerHost
from peer.host.private import private_parts


@dataclass(frozen=True)
class InitialModels:
    """The models of a peer that has not trained yet; ``digest`` is "" where each peer draws its own."""

    models: list[Vector]
    digest: str

    @classmethod
    def of(cls, algorithm: Algorithm, learner: Learner) -> InitialModels:
        """Draw them."""
        models, common = algorithm.initial_models(learner)
        state = hashlib.sha256()
        part = TravellingPart.between(learner.schema, algorithm.travelling(algorithm.manifest, learner.schema))
        for model in models[: algorithm.slots] if common else ():
            state.update(part.of(model).data.cast("B"))
        return cls(models, state.hexdigest() if common else "")


def build_host(
    peer_id: int,
    graph: Graph,
    learner: Learner,
    incarnation: int,
    checkpoint: Checkpoint | None = None,
    *,
    clock: Callable[[], float],
    initial: InitialModels | None = None,
    spare_buffers: int = SPARE_BUFFERS_MAX,
    constants: Constants = DEFAULTS,
    scaling: SharedScaling | None = None,
    sums: SumParts | None = None,
) -> PeerHost:
    """Return a peer in the state of a checkpoint, or a new one.

    Args:
        peer_id: a node of ``graph``.
        graph: neighbors and manifest.
        learner: trains and evaluates on the peer's shard.
        incarnation: of this start, persisted already.
        checkpoint: what to resume from; its arrays are owned by the host from now on.
        clock: monotonic seconds, only to time phases.
        initial: the initial models, if they are drawn already; never mutated.
        spare_buffers: model buffers kept for reuse; many hosts in one process can do without.
        constants: of the protocol; only tests and benchmarks give others.
        scaling: the learner's part in shared scaling; None: the run has none.
        sums: the secrets of secure sums, where ``run.secure_sum`` is set; of this incarnation alone.

    Raises:
        ConfigError: the manifest's options or limits do not fit, or the checkpoint has more rounds than the run.
        GraphError: shared scaling on a graph that is not connected, or of other peers than those of the checkpoint.
        CheckpointCorrupt: the algorithm's state or the numbers of sites in the checkpoint are not of this run.
    """
    manifest = graph.manifest
    if checkpoint and checkpoint.round_index > manifest.rounds:
        done = f"{checkpoint.round_index} or more, which peer {peer_id} has completed"
        fix = "Make a graph file with more: peer graph next --rounds."
        raise ConfigError(ConfigProblem("run.rounds", done, str(manifest.rounds), fix))
    algorithm = algorithm_for(graph, peer_id)
    if (sums is None) != (manifest.secure_sum is None):
        raise LocalProtocolError(
            f"run.secure_sum is {manifest.secure_sum}, and the peer has {'no' if sums is None else 'the'} secrets of it"
        )
    encoding = manifest.encoding if sums is None else MASKED
    model_format = ModelFormat(algorithm.travelling(manifest, learner.schema), encoding)
    _check_model_size(algorithm, model_format)
    _check_kept_memory(algorithm, model_format.schema)
    check_abilities(algorithm, learner)
    private = private_parts(algorithm, learner, checkpoint)
    learner = private.learner if private else learner
    first = initial or InitialModels.of(algorithm, learner)
    slots = [checkpoint.arrays[f"slot/{i}"] for i in range(algorithm.held)] if checkpoint else list(first.models)
    store = ModelStore(
        slots,
        batch=manifest.aggregation == "batch",
        trim=manifest.screening.trimmed_mean,
        spare_max=spare_buffers,
        part=TravellingPart.between(learner.schema, model_format.schema),
    )
    if initial is not None and checkpoint is None:
        for slot in range(len(store)):
            store.share(slot)
    workspace = Workspace(
        manifest,
        peer_id,
        graph,
        learner,
        store,
        algorithm.State(),
        true_cluster=learner.true_cluster,
        private=private.learner if private else None,
    )
    if checkpoint:
        workspace.optimizers = checkpoint.arrays_of("optimizer")
        workspace.restores = int(checkpoint.state["restores"])
        workspace.best = Best.of(checkpoint)
        workspace.model_tests = list(checkpoint.state.get("model_tests", ()))
        workspace.state = restored(algorithm.State, checkpoint.state["algorithm_state"], checkpoint.arrays_of("state"))
    else:
        workspace.state = algorithm.begin(workspace)
        if private:
            workspace.state = replace(workspace.state, sample_count=1)
    engine = Engine(
        State(
            peer_id,
            graph,
            algorithm,
            incarnation,
            model_bytes=model_format.model_bytes,
            algorithm_state=workspace.state,
            resume=checkpoint.state if checkpoint else None,
            sites=_sites(peer_id, graph, algorithm, scaling, checkpoint),
            budget=private.budget if private else None,
            sums=sums,
            constants=constants,
        )
    )
    compared = Compared(
        wire_version=WIRE_VERSION,
        manifest_digest=digest(manifest),
        graph_digest=graph.digest,
        schema_digest=model_format.schema.digest,
        frozen_digest=learner.frozen_digest,
        initial_models_digest=first.digest,
        manifest=canonical_json(manifest),
        meaning=with_algorithm(learner.meaning, digest_of_code(type(algorithm))),
        continues=told(graph),
    )
    host = PeerHost(
        engine,
        algorithm,
        workspace,
        model_format,
        compared,
        clock,
        checkpoint.arrays_of("published") if checkpoint else {},
        scaling,
    )
    host.notes = algorithm.notes(workspace) + ([private.statement] if private else [])
    return host


def _sites(
    peer_id: int, graph: Graph, algorithm: Algorithm, scaling: SharedScaling | None, checkpoint: Checkpoint | None
) -> Sites | None:
    """Return what this peer knows of the numbers of all sites; None where the run needs none.

    A run that begins with everyone needs to know that each is there, by numbers of length 0.
    """
    everyone = graph.manifest.start.wait_for == "everyone"
    if scaling is None and not everyone:
        return None
    if (parts := len(graph.components)) > 1:  # with algorithm 'local' only
        what = "run.start.wait_for 'everyone'" if scaling is None else "shared scaling"
        raise GraphError(f"edges: expected a connected graph for {what}, got {parts} parts. Add edges between them.")
    if scaling is None:
        met = {} if checkpoint is None else dict.fromkeys(graph.ids, Numbers())
        return Sites(peer_id, Numbers(), graph.ids, lambda numbers: "", met)
    if algorithm.hides_samples:
        raise ConfigError(
            "preprocessing: expected no shared scaling in a run with differential privacy, whose noise does not cover the "
            "sums of a site, got shared. Scale by numbers of the task."
        )
    sites = Sites(peer_id, scaling.numbers, graph.ids, scaling.problem)
    if checkpoint is None:
        return sites
    saved = {int(peer): Numbers.of(array) for peer, array in checkpoint.arrays_of("site").items()}
    for problem in filter(None, map(scaling.problem, saved.values())):
        raise CheckpointCorrupt(f"the checkpoint of round {checkpoint.round_index}: {problem}")
    if saved.keys() != sites.peers:
        expected = f"{sorted(saved)}, by whose numbers the trained models scale their inputs"
        fix = f"Add and remove peers with {Option('restart_training')}, or scale by numbers of the task."
        raise GraphError(ConfigProblem("peers", expected, str([*graph.ids]), fix))
    return Sites(peer_id, scaling.numbers, graph.ids, scaling.problem, saved)


def check_abilities(algorithm: Algorithm, learner: Learner) -> None:
    """Check that a task with an own loop offers what an algorithm asks of it.

    Raises:
        ConfigError: something is missing; the message has the methods that give it, and the algorithms that work without.
    """
    manifest, able = algorithm.manifest, learner.abilities
    needed = algorithm.needs(manifest)
    if algorithm.final_epochs and manifest.final.guard and not learner.count("validation"):
        needed |= {"losses", "subset"}
    if missing := [ability for ability in ABILITIES if ability in needed - able]:
        works = [name for name, kind in sorted(algorithms().items()) if _works(kind, manifest, able)]
        raise ConfigError(
            ConfigProblem(
                "run.algorithm",
                f"one for which task {manifest.task!r} has all that it asks: {', '.join(works)}",
                f"{algorithm.name!r}, which needs {' and '.join(_NEEDED[ability] for ability in missing)}",
                " ".join(dict.fromkeys(_GIVEN_BY[ability] for ability in missing)),
            )
        )


_NEEDED: dict[Ability, str] = {
    "batches": "single steps on batches that it chooses",
    "subset": "training on some of the samples",
    "losses": "the loss of each training sample",
    "outputs": "the model's outputs for the samples",
}
_LOADERS = (
    "data sets or loaders by part from load_data, {'train': ..., 'test': ...}, whose batches are (inputs, targets)"
)
_GIVEN_BY: dict[Ability, str] = {
    "batches": "An own train cannot give them; without it, the built-in loop trains.",
    "subset": f"The task gives it by subset, or by {_LOADERS}.",
    "losses": f"The task gives it by losses, or by {_LOADERS}.",
    "outputs": f"The task gives them by {_LOADERS}.",
}


def _works(kind: type[Algorithm], manifest: Manifest, able: frozenset[Ability]) -> bool:
    """Return whether an algorithm with its default options asks for no more than a learner can do."""
    try:
        return kind.needs(manifest.model_copy(update={"options": {}})) <= able
    except ConfigError:
        return False


def _check_model_size(algorithm: Algorithm, model_format: ModelFormat) -> None:
    manifest, whole_bytes = algorithm.manifest, model_format.whole_bytes
    if whole_bytes > manifest.limits.model_bytes_max:
        expected = f"at least {whole_bytes}, the bytes of one model of task {manifest.task!r}"
        got, fix = str(manifest.limits.model_bytes_max), "Raise the limit or take a smaller model."
        raise ConfigError(ConfigProblem("run.limits.model_bytes_max", expected, got, fix))


def _check_kept_memory(algorithm: Algorithm, travelling: Schema) -> None:
    """Check the memory of the arrivals that wait for the close of a step: the algorithm's own, and a trimmed mean's."""
    manifest = algorithm.manifest
    trimmed = algorithm.slots * algorithm.degree if manifest.screening.trimmed_mean else 0
    count = algorithm.kept_models() + trimmed
    needed, most = count * 4 * travelling.size, manifest.limits.kept_bytes_max
    if needed > most:
        raise ConfigError(
            f"run.limits.kept_bytes_max: expected {needed} or more, got {most}. Peer {algorithm.peer_id} keeps up to {count} "
            f"arrivals until a step closes (algorithm '{manifest.algorithm}', trimmed mean "
            f"{manifest.screening.trimmed_mean}). Raise the limit, or take a graph with fewer neighbors or a smaller model."
        )
