"""Build the site from the pages of the repository as they are: ``make docs``.

A page is a Markdown file that `docs/index.md` names, or a table of a paper; the index's lists are the navigation. Links to other
files of the repository become downloads, so that the site needs no repository beside it; a link that leads nowhere is an error.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

project = "coordinator-free"
author = copyright = "coordinator-free contributors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "proto/WIRE.md", "papers/**", "examples/**/README.md", "tests/README.md"]
exclude_patterns = ["out*", ".*", "build"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 6
suppress_warnings = ["toc.not_included"]  # tables of papers, READMEs of examples and the like: pages link to them
napoleon_use_ivar = True
html_theme = "furo"
html_title = project
html_static_path = ["site"]
html_css_files = ["site.css"]
html_show_sphinx = False
autodoc_typehints = "description"
autodoc_member_order = "bysource"
add_module_names = False
pygments_style, pygments_dark_style = "friendly", "github-dark"

PART = re.compile(r"^## (.+)\n((?:(?!^## ).*\n?)*)", re.MULTILINE)
LINK = re.compile(r"^- \[([^\]]+)\]\(([^)]+\.md)\)", re.MULTILINE)
FOLDER = re.compile(r"\]\(([^)\s:#]+)\)")
HELP = ROOT / "tests" / "unit" / "cli" / "help"


def navigation(index: str) -> str:
    """Return a hidden table of contents for each part of the index."""
    parts = []
    for name, text in PART.findall(index):
        pages = "\n".join(
            f"{title} </{(ROOT / 'docs' / link).resolve().relative_to(ROOT)}>" for title, link in LINK.findall(text)
        )
        parts.append(f"```{{toctree}}\n:hidden:\n:caption: {name}\n\n{pages}\n```\n")
    return "\n".join(parts)


def helps() -> str:
    """Return the recorded help of every verb; a test compares it with the program's."""
    texts = sorted(HELP.glob("*.txt"), key=lambda path: (path.stem != "peer", path.stem))
    verbs = [path.read_text(encoding="utf-8") for path in texts]
    usage = re.compile(r"Usage: (peer(?: [a-z]+)*)")
    return "".join(f"\n### {usage.search(text)[1]}\n\n```text\n{text}```\n" for text in verbs)  # type: ignore[index]


def docstrings() -> str:
    """Return the directives that write the docstrings of all names of `import peer`."""
    import peer

    lines = []
    for name in peer.__all__:
        value = getattr(peer, name)
        if not getattr(value, "__module__", "").startswith(("peer", "coordinator_free")):
            continue  # a type variable, or a name for a type of another package
        if isinstance(value, type):
            lines += [f".. autoclass:: peer.{name}", "   :members:", ""]
        elif callable(value):
            lines += [f".. autofunction:: peer.{name}", ""]
    return "\n```{eval-rst}\n" + "\n".join(lines) + "```\n"


ADDED = {"docs/index": None, "docs/commands": helps, "docs/api": docstrings}


def extend(app: Any, name: str, source: list[str]) -> None:
    """Add to a page what only the site has, and let links to a folder lead to its README."""
    if name in ADDED:
        added = ADDED[name]
        source[0] += "\n" + (navigation(source[0]) if added is None else added())
    here = (ROOT / name).parent
    source[0] = FOLDER.sub(lambda found: f"]({with_readme(here, found[1])})", source[0])


def keep_colons(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Let napoleon read no type from the first line of a property, whose sentence may have a colon."""
    if what in ("attribute", "property"):
        lines.insert(0, "")


def with_readme(here: Path, link: str) -> str:
    """Return a link; of a folder, that to its README."""
    return f"{link.rstrip('/')}/README.md" if (here / link).is_dir() else link


def redirect(app: Any, exception: Exception | None) -> None:
    """Let the top of the site lead to its index."""
    if exception is None:
        to = "docs/index.html"
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={to}"><a href="{to}">Documentation</a>\n'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Connect the functions of this file."""
    app.connect("source-read", extend)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
    app.connect("build-finished", redirect)
    return {"parallel_read_safe": True}
