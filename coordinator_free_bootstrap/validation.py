"""Validation errors of pydantic as sentences: file, field, expected values, got value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from coordinator_free_bootstrap.gone import gone
from coordinator_free_bootstrap.strict_json import shown, word

_PROBLEMS_SHOWN = 10
_OF_PYDANTIC = "Input should be "
_INSTANCES = {"Path": "a path", "Sequence": "a list"}
# kind of pydantic's errors -> what was expected, with the limits of the error's context
_WORDS = {
    **dict.fromkeys(
        ("model_type", "model_attributes_type", "dataclass_type", "dict_type", "mapping_type"), "an object"
    ),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("list_type", "tuple_type", "iterable_type"), "a list"),
    "finite_number": "a finite number",
    "none_required": "null",
    "string_type": "a text",
    "string_too_short": "a text of at least {min_length} characters",
    "string_too_long": "a text of at most {max_length} characters",
    "string_pattern_mismatch": "a text that matches {pattern}",
    "path_type": "a path",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
}

Location = tuple[int | str, ...]


def sentences(error: ValidationError, model: type[BaseModel] | None, data: object, prefix: str = "") -> list[str]:
    """Return one sentence per wrong field of ``data``, without the name of the file.

    Args:
        error: raised by validating ``data`` against ``model``.
        model: the outermost model; an unknown key is compared with its fields. None: it refuses no key.
        data: the JSON value that was validated.
        prefix: dotted path of ``data`` in its file, for example ``"run"``.
    """
    expected: dict[tuple[str, str], list[str]] = {}  # by field and what it holds; "": the rule is a whole sentence
    for item in error.errors(include_url=False):
        location, kind = item["loc"], item["type"]
        depth, value = _walk(data, location)
        if kind == "missing":
            field, got, rules = _dotted(prefix, location), "nothing", ["this required key"]
        elif kind == "value_error":  # a rule over several fields; its validator wrote the sentence
            field, got, rules = _dotted(prefix, location), "", phrases(item)
        else:
            field, got, rules = _dotted(prefix, location[:depth]), shown(value), phrases(item)
            if kind == "extra_forbidden" and model is not None:
                if refused := gone(_dotted(prefix, location), value):
                    expected |= {(key, ""): [sentence] for key, sentence in refused.items()}
                    continue
                got += f" ({near(str(location[-1]), _fields_at(model, location[:-1]))})"
                rules = ["no such key"]
        # pydantic reports each member of a union; they are alternatives of one field
        expected.setdefault((field, got), []).extend(rules)
    return [
        f"{field}: expected {alternatives(rules)}, got {got}" if got else f"{field}: {rules[0]}"
        for (field, got), rules in expected.items()
    ]


def phrases(item: Mapping[str, Any]) -> list[str]:
    """Return what one of pydantic's errors expected, in this project's words; several phrases are alternatives.

    >>> phrases({"type": "greater_than_equal", "msg": "Input should be greater than or equal to 1", "ctx": {"ge": 1}})
    ['at least 1']
    >>> phrases({"type": "literal_error", "msg": "...", "ctx": {"expected": "'never', 'completed' or 'error'"}})
    ['never', 'completed', 'error']
    """
    kind, context = item["type"], item.get("ctx", {})
    if kind in ("literal_error", "enum"):
        return [choice(each) for each in context["expected"].replace(" or ", ", ").split(", ")]
    if kind == "is_instance_of":
        return [_INSTANCES.get(context["class"], f"an object of class {context['class']}")]
    words, limits = _WORDS.get(kind), {name: _plain(value) for name, value in context.items()}
    return [words.format(**limits) if words else item["msg"].removeprefix("Value error, ").removeprefix(_OF_PYDANTIC)]


def alternatives(several: Iterable[str]) -> str:
    """Return phrases as one, each once.

    >>> alternatives(["all", "deadline", "a number", "a number"])
    'all, deadline or a number'
    """
    *others, last = dict.fromkeys(several)
    return f"{', '.join(others)} or {last}" if others else last


def _plain(limit: object) -> object:
    """Return a limit; a whole number as an integer, as people write it."""
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def choice(text: str) -> str:
    """Return one of several allowed values as messages name it: a word without its quotation marks."""
    inner = text.strip("'")
    return inner if re.fullmatch(r"[\w.+-]*\w[\w.+-]*", inner) else text


def joined(source: str, problems: list[str]) -> str:
    """Return an error message with one line per problem; each line starts with the name of the file, if there is one."""
    lines = problems[:_PROBLEMS_SHOWN]
    if len(problems) > _PROBLEMS_SHOWN:
        lines.append(f"and {len(problems) - _PROBLEMS_SHOWN} more problems")
    return "\n".join(f"{source}: {line}" if source else line for line in lines)


def near(key: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown key: similar known keys, else all known keys."""
    names = list(known)
    leaf = key.rpartition(".")[2]
    matches = [name for name in names if name.rpartition(".")[2] == leaf] or difflib.get_close_matches(key, names)
    return f"did you mean {' or '.join(matches)}?" if matches else f"known: {', '.join(names)}"


def unknown_name(key: str, got: str, known: Iterable[str], *others: str) -> str:
    """Return an error message for an unknown name: the key, all known names and other forms, and the nearest names."""
    names = sorted(known)
    matches = difflib.get_close_matches(got, names)
    hint = f" (did you mean {' or '.join(matches)}?)" if matches else ""
    choices = [*names, *others]
    return f"{key}: expected {'one of ' if choices else 'none'}{', '.join(choices)}, got {got!r}{hint}"


def counted(count: int, noun: str) -> str:
    """Return the count with its noun: "1 edge", "2 edges"; a noun in s has the plural ses, one in a consonant and y ies."""
    plural = (
        f"{noun[:-1]}ies"
        if noun[-1] == "y" and noun[-2] not in "aeiou"
        else f"{noun}es"
        if noun.endswith("s")
        else f"{noun}s"
    )
    return f"{count} {noun if count == 1 else plural}"


def _walk(data: Any, location: Location) -> tuple[int, object]:
    """Return depth and value where a location ends in the data; its rest names a member of a union, not a field."""
    depth = 0
    for part in location:
        present = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
        if part not in present:
            break
        data = data[part]
        depth += 1
    return depth, data


def _dotted(prefix: str, location: Location) -> str:
    """Return ``nodes[3].address`` for ("nodes", 3, "address"); keys that are not plain words are quoted."""
    text = prefix
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{word(part)}" if text else word(part)
    return text or "the file"


def _fields_at(model: type[BaseModel], location: Location) -> list[str]:
    for part in location:
        if isinstance(part, str):
            model = _model_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)
