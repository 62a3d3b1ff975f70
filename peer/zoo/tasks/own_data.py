"""`peer.Data`: samples of a program as a task, dealt to the peers by the split of the manifest."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

from torch import nn
from typing_extensions import override

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.manifest import Manifest
from peer.tasks.dealt import DealtTask
from peer.tasks.shard import Shard
from peer.zoo.tasks.containers import samples_of
from peer.zoo.tasks.dealing import Deal, outputs_for
from peer.zoo.tasks.models import NamedModel, check_model_name, model_of
from peer.zoo.tasks.pool import Pool
from peer.zoo.tasks.splits import check_split

ROWS: NamedModel = ("mlp", {"hidden": 64})  # the default models, as of the tasks tabular and image-folder
PICTURES: NamedModel = ("dfca_cnn", {})
PICTURE_SIDE_MIN = 4


class Data(DealtTask):
    """Samples in memory, dealt to the peers by ``run.split``; a fifth is held out for testing.

    Args:
        x: inputs [n, ...]: an array, a tensor, lists; a frame of pandas; a map-style ``Dataset`` of torch, with ``y`` None; or a
            ``Dataset`` of Hugging Face.
        y: targets [n]; of a frame or a Hugging Face data set also the name of a column. Texts, integers and booleans are
            labels, and fractions are numbers to predict.
        options: ``kind`` ("classification" or "regression"), ``classes`` (list of labels; default: those in ``y``, sorted) and
            ``standardize`` (rows are scaled by mean and deviation of the training rows: of all peers' data before they are dealt;
            true; ``"shared"``: of the peers' own training rows, on which they agree, each with ``samples_min`` or more); of
            arrays ``preprocessing``; of
            frames the other options of the task ``tabular``: ``columns``, ``ignore``, ``categories``, ``missing``.

    The model is ``run.model``, by default a perceptron for rows and a CNN for pictures; a subclass may have its own.

    Raises:
        TaskError: the samples cannot be used, or may be both labels and numbers to predict.

    >>> import numpy as np, peer
    >>> x = np.random.default_rng(0).normal(size=(200, 3))
    >>> data = Data(x, np.where(x[:, 0] > 0, "high", "low"))
    >>> data
    <peer.Data: 200 samples of shape [3], classification: high, low>
    >>> graph = peer.Graph.make("ring", peers=4, run={"rounds": 2, "split": "dirichlet", "split_options": {"alpha": 1.0}})
    >>> peer.simulate(graph, data, progress=False).metrics["rounds"]
    2
    """

    def __init__(self, x: Any, y: Any = None, **options: Any) -> None:
        self._read: Callable[[str | None], Pool] = samples_of(x, y, options)
        self._deal: Deal | None = None
        self._take(self._read(None))

    def _take(self, pool: Pool) -> None:
        self._pool = pool
        self.classes, self.class_names = pool.classes, pool.class_names
        self.kind = "regression" if pool.classes is None else "classification"

    @override
    def dealt(self, manifest: Manifest, peers: int) -> Self:
        """Return this task for the peers of a run, who share the samples as the manifest says.

        Raises:
            TaskError: the name or an option of split or model is wrong.
        """
        check_split(manifest)
        check_model_name(manifest.model or self._default_model()[0], manifest.model_options)
        found = copy.copy(self)
        if manifest.split == "by_column":
            found._take(self._read(str(manifest.split_options.get("by"))))
        found._deal = Deal(found._pool, manifest, peers)
        found.classes = found._deal.classes
        return found

    @property
    @override
    def pool_names(self) -> tuple[str, ...] | None:
        return self._pool.class_names

    def _default_model(self) -> NamedModel:
        shape = self._pool.sample_shape
        return PICTURES if len(shape) == 3 and min(shape[1:]) >= PICTURE_SIDE_MIN else ROWS

    @override
    def make_model(self) -> nn.Module:
        """Return the model of the manifest, or the default for rows or pictures."""
        manifest = Manifest() if self._deal is None else self._deal.manifest
        outputs = outputs_for(self._pool.y, self.classes)
        return model_of(manifest, self._default_model(), self._pool.sample_shape, outputs)

    @override
    def load_shard(self, peer_id: int) -> Shard:
        if self._deal is None:
            raise TaskError(
                "peer.Data: expected a run to deal the samples to, got none. Give the object to peer.simulate, or dealt()."
            )
        return self._deal.shard(peer_id)

    @override
    def __repr__(self) -> str:
        what = "" if self.classes is None else f": {', '.join(self.class_names or ())}"
        shape = list(self._pool.sample_shape)
        return f"<peer.Data: {len(self._pool.y)} samples of shape {shape}, {self.kind}{what}>"
