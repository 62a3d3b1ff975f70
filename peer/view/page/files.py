"""The static files of the page, which are in the package."""

from __future__ import annotations

import re
from pathlib import Path

STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)


def styles() -> str:
    """Return all style sheets of the page, in its order."""
    page = (STATIC / "index.html").read_text()
    return "\n".join((STATIC / name).read_text() for name in re.findall(r'rel="stylesheet" href="([^"]+)"', page))


def script() -> str:
    """Return the page's modules as one: each after those that it imports, in one scope, without imports and exports."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        text = (STATIC / name).read_text()
        done[name] = ""  # a circle ends here; names are looked up when the page runs
        for other in _IMPORT.findall(text):
            add(other)
        del done[name]
        done[name] = re.sub(r"^export ", "", _IMPORT.sub("", text), flags=re.MULTILINE)

    add("main.js")
    return "\n".join(done.values())
