"""Texts with a part for each peer, such as ``node.example:{id+30400}``: addresses, and folders of data."""

from __future__ import annotations

import re

from coordinator_free_bootstrap.errors import ConfigProblem, GraphError, Option

_PLACEHOLDER = re.compile(r"\{([a-z]+)([+-][0-9]{1,9})?\}")


def fill_template(template: str, what: Option | str, **values: int) -> str:
    """Return a text with its placeholders replaced: ``{name}``, ``{name+N}`` and ``{name-N}`` for each value.

    Args:
        template: the text.
        what: names the text in errors.
        values: whole numbers by name, such as ``id``.

    Raises:
        GraphError: another placeholder, a single brace, or a number below 0.
    """

    def number(found: re.Match[str]) -> str:
        if found[1] not in values:
            return found[0]
        result = values[found[1]] + int(found[2] or 0)
        if result < 0:
            place = ", ".join(f"{name} {value}" for name, value in values.items())
            raise GraphError(
                ConfigProblem(what, "numbers of 0 or more", f"{template!r}, where {found[0]} is {result} for {place}")
            )
        return str(result)

    text = _PLACEHOLDER.sub(number, template)
    if "{" in text or "}" in text:
        first, *others = values
        known = ", ".join([f"{{{first}}}", f"{{{first}+1}}", *(f"{{{name}}}" for name in others)])
        expected = f"placeholders of {known}, with any whole number after + or -"
        raise GraphError(ConfigProblem(what, expected, repr(template)))
    return text
