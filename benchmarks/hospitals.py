"""Five hospitals with noise, policies and secure sums together: one is killed in mid-run, and one refuses to take part.

    python benchmarks/hospitals.py [--rounds 20] [--folder DIR] [--save]

Each hospital is a folder with what that site has: its table (synthetic, of examples/make_files.py), the task
examples/patient_task.py, which it has approved, its key, its policy, and the graph file; and a process of `peer run` in it, over
TLS, all neighbors of each other. The graph file asks for DP-SGD with epsilon 3 for the whole run, and 4 at most, at delta 1e-3,
and for secure sums. All policies demand sums; four allow epsilon 4, that of hospital 4 only 2: it refuses, and calls nobody.
Hospital 2 is killed with SIGKILL once it has completed half of the rounds, and started again at once. It repeats the round that
the kill broke and pays for it again, but sends no model of it: the sums of the others then have two models, too few to be opened.

Rounds summed: in which a hospital read a sum of three models. Alone: the accuracy with the same noise and no exchange. Leak: the
AUC by which `peer privacy leak` tells training from test samples in the model that was sent last, with its interval of 95 %.
Stranger: the same of a logistic regression on the tables of the other three, which has never seen these samples: where it is
not 0.5, the test patients are harder or easier. Accuracies are of the hospital's own 75 test patients, in percent.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from record import new_parser, record
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import peer
from coordinator_free_bootstrap import make_graph, parse_manifest, save_graph
from peer.bed.testbed.ports import free_ports
from peer.cli.main import app
from peer.store.history import read_history
from peer.store.state_dir import StateDir
from peer.view.privacy.leak import auc_of

EXAMPLES = Path(peer.__file__).parents[1] / "examples"
HOSPITALS, KILLED, REFUSING = 5, 2, 4
TASK = "patient_task.py"
REFUSED_CODE = 14
RUN: dict[str, Any] = {
    **{"algorithm": "dfedavg", "task": f"{TASK}:task", "secure_sum": 64.0},
    **{"local_epochs": 2, "batch_size": 45, "learning_rate": 0.5},
    "privacy": {"clip_norm": 1.0, "target_epsilon": 3.0, "epsilon_max": 4.0, "delta": 1e-3},
    "start": {"wait_for": 0.75},
    "timeouts": {"suspicion_s": 300.0, "round_deadline_s": 600.0},  # a killed peer is waited for until it is back
}
POLICY = """# what this hospital takes part in
algorithms = ["dfedavg"]
secure_sums = true
samples_min = 100
epsilon_max = {epsilon}
"""
HEADINGS = [
    "hospital",
    "epsilon allowed",
    "exit codes",
    "epsilon",
    "rounds summed",
    "not",
    "accuracy",
    "alone",
    "leak",
    "stranger",
]


@dataclass
class Hospital:
    """A site: its folder, and its process.

    Attributes:
        codes: how its processes ended.
    """

    peer_id: int
    folder: Path
    codes: list[int] = field(default_factory=list)

    @property
    def epsilon(self) -> float:
        """What its policy allows."""
        return 2.0 if self.peer_id == REFUSING else 4.0

    @property
    def place(self) -> StateDir:
        """Its state."""
        return StateDir(self.folder / "state" / f"peer-{self.peer_id}")

    @property
    def log(self) -> Path:
        """What its processes print."""
        return self.folder / "log"

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Return lines of its history."""
        path = self.place.history
        return [line for line in read_history(path) if line["kind"] == kind] if path.exists() else []

    def rounds(self) -> dict[int, dict[str, Any]]:
        """Return the last line of each round."""
        return {line["round_index"]: line for line in self.lines("round")}

    def command(self, *words: object, code: int = 0) -> str:
        """Run a verb of `peer` in the folder, in this process, and return what it prints.

        Raises:
            RuntimeError: it ends with another exit code.
        """
        with contextlib.chdir(self.folder):
            done = CliRunner().invoke(app, [*map(str, words)])
        if done.exit_code != code:
            raise RuntimeError(
                f"hospital {self.peer_id}: {words} ended with {done.exit_code}: {done.output}"
            ) from done.exception
        return done.stdout

    def prepare(self) -> None:
        """Write table, task, key and policy, and approve the task."""
        self.folder.mkdir(parents=True)
        for name in (TASK, "make_files.py"):
            shutil.copy(EXAMPLES / name, self.folder)
        runpy.run_path(str(self.folder / "make_files.py"))["patients"](self.peer_id)
        (self.folder / "make_files.py").unlink()
        self.command("keygen", "--id", self.peer_id, "--out", "certs")
        (self.folder / "policy.toml").write_text(POLICY.format(epsilon=self.epsilon), encoding="utf-8")
        self.command("policy", "approve", TASK, "--by", f"hospital {self.peer_id}")

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the hospital's peer; its exit code is in ``codes`` afterwards."""
        words = [sys.executable, "-m", "peer", "run", "--id", str(self.peer_id), "--neighbors", "graph.json"]
        words += ["--certs", "certs", "--policy", "policy.toml"]
        with self.log.open("ab") as log:
            process = subprocess.Popen(words, cwd=self.folder, stdout=log, stderr=log)
        try:
            yield process
            process.wait()
        finally:
            process.kill()
            self.codes.append(process.wait())


