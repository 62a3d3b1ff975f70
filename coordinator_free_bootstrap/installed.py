"""What installed packages add by an entry point: algorithms, data sets, tasks."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from coordinator_free_bootstrap.errors import ConfigError

REMEDY = "Correct or uninstall the package."


def installed(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, such as ``coordinator_free.algorithms``."""
    return list(entry_points(group=group))


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
