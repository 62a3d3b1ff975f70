"""A federation that lives: 5 real peers over TLS, every kind of change while they train, and a kill in each.

    python benchmarks/lifetime.py [--rounds 3000] [--save]

A peer joins, one leaves for good, two edges are rewired, a key and an address are replaced, and a peer of an earlier commit of
this repository is upgraded. Each site is a folder with its own copy of the graph file; the sites get a new file one after the
other. The same rounds run without a change, with the changes, and with a SIGKILL in each of them, at a named place.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from earlier import ROOT, earlier_commit, write_packages
from record import new_parser, record
from testbeds import last_round, wall

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest, save_graph
from peer.bed.testbed.ports import free_ports
from peer.store.history import read_history
from peer.store.state_dir import StateDir

PEERS, STAYERS, LEAVER, JOINER, MOVED, RENEWED, UPGRADED = 5, (0, 1, 2, 3), 4, 5, 2, 1, 3
JOINER_EDGES, GONE_EDGES, NEW_EDGES = ((0, JOINER), (2, JOINER)), ((0, 1), (2, 3)), ((0, 3), (1, JOINER))
REMOVED = 52  # the exit code of a peer that is in the graph file no more
CHANGED, REFUSED = "changed from graph file", "was not taken"
PATIENCE_S = 120.0  # only a hang lasts so long
END_ROUNDS = 200  # the last file must be everywhere before its rounds are over
# A peer has 6 of the 10 digits, so that alone it cannot name more than 60 % of the test samples, which have all. The peer that
# joins has the samples of the one that leaves: what there is to learn stays the same.
SITES = """
from pathlib import Path

import numpy as np
from torch import nn

import peer

TEST, VAL, LEAVER, JOINER = 500, 10, 4, 5


class Sites(peer.Task):
    classes = 10

    def make_model(self):
        return nn.Linear(64, 10)

    def load_shard(self, peer_id):
        with np.load(Path(__file__).with_name("digits.npz")) as digits:
            x, y = digits["x"], digits["y"]
        place = {JOINER: LEAVER}.get(peer_id, peer_id)
        own = np.isin(y, [(2 * place + i) % 10 for i in range(6)]) & (np.arange(len(y)) >= TEST)
        rows = np.flatnonzero(own)[place::5]
        val, train, test = rows[:VAL], rows[VAL:], np.arange(TEST)
        parts = {"train": train, "val": val, "test": test}
        return peer.Shard(**{f"{part}_{each}": v[at] for part, at in parts.items() for each, v in (("x", x), ("y", y))})


task = Sites()
"""
RUN = {
    "rounds": 1_000_000,  # until the last graph file says how many
    "algorithm": "dfedavg",
    "local_epochs": 1,
    "learning_rate": 0.05,
}
# What kills a peer in its first start, its second, ...; `n` counts the files that the process takes.
KILLS: dict[int, tuple[str, ...]] = {
    0: ("change.taken=kill@1",),  # join
    1: ("change.began=kill@3", "change.stopped=kill@2"),  # edges; key
    2: ("change.stopped=kill@2", "change.stopped=kill@4"),  # leave; address
    3: ("", "persist.sealed=kill@2"),  # upgrade
}


@dataclass(frozen=True)
class Kill:
    """A peer that has died at a failpoint in a change, and in the middle of it was started again."""

    change: str
    peer_id: int
    failpoint: str


@dataclass
class Outcome:
    """What a run left, by peer or by change."""

    rounds: int = 0
    seconds: float = 0.0
    codes: dict[int, int] = field(default_factory=dict)
    accuracy: dict[int, float] = field(default_factory=dict)
    folded_twice: int = 0
    skipped: int = 0  # rounds of stayers that were away for so long that they took the models of neighbors
    kills: list[Kill] = field(default_factory=list)
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)  # of the changes, wall-clock seconds
    longest_s: dict[str, float] = field(default_factory=dict)  # round in a change, of stayers that were not away
    usual_s: float = 0.0  # median round

    @property
    def mean_accuracy(self) -> float:
        """Of the stayers, in percent."""
        return statistics.fmean(self.accuracy.values())


def first_graph(home: Path) -> Graph:
    """Write task and data to a folder, and return the graph that the federation begins with."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    np.savez(home / "digits.npz", x=(x / 16).astype(np.float32), y=y)
    (home / "sites.py").write_text(SITES)
    graph = make_graph(
        "ring", PEERS, manifest=parse_manifest({**RUN, "task": f"{home / 'sites.py'}:task"}, "benchmark")
    )
    return replace(graph, edges=(*graph.edges, (1, 3)))


