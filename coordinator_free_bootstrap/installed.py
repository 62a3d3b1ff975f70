"""What installed packages add by an entry point: algorithms, tasks, data sets, splits, models."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections import ChainMap
from collections.abc import Collection, Mapping
from importlib.metadata import EntryPoint
from typing import Any

from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.strict_json import of_type, one

REMEDY = "Correct or uninstall the package."


def installed(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, such as ``coordinator_free.algorithms``."""
    return list(_entry_points(tuple(sys.path)).select(group=group))


@functools.lru_cache(maxsize=1)  # to read the metadata of 200 packages takes each forked peer 40 ms and 0.5 MB
def _entry_points(_path: tuple[str, ...]) -> Any:
    return importlib.metadata.entry_points()


def loaded(entry: EntryPoint, what: str) -> tuple[object, str]:
    """Return what an entry point leads to, and how messages name it.

    Args:
        entry: of an installed package.
        what: it is, such as ``algorithm``.

    Raises:
        ConfigError: it cannot be imported.
    """
    where = f"{what} {entry.name!r} of the package {entry.dist.name if entry.dist else 'unknown'}"
    try:
        return entry.load(), where
    except (Exception, SystemExit) as error:  # code of the package; it may raise any exception
        raise ConfigError(f"{where}: cannot be imported: {type(error).__name__}: {error}. {REMEDY}") from error


def named(group: str, what: str, kind: type, reserved: Collection[str] = ()) -> Mapping[str, Any]:
    """Return the objects of a group by name. An entry point is such an object, or a dict from names to them.

    Args:
        group: of entry points.
        what: they are, such as ``split``.
        kind: their class.
        reserved: names that mean something else.

    Raises:
        ConfigError: an installed package is wrong, or has a name that another one has.
    """
    found: ChainMap[str, Any] = ChainMap()
    for entry in installed(group):
        value, where = loaded(entry, what)
        added = {entry.name: value} if isinstance(value, kind) else value
        if not isinstance(added, dict) or not all(isinstance(each, kind) for each in added.values()):
            raise ConfigError(
                f"{where}: expected {one(kind)}, or a dict from names to them, got {of_type(value)}. {REMEDY}"
            )
        if both := sorted(name for name in added if name in found or name in reserved):
            raise ConfigError(f"{where}: expected a name that no other {what} has, got {both[0]!r}. {REMEDY}")
        found.maps.append(added)
    return found
