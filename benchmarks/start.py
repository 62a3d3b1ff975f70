r"""What a peer costs at its start, alone and in containers, and what it holds.

    python benchmarks/start.py [stages memory containers] [--runs 5] [--installed] [--save]

Stages: processor seconds and private memory of a lone `peer run`, stage by stage, beside `import torch` alone. A real `peer
run` (plaintext, digits, no neighbor up) reports itself when its modules are imported, after its first training step, and when
it listens; then it gets SIGTERM. Each run is paired with a process that only imports torch; the ratio is the median of the
pairs. Private memory contains pages of files that no other process maps now; anonymous memory does not. By default all bytecode
is compiled once, by a run before the measured ones. ``--installed`` takes it as it is installed, for example in the image:

    docker run --rm -v "$PWD/benchmarks:/benchmarks:ro" --tmpfs /tmp --entrypoint python coordinator-free \
        /benchmarks/start.py stages --installed

Memory: private memory in the middle of a run, in a testbed and alone. A peer's models are its k slots, one second average, the
arrivals in flight, and PyTorch's copy with its gradient: counted as k + 4 models and subtracted.

Containers: `docker-compose up` of the repository's graph, with an image that is there, until eight peers listen, and until the
first round is closed, by the peers' own histories. Processor seconds are those of each container's control group, read when all
peers have closed the first round. Without a running Docker engine, root starts one from Debian's packages, and the image is
built first.
"""

from __future__ import annotations

import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
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
        from peer.learning.learner import TorchLearner
        from peer.runtime import process

    run_peer, train = process.run_peer, TorchLearner.train

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

    process.run_peer, TorchLearner.train = running, training  # type: ignore[assignment, method-assign]
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


# ---- memory ----------------------------------------------------------------------------------------------------------

MODELS_BESIDE_SLOTS = 4
ROUND = 10  # sampled after this one: buffers have reached their size by then


def in_testbed(peers: int) -> tuple[float, float]:
    """Return the median private MB of a forked peer, and its models' MB."""
    from testbeds import QUICK, last_round, loopback_graph, private_mb, run

    graph = loopback_graph("regular", peers, [*QUICK, "run.rounds=40"], degree=4)
    samples: dict[int, float] = {}

    def sample(bed: Any, out: Path) -> None:
        for peer in bed.processes:
            history = out / f"peer-{peer}" / "history.jsonl"
            if peer not in samples and history.exists() and last_round(history)[0] >= ROUND:
                samples[peer] = private_mb(bed.pid(peer))

    outcome = run(graph, while_running=sample)
    parameters = next(outcome.lines("start"))["parameters"]
    slots = graph.manifest.clusters
    return statistics.median(samples.values()), (slots + MODELS_BESIDE_SLOTS) * parameters * 4 / 1e6


def alone() -> tuple[float, float]:
    """Return the largest private MB of `peer run`, sampled while it lives, and its models' MB."""
    from testbeds import QUICK, directory, loopback_graph, private_mb

    from coordinator_free_bootstrap import save_graph

    graph = loopback_graph("complete", 2, [*QUICK, "run.rounds=60"])
    with directory() as out:
        save_graph(graph, out / "graph.json")
        program = [sys.executable, "-m", "peer", "run", "--insecure", "--neighbors", str(out / "graph.json")]
        commands = [[*program, "--id", str(i), "--state-dir", str(out / f"peer-{i}")] for i in graph.ids]
        processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in commands]
        largest = 0.0
        while processes[0].poll() is None:
            try:
                largest = max(largest, private_mb(processes[0].pid))
            except (FileNotFoundError, ProcessLookupError):
                break
            try:
                processes[0].wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        codes = [process.wait(60) for process in processes]
        if any(codes):
            raise RuntimeError(f"peer run failed: exit codes {codes}")
        start = json.loads((out / "peer-0" / "history.jsonl").read_text().splitlines()[0])
    return largest, (graph.manifest.clusters + MODELS_BESIDE_SLOTS) * start["parameters"] * 4 / 1e6


# ---- containers ------------------------------------------------------------------------------------------------------

LISTENING_AIM_S, ROUND_AIM_S = 15.0, 5.0


def history(container: Any) -> list[dict[str, Any]]:
    """Return the history of a peer, read from its volume; empty before its first line."""
    try:
        parts, _ = container.get_archive("/state/history.jsonl")
    except Exception as error:  # of the engine's client: the file is not there yet
        if getattr(error, "status_code", None) != 404:
            raise
        return []
    with tarfile.open(fileobj=io.BytesIO(b"".join(parts))) as archive:
        file = archive.extractfile(archive.getmembers()[0])
        assert file is not None
        lines = file.read().decode().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def first(container: Any, kind: str) -> float | None:
    """Return when a peer wrote its first line of a kind."""
    from testbeds import wall

    return next((wall(line) for line in history(container) if line["kind"] == kind), None)


