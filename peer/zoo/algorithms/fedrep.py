"""FedRep between neighbors: the body of the model travels and is averaged, its head (the last layer) stays private.

Round: put the averaged body under the own head; train the head for tau_h epochs with the body fixed, then the body for tau epochs
with the head fixed; send the body, and only its bytes. With ``joint`` both train together for tau epochs: FedPer.

Sources: Liam Collins, Hamed Hassani, Aryan Mokhtari and Sanjay Shakkottai, "Exploiting Shared Representations for Personalized
Federated Learning", 2021, arXiv 2102.07078; Manoj Ghuhan Arivazhagan, Vinay Aggarwal, Aaditya Kumar Singh and Sunav Choudhary,
"Federated Learning with Personalization Layers", 2019, arXiv 1912.00818. The form between neighbors is an addition of this
project.
"""

from __future__ import annotations

import fnmatch
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.options import EffectiveWhen
from peer.algorithms.base import Algorithm
from peer.algorithms.learner import Fields, Learner, training_fields
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector
from peer.core.schema import Schema
from peer.zoo.algorithms.personal import PERSONAL, SHARED, Personal


class FedRepOptions(BaseModel):
    """``run.options`` of algorithm ``fedrep``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    head: list[str] = Field(
        default_factory=list,
        description="names of the private tensors, with * and ?, such as classifier.*; default: the last layer",
    )
    joint: bool = Field(False, description="train head and body together (FedPer), instead of one after the other")
    head_epochs: Annotated[
        int | None,
        EffectiveWhen(lambda r: not r.options.joint, "run.options.joint is true: head and body train together"),
    ] = Field(None, ge=1, description="epochs of the head in a round; default: run.local_epochs")


class FedRep(Personal[FedRepOptions]):
    """FedRep: neighbors share the body of the model, each peer keeps its own head; with options.joint FedPer."""

    name = "fedrep"
    Options = FedRepOptions

    @override
    def travelling(self, schema: Schema) -> Schema:
        """Return the tensors of the body.

        Raises:
            ConfigError: no tensor is in the head, or all are.
        """
        head = self._head(schema)
        body = Schema(tuple(spec for spec in schema.tensors if spec.name not in head))
        if not head or not any(spec.role == "parameter" for spec in body.tensors):
            names = ", ".join(spec.name for spec in schema.tensors)
            raise ConfigError(
                "run.options.head: expected names that match a tensor and leave a parameter to share, got "
                f"{self.options.head or 'the last layer'}, which leaves "
                f"{'no tensor in the head' if not head else 'no parameter to share'}. The model's tensors are: {names}."
            )
        return body

    def _head(self, schema: Schema) -> frozenset[str]:
        names = [spec.name for spec in schema.tensors]
        last = [spec.name for spec in schema.tensors if spec.role == "parameter"][-1].rpartition(".")[0]
        patterns = self.options.head or [f"{last}.*" if last else names[-1]]
        return frozenset(name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))

    def _body_places(self, schema: Schema) -> list[slice]:
        head = self._head(schema)
        return [place for spec, place in schema.slices() if spec.name not in head]

    def body_of(self, schema: Schema, whole: Vector) -> Vector:
        """Return the body of a whole model, a new float32 vector."""
        return np.concatenate([whole[place] for place in self._body_places(schema)])

    def joined(self, schema: Schema, whole: Vector, body: Vector) -> Vector:
        """Return a copy of a whole model with another body."""
        result, start = whole.copy(), 0
        for place in self._body_places(schema):
            size = place.stop - place.start
            result[place] = body[start : start + size]
            start += size
        return result

    @override
    def initial_models(self, learner: Learner) -> tuple[list[Vector], bool]:
        """Return the body and the whole of one first model, equal on all peers."""
        self.travelling(learner.schema)  # a head that leaves nothing is refused here
        (first, whole), common = super().initial_models(learner)
        return [self.body_of(learner.schema, first), whole], common

    @override
    def train(self, workspace: Workspace) -> Fields:
        """Train head and body; the body alone goes to slot 0."""
        schema, whole = workspace.learner.schema, self.evaluation_model(workspace)
        parameters = frozenset(spec.name for spec in schema.tensors if spec.role == "parameter")
        head = self._head(schema) & parameters
        if self.options.joint:
            whole, stats = workspace.fit(whole, workspace.slot_plan(SHARED), "whole")
        else:
            epochs = self.options.head_epochs or self.manifest.local_epochs
            plan = replace(workspace.slot_plan(PERSONAL), epochs=epochs, only=head)
            tuned, _ = workspace.fit(whole, plan, "head")
            whole = self.joined(schema, tuned, workspace.models.model(SHARED))  # BatchNorm statistics of the body too
            whole, stats = workspace.fit(whole, replace(workspace.slot_plan(SHARED), only=parameters - head), "body")
        workspace.models.replace(SHARED, self.body_of(schema, whole))
        workspace.models.replace(PERSONAL, whole)
        return training_fields([stats])

    @override
    def whole_model(self, workspace: Workspace, model: Vector) -> Vector:
        """Return the own head on a body."""
        return self.joined(workspace.learner.schema, workspace.models.model(PERSONAL), model)

    @override
    def evaluation_model(self, workspace: Workspace) -> Vector:
        """Return the own head on the averaged body."""
        schema, models = workspace.learner.schema, workspace.models
        return self.joined(schema, models.model(PERSONAL), models.model(SHARED))

    @override
    def evaluate(self, workspace: Workspace) -> Fields:
        """Return the metrics of the own head on the averaged body; a body alone predicts nothing."""
        return Algorithm.evaluate(self, workspace)
