"""This runtime beside p2pfl, QuinkGL, Flower and PFLlib: the same model, data and epochs, one after the other on this machine.

    python benchmarks/rivals.py [NAME ...] [--data digits mnist] [--hidden 256] [--rounds 12] [--repeats 3] [--kill] [--save]

Four nodes; a round is one epoch of SGD on a node's quarter of the samples, then an exchange; every system averages the models of
all nodes by their numbers of samples (QuinkGL: those of random ones). Each runs in an environment of its own, which the script
makes in `--environments` (gigabytes, once), and in a network namespace of its own, whose loopback counts the bytes: models,
headers, heartbeats. Seconds of a round are the median over nodes and rounds, without the first two; training is subtracted (in
a simulation that trains one node after the other, all of it). Memory is the sum over all processes of the system (PSS), at its
peak; processor seconds are of all of them from start to end; seconds to 90 % of the final accuracy count from the launch.

With --kill the process of node 3 gets a SIGKILL as it begins to train in round 4: the seconds lost are the longest round of a
survivor afterwards, less a usual one; in the last round, with what a system does at its end, they have a column of their own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from record import new_parser, record

from peer.zoo.tasks.datasets import load_pool

HERE = Path(__file__).parent / "rival_systems"
NODES, VICTIM, KILL_ROUND = 4, 3, 4
PFLLIB = "https://github.com/TsingZ0/PFLlib"
TORCH = "torch==2.13.0"
CAP_S = 240.0  # of a run
SAMPLE_S = 0.5  # between two looks at memory and processor
_COLORS = re.compile("\x1b\\[[0-9;]*m")
LEFT_S = 400.0  # of a run after a kill: p2pfl waits 300 s for a model that does not come


@dataclass(frozen=True)
class System:
    """One of the systems.

    Attributes:
        name: in the table.
        script: in `rival_systems`.
        packages: what pip installs after torch; none: it runs in this environment.
        one_process: its nodes train in turn.
        words: arguments of the script.
    """

    name: str
    script: str
    packages: tuple[str, ...] = ()
    one_process: bool = False
    words: tuple[str, ...] = ()

    def python(self, environments: Path) -> str:
        """Return its interpreter; make its environment if it is not there."""
        if not self.packages:
            return sys.executable
        place = environments / Path(self.script).stem
        python = place / "bin" / "python"
        if not (done := place / "made").exists():
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
            for packages in ([TORCH], [*self.packages, "scikit-learn"]):  # torch first: the build of this machine
                subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
            done.touch()
        return str(python)


_P2PFL = ("p2pfl==0.4.4", "lightning<3", "torchmetrics<2", "opendp", "pyarrow<18", "huggingface_hub<0.26", "rich")
_FLOWER = ("flwr[simulation]==1.42.0",)
SYSTEMS = {
    "this": System("this", "this_runtime.py"),
    "p2pfl": System("p2pfl 0.4.4", "p2pfl_nodes.py", _P2PFL),
    "quinkgl": System("QuinkGL 0.3.6", "quinkgl_nodes.py", ("quinkgl==0.3.6", "torchvision==0.28.0")),
    "flower": System("Flower 1.42, deployed", "flower_app.py", _FLOWER, words=("deployment",)),
    "flower-simulation": System("Flower 1.42, simulation", "flower_app.py", _FLOWER, words=("simulation",)),
    "pfllib": System("PFLlib, simulation", "pfllib_run.py", ("h5py", "matplotlib"), one_process=True),
}


class Network:
    """A network namespace with a loopback, what runs in it, and what that costs."""

    def __init__(self, command: list[str], environment: dict[str, str], output: Path) -> None:
        own = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
        inside = [*own, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]
        with output.open("w") as file:
            self.process = subprocess.Popen(inside, env=environment, cwd=output.parent, stdout=file, stderr=file)
        self.name = ""
        self.bytes = 0
        self.peak_mb = 0.0
        self._ticks: dict[int, int] = {}

    def sample(self) -> bool:
        """Look at all processes; return whether the first one still runs."""
        running = self.process.poll() is None
        if not self.name and running:
            found = _read(self.process.pid, "ns/net", link=True)
            self.name = found if found != _read(os.getpid(), "ns/net", link=True) else ""
        total_kb, pids = 0, self.pids()
        for pid in pids:
            if fields := _read(pid, "stat").rpartition(")")[2].split():
                self._ticks[pid] = int(fields[11]) + int(fields[12])
            memory = _read(pid, "smaps_rollup").splitlines()
            total_kb += sum(int(line.split()[1]) for line in memory if line.startswith("Pss:"))
        for line in _read(pids[0], "net/dev").splitlines() if pids else ():
            if line.strip().startswith("lo:"):
                self.bytes = max(self.bytes, int(line.split(":")[1].split()[0]))
        self.peak_mb = max(self.peak_mb, total_kb / 1000)
        return running

    def pids(self) -> list[int]:
        """Return the processes in it."""
        if not self.name:
            return []
        pids = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
        return [pid for pid in pids if _read(pid, "ns/net", link=True) == self.name]

    @property
    def processor_s(self) -> float:
        """Processor seconds of all processes that were seen, those of the past included."""
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        """Kill what still runs."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _read(pid: int, name: str, *, link: bool = False) -> str:
    path = f"/proc/{pid}/{name}"
    try:
        return os.readlink(path) if link else Path(path).read_text()
    except (OSError, ValueError):
        return ""  # it has ended


