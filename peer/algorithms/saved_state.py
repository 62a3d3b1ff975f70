"""The form of an algorithm's state in a checkpoint: JSON values, and arrays beside the models.

A state is a frozen dataclass (`peer.core.decisions.AlgorithmState`). Each field is one of two kinds, and has a default:

    JSON    bool, int, float, str, None, and tuples and named tuples of them: in the manifest of the checkpoint
    array   made by `array`: numeric, in the file of arrays; never changed in place, as decisions and checkpoints share it
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from coordinator_free_bootstrap.errors import CheckpointCorrupt
from coordinator_free_bootstrap.strict_json import shown
from peer.core.decisions import AlgorithmState

StateT = TypeVar("StateT", bound=AlgorithmState)
Arrays = Mapping[str, np.ndarray]
_FORM = "array"


@dataclass(frozen=True)
class _Form:
    """What an array of a state looks like."""

    dtype: np.dtype
    axes: int
    optional: bool

    def problem(self, stored: np.ndarray | None) -> str:
        """Return what is wrong with an array of a checkpoint; "": nothing."""
        if stored is None:
            return "" if self.optional else "none"
        fits = stored.dtype == self.dtype and stored.ndim == self.axes
        return "" if fits else f"{stored.dtype} {list(stored.shape)}"


def array(dtype: npt.DTypeLike, axes: int, *, optional: bool = False) -> Any:
    """Return a field of a state that is an array; it does not count in comparisons of states.

    Args:
        dtype: of the array.
        axes: their number.
        optional: the field may be None, which is its default then; else the default is an array without elements.
    """
    form = {_FORM: _Form(np.dtype(dtype), axes, optional)}
    if optional:
        return field(default=None, compare=False, metadata=form)
    return field(default_factory=lambda: np.zeros((0,) * axes, dtype), compare=False, metadata=form)


def saved(state: AlgorithmState) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a state as JSON values and arrays, each by field."""
    values = {each.name: getattr(state, each.name) for each in fields(state)}
    arrays = {each.name: values.pop(each.name) for each in fields(state) if _form(each)}
    return values, {name: value for name, value in arrays.items() if value is not None}


def restored(kind: type[StateT], values: Mapping[str, Any], arrays: Arrays) -> StateT:
    """Return the state of a checkpoint: what `saved` gave.

    Args:
        kind: class of the state.
        values: JSON values, as parsed.
        arrays: owned by the state from now on.

    Raises:
        CheckpointCorrupt: a field is missing, unknown or of another type.
    """
    hints, kept = get_type_hints(kind), dict[str, Any]()
    forms = {each.name: _form(each) for each in fields(kind)}
    plain = {name for name, form in forms.items() if form is None}
    if unlike := sorted(values.keys() ^ plain) or sorted(arrays.keys() - (forms.keys() - plain)):
        raise CheckpointCorrupt(
            f"algorithm_state: expected the fields {_listed(forms)}, got {_listed({*values, *arrays})} (see {shown(unlike[0])})"
        )
    for name, form in forms.items():
        if form is None:
            kept[name] = _value(name, hints[name], values[name])
        elif problem := form.problem(arrays.get(name)):
            raise CheckpointCorrupt(
                f"algorithm_state.{name}: expected {form.dtype} with {form.axes} axes, got {problem}"
            )
        else:
            kept[name] = arrays.get(name)
    return kind(**kept)


def _value(name: str, hint: Any, value: Any) -> Any:
    try:
        return TypeAdapter(hint).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, ("algorithm_state", name, *problem["loc"])))
        raise CheckpointCorrupt(f"{where}: {problem['msg']}, got {shown(problem['input'])}") from None


def _form(each: Field[Any]) -> _Form | None:
    form: _Form | None = each.metadata.get(_FORM)
    return form


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(shown, names)))