class Federation:
    """Sites in a folder: each has its copy of the graph file, its key, its state and its log.

    Args:
        home: an empty folder.
        kills: what kills each peer, by start.
        earlier: packages of the release with which the peer that is upgraded begins; None: those of this checkout.
    """

    def __init__(self, home: Path, kills: dict[int, tuple[str, ...]], earlier: Path | None = None) -> None:
        self.home, self.outcome, self.change = home, Outcome(), ""
        self._kills = {peer_id: list(texts) for peer_id, texts in kills.items()}
        self.packages = {UPGRADED: earlier} if earlier else {}
        self._armed: dict[int, str] = {}
        self.started: set[tuple[str, int]] = set()  # (change, peer): those have waited for themselves
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ports = free_ports(PEERS + 2)
        graph = first_graph(home)
        nodes = tuple(replace(node, address=self.address(node.id)) for node in graph.nodes)
        save_graph(replace(graph, nodes=nodes), self.file)
        self.pin(*(self.make_key(peer_id) for peer_id in graph.ids))

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    @property
    def file(self) -> Path:
        """The owner's graph file."""
        return self.home / "graph.json"

    @property
    def running(self) -> list[int]:
        """The peers whose processes run."""
        return sorted(self._processes)

    def site(self, peer_id: int) -> Path:
        """Return the folder of a site."""
        return self.home / f"site-{peer_id}"

    def address(self, place: int) -> str:
        """Return a loopback address."""
        return f"127.0.0.1:{self._ports[place]}"

    def log(self, peer_id: int) -> str:
        """Return what a peer has logged in all its starts."""
        return (self.site(peer_id) / "log").read_text(errors="replace")

    def history(self, peer_id: int) -> Path:
        """Return the history of a peer."""
        return StateDir(self.site(peer_id) / "state").history

    def rounds(self, peer_id: int) -> int:
        """Return how many rounds a peer has completed."""
        path = self.history(peer_id)
        return last_round(path)[0] if path.exists() else 0

    # ---- the owner ------------------------------------------------------------------------------------------------------

    def command(self, *words: object) -> None:
        """Run a command of the owner."""
        command = [sys.executable, "-m", "peer", *map(str, words)]
        done = subprocess.run(
            command, cwd=self.home, env=_environment(ROOT), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")

    def make_key(self, peer_id: int, place: str = "certs") -> Path:
        """Make a key at a site and return its certificate."""
        self.command("keygen", "--id", peer_id, "--out", self.site(peer_id) / place)
        return self.site(peer_id) / place / f"peer-{peer_id}.pem"

    def pin(self, *words: object) -> None:
        """Pin keys in the owner's file."""
        self.command("graph", "pin", self.file, *words)

    def next(self, *words: object) -> None:
        """Make the owner's file the next one."""
        following = self.home / "next.json"
        self.command("graph", "next", self.file, *words, "--out", following)
        following.replace(self.file)

    # ---- the sites ------------------------------------------------------------------------------------------------------

    def start(self, *peer_ids: int) -> None:
        """Start peers, each with the owner's file."""
        for peer_id in peer_ids:
            self._copy(peer_id)
            self.started.add((self.change, peer_id))
            self._armed[peer_id] = (self._kills.get(peer_id) or [""]).pop(0)
            words = ("run", "--id", peer_id, "--neighbors", "graph.json", "--state-dir", "state", "--certs", "certs")
            environment = _environment(self.packages.get(peer_id, ROOT)) | {"PEER_FAILPOINTS": self._armed[peer_id]}
            with (self.site(peer_id) / "log").open("ab") as log:
                self._processes[peer_id] = subprocess.Popen(
                    [sys.executable, "-m", "peer", *map(str, words)],
                    cwd=self.site(peer_id),
                    env=environment,
                    stdout=log,
                    stderr=log,
                )

    def _copy(self, peer_id: int) -> None:
        copied = self.site(peer_id) / "copied.json"
        shutil.copy(self.file, copied)
        copied.replace(self.site(peer_id) / "graph.json")

    def deliver(self, peer_id: int) -> None:
        """Give a running peer the owner's file, and wait until it has taken it; one that dies of it is started again."""
        before = self.log(peer_id)
        self._copy(peer_id)
        self._processes[peer_id].send_signal(signal.SIGHUP)
        self.until(lambda: self.has_died(peer_id) or self._has_new(peer_id, CHANGED, before), peer_id, "takes the file")
        self.revive(peer_id)

    def _has_new(self, peer_id: int, text: str, before: str) -> bool:
        log = self.log(peer_id)[len(before) :]
        if REFUSED in log:
            raise RuntimeError(f"peer {peer_id} refuses the file in {self.change}:\n{log}")
        return text in log

    def deliver_to_all(self) -> None:
        """Give all running peers the file, one after the other, and let them train on between."""
        for peer_id in self.running:
            self.deliver(peer_id)
            self.train(1)

    def has_died(self, peer_id: int) -> bool:
        """Return whether a peer was killed, by its failpoint."""
        code = self._processes[peer_id].poll()
        if code is not None and code != -signal.SIGKILL:
            raise RuntimeError(f"peer {peer_id} ended with {code} in {self.change}:\n{self.log(peer_id)[-2000:]}")
        return code is not None

    def revive(self, peer_id: int) -> None:
        """Start a peer again if it has died."""
        if self.has_died(peer_id):
            point, _, rule = self._armed[peer_id].partition("=")
            fired = f"failpoint {point} reached {rule.partition('@')[2]}: kill"
            if not self.log(peer_id).endswith(f"{fired}\n"):
                raise RuntimeError(
                    f"peer {peer_id} was killed in {self.change}, not by {fired}:\n{self.log(peer_id)[-2000:]}"
                )
            self.outcome.kills.append(Kill(self.change, peer_id, point))
            self.start(peer_id)

    def require_kills(self) -> None:
        """Raise RuntimeError where a failpoint did not kill."""
        left = sum(bool(text) for texts in self._kills.values() for text in texts)
        armed = sum(bool(text) for text in self._armed.values())
        if left or armed:
            raise RuntimeError(f"kills that did not fire: {self._kills}, {self._armed}")

    def leave(self, peer_id: int) -> None:
        """Stop a peer by SIGTERM."""
        self._processes[peer_id].terminate()
        self.ends(peer_id, 0)

    def ends(self, peer_id: int, code: int) -> None:
        """Wait for the end of a peer with this exit code."""
        self.until(lambda: self._processes[peer_id].poll() is not None, peer_id, "ends")
        self.outcome.codes[peer_id] = found = self._processes.pop(peer_id).returncode
        if found != code:
            raise RuntimeError(
                f"peer {peer_id} ended with {found} in {self.change}, not {code}:\n{self.log(peer_id)[-2000:]}"
            )

    def train(self, rounds: int) -> None:
        """Wait until each running peer has completed so many more rounds; one that dies meanwhile is started again."""
        for peer_id, before in {each: self.rounds(each) for each in self.running}.items():
            enough = partial(self._has_done, peer_id, before + rounds)
            self.until(lambda p=peer_id, e=enough: e() or self.has_died(p), peer_id, f"{rounds} rounds")  # type: ignore[misc]
            self.revive(peer_id)
            self.until(enough, peer_id, f"{rounds} rounds after its death")

    def _has_done(self, peer_id: int, rounds: int) -> bool:
        return self.rounds(peer_id) >= rounds

    def until(self, holds: Callable[[], bool], peer_id: int, what: str) -> None:
        """Wait for a condition; it is polled.

        Raises:
            RuntimeError: it does not hold although the rounds have stood still for `PATIENCE_S`.
        """
        seen, since = -1, time.monotonic()
        while not holds():
            time.sleep(0.05)
            if (now := self.rounds(peer_id)) != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since > PATIENCE_S:
                logs = "\n".join(f"---- {each}\n{self.log(each)[-1500:]}" for each in self.running)
                raise RuntimeError(f"peer {peer_id}: waited in vain in {self.change}: {what}\n{logs}")


def _environment(packages: Path) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(packages)}


