"""Parse a manifest from a file or from ``--set`` options, list its keys, and compare two manifests by key."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError

from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem, Option
from coordinator_free_bootstrap.gone import gone
from coordinator_free_bootstrap.manifest import Manifest, Options, canonical_json
from coordinator_free_bootstrap.strict_json import loads, shortened, shown, word
from coordinator_free_bootstrap.validation import joined, near, sentences

ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Difference:
    """One manifest key with different values at two peers; values are short JSON texts, or ``absent``."""

    key: str
    ours: str
    theirs: str


def parse_manifest(run: object, source: str) -> Manifest:
    """Validate a `run` object.

    Args:
        run: the JSON value of the graph attribute ``run``.
        source: name of the file, for messages; empty: the keys are not of a file.

    Raises:
        ConfigError: one line per wrong key, with file, key, expected values and actual value.
    """
    try:
        return Manifest.model_validate(run)
    except ValidationError as error:
        raise ConfigError(joined(source, sentences(error, Manifest, run, "run"))) from error


def apply_settings(run: dict[str, Any], settings: Iterable[str]) -> dict[str, object]:
    """Return a copy of ``run`` with settings such as ``run.timeouts.suspicion_s=3`` applied, the last one winning.

    A value that is not JSON is a string. `parse_manifest` validates the values, not this function.

    Raises:
        ConfigError: a setting without ``=``, or an unknown key; the message lists similar keys.
    """
    result = copy.deepcopy(run)
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(ConfigProblem(Option("set"), "key=value, for example run.clusters=4", shown(setting)))
        if refused := gone(key, _value(text)):
            raise ConfigError("\n".join(f"--set {name}: {sentence}" for name, sentence in refused.items()))
        if not _is_known(key):
            unknown = f"an unknown key ({near(key, known_keys())})"
            raise ConfigError(
                ConfigProblem(f"--set {'.'.join(map(word, key.split('.')))}", "a key of the manifest", unknown)
            )
        _, *path = key.split(".", 2)
        target = result if len(path) == 1 else result.setdefault(path[0], {})
        if not isinstance(target, dict):
            raise ConfigError(ConfigProblem(f"run.{path[0]}", f"an object, to set {key} in it", shown(target)))
        target[path[-1]] = _value(text)
    return result


def _value(text: str) -> object:
    try:
        return loads(text)
    except ValueError:
        return text


def known_keys() -> dict[str, str]:
    """Return every manifest key in dotted form with its description; the keys inside options are not listed."""
    keys: dict[str, str] = {}
    for name, field in Manifest.model_fields.items():
        section = field.annotation
        keys[f"run.{name}"] = field.description or ""
        if isinstance(section, type) and issubclass(section, BaseModel):
            keys |= {f"run.{name}.{leaf}": inner.description or "" for leaf, inner in section.model_fields.items()}
    return keys


def diff(ours: str, theirs: str) -> list[Difference]:
    """Compare two manifests key by key, in the order of the keys; a key that one of them lacks is at its default.

    Args:
        ours: JSON of this peer's manifest, with or without the keys that are at their defaults.
        theirs: the text that a neighbor sent as its manifest; a text that is not a JSON object is one difference.
    """
    mine = _flat(loads(ours))
    try:
        their_value = loads(theirs)
    except ValueError:
        return [Difference("run", "a manifest", "no valid JSON")]
    if not isinstance(their_value, dict):
        return [Difference("run", "a manifest", shown(their_value))]
    other, usual = _flat(their_value), _defaults()
    values = {
        key: [each.get(key, usual.get(key, ABSENT)) for each in (mine, other)] for key in mine.keys() | other.keys()
    }
    return [Difference(key, *map(shortened, values[key])) for key in sorted(values) if values[key][0] != values[key][1]]


def _is_known(key: str) -> bool:
    run, name, leaf = [*key.split(".", 2), "", ""][:3]
    field = Manifest.model_fields.get(name)
    return key in known_keys() or (run == "run" and leaf != "" and field is not None and field.annotation == Options)


@cache  # a neighbor may send many manifests
def _defaults() -> dict[str, str]:
    return _flat(loads(canonical_json(Manifest())))


def _flat(run: dict[str, Any]) -> dict[str, str]:
    """Return dotted keys with values as texts; sections and options are one level deep, so no recursion is needed."""
    flat: dict[str, str] = {}
    for name, value in run.items():
        if isinstance(value, dict):
            flat |= {f"run.{word(name)}.{word(leaf)}": _text(inner) for leaf, inner in value.items()}
        else:
            flat[f"run.{word(name)}"] = _text(value)
    return flat


def _text(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value)) if not any(isinstance(v, list) for v in value) else 'lists'}]"
    return "an object" if isinstance(value, dict) else json.dumps(value)
