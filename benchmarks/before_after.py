"""What a redesign changed: a table of this tree beside an earlier commit, measured in turn on one machine.

    python benchmarks/before_after.py BASE [--repeats 5] [--tests] [--save]

- Sizes: `.ci/size.py` of this tree counts both.
- Places: files of the product that name an option of `peer run`, a counter and an algorithm; the same ones in both trees.
- Path: `path.py` of this tree traces both. It knows BASE by the names that changed since (`RENAMED`).
- Transfer: processor ms per directed transfer, both ends together, four peers as processes; each tree's own benchmark.
- Engine step: processor ms in `Engine.step`, eight peers in one process; the median of the repeats, the trees in turn.
- Demo: SHA-256, cut to 8 digits, of all tensors of all models that `make demo` leaves; each tree's own command.
- Tests (with ``--tests``, about ten minutes): what `make test` runs, once in each tree.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from types import ModuleType

from record import new_parser, record
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[1]
PRODUCT = ("peer", "coordinator_free_bootstrap")
PLACES = {
    "an option, `tell_clusters`": ["tell_clusters"],
    "a counter, the median of ten": [
        "models_folded",
        "models_unused",
        "models_rejected",
        "models_adopted",
        "duplicates_dropped",
        "stale_dropped",
        "control_messages_sent",
        "selections_sent",
        "passes_sent",
        "rounds_alone",
    ],
    "an algorithm, the median of the zoo's": [
        "apfl",
        "cgpfl",
        "ditto",
        "dpfl",
        "fedem",
        "fedrep",
        "fedsoft",
        "perfedavg",
        "pfedme",
    ],
}
PASSED = re.compile(r"(\d+) passed.* in ([\d.]+)s")
SIZES = ("files", "lines", "tokens", "prose words")
RENAMED = {
    "PeerServicer": "PeerService",
    '"run.timeouts.suspicion_s=225"': '"run.timeouts.suspicion_s=225", "run.timeouts.heartbeat_s=45"',
}
PATH = "import path; print(*path.totals(path.measure()))"
TRANSFER = "import {0} as rounds; rounds.watch_processors(); print(rounds.measure(4, 20, []).transfer_ms)"
STEP = """
import time
import peer
from peer.core.engine import Engine
spent, step = [0.0, 0], Engine.step
def timed(*given):
    began = time.thread_time()
    try:
        return step(*given)
    finally:
        spent[0] += time.thread_time() - began
        spent[1] += 1
Engine.step = timed
run = {"algorithm": "dfedavg", "rounds": 40, "task": "linear", "split": "linear_synth"}
peer.simulate(peer.Graph.make("complete", peers=8, run=run))
print(1000 * spent[0] / spent[1])
"""


class Tree:
    """One tree, with the packages of this environment; its own come first.

    Args:
        root: with the folders ``peer`` and ``benchmarks``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def files_naming(self, word: str) -> int:
        """Return how many files of the product have this word."""
        found = re.compile(rf"\b{word}\b")
        sources = [path for folder in PRODUCT for path in (self.root / folder).rglob("*.py")]
        return sum(found.search(path.read_text(encoding="utf-8")) is not None for path in sources)

    def numbers(self, program: str) -> list[float]:
        """Return the numbers in the last line that a program prints, run in this tree.

        Raises:
            RuntimeError: the program failed.
        """
        asked = [sys.executable, "-c", program]
        done = self._run(asked)
        if done.returncode:
            raise RuntimeError(
                f"expected numbers from {self.root}, got exit code {done.returncode}:\n{done.stderr[-2000:]}"
            )
        return [float(word) for word in done.stdout.split("\n")[-2].split()]

    def demo(self) -> str:
        """Return a digest of the tensors of all models of the demo."""
        with tempfile.TemporaryDirectory() as out:
            asked = next(line for line in (self.root / "Makefile").read_text().splitlines() if "/peer testbed" in line)
            words = asked.replace("$(OUT)", out).split()[1:]
            done = self._run([sys.executable, "-m", "peer", *words])
            if done.returncode:
                raise RuntimeError(
                    f"expected the demo of {self.root}, got exit code {done.returncode}:\n{done.stderr[-2000:]}"
                )
            digest = hashlib.sha256()
            models = sorted(Path(out).rglob("*.safetensors"))
            for model in models:
                digest.update(str(model.relative_to(out)).encode())
                for name, tensor in sorted(load_file(model).items()):
                    digest.update(name.encode() + tensor.tobytes())
        return f"{len(models)} files, {digest.hexdigest()[:8]}"

    def tests(self, workers: int = 3) -> tuple[int, float]:
        """Return how many tests passed, and seconds, of what `make test` runs."""
        done = self._run([sys.executable, "-m", "pytest", "-n", str(workers), "--dist", "loadfile"])
        found = PASSED.search(done.stdout)
        if found is None:
            raise RuntimeError(f"expected a count of tests from {self.root}, got:\n{done.stdout[-2000:]}")
        return int(found[1]), float(found[2])

    def _run(self, asked: list[str]) -> subprocess.CompletedProcess[str]:
        paths = os.pathsep.join([str(self.root), str(self.root / "benchmarks")])
        environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        return subprocess.run(asked, cwd=self.root, env=environment, capture_output=True, text=True, check=False)

    def module(self, *names: str) -> str:
        """Return the first of the names that is a benchmark of this tree."""
        return next(name for name in names if (self.root / "benchmarks" / f"{name}.py").is_file())


