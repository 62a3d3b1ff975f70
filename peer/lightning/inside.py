"""The place in a training loader, which Lightning's checkpoints inside an epoch need to continue with the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from peer.learning.random_state import random_state, set_random_state


class Places:
    """The place in the training loader of one fit.

    Args:
        device: of the model.

    Attributes:
        telling: whether a checkpoint inside a round is being written.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.telling = device, False
        self._present: PlacedLoader | None = None

    @property
    def known(self) -> bool:
        """Whether the loader is one that can be read up to a place again."""
        return self._present is not None

    def around(self, loader: Any) -> Any:
        """Return a loader that knows its place; one of another kind, or without a length, as it is."""
        if not isinstance(loader, DataLoader) or not hasattr(loader.dataset, "__len__"):
            return loader
        self._present = PlacedLoader(loader, self)
        return self._present

    @contextmanager
    def told(self) -> Iterator[None]:
        """Let the place be told in a block. Between rounds it is none of Lightning's: a round begins an epoch."""
        self.telling = True
        try:
            yield
        finally:
            self.telling = False


class PlacedLoader:
    """A training loader that knows where it is; Lightning asks loaders with ``state_dict`` for it, and gives it back."""

    def __init__(self, loader: DataLoader[Any], places: Places) -> None:
        self._loader, self._places = loader, places
        self._began: Mapping[str, Any] = {}
        self._done = 0
        self._next: Mapping[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of an epoch, after a restart those that are left: the first ones are read and left out."""
        saved, self._next = self._next, {}
        if saved:
            set_random_state(saved["began"], self._places.device)
        self._began, self._done = self._random(), int(saved.get("done", 0))
        iterator = iter(self._loader)
        for _ in islice(iterator, self._done):
            pass
        if saved:
            set_random_state(saved["random"], self._places.device)
        for batch in iterator:
            self._done += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the number of batches done in this epoch, and the generators of random numbers at its begin and now."""
        if not self._places.telling:
            return {}
        return {"began": self._began, "done": self._done, "random": self._random()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next epoch be the rest of the one that was interrupted."""
        self._next = state

    def _random(self) -> dict[str, Any]:
        return random_state(self._places.device, libraries=True)