# ---- the changes -----------------------------------------------------------------------------------------------------------


def _words(option: str, edges: Iterable[tuple[int, int]]) -> list[str]:
    return [word for a, b in edges for word in (option, f"{a}-{b}")]


def join(federation: Federation) -> None:
    """A new peer and its two edges."""
    new = (
        "--add-peer",
        f"{JOINER}={federation.address(JOINER)}",
        "--add-edge",
        f"{JOINER}-0",
        "--add-edge",
        f"{JOINER}-2",
    )
    federation.next(*new)
    federation.pin(federation.make_key(JOINER))
    federation.deliver_to_all()
    federation.start(JOINER)


def leave(federation: Federation) -> None:
    """A peer goes for good: the others get the file, then it hears it of them."""
    federation.next("--remove-peer", LEAVER)
    for peer_id in STAYERS:
        federation.deliver(peer_id)
    federation.ends(LEAVER, REMOVED)
    federation.deliver(JOINER)


def rewire(federation: Federation) -> None:
    """Two edges go and two others come."""
    federation.next(*_words("--remove-edge", GONE_EDGES), *_words("--add-edge", NEW_EDGES))
    federation.deliver_to_all()


def renew_key(federation: Federation) -> None:
    """Both keys of a peer are valid, then it takes the new one, then the old one is valid no more."""
    new, used = federation.make_key(RENEWED, "new"), federation.site(RENEWED) / "certs"
    federation.pin("--rotate", new)
    federation.deliver_to_all()
    for path in new.parent.iterdir():
        path.replace(used / path.name)
    federation.deliver(RENEWED)
    federation.pin(used / new.name)
    federation.deliver_to_all()


