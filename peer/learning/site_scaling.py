"""A peer's part in shared scaling: its numbers before the agreement, its inputs after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from coordinator_free_bootstrap.errors import ConfigProblem, TaskError
from coordinator_free_bootstrap.strict_json import of_type
from peer.algorithms.learner import Fields
from peer.core.messages import Numbers
from peer.tasks.preprocessing import Preprocessing
from peer.tasks.shard import Shard
from peer.tasks.sites import AllSites, SiteForm, form_of, numbers_of
from peer.tasks.task import Task


class SiteScaling:
    """The raw inputs of one peer until all peers agree on mean and deviation, and then these.

    Until then its learner has inputs scaled by the peer's own numbers, so that model, loss and metric can be tried: they are two
    copies of the inputs in memory. No model is trained or compared with these.

    Args:
        form: of the numbers of a site.
        shard: checked, with raw inputs and a pending preprocessing.
        use: gives the learner a shard in place of the one that it has.

    Attributes:
        numbers: of this site.

    Raises:
        ShardError: the site has too few samples.
        TaskError: a feature has a value that is no finite number.
    """

    def __init__(self, form: SiteForm, shard: Shard, use: Callable[[Shard], None]) -> None:
        self._form, self._raw, self._use = form, shard, use
        self._own = numbers_of(form, shard)
        self._agreed: AllSites | None = None
        self.numbers = self._own.numbers

    @classmethod
    def of(cls, task: Task, data: Any, use: Callable[[Shard], None]) -> SiteScaling | None:
        """Return the part of a peer with these data; None where mean and deviation are not pending.

        Raises:
            ShardError, TaskError: the data cannot take part.
        """
        if not isinstance(data, Shard):
            if task.preprocessing is not None and task.preprocessing.is_pending:
                expected, got = "a Shard from load_shard for shared scaling", of_type(data)
                raise TaskError(
                    ConfigProblem("load_data", expected, got, "Or scale in the loader, alike at all peers.")
                )
            return None
        form = form_of(task, data)
        if form is None:
            return None
        pending = data.preprocessing or task.preprocessing
        return cls(form, replace(data, preprocessing=pending).checked(task.kind, task.classes), use)

    @property
    def provisional(self) -> Shard:
        """The shard with inputs scaled by the numbers of this site; its preprocessing is still pending."""
        alone = AllSites.of({0: self._own}).scaling(self._pending, self._form.shape)
        return replace(self._scaled(alone), preprocessing=self._pending)

    @property
    def _pending(self) -> Preprocessing:
        assert self._raw.preprocessing is not None  # see `of`
        return self._raw.preprocessing

    def problem(self, numbers: Numbers) -> str:
        """Return why numbers cannot be those of a site, "" if they can."""
        return self._form.problem(numbers)

    def agree(self, numbers: Mapping[int, Numbers]) -> Fields:
        """Take the numbers of all sites, by peer id, none of which has a problem; return the line of the history about them."""
        self._agreed = AllSites.of({peer: self._form.read(each) for peer, each in numbers.items()})
        return self._agreed.fields(self._pending)

    def apply(self) -> None:
        """Give the learner the inputs as scaled by what was agreed, once; may take as long as reading the data."""
        if self._agreed is None or not self._pending.is_pending:
            return
        scaled = self._scaled(self._agreed.scaling(self._pending, self._form.shape))
        self._use(scaled)
        self._raw = scaled  # the raw inputs are freed

    def _scaled(self, by: Preprocessing) -> Shard:
        raw = self._raw
        parts = {"train_x": raw.train_x, "val_x": raw.val_x, "test_x": raw.test_x}
        scaled: dict[str, Any] = {name: None if x is None else by.apply(np.asarray(x)) for name, x in parts.items()}
        return replace(raw, preprocessing=by, **scaled)