def size_script() -> ModuleType:
    """Return `.ci/size.py` as a module."""
    spec = importlib.util.spec_from_file_location("size", ROOT / ".ci" / "size.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_runnable(root: Path) -> None:
    """Give an extracted tree the entry points of its own pyproject.toml, and the script that traces the path."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = root / f"{project['name'].replace('-', '_')}-0.dist-info"  # in place of the installed one
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n", encoding="utf-8")
    groups = [(group, entries) for group, entries in project.get("entry-points", {}).items()]
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items()) for group, entries in groups
    ]
    (about / "entry_points.txt").write_text("".join(lines), encoding="utf-8")
    text = (ROOT / "benchmarks" / "path.py").read_text(encoding="utf-8")
    for new, old in RENAMED.items():
        text = text.replace(new, old)
    (root / "benchmarks" / "path.py").write_text(text, encoding="utf-8")
    (root / "benchmarks" / "record.py").write_text((ROOT / "benchmarks" / "record.py").read_text(), encoding="utf-8")


def main() -> None:
    """Measure both trees and print one table."""
    parser = new_parser(__doc__)
    parser.add_argument("base", help="the commit before")
    parser.add_argument("--repeats", type=int, default=5, help="of what takes time")
    parser.add_argument("--tests", action="store_true", help="run the tests of both")
    given, size = parser.parse_args(), size_script()
    with tempfile.TemporaryDirectory() as folder:
        size.extract(ROOT, given.base, Path(folder))
        before, now = Tree(Path(folder)), Tree(ROOT)
        trees = (before, now)
        rows: list[list[object]] = []
        tables = [size.rows(tree.root) for tree in trees]
        rings = sorted(size.RING.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")))
        parts = [("= product", "product"), ("= kernel", "kernel"), ("= rings", "rings")]
        for name, label in [*parts, *((f"peer/{ring}", f"ring {ring}") for ring in rings), ("tests", "tests")]:
            summed = [
                sum(
                    (row for key, row in table.items() if key == name or key.startswith(f"{name}/")),
                    start=type(table["= product"])(),
                )
                for table in tables
            ]
            rows += [
                [f"{label}: {column}", *(f"{row[column]:,}" if row else "-" for row in summed)] for column in SIZES[:2]
            ]
        counts = [size.counts(tree.root) for tree in trees]
        rows += [[name, *(f"{count[name]:,}" for count in counts)] for name in counts[0]]
        for label, words in PLACES.items():
            medians = [statistics.median(map(tree.files_naming, words)) for tree in trees]
            rows.append([f"files that name {label}", *(f"{median:.0f}" for median in medians)])
        make_runnable(before.root)
        paths = [tree.numbers(PATH) for tree in trees]
        names = ("files", "calls", "files until answered", "calls until answered")
        rows += [
            [f"path of an arriving model: {name}", *(f"{path[i]:.0f}" for path in paths)]
            for i, name in enumerate(names)
        ]
        for label, programs in {
            "transfer, processor ms": [TRANSFER.format(tree.module("rounds", "round_overhead")) for tree in trees],
            "engine step, processor ms": [STEP] * 2,
        }.items():
            repeats = [
                [tree.numbers(p)[0] for tree, p in zip(trees, programs, strict=True)] for _ in range(given.repeats)
            ]
            medians = [statistics.median(values) for values in zip(*repeats, strict=True)]
            rows.append([label, *(f"{value:.3f}" for value in medians)])
        rows.append(["models of the demo", *(tree.demo() for tree in trees)])
        if given.tests:
            results = [tree.tests() for tree in trees]
            rows.append(["tests that pass", *(f"{passed:,}" for passed, _ in results)])
            rows.append(["tests, seconds", *(f"{seconds:.0f}" for _, seconds in results)])
    record(
        "before-after",
        "Before and after the kernel and its rings",
        ["measure", "before", "after"],
        rows,
        save=given.save,
    )


if __name__ == "__main__":
    main()