def move(federation: Federation) -> None:
    """A peer has another address."""
    federation.next("--move", f"{MOVED}={federation.address(PEERS + 1)}")
    federation.deliver_to_all()


def upgrade(federation: Federation) -> None:
    """A peer stops, and starts with another release."""
    federation.leave(UPGRADED)
    federation.packages.pop(UPGRADED, None)
    federation.start(UPGRADED)
    federation.train(3)


Changes = Mapping[str, Callable[[Federation], None]]
CHANGES: Changes = {
    "a peer joins": join,
    "a peer leaves for good": leave,
    "two edges are rewired": rewire,
    "a key is replaced": renew_key,
    "an address is replaced": move,
    "a peer is upgraded": upgrade,
}


def live(
    home: Path,
    rounds: int,
    *,
    changes: Changes = CHANGES,
    kills: dict[int, tuple[str, ...]] = KILLS,
    earlier: Path | None = None,
) -> Outcome:
    """Run a federation to its end, with a change every so many rounds that they fill the run.

    Args:
        home: an empty folder.
        rounds: of the whole run; more, where the last change comes later.
        changes: by name, in this order.
        kills: as of `Federation`.
        earlier: as of `Federation`.

    Raises:
        RuntimeError: a peer ended otherwise than expected, or waited in vain; a kill did not fire.
    """
    every = rounds // (len(changes) + 2)
    with Federation(home, kills, earlier) as federation:
        began = time.monotonic()
        federation.start(*range(PEERS))
        federation.train(max(1, every))
        for name, change in changes.items():
            federation.change, since = name, time.time()
            change(federation)
            federation.train(1)
            federation.outcome.spans[name] = since, time.time()
            federation.train(max(1, every))
        federation.change = "the end"
        last = max(rounds, max(map(federation.rounds, federation.running)) + END_ROUNDS)
        federation.next("--rounds", last)
        for peer_id in federation.running:
            federation.deliver(peer_id)
        for peer_id in federation.running:
            federation.ends(peer_id, 0)
        federation.outcome.seconds, federation.outcome.rounds = time.monotonic() - began, last
        federation.require_kills()
        examine(federation)
        return federation.outcome


