r"""Benchmark 5, start: processor seconds and private memory of a lone `peer run`, stage by stage, beside `import torch` alone.

A real `peer run` (plaintext, digits, no neighbor up) reports itself when its modules are imported, after its first training step,
and when it listens; then it is told to leave. Each run is paired with a process that only imports torch; the ratio is the median
of the pairs. Private memory contains pages of files that no other process maps now; anonymous memory does not.

    python benchmarks/startup.py [--runs 5] [--installed] [--markdown FILE]

By default all bytecode is compiled once, by a run before the measured ones. ``--installed`` takes the bytecode as it is
installed, for example that of the image:

    docker run --rm -v "$PWD/benchmarks:/benchmarks:ro" --tmpfs /tmp --entrypoint python coordinator-free \
        /benchmarks/startup.py --installed
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

IMPORTS_SHOWN = 4
AIM_RATIO, AIM_PRIVATE_MB = 1.3, 190
STAGES = ("imported", "first step", "listening")


def memory_mb() -> tuple[float, float]:
    """Return the private and the anonymous MB of this process."""
    rows = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    kib = {row[0]: int(row[1]) for row in rows}
    return (kib["Private_Clean:"] + kib["Private_Dirty:"]) / 1000, kib["Anonymous:"] / 1000


class Stages:
    """Writes a line of JSON for each stage that this process reaches, once each."""

    def __init__(self, path: Path) -> None:
        self.path, self.known, self.reached = path, set(sys.modules), set[str]()

    def reach(self, name: str) -> None:
        """Report processor seconds, memory, and the packages imported since the stage before."""
        if name in self.reached:
            return
        self.reached.add(name)
        seconds, (private, anonymous) = time.process_time(), memory_mb()
        packages = Counter(module.partition(".")[0].lstrip("_") for module in sys.modules.keys() - self.known)
        self.known = set(sys.modules)
        line = {"stage": name, "seconds": seconds, "private": private, "anonymous": anonymous, "packages": packages}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def import_torch(stages: Stages) -> None:
    """Import torch and nothing else."""
    import torch  # noqa: F401

    stages.reach("torch")


def peer_run(stages: Stages, arguments: list[str]) -> None:
    """Run `peer run` with these arguments until it listens, with a report at each stage."""
    from peer.cli.main import main
    from peer.runtime.imports import importing

    with importing():  # as the command does
        from peer.learning.learner import Learner
        from peer.runtime import process

    run_peer, train = process.run_peer, Learner.train

    def running(*given: Any) -> int:
        stages.reach("imported")
        return run_peer(*given, on_listening=listening)  # type: ignore[misc]

    def training(*given: Any, **settings: Any) -> Any:
        result = train(*given, **settings)
        stages.reach("first step")
        return result

    def listening(_port: int) -> None:
        stages.reach("listening")
        os.kill(os.getpid(), signal.SIGTERM)

    process.run_peer, Learner.train = running, training  # type: ignore[assignment, method-assign]
    sys.argv[1:] = arguments
    main()


def measured(what: list[str], environment: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Run this file in a process of its own; return its lines by stage."""
    with tempfile.TemporaryDirectory() as place:
        lines = Path(place) / "stages.jsonl"
        command = [sys.executable, __file__, "--child", str(lines), *what]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        if result.returncode:
            raise RuntimeError(f"{command} failed:\n{result.stderr}")
        return {line["stage"]: line for line in map(json.loads, lines.read_text().splitlines())}


def table(runs: list[dict[str, dict[str, Any]]]) -> list[list[str]]:
    """Return one row per stage, the medians of all runs."""
    rows = []
    for stage in ("torch", *STAGES):
        seconds, private, anonymous = (
            statistics.median(run[stage][key] for run in runs) for key in ("seconds", "private", "anonymous")
        )
        ratio = statistics.median(run[stage]["seconds"] / run["torch"]["seconds"] for run in runs)
        packages = Counter(runs[0][stage]["packages"]).most_common()
        imported = ", ".join(f"{name} {count}" for name, count in packages[:IMPORTS_SHOWN])
        more = f", {len(packages) - IMPORTS_SHOWN} others" if len(packages) > IMPORTS_SHOWN else ""
        rows.append(
            [
                "import torch" if stage == "torch" else stage,
                f"{seconds:.2f}",
                f"{ratio:.2f}",
                f"{private:.0f}",
                f"{anonymous:.0f}",
                imported + more or "nothing",
            ]
        )
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        stages = Stages(Path(sys.argv[2]))
        if sys.argv[3] == "torch":
            import_torch(stages)
        else:
            peer_run(stages, sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--installed", action="store_true", help="take the bytecode as installed")
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    from common import show

    from coordinator_free_bootstrap import make_graph, save_graph

    with tempfile.TemporaryDirectory() as place:
        home, environment = Path(place), os.environ | {"OMP_NUM_THREADS": "1"}
        graph = home / "graph.json"
        save_graph(make_graph("complete", 2), graph)
        arguments = ["run", "--id", "0", "--neighbors", str(graph), "--insecure", "--listen", "127.0.0.1:0"]

        def pair() -> dict[str, dict[str, Any]]:
            state = tempfile.mkdtemp(dir=home)
            return measured(["torch"], environment) | measured([*arguments, "--state-dir", state], environment)

        if not options.installed:
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            environment["PYTHONPYCACHEPREFIX"] = str(home / "bytecode")
        pair()  # compiles, and reads the files into the page cache
        rows = table([pair() for _ in range(options.runs)])
    header = [
        "stage",
        "processor s",
        f"of import torch (aim {AIM_RATIO})",
        f"private MB (aim {AIM_PRIVATE_MB})",
        "anonymous MB",
        "modules imported since the stage before",
    ]
    show("Start of one peer run, until it listens", header, rows, options.markdown)


if __name__ == "__main__":
    main()
