"""JSON as peers exchange it: one meaning for one text.

Python's reader lets through repeated keys, NaN and lone surrogates, on which readers may disagree; these are refused.
Every way to be wrong is a ValueError whose text is a sentence; the caller knows the file and says so.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn


def loads(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: not JSON, nested too deeply, a key twice in one object, NaN or Infinity, or text outside Unicode.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
        if "\\ud" in text or "\\uD" in text:  # only an escape can bring in half of a surrogate pair
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("found JSON nested too deeply; allowed: a few levels") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"found no valid JSON ({error}); allowed: one JSON value") from error
    except UnicodeEncodeError as error:
        raise ValueError("found an escape that is half of a surrogate pair; allowed: Unicode text") from error
    return value


def shown(value: object) -> str:
    """Return a short, printable form of a value from a file or a neighbor, for error messages."""
    if value is None or isinstance(value, bool | int | float | str):
        return shortened(json.dumps(value))
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else f"a {type(value).__name__}"


def shortened(text: str) -> str:
    """Return at most 80 characters of a text."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def word(key: str) -> str:
    """Return a key as it is if it is a plain word, else quoted: nobody's key may forge a line of a log."""
    return key if len(key) <= 80 and key.isascii() and key.replace("_", "a").isalnum() else shown(key)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"found the key {shown(twice)} twice in one object; allowed: once")
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"found {name}; allowed: finite numbers")
