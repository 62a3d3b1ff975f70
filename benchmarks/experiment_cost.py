"""Benchmark: what the papers' tables cost in core hours, extrapolated from a few rounds at small scale.

Of each file, one case is run with one seed at small scale on one core, and the processor time of ROUNDS rounds after the first
one is measured. The rest is extrapolated linearly: seconds of a round and peer, which keeps its full share of samples at every
scale, x peers x rounds x cases x seeds. Not counted are start, data set and final phase, and the larger number of neighbors at
full scale. Other cases of a file cost more or less than the one that is measured.

    python benchmarks/experiment_cost.py --data-root data [--rounds 2] [--markdown FILE] [FILE ...]
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path

from common import show

from coordinator_free_bootstrap.errors import TaskError
from peer.experiment.demand import demand_of
from peer.experiment.jobs import Job, jobs_of, runs_left, skipped
from peer.experiment.runner import results_of
from peer.experiment.scaling import Scale
from peer.experiment.simulated import SimulatedSettings
from peer.experiment.spec import Case, Experiment, load_experiment

PAPERS = Path(__file__).parents[1] / "papers"
FILES = (
    "dfca-table1-mnist-k2",
    "dfca-table2-mnist-k4",
    "dfca-table1-emnist-k2",
    "fedspd-table4-mnist-er",
    "fedspd-table5-emnist-er",
    "fedspd-table7-dynamic-fmnist",
    "cgpfl-table1-mnist-dnn",
    "fedsoft-table2-letters-linear",
)
HEADER = (
    "file",
    "case measured",
    "peers",
    "s a round",
    "full peers",
    "rounds",
    "runs a seed",
    "seeds",
    "core hours",
    "GB a run",
)


def measured(experiment: Experiment, case: Case, rounds: int, data_root: Path) -> tuple[int, float]:
    """Return the peers at small scale, and the processor seconds of a round of all of them."""
    scale = Scale(1e-6, (f"run.rounds={rounds + 1}",))
    job = Job(experiment, case, 1, scale, "simulated", SimulatedSettings(data_root=data_root, models=False))
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        results_of(job, Path(folder), "", lambda completed, metric: ends.append(time.process_time()))
    return scale.peers(experiment), (ends[-1] - ends[0]) / rounds


def row(path: Path, rounds: int, data_root: Path) -> tuple[object, ...]:
    """Return a row of the table."""
    experiment = load_experiment(path)
    cases = [case for case in experiment.case if skipped(case) is None]
    case = next(case for case in cases if case.method == "peers" and case.run.get("algorithm") != "local")
    peers, round_s = measured(experiment, case, rounds, data_root)
    full = experiment.manifest(case).rounds
    settings = SimulatedSettings(data_root=data_root)
    runs = len(runs_left(jobs_of(experiment, Scale(), 1, "simulated", settings, []), Path("no results")))
    hours = round_s / peers * experiment.peers * full * runs * experiment.seeds / 3600
    whole = Job(experiment, case, 1, Scale(), "simulated", settings)
    memory = f"{demand_of(whole).memory / 1e9:.1f}"
    shape = (experiment.peers, full, runs, experiment.seeds)
    return (
        path.stem,
        case.name,
        peers,
        f"{round_s:.2f}",
        *shape,
        f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}",
        memory,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "files", nargs="*", type=Path, default=[PAPERS / name.partition("-")[0] / f"{name}.toml" for name in FILES]
    )
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=2, help="more rounds, less noise")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    logging.disable()  # refusals that an algorithm expects
    rows = []
    for path in options.files:
        try:
            rows.append(row(path, options.rounds, options.data_root))
        except TaskError as error:
            print(f"{path.stem}: not measured: {error}")
    show("Cost of the papers' tables, extrapolated", HEADER, rows, options.markdown)


if __name__ == "__main__":
    main()
