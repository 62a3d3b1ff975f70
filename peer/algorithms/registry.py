"""The registry of algorithms: subclasses of `Algorithm` in this package, installed entry points, a user's file or program."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType

import peer.algorithms as package
from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem, Option
from coordinator_free_bootstrap.extras import require
from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.installed import REMEDY, installed, loaded
from coordinator_free_bootstrap.strict_json import of_type
from coordinator_free_bootstrap.user_file import Named, load_object, names_file
from coordinator_free_bootstrap.validation import unknown_name
from peer.algorithms.base import Algorithm

GROUP = "coordinator_free.algorithms"  # each entry point is a class, or a package whose modules have classes
NAMED = Named("run.algorithm", "Class", "Mine", ConfigError)

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
        raise ConfigError(
            ConfigProblem(Option("algorithm"), "a name, or a subclass of peer.Algorithm", repr(algorithm))
        )
    name = vars(algorithm).get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"algorithm: {algorithm.__name__}: name: expected a text, such as name = 'mine', got {name!r}"
        )
    if _installed().get(name, algorithm) is not algorithm:
        raise ConfigError(
            f"algorithm: {algorithm.__name__}: name: expected an unused name, got {name!r} of an installed algorithm. Choose "
            "another."
        )
    _registered[name] = algorithm
    return name


@functools.cache  # reading the metadata of all installed packages costs a forked peer 2 MB
def _installed() -> dict[str, type[Algorithm]]:
    found = _defined_in(package)
    for entry in installed(GROUP):
        value, where = loaded(entry, "algorithm")
        added = _defined_in(value) if isinstance(value, ModuleType) else {entry.name: _checked(value, where)}
        if both := sorted(added.keys() & found):
            raise ConfigError(f"{where}: expected a name that no other algorithm has, got {both[0]!r}. {REMEDY}")
        found |= added
    return found


def _defined_in(folder: ModuleType) -> dict[str, type[Algorithm]]:
    """Return the algorithms of the modules of a package."""
    found: dict[str, type[Algorithm]] = {}
    for each in pkgutil.iter_modules(folder.__path__):
        module = importlib.import_module(f"{folder.__name__}.{each.name}")
        for value in vars(module).values():
            own = isinstance(value, type) and value.__module__ == module.__name__
            if own and issubclass(value, Algorithm) and "name" in vars(value):
                found[value.name] = value
    return found


def _checked(value: object, where: str, remedy: str = REMEDY) -> type[Algorithm]:
    if isinstance(value, type) and issubclass(value, Algorithm):
        return value
    found = value.__name__ if isinstance(value, type) else of_type(value)
    raise ConfigError(f"{where}: expected a subclass of peer.Algorithm, got {found}. {remedy}")


def algorithm_named(name: str) -> type[Algorithm]:
    """Return the algorithm with this name (run.algorithm), or the class that ``path/to/file.py:Class`` names.

    Raises:
        ConfigError: there is none; the text names the nearest match and all known names. Or the file cannot be used.
    """
    if names_file(name):
        return _from_file(name)
    known = algorithms()
    if name in known:
        return known[name]
    raise ConfigError(unknown_name("run.algorithm", name, known, "or your class as path/to/file.py:Class"))


def _from_file(value: str) -> type[Algorithm]:
    found = _checked(load_object(value, NAMED), f"run.algorithm: {value}", "Give the name of such a class.")
    if not hasattr(found, "name"):
        found.name = found.__name__
    return found


def algorithm_for(graph: Graph, peer_id: int) -> Algorithm:
    """Return the algorithm of a graph's manifest for one peer of a run that begins.

    Raises:
        ConfigError: as `check_algorithm`.
        UsageError: a package that the algorithm needs is not installed.
    """
    found = algorithm_named(graph.manifest.algorithm)
    require(found.packages, f"algorithm {graph.manifest.algorithm!r}")
    return found(graph.manifest, peer_id, graph)


def check_algorithm(graph: Graph) -> None:
    """Check that the algorithm of a graph's manifest exists and has its options.

    Its packages, and a file, ``path/to/file.py:Class``, may be on other machines only.

    Raises:
        ConfigError: an unknown algorithm or option, or a wrong value.
    """
    if not names_file(graph.manifest.algorithm):
        algorithm_named(graph.manifest.algorithm)(graph.manifest, graph.ids[0], graph)
