"""The budget and the learner of a peer in a run with `run.privacy`, checked at its start."""

from __future__ import annotations

from typing import NamedTuple

from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.schedule import is_active
from peer.algorithms.base import Algorithm
from peer.algorithms.learner import Learner
from peer.algorithms.private import PrivateLearner, Sampling, charge_of_run, statement, terms_of
from peer.core.accountant import of_rows
from peer.core.checkpoint import Checkpoint
from peer.core.privacy_budget import Charge, PrivacyBudget


class PrivateParts(NamedTuple):
    """What a private peer has beside others; ``statement`` says to the operator what holds."""

    budget: PrivacyBudget
    learner: PrivateLearner
    statement: str


def private_parts(algorithm: Algorithm, learner: Learner, checkpoint: Checkpoint | None) -> PrivateParts | None:
    """Return the budget, with what the checkpoint says was spent, and the learner of a peer; None without run.privacy.

    Raises:
        ConfigError: algorithm, options or keys for which the guarantee would not hold; a target that no noise reaches.
        TaskError: a task for which it would not hold.
    """
    manifest, privacy = algorithm.manifest, algorithm.manifest.privacy
    if privacy.clip_norm is None:
        return None
    _check(manifest, learner.count())
    sampling = Sampling.of(manifest, learner.count())

    def charge_of(round_index: int) -> Charge:
        last = round_index >= manifest.rounds
        return sampling.charge(algorithm.uses_at_the_end() if last else algorithm.uses(round_index))

    rounds = [
        t for t in range(manifest.rounds) if is_active(manifest.seed, t, algorithm.peer_id, manifest.participation)
    ]
    whole_run = charge_of_run([charge_of(t) for t in (*rounds, manifest.rounds)])
    learner.check_private()
    spent = of_rows(checkpoint.state.get("spent", ())) if checkpoint else of_rows(())
    budget = PrivacyBudget(terms_of(manifest, sampling, whole_run), charge_of, spent)
    private = PrivateLearner(learner, budget, sampling, privacy.clip_norm)
    return PrivateParts(budget, private, statement(budget, whole_run, learner.count()))


def _check(manifest: Manifest, samples: int) -> None:
    """Refuse keys that would look at samples without noise, and a delta that protects nobody."""
    refused = {
        "run.start_from": (
            manifest.start_from if manifest.start_from == "own" else None,
            None,
            "a peer's own models tell of its samples, and are sent before any noise",
        ),
        "run.final.guard": (manifest.final.guard, False, "the guard compares losses of samples"),
        "run.diverged_restores": (manifest.diverged_restores, 0, "going back depends on the samples"),
    }
    for key, (got, allowed, why) in refused.items():
        if got != allowed:
            raise ConfigError(ConfigProblem(key, f"{allowed} with run.privacy, since {why}", str(got)))
    if manifest.privacy.delta * samples >= 1:
        raise ConfigError(
            ConfigProblem(
                "run.privacy.delta",
                f"less than 1 / {samples}, the number of training samples, or a sample may be published as it is",
                f"{manifest.privacy.delta:g}",
            )
        )
