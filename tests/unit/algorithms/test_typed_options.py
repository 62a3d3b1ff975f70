"""The options that an algorithm reads are those that it declares, so that type checkers know each of them."""

from typing import Any, get_args

import pytest
from pydantic import BaseModel
from typing_extensions import TypeVar, get_original_bases

from coordinator_free_bootstrap import Manifest, make_graph
from peer.algorithms.base import Algorithm
from peer.algorithms.registry import algorithms


def checked_options(algorithm: type[Algorithm]) -> type[BaseModel]:
    """Return the class that type checkers take ``self.options`` for: the first argument of a base, or a default."""
    base = next(b for b in get_original_bases(algorithm) if issubclass(getattr(b, "__origin__", b), Algorithm))
    if not get_args(base):
        return checked_options(base) if base is not Algorithm else algorithm.Options
    options: Any = get_args(base)[0]
    return options.__default__ if isinstance(options, TypeVar) else options


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_type_checkers_and_the_registry_know_the_same_options(name: str) -> None:
    assert checked_options(algorithms()[name]) is algorithms()[name].Options


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_options_of_a_peer_are_of_the_declared_class(name: str) -> None:
    manifest = Manifest(algorithm=name, clusters=2, rounds=4)
    algorithm = algorithms()[name](manifest, 0, make_graph("ring", 3, manifest=manifest))
    assert type(algorithm.options) is algorithms()[name].Options
    assert algorithm.idle_folds is True