@dataclass
class Run:
    """What a run has told.

    Attributes:
        ends: times and accuracies of the ends of rounds, by node; seconds since the launch.
        train_s: of all rounds, by node.
        killed_at: seconds since the launch; None: nothing was killed.
        error: the last line of output, if a node did not complete its rounds.
    """

    ends: dict[int, list[tuple[float, float]]]
    train_s: dict[int, list[float]]
    killed_at: float | None
    network: Network
    error: str = ""

    def usual(self) -> list[float]:
        """Return the seconds of rounds of all nodes before the kill, without the first two."""
        until = self.killed_at if self.killed_at is not None else float("inf")
        return [b - a for ends in self.ends.values() for (a, _), (b, _) in list(pairwise(ends))[1:] if b < until]

    def accuracy(self) -> float:
        """Return the mean of the last accuracies."""
        return statistics.mean(ends[-1][1] for node, ends in self.survivors())

    def survivors(self) -> list[tuple[int, list[tuple[float, float]]]]:
        """Return nodes that were not killed, with their rounds."""
        gone = {VICTIM} if self.killed_at is not None else set()
        return [(node, ends) for node, ends in self.ends.items() if node not in gone and ends]


def run(system: System, setting: dict[str, Any], data: dict[str, np.ndarray], options: Any, *, kill: bool) -> Run:
    """Run one system once."""
    python = system.python(options.environments)
    with tempfile.TemporaryDirectory(prefix="rival-") as name:
        folder = Path(name)
        (folder / "setting.json").write_text(json.dumps(setting))
        np.savez(folder / "data.npz", **data)  # type: ignore[arg-type]
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PFLLIB": str((options.pfllib or Path()).resolve()),
            "FLWR_TELEMETRY_ENABLED": "0",
        }
        environment |= {
            "HOME": name,
            "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        command = [python, str(HERE / system.script), name, *system.words]
        began, killed_at, output = time.time(), None, folder / "output.txt"
        network = Network(command, environment, output)
        try:
            while network.sample() and time.time() - began < (killed_at + LEFT_S if killed_at else CAP_S):
                looked = time.monotonic()
                while time.monotonic() < looked + SAMPLE_S:
                    if kill and killed_at is None and (victim := _victim(folder)):
                        os.kill(victim, signal.SIGKILL)
                        killed_at = time.time() - began
                    time.sleep(0.02 if kill and killed_at is None else SAMPLE_S)
        finally:
            network.end()
            if options.keep:
                shutil.copytree(folder, options.keep / f"{system.script}-{began:.0f}")
        if kill and killed_at is None:
            raise SystemExit(f"{system.name}: node {VICTIM} was not killed; it printed: {_last_line(folder)}")
        ends: dict[int, list[tuple[float, float]]] = defaultdict(list)
        train_s: dict[int, list[float]] = defaultdict(list)
        for node in range(NODES):
            for line in _lines(folder, node):
                if line["kind"] == "round":
                    ends[node].append((line["t"] - began, line["accuracy"]))
                elif line["kind"] == "trained":
                    train_s[node].append(line["train_s"])
        complete = len(ends) == NODES and all(len(each) >= setting["rounds"] for each in ends.values())
        fewest = min((len(ends[node]) for node in range(NODES)), default=0)
        error = _last_line(folder) or f"{fewest} of {setting['rounds']} rounds in {time.time() - began:.0f} s"
        return Run(dict(ends), dict(train_s), killed_at, network, "" if complete else error)


def _lines(folder: Path, node: int) -> list[dict[str, Any]]:
    path = folder / f"node-{node}.jsonl"
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def _victim(folder: Path) -> int:
    """Return the process of the victim, once it trains in the round of the kill; 0: not yet."""
    found = [line["pid"] for line in _lines(folder, VICTIM) if line["kind"] == "train" and line["round"] == KILL_ROUND]
    return found[0] if found else 0


def _last_line(folder: Path) -> str:
    """Return the last line that tells of an error; "": there is none."""
    printed = [line for path in sorted(folder.glob("*.txt")) for line in path.read_text(errors="replace").splitlines()]
    printed = [_COLORS.sub("", line) for line in printed]
    return next(
        (line.strip()[:160] for line in reversed(printed) if "rror" in line and "uvicorn" not in line),
        "",
    )


# ---- tables ------------------------------------------------------------------------------------------------------------

COLUMNS = [
    "system",
    "seconds of a round without training",
    "of training",
    "MB of a round, all nodes",
    "peak MB of memory",
    "processor seconds",
    "seconds to 90 % of the final accuracy",
    "final accuracy, %",
]


def row(system: System, runs: list[Run], rounds: int) -> list[object]:
    """Return a row: medians over the runs."""
    if errors := [each.error for each in runs if each.error]:
        return [system.name, errors[0], *[None] * (len(COLUMNS) - 2)]

    def median(values: list[float]) -> float:
        return statistics.median(values)

    train = [sum(map(median, each.train_s.values())) / (1 if system.one_process else NODES) for each in runs]
    around = [median(each.usual()) - own for each, own in zip(runs, train, strict=True)]
    reached = []
    for each in runs:
        aim = 0.9 * each.accuracy()
        reached.append(max(next(t for t, accuracy in ends if accuracy >= aim) for ends in each.ends.values()))
    return [
        system.name,
        f"{median(around):.3f}",
        f"{median(train):.3f}",
        None if system.one_process else f"{median([each.network.bytes for each in runs]) / rounds / 1e6:.2f}",
        f"{median([each.network.peak_mb for each in runs]):.0f}",
        f"{median([each.network.processor_s for each in runs]):.1f}",
        f"{median(reached):.1f}",
        f"{100 * median([each.accuracy() for each in runs]):.1f}",
    ]


KILL_COLUMNS = [
    "system",
    "seconds of a usual round",
    "seconds lost by a kill -9",
    "at the end of the run",
    "rounds that the survivors completed",
    "their accuracy at the end, %",
    "its words",
]


def kill_row(system: System, found: Run, rounds: int) -> list[object]:
    """Return what a kill has cost."""
    assert found.killed_at is not None
    usual = statistics.median(found.usual() or [0.0])
    survivors = [] if system.one_process else found.survivors()
    after = [b - a for _, ends in survivors for (a, _), (b, _) in pairwise(ends[:-1]) if b > found.killed_at]
    at_end = [ends[-1][0] - ends[-2][0] for _, ends in survivors if len(ends) > 1]
    completed = sorted({len(ends) for _, ends in survivors})
    whole = completed == [rounds] and len(survivors) == NODES - 1
    return [
        system.name,
        f"{usual:.2f}",
        f"{max(after) - usual:.1f}" if after and whole else "all",
        f"{max(0.0, max(at_end) - usual):.1f}" if whole else None,
        f"{'-'.join(map(str, dict.fromkeys([completed[0], completed[-1]])))} of {rounds}"
        if completed
        else "none is left",
        f"{100 * found.accuracy():.1f}" if whole else None,
        None if whole else found.error,
    ]


def samples_of(name: str, root: Path | None) -> dict[str, np.ndarray]:
    """Return the samples of a data set, flat and in [0, 1]; those of MNIST: 6,000 and 1,000."""
    pool = load_pool(name, {}, root, download=False)
    x = pool.x.reshape(len(pool.x), -1).astype(np.float32)
    x /= x.max()
    train, test = slice(0, min(pool.train_count, 6000)), slice(pool.train_count, pool.train_count + 1000)
    return {"train_x": x[train], "train_y": pool.y[train], "test_x": x[test], "test_y": pool.y[test]}


def main() -> None:
    """Run the systems in turn and print the tables."""
    parser = new_parser(__doc__)
    parser.add_argument("names", nargs="*", default=[*SYSTEMS], metavar="NAME", help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument("--data", default="digits", choices=["digits", "mnist"])
    parser.add_argument("--data-root", type=Path, help="folder of torchvision's files of MNIST")
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256], help="1400 1400: 10 MB")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kill", action="store_true", help="kill a node instead")
    parser.add_argument("--environments", type=Path, default=Path("out/rivals"))
    parser.add_argument(
        "--pfllib", type=Path, help=f"the folder system of a clone of {PFLLIB}; without it PFLlib is left out"
    )
    parser.add_argument("--keep", type=Path, help="a folder for what the systems write")
    options = parser.parse_args()
    options.environments = options.environments.resolve()
    if unknown := {*options.names} - {*SYSTEMS}:
        parser.error(f"expected names of {', '.join(SYSTEMS)}, got {', '.join(sorted(unknown))}")
    systems = [SYSTEMS[name] for name in options.names if name != "pfllib" or options.pfllib]
    data = samples_of(options.data, options.data_root)
    setting = {
        "nodes": NODES,
        "rounds": options.rounds,
        "hidden": options.hidden,
        "inputs": data["train_x"].shape[1],
        "classes": 10,
        "learning_rate": 0.1,
        "batch_size": 32,
        "seed": 0,
    }
    size = f"{4 * parameters([setting['inputs'], *options.hidden, 10]) / 1e6:.1f} MB"
    what = f"4 nodes, {options.data}, a model of {size}"
    if options.kill:
        rows = [kill_row(each, run(each, setting, data, options, kill=True), options.rounds) for each in systems]
        record(f"rivals-kill-{options.data}", f"kill -9 of one of {what}", KILL_COLUMNS, rows, save=options.save)
        return
    runs: dict[str, list[Run]] = defaultdict(list)
    for _ in range(options.repeats):
        for each in systems:
            runs[each.name].append(run(each, setting, data, options, kill=False))
    rows = [row(each, runs[each.name], options.rounds) for each in systems]
    name = f"rivals-{options.data}-{'large' if len(options.hidden) and options.hidden[0] > 1000 else 'small'}"
    record(name, f"Rounds of {what}", COLUMNS, rows, save=options.save)


def parameters(sizes: list[int]) -> int:
    """Return the number of parameters of a perceptron."""
    return sum((before + 1) * after for before, after in pairwise(sizes))


if __name__ == "__main__":
    main()
