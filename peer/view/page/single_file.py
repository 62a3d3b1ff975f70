"""A run as one self-contained HTML file: the same page, with styles, scripts and the film inside, and nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap.strict_json import dumps, printable
from peer.store.files import storage_errors
from peer.view.page.files import STATIC, script, styles
from peer.view.page.source import RunSource


def write_single_file(directory: Path, path: Path, against: Path | None = None) -> Path:
    """Write the run in a directory as one HTML file, the mean of another run over it; return the path.

    Raises:
        UsageError: there is no such directory.
        GraphError: a graph file is not valid.
        StorageError: a file cannot be read or written.
    """
    film = _film(directory)
    if against is not None:
        other = _film(against)
        film["run"]["other"] = {"title": printable(against.resolve().name), "frames": other["frames"]}
    page = single_file(film)
    with storage_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page)
    return path


def _film(directory: Path) -> dict[str, Any]:
    source = RunSource(directory)
    source.refresh()
    return source.film.everything()


def single_file(film: dict[str, Any]) -> str:
    """Return the HTML of a film (`peer.view.page.film.Film.everything`).

    Its policy (a ``meta`` element) allows exactly its own style sheet and scripts, by their SHA-256, and no connection.
    """
    page = (STATIC / "index.html").read_text()
    plots = (STATIC / "vendor" / "uplot.js").read_text().strip()
    texts = {
        "style": _closed(styles(), "style"),
        "plots": _closed(plots, "script"),
        "main": _closed(script(), "script"),
    }
    policy = (
        f"default-src 'none'; style-src {_hash(texts['style'])}; script-src {_hash(texts['plots'])} {_hash(texts['main'])}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    page = re.sub(r"<link [^>]*>\n", "", page)
    page = re.sub(r"<script [^>]*></script>\n", "", page)
    data = dumps(film, separators=(",", ":")).replace("<", "\\u003c")
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{texts["style"]}</style>\n</head>'
    body = (
        f'<script type="application/json" id="film">{data}</script>\n'
        f'<script>{texts["plots"]}</script>\n<script type="module">{texts["main"]}</script>\n</body>'
    )
    return page.replace("</head>", head).replace("</body>", body)


def _closed(text: str, tag: str) -> str:
    """Return a text that an inline element can hold.

    Raises:
        ValueError: the text would end the element.
    """
    if f"</{tag}" in text.lower() or "<!--" in text:
        raise ValueError(f"expected neither </{tag} nor <!-- in the page's own files, got one")
    return text


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