def show(folder: Path, rounds: int) -> list[Hospital]:
    """Let the hospitals run, kill one, and return them.

    Raises:
        RuntimeError: a verb or a peer ended in another way than it should.
    """
    sites = [Hospital(peer_id, folder / f"hospital-{peer_id}") for peer_id in range(HOSPITALS)]
    for site in sites:
        site.prepare()
    graph = make_graph("complete", HOSPITALS, manifest=parse_manifest(RUN | {"rounds": rounds}, "hospitals"))
    nodes = (
        replace(node, address=f"127.0.0.1:{port}")
        for node, port in zip(graph.nodes, free_ports(HOSPITALS), strict=True)
    )
    save_graph(replace(graph, nodes=tuple(nodes)), folder / "graph.json")
    certificates = [site.folder / "certs" / f"peer-{site.peer_id}.pem" for site in sites]
    sites[0].command("graph", "pin", folder / "graph.json", *certificates)
    for site in sites:
        shutil.copy(folder / "graph.json", site.folder)
        code = REFUSED_CODE if site.peer_id == REFUSING else 0
        site.command("policy", "check", "graph.json", "--id", site.peer_id, code=code)
    _run(sites, rounds)
    for site in sites:
        expected = {KILLED: [-signal.SIGKILL, 0], REFUSING: [REFUSED_CODE]}.get(site.peer_id, [0])
        if site.codes != expected:
            raise RuntimeError(f"hospital {site.peer_id}: exit codes {site.codes}\n{site.log.read_text()[-2000:]}")
    return sites


def _run(sites: list[Hospital], rounds: int) -> None:
    with contextlib.ExitStack() as others:
        for site in sites:
            if site.peer_id != KILLED:
                others.enter_context(site.running())
        victim = sites[KILLED]
        with victim.running() as process:
            while len(victim.rounds()) < rounds // 2:
                if process.poll() is not None:
                    raise RuntimeError(f"hospital {KILLED} ended early\n{victim.log.read_text()[-2000:]}")
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
        with victim.running():
            pass


def alone(folder: Path, rounds: int) -> dict[int, float]:
    """Return the accuracy of each hospital with the same noise and without exchange; the folder gets all tables."""
    folder.mkdir()
    for name in (TASK, "make_files.py"):
        shutil.copy(EXAMPLES / name, folder)
    for peer_id in range(HOSPITALS):
        runpy.run_path(str(folder / "make_files.py"))["patients"](peer_id)
    run = {key: value for key, value in RUN.items() if key not in ("secure_sum", "start", "task", "timeouts")}
    manifest = parse_manifest(run | {"algorithm": "local", "rounds": rounds}, "alone")
    done = peer.simulate(
        replace(make_graph("complete", HOSPITALS), manifest=manifest), f"{folder / TASK}:task", progress=False
    )
    summaries = {i: StateDir.of_peer(done.directory, i).summary for i in range(HOSPITALS)}
    return {i: json.loads(path.read_text())["metric"]["value"] for i, path in summaries.items()}


def strangers(folder: Path) -> dict[int, float]:
    """Return for each hospital that takes part the AUC of a model of the others, from the folder of `alone`."""
    task: Any = runpy.run_path(str(folder / TASK))["task"]
    shards = {i: task.load_shard(i) for i in range(HOSPITALS) if i != REFUSING}
    found = {}
    for i, own in shards.items():
        others = [shard for n, shard in shards.items() if n != i]
        x, y = (np.concatenate([getattr(shard, name) for shard in others]) for name in ("train_x", "train_y"))
        model = LogisticRegression().fit(x, y)
        parts = ((own.train_x, own.train_y), (own.test_x, own.test_y))
        losses = [-model.predict_log_proba(x)[np.arange(len(y)), y] for x, y in parts]
        found[i] = auc_of(*losses)
    return found


def row(site: Hospital, lonely: dict[int, float], strange: dict[int, float]) -> list[object]:
    """Return the row of a hospital."""
    ended = " and ".join(map(str, site.codes))
    if site.peer_id == REFUSING:
        return [site.peer_id, f"{site.epsilon:g}", ended, *["-"] * 7]
    summary = json.loads(site.place.summary.read_text())
    summed = sum(bool(line["summed"]) for line in site.rounds().values())
    found = json.loads(site.command("privacy", "leak", site.place.root, "--json"))["peers"][0]["models"][-1]
    return [
        site.peer_id,
        f"{site.epsilon:g}",
        ended,
        f"{summary['epsilon']:.2f}",
        summed,
        len(site.rounds()) - summed,
        f"{100 * summary['metric']['value']:.1f}",
        f"{100 * lonely[site.peer_id]:.1f}",
        f"{found['auc']:.3f} ({found['low']:.3f} to {found['high']:.3f})",
        f"{strange[site.peer_id]:.3f}",
    ]


def refusal(site: Hospital) -> str:
    """Return the sentence with which a hospital refused."""
    (line,) = [json.loads(text) for text in site.place.audit.read_text().splitlines()]
    return str(line["reason"])


def measure(folder: Path, rounds: int) -> tuple[list[list[object]], str]:
    """Return the rows of the table, and why one hospital refused."""
    sites = show(folder, rounds)
    lonely = alone(folder / "alone", rounds)
    strange = strangers(folder / "alone")
    return [row(site, lonely, strange) for site in sites], refusal(sites[REFUSING])


def main() -> None:
    """Show it."""
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="new folder that keeps the hospitals' files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hospitals-") as temporary:
        rows, why = measure(given.folder or Path(temporary) / "run", given.rounds)
    print(f"hospital {REFUSING}: {why}")
    record("hospitals", "Five hospitals: privacy, policies and secure sums", HEADINGS, rows, save=given.save)


if __name__ == "__main__":
    main()
