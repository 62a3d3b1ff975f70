"""FedRep between neighbors: the body of the model travels and is averaged, its head (the last layer) stays private.

Round: put the averaged body under the own head; train the head for tau_h epochs with the body fixed, then the body for tau epochs
with the head fixed; send the body, and only its bytes. The head is what `run.private_parameters` names, by default the last
layer. FedPer, which trains both together, is algorithm `dfedavg` with the same key.

Source: Liam Collins, Hamed Hassani, Aryan Mokhtari and Sanjay Shakkottai, "Exploiting Shared Representations for Personalized
Federated Learning", 2021, arXiv 2102.07078. The form between neighbors is an addition of this project.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem
from coordinator_free_bootstrap.manifest import Manifest
from peer.algorithms.base import Algorithm
from peer.algorithms.learner import Fields, training_fields
from peer.algorithms.private import SampleUse
from peer.algorithms.workspace import Workspace
from peer.core.schema import Schema


class FedRepOptions(BaseModel):
    """``run.options`` of algorithm ``fedrep``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gone: ClassVar[Mapping[str, str]] = {
        "head": "Set run.private_parameters to these patterns.",
        "joint": "FedPer is run.algorithm = dfedavg with the tensors of the head in run.private_parameters. Set these.",
    }

    head_epochs: int | None = Field(
        None,
        ge=1,
        description="epochs, or steps as run.local_unit says, of the head in a round; default: run.local_epochs",
    )


class FedRep(Algorithm[FedRepOptions]):
    """FedRep: neighbors share the body of the model, each peer keeps its own head."""

    name = "fedrep"
    sums = True
    clustered = False
    Options = FedRepOptions
    default_mix: ClassVar[str] = "metropolis"

    @classmethod
    @override
    def private_patterns(cls, manifest: Manifest, schema: Schema) -> Sequence[str]:
        """Return `run.private_parameters`, by default the last layer."""
        parameters = _parameters(schema)
        last = parameters[-1].rpartition(".")[0]
        return super().private_patterns(manifest, schema) or [f"{last}.*" if last else parameters[-1]]

    @classmethod
    @override
    def travelling(cls, manifest: Manifest, schema: Schema) -> Schema:
        """Return the tensors of the body.

        Raises:
            ConfigError: also if no parameter is in the head.
        """
        body = super().travelling(manifest, schema)
        if len(_parameters(body)) == len(parameters := _parameters(schema)):
            expected = "patterns that match a parameter, since algorithm fedrep trains a head"
            parameters_are = f"The model's parameters are: {', '.join(parameters)}."
            raise ConfigError(
                ConfigProblem("run.private_parameters", expected, str(manifest.private_parameters), parameters_are)
            )
        return body

    @override
    def uses(self, round_index: int) -> SampleUse:
        """Return the trainings of head and body."""
        return SampleUse(local=self.manifest.local_epochs + self._head_epochs)

    @property
    def _head_epochs(self) -> int:
        return self.options.head_epochs or self.manifest.local_epochs

    @override
    def train(self, workspace: Workspace) -> Fields:
        """Train the head, then the body."""
        schema, models = workspace.learner.schema, workspace.models
        body = frozenset(_parameters(self.travelling(self.manifest, schema)))
        plan, start = workspace.slot_plan(1), models.model(0)
        tuned, _ = workspace.fit(
            start, replace(plan, epochs=self._head_epochs, only=frozenset(_parameters(schema)) - body), "head"
        )
        whole = models.part.joined(tuned, models.part.of(start))  # BatchNorm statistics of the body too
        whole, stats = workspace.fit(whole, replace(workspace.slot_plan(0), only=body), "body")
        models.replace(0, whole)
        return training_fields([stats])


def _parameters(schema: Schema) -> list[str]:
    return [spec.name for spec in schema.tensors if spec.role == "parameter"]
