"""Several processes of one site that train together (`torchrun`, accelerate): rank 0 is the peer, the others get its rounds.

Only tensors are exchanged, in the process group that the program has made. Control messages have a group of their own, since a
round may wait for neighbors longer than collectives of a training may.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch
from safetensors.numpy import load, save
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from coordinator_free_bootstrap.errors import ConfigProblem, Option, PeerError, UsageError
from coordinator_free_bootstrap.seeds import derive_seed
from peer.api.round import LocalRound
from peer.learning.flat import seeded
from peer.learning.kept_state import packed, unpacked
from peer.tasks.budget import ItemT, Stateful
from peer.tasks.user_code import libraries_seeded

log = logging.getLogger("peer")
ROUND, END, FAILED = range(3)
CONTROL_TIMEOUT = timedelta(days=365)  # the peer's own timeouts end a run
FAILED_TIMEOUT = timedelta(seconds=10)  # a rank may wait in a collective that rank 0 has left with an error


def several_ranks() -> bool:
    """Return whether this process is one of several of a process group."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside of a `DistributedDataParallel`."""
    inner: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    return inner


class Ranks:
    """The process group of a site, as each of its ranks sees it; made by all of them at the same time.

    Args:
        model: of this rank.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.rank = model, distributed.get_rank()
        self._control = distributed.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)

    def tell(self, kind: int, round: LocalRound | None = None, keep: Mapping[str, Stateful] | None = None) -> None:
        """Rank 0: tell the others what comes, with the values of the model, and the states of the kept objects if given."""
        states = save(packed({name: thing.state_dict() for name, thing in keep.items()})) if keep else b""
        self._send(torch.tensor([kind, len(states), *(_numbers(round) if round else [0] * _SIZE)]))
        self._share()
        if states:
            self._send(torch.frombuffer(bytearray(states), dtype=torch.uint8))

    def tell_failed(self) -> None:
        """Rank 0: tell the others that nothing comes any more, as far as they still listen."""
        try:
            self._to_others(torch.tensor([FAILED, 0, *[0] * _SIZE]), FAILED_TIMEOUT)
        except RuntimeError:
            log.warning(
                "rank 0 ends, and cannot tell the other ranks: they have ended, or wait for it in their training"
            )

    def told(self, keep: Mapping[str, Stateful]) -> tuple[int, LocalRound | None]:
        """Another rank: wait for the next round, or the end, and take the values of the model and the states.

        Raises:
            UsageError: the kept objects of the ranks have other names.
        """
        kind, size, *numbers = self._send(torch.zeros(2 + _SIZE, dtype=torch.int64)).tolist()
        if kind != FAILED:
            self._share()
        if size:
            states = unpacked(load(self._send(torch.zeros(size, dtype=torch.uint8)).numpy().tobytes()))
            if states.keys() != keep.keys():
                raise UsageError(ConfigProblem(Option("keep"), f"{list(states)}, as at rank 0", str(list(keep))))
            for name, state in states.items():
                keep[name].load_state_dict(state)
        return kind, _round(numbers, self) if kind == ROUND else None

    def agreed(self, stop: bool) -> bool:
        """Return what rank 0 says."""
        return bool(self._send(torch.tensor([stop], dtype=torch.int64)))

    def with_agreed_stop(self, round: LocalRound) -> LocalRound:
        """Return a round of rank 0 whose ``should_stop`` is the same at all ranks, which all call it equally often.

        The states of the other ranks are not kept: after a restart, a site of several processes repeats its round.
        """

        def stop() -> bool:
            return self.agreed(round.should_stop())

        return replace(round, should_stop=stop, due=stop, resumable=partial(_until, stop))

    def _send(self, message: Tensor) -> Tensor:
        if self.rank == 0:
            self._to_others(message, CONTROL_TIMEOUT)
        else:
            distributed.recv(message, 0, group=self._control)
        return message

    def _to_others(self, message: Tensor, timeout: timedelta) -> None:
        """Send one by one: a broadcast that nobody takes would keep the process from its end."""
        others = range(1, distributed.get_world_size())
        for sending in [distributed.isend(message, other, group=self._control) for other in others]:
            assert sending is not None  # this process is in the group
            sending.wait(timeout)

    def _share(self) -> None:
        with torch.no_grad():
            for tensor in self.model.state_dict(keep_vars=True).values():
                distributed.broadcast(tensor.data, 0)


class Follower:
    """What `peer.join` returns at the other ranks: the same rounds, and the peer's result in the model at the end."""

    run = None

    def __init__(self, model: nn.Module, keep: Mapping[str, Stateful]) -> None:
        self.model, self._keep = model, keep
        self._ranks, self._ended = Ranks(model), False

    def __enter__(self) -> Self:
        return self

    def __iter__(self) -> Iterator[LocalRound]:
        """Yield the rounds of rank 0.

        Raises:
            PeerError: the peer of rank 0 has failed.
        """
        while True:
            round = self._next()
            if round is None:
                return
            seed = derive_seed(round.seed, "rank", self._ranks.rank)
            with libraries_seeded(seed), seeded(seed, next(self.model.parameters()).device):
                self.model.train()
                yield round

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        """Take the peer's result where the loop has ended early, as it has at rank 0."""
        while error is None and not self._ended:
            self._next()
        return False

    def _next(self) -> LocalRound | None:
        kind, round = self._ranks.told(self._keep)
        self._ended = round is None
        if kind == FAILED:
            raise PeerError("rank 0: expected a peer that goes on, got one that has ended; its log says why")
        return round


def _until(stop: Callable[[], bool], items: Iterable[ItemT]) -> Iterator[ItemT]:
    """Yield items until all ranks are asked to stop."""
    for number, item in enumerate(items):
        if number and stop():
            return
        yield item


_SIZE = 6


def _numbers(round: LocalRound) -> list[int]:
    rate = int(torch.tensor(round.learning_rate, dtype=torch.float64).view(torch.int64))
    seed = round.seed - (1 << 64) if round.seed >= 1 << 63 else round.seed
    none = [-1 if number is None else number for number in (round.epochs, round.steps)]
    return [round.round, *none, rate, seed, round.precision == "bfloat16"]


def _round(numbers: list[int], ranks: Ranks) -> LocalRound:
    index, epochs, steps, rate, seed, half = numbers

    def keep(name: str, make: Any) -> Any:
        return make()

    def stop() -> bool:
        return ranks.agreed(False)

    def no_folder() -> Path:
        raise UsageError("folder: expected a call at rank 0 only, since the other ranks have no state of their own")

    return LocalRound(
        round=index,
        epochs=None if epochs < 0 else epochs,
        steps=None if steps < 0 else steps,
        learning_rate=float(torch.tensor(rate).view(torch.float64)),
        seed=seed % (1 << 64),
        device=next(ranks.model.parameters()).device,
        precision="bfloat16" if half else "float32",
        should_stop=stop,
        keep=keep,
        kept=frozenset(),
        resumable=partial(_until, stop),
        due=stop,
        resumed=lambda steps: None,
        make_folder=no_folder,
    )
