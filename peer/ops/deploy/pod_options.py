"""The option `--pod KEY=VALUE` of `peer deploy kubernetes`, as fields of `Cluster`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordinator_free_bootstrap.errors import UsageError

# key of the option -> the fields for the parts before and after a colon
_PAIRS = {"cpu": ("cpu", "cpu_limit"), "memory": ("memory", "memory_limit"), "storage": ("storage", "storage_class")}
_REPEATED = {"node": "node_selector", "pull-secret": "pull_secrets"}
KEYS = (*_PAIRS, "gpus", *_REPEATED)


def pod_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Return the fields of `Cluster` that the pairs set; an empty part beside a colon is left for the check of its value.

    Raises:
        UsageError: an unknown key, a key given twice that holds one value, or no number of GPUs.
    """
    fields: dict[str, Any] = {}
    given: set[str] = set()
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in KEYS:
            raise UsageError(f"--pod: expected KEY=VALUE with a key of {', '.join(KEYS)}, got {pair!r}.")
        if key in given and key not in _REPEATED:
            raise UsageError(f"--pod {key}: expected one value, got another one, {value!r}.")
        given.add(key)
        if key in _REPEATED:
            fields[_REPEATED[key]] = (*fields.get(_REPEATED[key], ()), value)
        elif key == "gpus":
            resource, colon, number = value.rpartition(":")
            if not number.isdecimal():
                raise UsageError(f"--pod gpus: expected a number, or RESOURCE:NUMBER, got {value!r}")
            fields |= {"gpus": int(number), "gpu_resource": resource if colon else None}
        else:
            first, colon, second = value.partition(":")
            fields |= {_PAIRS[key][0]: first, _PAIRS[key][1]: second if colon else None}
    return fields
