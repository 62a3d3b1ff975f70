"""The registry of algorithms: subclasses of `Algorithm` in this package, installed entry points, and classes of a program."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from importlib.metadata import EntryPoint, entry_points

import peer.algorithms as package
from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.validation import unknown_name
from peer.algorithms.base import Algorithm

ENTRY_POINT_GROUP = "coordinator_free.algorithms"


_registered: dict[str, type[Algorithm]] = {}


def algorithms() -> dict[str, type[Algorithm]]:
    """Return all algorithms by name: of this package, of installed packages, and those of `register`."""
    return _installed() | _registered


def register(algorithm: type[Algorithm]) -> str:
    """Make a class known in this process, in place of an earlier one of the same name, and return its name.

    Raises:
        ConfigError: the class is not an `Algorithm` with a name of its own, or an installed algorithm has the name.
    """
    if not (isinstance(algorithm, type) and issubclass(algorithm, Algorithm)):
        raise ConfigError(f"algorithm: found {algorithm!r}; allowed: a name, or a subclass of peer.Algorithm")
    name = vars(algorithm).get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"algorithm: {algorithm.__name__}: found name {name!r}; allowed: a text, such as name = 'mine'"
        )
    if _installed().get(name, algorithm) is not algorithm:
        raise ConfigError(
            f"algorithm: {algorithm.__name__}: found the name {name!r} of an installed algorithm; choose another"
        )
    _registered[name] = algorithm
    return name


@functools.cache  # reading the metadata of all installed packages costs a forked peer 2 MB
def _installed() -> dict[str, type[Algorithm]]:
    found: dict[str, type[Algorithm]] = {}
    for module in pkgutil.iter_modules(package.__path__):
        for value in vars(importlib.import_module(f"{package.__name__}.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, Algorithm) and "name" in vars(value):
                found[value.name] = value
    built_in = frozenset(found)
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        found[entry.name] = _loaded(entry, built_in)
    return found


def _loaded(entry: EntryPoint, built_in: frozenset[str]) -> type[Algorithm]:
    """Return the algorithm of an installed package.

    Raises:
        ConfigError: it has the name of another algorithm, cannot be imported, or is not an algorithm.
    """
    where = f"algorithm {entry.name!r} of the package {entry.dist.name if entry.dist else 'unknown'}"
    remedy = "correct or uninstall the package"
    if entry.name in built_in:
        raise ConfigError(f"{where}: found the name of a built-in algorithm; allowed: another name; {remedy}")
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:  # code of the package; it may raise any exception
        raise ConfigError(f"{where}: cannot be imported: found {type(error).__name__}: {error}; {remedy}") from error
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError(f"{where}: found a {type(found).__name__}; allowed: a subclass of peer.Algorithm; {remedy}")
    return found


def algorithm_named(name: str) -> type[Algorithm]:
    """Return the algorithm with this name (run.algorithm).

    Raises:
        ConfigError: there is none; the text names the nearest match and all known names.
    """
    known = algorithms()
    if name in known:
        return known[name]
    raise ConfigError(unknown_name("run.algorithm", name, known))


def check_algorithm(graph: Graph) -> None:
    """Check that the algorithm of a graph's manifest exists and has its options.

    Raises:
        ConfigError: an unknown algorithm or option, or a wrong value.
    """
    algorithm_named(graph.manifest.algorithm)(graph.manifest, graph.ids[0], graph)
