"""A file of options: those of `peer run` as keys of TOML, the seldom used ones too."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from coordinator_free_bootstrap.errors import ConfigProblem, Option, UsageError, written_as
from coordinator_free_bootstrap.options import fields_of
from coordinator_free_bootstrap.ordinary_file import unreadable
from coordinator_free_bootstrap.validation import near
from peer.runtime.local_options import REPLACED, LocalOptions


@contextmanager
def written_in(path: Path | None, names: Iterable[str]) -> Iterator[None]:
    """Name these options as keys of the file in the messages of a block; None: none is in a file."""
    with written_as({} if path is None else {name: f"{name} in {path}" for name in names}):
        yield


def options_in(path: Path) -> dict[str, object]:
    """Return the options of a file, such as ``threads = 2``; a dash in a name counts as an underscore.

    Raises:
        UsageError: the file cannot be read, is no TOML, or has an unknown key.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        expected = "a file of options such as threads = 2 (TOML)"
        raise UsageError(unreadable(f"{Option('options')} {path}", error, expected=expected)) from None
    given = {name.replace("-", "_"): value for name, value in content.items()}
    known = fields_of(LocalOptions)
    for name in given:
        if name not in known and name not in REPLACED:
            hint = near(name, sorted(known))
            raise UsageError(
                ConfigProblem(Option("options"), "options of peer run as keys", f"{name} in {path} ({hint})")
            )
    return given
