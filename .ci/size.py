"""Print the size of the project, and what has changed since a base commit. A thermometer, no gate.

    python .ci/size.py [BASE]        # default: the last tag, else where the branch left origin/main

Rows are folders: files, all lines, tokens of code (without comments and docstrings), and words of comments and docstrings.
Generated code is left out. Then what readers and users meet: manifest keys, options of commands, `Any`, `type: ignore`, words of
documentation.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PRODUCT = ("coordinator_free_bootstrap", "peer")
FOLDERS = ("peer", "tests")  # whose own folders have a row each
GENERATED = "generated"
SILENT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}
BETWEEN = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}  # a statement begins after these
RING = re.compile(r"^\| `peer\.(\w+)` \| [^|]+ \| [^|]+ \|$", re.MULTILINE)  # rows of the table in docs/architecture.md
COLUMNS = ("files", "lines", "tokens", "prose words")

# Runs in the tree that it counts: the keys of the manifest, and the options of all commands but --help.
COUNT = """
import pathlib
import peer
assert pathlib.Path(peer.__file__).is_relative_to(pathlib.Path.cwd()), "another one is installed"
import typer.main
from peer.cli.main import app
from peer.cli.graph import described
from coordinator_free_bootstrap import Manifest

def options(command, context=None):
    names = getattr(command, "list_commands", None)
    if names is None:
        return sum(p.param_type_name == "option" and p.name != "help" for p in command.params)
    context = command.context_class(command, parent=context, info_name=command.name)
    return sum(options(command.get_command(context, name), context) for name in names(context))

print(len(list(described(Manifest, "run"))), options(typer.main.get_command(app)))
"""

Files = dict[str, str]  # path from the root -> text
Table = dict[str, Counter[str]]


def main() -> None:
    """Print the tables of the working tree, with differences where the base commit is here."""
    root = Path(git(Path.cwd(), "rev-parse", "--show-toplevel") or ".")
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    table, counted, table_before, counted_before = rows(root), counts(root), {}, {}
    if base := base_of(root, wanted):
        with tempfile.TemporaryDirectory() as place:
            extract(root, base, Path(place))
            table_before, counted_before = rows(Path(place)), counts(Path(place))
        print(f"size, and the difference to {base[:12]}")
    else:
        found = f"no commit {wanted}" if wanted else "neither a tag nor origin/main"
        print(
            f"size, without differences: {found} in this clone; fetch it (git fetch --unshallow --tags), or give BASE=COMMIT"
        )
    print_table(table, table_before)
    print_counts(counted, counted_before)


def git(root: Path, *words: str) -> str:
    """Return what a git command prints; "" if it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def base_of(root: Path, wanted: str) -> str:
    """Return the commit to compare with; "" if it is not in this clone."""
    name = wanted or git(root, "describe", "--tags", "--abbrev=0") or git(root, "merge-base", "HEAD", "origin/main")
    return git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}") if name else ""


def extract(root: Path, commit: str, place: Path) -> None:
    """Write the files of a commit into a folder."""
    archive = subprocess.run(["git", "archive", commit], cwd=root, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(place, filter="data")


def texts(root: Path, suffix: str) -> Files:
    """Return the files with a suffix: of a git repository those that are not ignored, of another folder all."""
    listed = git(root, "ls-files", "--cached", "--others", "--exclude-standard", f"*{suffix}").splitlines()
    paths = [root / name for name in listed] if (root / ".git").exists() else sorted(root.rglob(f"*{suffix}"))
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths if path.is_file()}


def rows(root: Path) -> Table:
    """Return the measures of each folder, and the sums of kernel and rings."""
    architecture = root / "docs" / "architecture.md"
    rings = set(RING.findall(architecture.read_text())) if architecture.is_file() else set()
    table: Table = {}
    for path, text in texts(root, ".py").items():
        parts = PurePosixPath(path).parts
        if GENERATED in parts:
            continue
        deep = parts[0] in FOLDERS and len(parts) > 2
        found = measured(text)
        table.setdefault("/".join(parts[: 1 + deep]), Counter()).update(found)
        if parts[0] in PRODUCT:
            table.setdefault("= product", Counter()).update(found)
            table.setdefault("= rings" if deep and parts[1] in rings else "= kernel", Counter()).update(found)
    return table


def measured(text: str) -> Counter[str]:
    """Return files, lines, tokens of code and words of prose of a Python file."""
    found = Counter(dict.fromkeys(COLUMNS, 0)) | Counter(files=1, lines=text.count("\n"))
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for token, prose in with_prose(tokens):
        if prose:
            found["prose words"] += len(token.string.strip("#\"' \n").split())
        elif token.type not in SILENT:
            found["tokens"] += 1
    return found


def with_prose(tokens: list[tokenize.TokenInfo]) -> Iterator[tuple[tokenize.TokenInfo, bool]]:
    """Yield each token, and whether it is a comment or a docstring: a text that is a statement of its own."""
    before = tokenize.ENCODING
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        alone = after is not None and after.type == tokenize.NEWLINE and before in BETWEEN
        yield token, token.type == tokenize.COMMENT or (token.type == tokenize.STRING and alone)
        before = before if token.type in (tokenize.NL, tokenize.COMMENT) else token.type


def counts(root: Path) -> dict[str, int | None]:
    """Return what readers and users meet; None where the tree cannot be asked."""
    program = [sys.executable, "-c", COUNT]
    asked = subprocess.run(program, cwd=root, env=environment(root), capture_output=True, text=True, check=False)
    keys, options = map(int, asked.stdout.split()) if asked.returncode == 0 else (None, None)
    product = [text for path, text in texts(root, ".py").items() if path.startswith(PRODUCT) and GENERATED not in path]
    tokens = [token for text in product for token in tokenize.generate_tokens(io.StringIO(text).readline)]
    documents = {path: text for path, text in texts(root, ".md").items() if not path.startswith(".")}
    return {
        "manifest keys": keys,
        "options of commands": options,
        "Any": sum(token.type == tokenize.NAME and token.string == "Any" for token in tokens),
        "type: ignore": sum(token.type == tokenize.COMMENT and "type: ignore" in token.string for token in tokens),
        "words of docs": sum(words(text) for path, text in documents.items() if path.startswith("docs/")),
        "words of all documents": sum(words(text) for text in documents.values()),
    }


def words(text: str) -> int:
    """Return the number of words of a text; the bars of tables and other signs alone are none."""
    return sum(any(map(str.isalnum, word)) for word in text.split())


def environment(root: Path) -> dict[str, str]:
    """Return the environment of a program that imports the packages of a tree."""
    return os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}


def print_table(now: Table, before: Table) -> None:
    """Print a row for each folder; the sums come first."""
    print(f"{'':32}" + "".join(f"{column:>22}" for column in COLUMNS))
    for name in sorted({*now, *before}, key=lambda name: (not name.startswith("="), name)):
        here, there = now.get(name, Counter()), before.get(name, Counter())
        shown = (with_difference(here[column], there[column] if before else None) for column in COLUMNS)
        print(f"{name:32}" + "".join(f"{text:>22}" for text in shown))


def print_counts(now: dict[str, int | None], before: dict[str, int | None]) -> None:
    """Print a line for each count."""
    for name, value in now.items():
        print(f"{name:32}{with_difference(value, before.get(name)):>22}")


def with_difference(now: int | None, before: int | None) -> str:
    """Return ``1,234 (+5)``."""
    if now is None:
        return "unknown"
    return f"{now:,}" if before is None else f"{now:,} ({now - before:+,})" if now != before else f"{now:,} (0)"


if __name__ == "__main__":
    main()
