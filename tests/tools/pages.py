"""The code of a Markdown page: blocks, command lines in them, code spans of running text. It needs the standard library only."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CODE = re.compile(
    r"^```(?P<language>\w*)\n(?P<fenced>[\s\S]*?)^```$|(?P<indented>^ {4}.*\S.*\n(?:(?:[ \t]*\n)*^ {4}.*\S.*\n)*)",
    re.MULTILINE,
)
SPAN = re.compile(r"`([^`]+)`")
FILE = re.compile(r"# (\w+\.py)\n")


@dataclass(frozen=True)
class CodeBlock:
    """A block of code. ``line``: of its first line, from 1; ``language``: of its fence, "" without one."""

    line: int
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """Name of the file that the block shows: its first line is ``# NAME.py``."""
        found = FILE.match(self.text)
        return found[1] if found else None

    def commands(self) -> Iterator[tuple[int, str]]:
        """Yield each line with its number; a backslash joins it with the next one."""
        whole, first = "", self.line
        for number, line in enumerate(self.text.splitlines(), start=self.line):
            whole, first = (f"{whole}\n{line}", first) if whole else (line, number)
            if not line.endswith("\\"):
                if whole.strip():
                    yield first, whole
                whole = ""


def code_blocks(text: str) -> list[CodeBlock]:
    """Return the blocks of a page, fenced and indented, in their order."""
    found = []
    for match in CODE.finditer(text):
        part = "indented" if match["indented"] else "fenced"
        line = text.count("\n", 0, match.start(part)) + 1
        found.append(CodeBlock(line, match["language"] or "", textwrap.dedent(match[part])))
    return found


def prose(text: str) -> str:
    """Return a page without its blocks."""
    return CODE.sub("\n", text)


def spans(text: str) -> list[str]:
    """Return the code spans of running text, each as one line."""
    return [" ".join(span.split()) for span in SPAN.findall(prose(text))]


def write_files(page: Path, folder: Path) -> list[str]:
    """Write the files that a page shows into a folder, and return their names."""
    shown = {block.file: block.text for block in code_blocks(page.read_text(encoding="utf-8")) if block.file}
    for name, text in shown.items():
        (folder / name).write_text(text, encoding="utf-8")
    return list(shown)
