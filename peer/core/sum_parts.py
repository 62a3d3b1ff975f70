"""What the engine and the host ask of one peer's secrets of secure sums; `peer.secure_sum` implements it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from coordinator_free_bootstrap.errors import Refusal
from peer.core.averaging import Vector
from peer.core.encoding import Sliced
from peer.core.messages import Opening, SumMessage

ToSend = list[tuple[int, Opening, bytes]]  # neighbor, kind and content of messages


class SumParts(Protocol):
    """One peer's secrets and its parts in sums: as a sender in those of its neighbors, and in its own."""

    def announcement(self, incarnation: int) -> bytes:
        """Return the own key, signed for an incarnation: what goes with a hello."""

    def meets(self, neighbor: int, incarnation: int, announcement: bytes) -> Refusal | None:
        """Note the key of a neighbor's hello, or return why it cannot be right."""

    def rejects_roster(self, receiver: int, round_index: int, packed: bytes) -> Refusal | None:
        """Return why a roster cannot be right."""

    def join(self, receiver: int, round_index: int, packed: bytes, incarnation: int) -> str:
        """Take part in a sum; return why not, "" if so. The first roster of a receiver and round counts, and rounds only grow."""

    def shares(self, receiver: int, round_index: int) -> bytes:
        """Return what goes with the model for a sum; b"" if this peer takes no part in it."""

    def masked(self, receiver: int, round_index: int, weights: Mapping[int, float], model: Vector) -> Sliced:
        """Return a model, float32 [d], as it is sent to a receiver: masked where it is read.

        ``weights`` are those of all its neighbors.
        """

    def begin(self, round_index: int, present: Iterable[tuple[int, int]]) -> bytes:
        """Begin the own sum with the neighbors (id, incarnation) whose keys are known; return the roster."""

    def fits(self, sender: int, round_index: int, shares: bytes) -> bool:
        """Return whether a model with these shares is for the own sum, whose members are not fixed yet."""

    def delivered(self, sender: int, shares: bytes) -> None:
        """Note a model that is added to the own sum."""

    def fix(self) -> ToSend:
        """Fix the members of the own sum; return what to ask them."""

    def lose(self, member: int) -> None:
        """Note that a member of the own sum will answer no more."""

    def give_up(self) -> None:
        """Wait no longer."""

    @property
    def awaited(self) -> Mapping[int, int]:
        """The members whose answer may still open the own sum, each with the incarnation that has delivered."""

    @property
    def members(self) -> tuple[int, ...] | None:
        """Whose models are in the own sum; None: not fixed yet."""

    @property
    def is_open(self) -> bool:
        """Whether the own sum can be unmasked."""

    @property
    def problem(self) -> str:
        """Why the own sum cannot be unmasked; "" while it can."""

    def opened(self, total: npt.NDArray[np.uint32], weights: Mapping[int, float]) -> Vector:
        """Return the weighted mean of the members' models, float32 [d], in the memory of ``total``."""

    def rejects(self, message: SumMessage) -> Refusal | None:
        """Return why a message cannot be right; nothing changes."""

    def take(self, message: SumMessage) -> ToSend:
        """Take a message that is not rejected; return what to send."""
