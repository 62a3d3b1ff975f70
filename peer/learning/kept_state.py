"""The state of a loop's objects (`Budget.keep`) as arrays for checkpoints; no code is stored, and none executed on the way back.

Tensors and arrays are flat arrays beside one array of UTF-8 JSON, which has everything else and where each array belongs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coordinator_free_bootstrap.errors import CheckpointCorrupt, TaskError
from coordinator_free_bootstrap.strict_json import of_type
from peer.tasks.budget import Stateful, StatefulT

TREE = "json"
Arrays = Mapping[str, NDArray[Any]]
_AS_INTEGERS = {torch.bfloat16: torch.int16}  # NumPy has no such type


class Kept:
    """The objects that one training keeps.

    Args:
        before: what `arrays` returned at the end of the training before; empty for the first.
    """

    def __init__(self, before: Arrays) -> None:
        self._before: dict[str, Any] = unpacked(before) if before else {}
        self._objects: dict[str, Stateful] = {}

    @property
    def names(self) -> frozenset[str]:
        """Those of the objects with a state of before."""
        return frozenset(self._before)

    def keep(self, name: str, make: Callable[[], StatefulT]) -> StatefulT:
        """See `peer.tasks.budget.Budget.keep`.

        Raises:
            TaskError: the name is taken, or the object has no state_dict.
        """
        made: StatefulT = make()
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(made, method, None)):
                raise TaskError(
                    f"keep({name!r}): expected an object with state_dict and load_state_dict, got {of_type(made)}"
                )
        if name in self._objects:
            raise TaskError(f"keep({name!r}): expected one object of a name in a round, got two")
        self._objects[name] = made
        if name in self._before:
            for known, thing in self._objects.items():  # a scheduler that is made changes the rate of its optimizer
                if known in self._before:
                    thing.load_state_dict(self._before[known])
        return made

    def resume(self, arrays: Arrays) -> None:
        """Give the objects the states that `arrays` returned, also those that are not made yet."""
        self._before = unpacked(arrays) if arrays else {}
        for name, thing in self._objects.items():
            if name in self._before:
                thing.load_state_dict(self._before[name])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the states of all objects, as they are now; without any, those of before."""
        return packed({name: thing.state_dict() for name, thing in self._objects.items()}) if self._objects else {}


def packed(state: Any) -> dict[str, NDArray[Any]]:
    """Return a nested state as flat arrays by name.

    Raises:
        TaskError: a value is neither a tensor, an array, a number, a text, None, nor a list, tuple, set or dict of them.
    """
    arrays: dict[str, NDArray[Any]] = {}
    tree = _packed(state, arrays, "state")
    arrays[TREE] = np.frombuffer(json.dumps(tree, allow_nan=True).encode(), np.uint8)
    return arrays


def unpacked(arrays: Arrays) -> Any:
    """Return the state that `packed` was given.

    Raises:
        CheckpointCorrupt: an array is missing or has another size.
    """
    try:
        return _unpacked(json.loads(arrays[TREE].tobytes()), arrays)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointCorrupt(f"kept state: expected a whole one, got {type(error).__name__}: {error}") from error


def _packed(value: Any, arrays: dict[str, NDArray[Any]], path: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor | np.ndarray):
        return _stored(value, arrays, path)
    if isinstance(value, Mapping):
        return {
            "dict": [[_packed(key, arrays, path), _packed(v, arrays, f"{path}[{key!r}]")] for key, v in value.items()]
        }
    for kind in (list, tuple, set):
        if isinstance(value, kind):
            return {kind.__name__: list(_each(sorted(value) if kind is set else value, arrays, path))}
    raise TaskError(
        f"keep: {path}: expected a tensor, an array, a number, a text, or a list, tuple or dict of them, got {of_type(value)}. "
        "Leave it out of the object's state_dict."
    )


def _each(values: Any, arrays: dict[str, NDArray[Any]], path: str) -> Iterator[Any]:
    return (_packed(value, arrays, f"{path}[{number}]") for number, value in enumerate(values))


def _stored(value: Tensor | NDArray[Any], arrays: dict[str, NDArray[Any]], path: str) -> dict[str, Any]:
    about: dict[str, Any] = {"array": str(len(arrays)), "shape": list(value.shape)}
    if isinstance(value, Tensor):
        about["torch"] = str(value.dtype).removeprefix("torch.")
        plain = value.detach().to("cpu", copy=True).contiguous()
        as_integers = _AS_INTEGERS.get(plain.dtype)
        value = (plain if as_integers is None else plain.view(as_integers)).numpy()
    else:
        value = np.array(value)
    if value.dtype.kind not in "biuf":
        raise TaskError(f"keep: {path}: expected an array of numbers, got one of {value.dtype}")
    arrays[about["array"]] = value.reshape(-1)
    return about


def _unpacked(tree: Any, arrays: Arrays) -> Any:
    if not isinstance(tree, dict):
        return tree
    if "array" in tree:
        values = np.array(arrays[tree["array"]]).reshape(tree["shape"])
        if "torch" not in tree:
            return values
        dtype, tensor = getattr(torch, tree["torch"]), torch.from_numpy(values)
        return tensor.view(dtype) if dtype in _AS_INTEGERS else tensor
    ((kind, entries),) = tree.items()
    if kind == "dict":
        return {_hashable(_unpacked(key, arrays)): _unpacked(value, arrays) for key, value in entries}
    return {"list": list, "tuple": tuple, "set": set}[kind](_unpacked(value, arrays) for value in entries)


def _hashable(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key
