"""Goal: programs with their own loops are peers as processes: a kill in mid-round, Ctrl-C and several ranks change no bit.

Method: `tests/tools/own_loop_site.py` as three programs, with dropout, a shuffled loader, AdamW and a schedule; the same loop as
a task in one process says what they must give.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tools.histories import lines_of
from tools.own_loop_site import Site
from tools.running import PATIENCE_S, until
from tools.warm_parent import Forked

import peer
from peer.bed.testbed.ports import on_free_ports

pytestmark = pytest.mark.process
PROGRAMS = Path(__file__).parents[1] / "tools"
SITES = 3
VICTIM = 1
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
Program = Forked | subprocess.Popen[bytes]


class Programs:
    """The sites of one graph, each a program of its own."""

    def __init__(self, home: Path, stack: ExitStack, peers: int = SITES, **run: Any) -> None:
        self.home, self._stack = home, stack
        settings = {"algorithm": "dfedavg", "rounds": 5, "local_epochs": 2, "timeouts": {"suspicion_s": 300.0}, **run}
        self.graph = peer.Graph.of(on_free_ports(peer.Graph.make("line", peers=peers, run=settings)))
        self.graph.save(home / "graph.json")

    def start(self, site: int, program: str = "own_loop_site.py", failpoint: str = "") -> Forked:
        """Start the program of a site."""
        words = (self.home / "graph.json", site, self.place(site))
        environment = {"PEER_FAILPOINTS": failpoint}
        process = Forked(*words, script=PROGRAMS / program, log=self._log(site), environment=environment)
        self._stack.callback(_ended, process)
        return process

    def launch(self, site: int, *before: str, program: str, failpoint: str = "") -> subprocess.Popen[bytes]:
        """Start the program of a site in a new interpreter; ``before``: of the command, such as a launcher."""
        command = [sys.executable, *before, PROGRAMS / program, self.home / "graph.json", str(site), self.place(site)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PEER_FAILPOINTS": failpoint}
        with self._log(site).open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self._stack.callback(_ended, process)
        return process

    def _log(self, site: int) -> Path:
        return self.home / f"site-{site}.log"

    def place(self, site: int) -> Path:
        return self.home / f"peer-{site}"

    def log(self, site: int) -> str:
        return self._log(site).read_text()

    def history(self, site: int, kind: str) -> list[dict[str, Any]]:
        return lines_of(self.place(site) / "history.jsonl", kind)

    def finish(self, *processes: Program) -> None:
        for site, process in enumerate(processes):
            assert process.wait(PATIENCE_S) == 0, self.log(site)


def _ended(process: Program) -> None:
    process.kill()
    process.wait()


@contextmanager
def programs(home: Path, **run: Any) -> Iterator[Programs]:
    with ExitStack() as stack:
        yield Programs(home, stack, **run)


def models(home: Path) -> list[dict[str, np.ndarray]]:
    return [load_file(home / f"peer-{site}" / "models" / "personalized.safetensors") for site in range(SITES)]


def same(left: list[dict[str, np.ndarray]], right: list[dict[str, np.ndarray]]) -> bool:
    return all(
        a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a) for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("failpoint", ["", "train.step=kill@14", "persist.sealed=kill@3"])
def test_programs_give_the_bits_of_the_same_loop_in_a_task_whatever_is_killed(tmp_path: Path, failpoint: str) -> None:
    with programs(tmp_path) as bed:
        running = [bed.start(site, failpoint=failpoint if site == VICTIM else "") for site in range(SITES)]
        if failpoint:
            assert running[VICTIM].wait(PATIENCE_S) == -signal.SIGKILL
            assert "failpoint" in bed.log(VICTIM)
            running[VICTIM] = bed.start(VICTIM)
        bed.finish(*running)
        peer.simulate(bed.graph, Site(), out=tmp_path / "hook", progress=False)
    assert same(models(tmp_path), models(tmp_path / "hook"))


@pytest.mark.parametrize("failpoint", ["train.step=kill@5", "partial.arrays=kill@12", "send.end=kill@2"])
def test_a_program_with_resumable_loops_goes_on_inside_of_its_round(tmp_path: Path, failpoint: str) -> None:
    with programs(tmp_path, rounds=3) as bed:
        program = {"program": "own_loop_inside.py"}
        running = [bed.start(i, **program, failpoint=failpoint if i == VICTIM else "") for i in range(SITES)]
        assert running[VICTIM].wait(PATIENCE_S) == -signal.SIGKILL
        assert "failpoint" in bed.log(VICTIM)
        running[VICTIM] = bed.start(VICTIM, **program)
        bed.finish(*running)
        peer.simulate(bed.graph, Site(), out=tmp_path / "hook", progress=False)
        assert [line["resumed_steps"] for line in bed.history(VICTIM, "round") if line.get("resumed_steps")]
    assert same(models(tmp_path), models(tmp_path / "hook"))


def test_ctrl_c_tells_the_neighbors_and_a_restart_goes_on(tmp_path: Path) -> None:
    with programs(tmp_path, rounds=100, peers=2) as bed:
        first, other = bed.start(0), bed.start(1)
        until(lambda: len(bed.history(0, "round")) > 3, "three rounds")
        first.send_signal(signal.SIGINT)
        assert first.wait(PATIENCE_S) == -signal.SIGINT
        assert "KeyboardInterrupt" in bed.log(0)
        (left,) = bed.history(0, "leave")
        until(lambda: "left" in [line.get("state") for line in bed.history(1, "neighbor")], "the goodbye")
        bed.finish(bed.start(0), other)
        assert bed.history(0, "start")[-1]["resumed_from"] == left["rounds_completed"]
        assert [line["round_index"] for line in bed.history(0, "round")] == list(range(100))


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        "own_loop_ranks.py",
        pytest.param(  # without a GPU, accelerate launch starts one process only; it names torchrun for several
            "own_loop_accelerate.py",
            marks=pytest.mark.skipif(find_spec("accelerate") is None, reason="no package accelerate: make dev"),
        ),
    ],
)
def test_the_ranks_of_a_site_train_as_one_peer_and_resume_with_the_same_bits(tmp_path: Path, program: str) -> None:
    ends = []
    for name, failpoint in (("plain", ""), ("killed", "train.step=kill@8")):
        home = tmp_path / name
        home.mkdir()
        with programs(home, peers=2) as bed:
            site, other = bed.launch(0, *TORCHRUN, program=program, failpoint=failpoint), bed.start(1)
            if failpoint:
                assert site.wait(PATIENCE_S) != 0
                assert "failpoint" in bed.log(0)
                site = bed.launch(0, *TORCHRUN, program=program)
            bed.finish(site, other)
            ranks = [(home / f"peer-0-rank-{rank}.txt").read_text() for rank in (0, 1)]
            assert ranks[0] == ranks[1]
            ends.append(load_file(bed.place(0) / "models" / "personalized.safetensors"))
    assert same(ends[:1], ends[1:])


@pytest.mark.parametrize("how", ["break", "error"])
def test_a_site_of_ranks_whose_loop_ends_early_leaves_and_ends(tmp_path: Path, how: str) -> None:
    script, logs = PROGRAMS / "own_loop_ranks_end.py", [tmp_path / f"rank-{rank}.log" for rank in (0, 1)]
    with ExitStack() as stack:
        both = []  # not forked: the autograd of torch hangs in forked ranks
        for rank, log in enumerate(logs):
            out, words = stack.enter_context(log.open("wb")), [str(tmp_path), str(rank), how]
            both.append(subprocess.Popen([sys.executable, script, *words], stdout=out, stderr=out))
            stack.callback(_ended, both[-1])
        codes = [each.wait(PATIENCE_S) for each in both]
    texts = [log.read_text() for log in logs]
    (line,) = lines_of(tmp_path / "peer-0" / "history.jsonl", "leave")
    assert line["rounds_completed"] == 2
    if how == "break":
        assert codes == [0, 0], texts
        values = [(tmp_path / f"rank-{rank}.txt").read_text() for rank in (0, 1)]
        assert values[0] == values[1]
    else:
        assert all(codes)
        assert "ValueError: a bug of the program" in texts[0].rstrip().splitlines()[-1], "its own error is the last"


PREPARE = """
import sys
sys.path.insert(0, {tools!r})
from own_loop_site import SAMPLES, accuracy, loaders, make_model, optimizer_of, scheduler_of, train_one_epoch
import peer
data, model = loaders(0), make_model()
optimizer = optimizer_of(model)
scheduler = scheduler_of(optimizer)
"""
JOIN = """
kept = {{"optimizer": optimizer, "scheduler": scheduler}}
own = {{"make_model": make_model, "evaluate": lambda net: accuracy(net, data["test"]), "samples": SAMPLES, "keep": kept}}
with peer.join({graph!r}, 0, model=model, **own, state_dir={state!r}, insecure=True) as federation:
    for round in federation:
        for _ in range(round.epochs or 0):
            train_one_epoch(model, data["train"], optimizer, scheduler, round.should_stop)