def brought_up(host: str, graph: Any) -> tuple[float, float, float]:
    """Bring the project up once: seconds to listening, from there to the end of round 1, processor seconds of a peer."""
    from project import Project

    with tempfile.TemporaryDirectory(prefix="compose-start-") as name, Project(host, Path(name), graph) as project:
        began = time.time()
        with project.started("up", "--no-color") as up:
            try:
                peers = {i: project.until(partial(project.peer, i), f"a container of peer {i}") for i in graph.ids}
                closed = {
                    i: project.until(partial(first, peers[i], "round"), f"peer {i} closes a round") for i in graph.ids
                }
                started = [first(peer, "start") or began for peer in peers.values()]
                used = [peer.stats(stream=False)["cpu_stats"]["cpu_usage"]["total_usage"] for peer in peers.values()]
            finally:
                up.terminate()
                up.communicate(timeout=120)
    listening = max(started)
    return listening - began, max(closed.values()) - listening, statistics.mean(used) / 1e9


# ---- all of them --------------------------------------------------------------------------------------------------------


def stages(runs: int, *, installed: bool) -> list[list[str]]:
    """Return a row for each stage of a lone start."""
    from coordinator_free_bootstrap import make_graph, save_graph

    with tempfile.TemporaryDirectory() as place:
        home, environment = Path(place), os.environ | {"OMP_NUM_THREADS": "1"}
        graph = home / "graph.json"
        save_graph(make_graph("complete", 2), graph)
        arguments = ["run", "--id", "0", "--neighbors", str(graph), "--insecure", "--listen", "127.0.0.1:0"]

        def pair() -> dict[str, dict[str, Any]]:
            state = tempfile.mkdtemp(dir=home)
            return measured(["torch"], environment) | measured([*arguments, "--state-dir", state], environment)

        if not installed:
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            environment["PYTHONPYCACHEPREFIX"] = str(home / "bytecode")
        pair()  # compiles, and reads the files into the page cache
        return table([pair() for _ in range(runs)])


def memory(peers: int) -> list[list[object]]:
    """Return a row for a peer of a testbed, and one for a lone peer."""
    rows: list[list[object]] = []
    for name, (private, models), aim in (
        (f"testbed of {peers}, each peer", in_testbed(peers), 18),
        ("one peer run", alone(), 190),
    ):
        rows.append([name, f"{private:.1f}", f"{models:.1f}", f"{private - models:.1f}", aim])
    return rows


def containers(runs: int) -> list[list[object]]:
    """Return a row for each start of eight containers."""
    sys.path[:0] = [str(ROOT / "tests" / "compose"), str(ROOT / "tests")]
    import engine

    from coordinator_free_bootstrap import load_graph

    graph = load_graph(ROOT / "deploy" / "graph.json")
    with engine.engine() as host:
        engine.build(host)
        found = [brought_up(host, graph) for _ in range(runs)]
    return [[run + 1, f"{up:.1f}", f"{closed:.1f}", f"{used:.2f}"] for run, (up, closed, used) in enumerate(found)]


def main() -> None:
    """Measure the parts that are named and print a table for each; a child process reports its stages."""
    if sys.argv[1:2] == ["--child"]:
        reported = Stages(Path(sys.argv[2]))
        if sys.argv[3] == "torch":
            import_torch(reported)
        else:
            peer_run(reported, sys.argv[3:])
        return
    from record import new_parser, record

    parser = new_parser(__doc__)
    parser.add_argument("parts", nargs="*", default=["stages", "memory"], help="stages, memory, containers")
    parser.add_argument("--runs", type=int, default=5, help="of the stages and of the containers")
    parser.add_argument("--peers", type=int, default=8, help="of the testbed")
    parser.add_argument("--installed", action="store_true", help="take the bytecode as installed")
    given = parser.parse_args()
    if unknown := set(given.parts) - {"stages", "memory", "containers"}:
        parser.error(f"expected stages, memory or containers, got {', '.join(sorted(unknown))}")
    if "stages" in given.parts:
        columns = ["stage", "processor s", f"of import torch (aim {AIM_RATIO})", f"private MB (aim {AIM_PRIVATE_MB})"]
        columns += ["anonymous MB", "modules imported since the stage before"]
        rows = stages(given.runs, installed=given.installed)
        record("start", "Start of one peer run, until it listens", columns, rows, save=given.save)
    if "memory" in given.parts:
        columns = ["what", "private MB", "its models MB", "beyond models MB", "aim MB"]
        record("memory", "Memory", columns, memory(given.peers), save=given.save)
    if "containers" in given.parts:
        columns = ["run", f"all listening after s (aim {LISTENING_AIM_S:.0f})"]
        columns += [f"first round closed, s later (aim {ROUND_AIM_S:.0f})", "processor s of a peer so far"]
        record("start-containers", "Start in containers, 8 peers", columns, containers(given.runs), save=given.save)


if __name__ == "__main__":
    main()
