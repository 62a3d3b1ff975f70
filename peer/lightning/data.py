"""The data of one peer for Lightning: a data module that is set up once, not in each round, or loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.strict_json import of_type

_METHODS = {"train": "train_dataloader", "validation": "val_dataloader", "test": "test_dataloader"}
_STAGES = {"train": "fit", "validation": "validate", "test": "test"}
_FIT = {"train": "train_dataloaders", "validation": "val_dataloaders"}  # arguments of Trainer.fit


class ModuleData:
    """ModuleData as a Trainer takes them.

    A Trainer of each round would set up a data module again: a split that is drawn there would be another one in each round.

    Args:
        made: what the user's function returned: a LightningDataModule, or loaders by part.

    Raises:
        TaskError: it is something else.
    """

    def __init__(self, made: Any) -> None:
        self.loaders = dict(made) if isinstance(made, Mapping) else {}
        self.module = None if self.loaders else made
        if self.loaders and ("train" not in self.loaders or not set(self.loaders) <= set(_METHODS)):
            names = ", ".join(map(str, self.loaders))
            raise TaskError(f"make_data: expected loaders of train, and of validation or test, got {names}")
        if not self.loaders and not hasattr(made, "train_dataloader"):
            raise TaskError(
                "make_data: expected a LightningDataModule, or loaders by part, {'train': ..., 'test': ...}, got "
                f"{of_type(made)}"
            )
        self.parts = frozenset(self.loaders) or frozenset(part for part in _METHODS if _has(made, _METHODS[part]))
        if self.module is not None:
            made.prepare_data()
            for part in _METHODS:
                if part in self.parts:
                    made.setup(_STAGES[part])
            for name in ("prepare_data", "setup", "teardown"):
                setattr(made, name, _nothing)

    @contextmanager
    def for_fit(self, around: Callable[[Any], Any]) -> Iterator[dict[str, Any]]:
        """Give the arguments of `Trainer.fit` to a block, with the training loader that ``around`` returns for the user's."""
        if self.module is None:
            given = {_FIT[part]: loader for part, loader in self.loaders.items() if part in _FIT}
            yield given | {_FIT["train"]: around(self.loaders["train"])}
            return
        usual = self.module.train_dataloader
        self.module.train_dataloader = lambda: around(usual())
        try:
            yield {"datamodule": self.module}
        finally:
            self.module.train_dataloader = usual

    def for_evaluation(self, part: str) -> dict[str, Any]:
        """Return arguments of `Trainer.test` and `Trainer.validate`."""
        return {"dataloaders": self.loaders[part]} if self.module is None else {"datamodule": self.module}

    def count(self) -> int:
        """Return the number of samples of an epoch.

        Raises:
            TaskError: the loader does not know it.
        """
        loader = self.loaders["train"] if self.module is None else self.module.train_dataloader()
        holders: tuple[Any, ...] = (getattr(loader, "sampler", None), getattr(loader, "dataset", None))
        for holder in holders:
            if hasattr(holder, "__len__"):
                return len(holder)
        raise TaskError(
            f"count: expected a training loader whose sampler or data set has a length, got {of_type(loader)}. Subclass "
            "peer.lightning.LightningTask, and let count(data) return the number of training samples."
        )


def _nothing(stage: str | None = None) -> None:
    """Stand in for a hook that has run."""


def _has(module: Any, name: str) -> bool:
    """Return whether a data module has a hook of its own, and not that of Lightning, which raises an error."""
    method = getattr(module, name)
    return not str(getattr(method, "__module__", "")).startswith(("lightning.pytorch.", "pytorch_lightning."))