def examine(federation: Federation) -> None:
    """Read the histories of the stayers."""
    outcome = federation.outcome
    took: list[float] = []
    for peer_id in STAYERS:
        lines = [line for line in read_history(federation.history(peer_id)) if line["kind"] == "round"]
        last = {line["round_index"]: line for line in lines}  # a round that a kill undid is done again
        outcome.skipped += outcome.rounds - len(last)
        outcome.accuracy[peer_id] = 100 * lines[-1]["metric_value"]
        folds = Counter((s, r, step, slot) for line in last.values() for s, _, r, step, slot in line["folded"])
        outcome.folded_twice += sum(count - 1 for count in folds.values())
        ends = [wall(line) for line in lines]
        rounds = list(itertools.pairwise(ends))
        took += [b - a for a, b in rounds]
        for name, (since, until) in outcome.spans.items():
            if (name, peer_id) not in federation.started:
                longest = max(b - a for a, b in rounds if b >= since and a <= until)
                outcome.longest_s[name] = max(longest, outcome.longest_s.get(name, 0.0))
    outcome.usual_s = statistics.median(took)


def table(changed: Outcome, killed: Outcome) -> list[list[object]]:
    """Return a row for each change: what was killed, and the longest round without and with the kill."""
    by_change = {kill.change: f"{kill.peer_id} at {kill.failpoint}" for kill in killed.kills}
    return [
        [name, by_change[name], f"{changed.longest_s[name]:.1f}", f"{killed.longest_s[name]:.1f}"] for name in CHANGES
    ]


def main() -> None:
    """Run the federation three times and print two tables."""
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3000)
    given = parser.parse_args()
    if (commit := earlier_commit()) is None:
        raise SystemExit(
            "expected a clone with an earlier commit of this wire version, got none. Use: git fetch --unshallow"
        )
    runs: dict[str, Outcome] = {}
    for name, options in RUNS.items():
        with tempfile.TemporaryDirectory(prefix="lifetime-") as folder:
            home = Path(folder)
            runs[name] = live(home, given.rounds, earlier=write_packages(commit, home / "earlier"), **options)
    rows = [
        [
            name,
            f"{each.rounds}",
            f"{each.rounds / each.seconds:.1f}",
            f"{each.usual_s:.2f}",
            f"{each.mean_accuracy:.1f}",
            each.folded_twice,
            each.skipped,
            len(each.kills),
            ", ".join(f"{peer_id}: {code}" for peer_id, code in sorted(each.codes.items())),
        ]
        for name, each in runs.items()
    ]
    columns = ["run", "rounds", "rounds/s", "median round, s", "accuracy of the stayers, %", "arrivals folded twice"]
    columns += ["rounds skipped by stayers", "kills", "exit codes"]
    record("lifetime", "A federation that lives", columns, rows, save=given.save)
    waits = ["change", "killed", "longest round without the kill, s", "with the kill, s"]
    by_change = table(runs["changes"], runs["changes and kills"])
    record("lifetime-changes", "How long a change keeps a stayer waiting", waits, by_change, save=given.save)


RUNS: dict[str, dict[str, Any]] = {
    "no change": {"changes": {}, "kills": {}},
    "changes": {"kills": {}},
    "changes and kills": {},
}


if __name__ == "__main__":
    main()