federation.run.metrics["rounds"]
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("jupyter_client") is None, reason="no package jupyter_client: make dev")
def test_a_notebook_joins_is_interrupted_and_joins_again(tmp_path: Path) -> None:
    from jupyter_client.manager import start_new_kernel

    with programs(tmp_path, peers=2, rounds=300) as bed:
        manager, client = start_new_kernel(env=os.environ | {"OMP_NUM_THREADS": "1"})
        try:
            prepare, join = (
                cell.format(tools=str(PROGRAMS), graph=str(tmp_path / "graph.json"), state=str(bed.place(0)))
                for cell in (PREPARE, JOIN)
            )
            assert client.execute_interactive(prepare, timeout=PATIENCE_S)["content"]["status"] == "ok"
            # A kernel discards the cells that come while it handles an error of one that stops at errors.
            other, running = bed.launch(1, program="own_loop_site.py"), client.execute(join, stop_on_error=False)
            until(lambda: len(bed.history(0, "round")) > 3, "three rounds of the notebook's peer")
            manager.interrupt_kernel()
            reply = client.get_shell_msg(timeout=PATIENCE_S)
            assert reply["parent_header"]["msg_id"] == running
            assert reply["content"]["ename"] == "KeyboardInterrupt"
            (left,) = bed.history(0, "leave")
            told: list[Any] = []
            again = client.execute_interactive(join, timeout=PATIENCE_S, output_hook=told.append)
            assert again["content"]["status"] == "ok", told
            (result,) = [message["content"]["data"] for message in told if message["msg_type"] == "execute_result"]
            assert result["text/plain"] == "300"
            assert bed.history(0, "start")[-1]["resumed_from"] == left["rounds_completed"]
            assert other.wait(PATIENCE_S) == 0, bed.log(1)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
