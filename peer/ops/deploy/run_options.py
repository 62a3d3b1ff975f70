"""The options of `peer run` that `peer deploy --options` gives to all peers, as words for each kind of file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence

from coordinator_free_bootstrap.errors import UsageError

PLACES = ("--id", "--neighbors", "--state-dir", "--certs")  # that every target sets
IN_CONTAINERS = (*PLACES, "--listen", "--metrics", "--shard", "--data-root")


def words_of(text: str, known: Collection[str], given: Collection[str]) -> tuple[str, ...]:
    """Return the words of ``--options``.

    Args:
        text: as in a shell.
        known: the options of `peer run`.
        given: those of them that the target sets itself.

    Raises:
        UsageError: not words of a shell, no option of `peer run`, or one that the target sets.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--options: expected options of peer run, as in a shell, got {text!r} ({error})") from error
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("--") and name not in known:
            raise UsageError(f"--options: expected an option of peer run, got {name}. See peer run --help.")
        if name in given:
            raise UsageError(f"--options: peer deploy sets {name} for each peer. Remove it.")
        if "\n" in word:
            raise UsageError(f"--options: expected words on one line, got a line break in {word!r}")
    return words


def in_compose(words: Sequence[str]) -> list[str]:
    """Return words for Compose and Swarm, which replace variables."""
    return [word.replace("$", "$$") for word in words]


def in_kubernetes(words: Sequence[str]) -> list[str]:
    """Return words for Kubernetes, which replaces ``$(NAME)``."""
    return [word.replace("$(", "$$(") for word in words]


def in_systemd(words: Sequence[str]) -> str:
    """Return words as a value of an environment file, which systemd splits at blanks.

    Raises:
        UsageError: a word that systemd would split or read in its own way.
    """
    for word in words:
        if re.search(r"[\s'\"\\]", word):
            raise UsageError(
                "--options: expected words without blanks, quotes and backslashes on devices, because systemd splits "
                f"them, got {word!r}. Write the option into a drop-in of the unit."
            )
    return " ".join(words)
