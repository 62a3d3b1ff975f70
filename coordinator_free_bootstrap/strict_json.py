"""Strict JSON reader and writer, and short printable forms of untrusted values.

Repeated keys, NaN and lone surrogates are refused: Python's reader accepts them, and other readers may differ.
Every fault is a ValueError with a sentence; the caller adds the name of the file.
"""

from __future__ import annotations

import json
import math
import unicodedata
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
FOREIGN_CHARACTERS_MAX = 200  # of one text from a neighbor or peer in a log line, a table or a report
# Control, format (bidirectional marks too), surrogate and private characters, line and paragraph separators.
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def loads(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: not JSON, nested too deeply, a key twice in one object, NaN or Infinity, or text outside Unicode.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
        if "\\ud" in text or "\\uD" in text:  # a lone surrogate can only come from an escape
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("expected JSON of a few levels, got one nested too deeply. Remove levels.") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"expected one JSON value, got no valid JSON ({error})") from error
    except UnicodeEncodeError as error:
        raise ValueError("expected Unicode text, got an escape that is half of a surrogate pair") from error
    return value


def dumps(value: Any, **options: Any) -> str:
    """Return strict JSON, with null in place of NaN and Infinity; ``options`` are those of `json.dumps`."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:  # a diverged loss is NaN, which JSON does not have
        return json.dumps(finite(value), allow_nan=False, **options)


def finite(value: T) -> T:
    """Return a JSON value with None in place of each NaN and Infinity, at any depth, and lists in place of tuples."""
    result: Any = value
    if isinstance(value, float):
        result = value if math.isfinite(value) else None
    elif isinstance(value, dict):
        result = {key: finite(item) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        result = [finite(item) for item in value]
    same_type: T = result
    return same_type


def printable(text: str, most: int = FOREIGN_CHARACTERS_MAX) -> str:
    r"""Return foreign text as one line that is safe to print.

    Control, bidirectional and other format characters are escaped, e.g. U+202E as ``\u202e``. A longer text is cut at
    ``most`` printed characters, and its length follows: ``... (4058 characters)``.
    """
    if len(text) <= most and text.isascii() and text.isprintable():
        return text
    pieces: list[str] = []
    size = 0
    for character in text:
        unsafe = unicodedata.category(character) in _UNSAFE_CATEGORIES
        piece = character.encode("unicode_escape").decode() if unsafe else character
        size += len(piece)
        if size > most:
            return f"{''.join(pieces)}... ({len(text)} characters)"
        pieces.append(piece)
    return "".join(pieces)


def printable_lines(text: str, most: int) -> str:
    """Return each line of a text of several as `printable` does."""
    return "\n".join(printable(line, most) for line in text.split("\n"))


def shown(value: object) -> str:
    """Return a short, printable form of a value from a file or a neighbor, for error messages."""
    if value is None or isinstance(value, bool | int | float | str):
        return shortened(json.dumps(value))
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else of_type(value)


def of_type(value: object) -> str:
    """Return the type of a value with its article: "an int", "a list"; "None" for None."""
    return "None" if value is None else one(type(value))


def one(kind: type) -> str:
    """Return the name of a type with its article: "an int", "a list"."""
    name = kind.__name__
    return f"{'an' if name[0] in 'aeioAEIO' or name == 'ndarray' else 'a'} {name}"


def shortened(text: str) -> str:
    """Return at most 80 characters of a text."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def word(key: str) -> str:
    """Return a plain word unchanged and any other key quoted, so that a key cannot forge a log line."""
    return key if len(key) <= 80 and key.isascii() and key.replace("_", "a").isalnum() else shown(key)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"expected each key once, got {shown(twice)} twice in one object. Remove one.")
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"expected finite numbers, got {name}")
