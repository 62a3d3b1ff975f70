"""A process that has imported everything and forks testbeds and commands on request, so that those of a test start fast.

The test process cannot fork peers: it uses gRPC, which does not support forks. Requests and answers are JSON lines on stdin
and stdout.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import itertools
import json
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from ports import keep_to_own_ports
from torch.optim.optimizer import register_optimizer_step_pre_hook

from coordinator_free_bootstrap import load_graph, make_graph
from peer.bed.chaos.network import FaultyNetwork
from peer.bed.chaos.runner import FaultRunner
from peer.bed.chaos.script import Script
from peer.bed.testbed.testbed import Supervisor
from peer.bed.testbed.warm_up import warm_up
from peer.rings import VERBS
from peer.store.system import end_with_parent
from peer.tasks.torchvision_shim import import_for_user_code
from peer.view.live.watch import TestbedWatcher

CLONE_NEWNET = 0x40000000
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
IMPORTED = (  # what peers and commands need beside the imports of `warm_up`
    *(
        "peer.algorithms.registry",
        "peer.cli.main",
        "peer.ops.deploy.keys",
        "peer.view.report.report",
        "peer.view.report.tables",
    ),
    *(
        "peer.view.live.ask",
        "peer.ops.doctor.doctor",
        "peer.view.live.watch",
        "peer.view.report.plots",
        "peer.bed.api.bed_run",
    ),
    *(module for module, _ in VERBS.values()),
    "typer.rich_utils",
    *(
        "matplotlib.figure",
        "scipy.optimize",
        "torch._dynamo",
    ),  # of pictures, of cluster accuracy, and of Adam: half a second each
)


def run_bed(request: dict) -> None:
    """Run one testbed and write its failed peers, exit codes and counters to ``bed.json``."""
    directory = Path(request["directory"])
    wait_for_goodbyes(request["goodbye_s"])
    graph = load_graph(directory / "graph.json")
    given = {"insecure": request["insecure"], "checkpoint_minutes": request["checkpoint_minutes"]}
    bed = Supervisor(graph, directory, threads=1, **given)
    network = FaultyNetwork(bed.graph, seed=1) if request["proxy"] else None
    bed.graph_of = network.graph_of if network else bed.graph_of
    bed.failpoints = {int(peer_id): text for peer_id, text in request["failpoints"].items()}
    watcher = TestbedWatcher(directory, graph)
    runner = FaultRunner(bed, watcher.rounds_completed, Script(**request["script"]), network)
    runner.begin(request["late"])
    failed = runner.run(watcher.refresh, interval_s=0.05)
    result = {"failed": failed, "exit_codes": bed.exit_codes, "counters": runner.last_counters}
    temporary = directory / "bed.json.new"
    temporary.write_text(json.dumps(result))
    temporary.rename(directory / "bed.json")


def run_command(request: dict) -> None:
    """Run `python -m peer` with other arguments, folder and environment; it ends by an exception, as a program does."""
    if request["namespace"]:
        enter_network(request["namespace"])
    wait_for_goodbyes(request["goodbye_s"])
    os.chdir(request["cwd"])
    set_by_import = {name: os.environ[name] for name in ("GRPC_VERBOSITY", "GRPC_ENABLE_FORK_SUPPORT")}
    os.environ.clear()
    os.environ.update(set_by_import | request["environment"])
    sys.path[0] = request["cwd"]
    sys.argv[1:] = request["arguments"]
    runpy.run_module("peer", run_name="__main__", alter_sys=True)


def run_script(request: dict) -> None:
    """Run `python PATH ARGUMENTS` in a folder and an environment; ``kill_at_step``: of its optimizer, which the log tells."""
    if request["kill_at_step"]:
        steps = itertools.count(1)

        def kill(*_: object) -> None:
            if next(steps) == request["kill_at_step"]:
                os.write(2, b"killed before a step\n")
                os.kill(os.getpid(), signal.SIGKILL)

        register_optimizer_step_pre_hook(kill)
    os.chdir(request["cwd"])
    os.environ.update(request["environment"])
    sys.path[0] = os.path.dirname(request["path"])
    sys.argv[:] = [request["path"], *request["arguments"]]
    runpy.run_path(request["path"], run_name="__main__")


def wait_for_goodbyes(seconds: float | None) -> None:
    """Let the peers of this process wait so long until neighbors have taken their goodbye; None: as long as outside tests."""
    from peer.runtime import world  # after `warm_up`, which sets what gRPC reads at its import

    world.GOODBYE_S = seconds or world.GOODBYE_S


def enter_network(name: str) -> None:
    """Enter a network namespace that `ip netns add` has made."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{name}", "rb") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"network namespace {name}")


def outputs(out: str | Path, err: str | Path) -> None:
    """Let this process read nothing, and write to files."""
    for number, path, flags in (0, os.devnull, os.O_RDONLY), (1, out, APPEND), (2, err, APPEND):
        file = os.open(path, flags, 0o666)
        os.dup2(file, number)
        os.close(file)


def bed_in_child(request: dict) -> None:
    """Run one testbed, and end without what the warm process would do at its end."""
    log = Path(request["directory"]) / "bed.log"
    outputs(log, log)
    code = 1
    try:
        run_bed(request)
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def in_child(run: Callable[[dict], None], request: dict) -> None:
    """Run a program to its end. The kernel frees the memory: the interpreter would take 0.25 s, longer than most commands."""
    try:
        run(request)
        raise SystemExit(0)
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        threading._shutdown()  # what the end of an interpreter does before it frees the memory
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code)


PROGRAMS = {"command": run_command, "script": run_script}


def main() -> None:
    keep_to_own_ports()
    warm_up(make_graph("ring", 4), None)
    for name in IMPORTED:
        importlib.import_module(name)
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "wait":
            pid, status = os.waitpid(request["pid"], os.WNOHANG)
            print(json.dumps({"code": os.waitstatus_to_exitcode(status) if pid else None}), flush=True)
            continue
        if request["do"] == "import":
            import_for_user_code()  # lightning and transformers import torchvision
            for name in request["modules"]:
                importlib.import_module(name)
            print(json.dumps({}), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            if request["do"] in PROGRAMS:
                end_with_parent()
                outputs(request["out"], request["err"])
                return in_child(PROGRAMS[request["do"]], request)
            os.setsid()
            bed_in_child(request)
        print(json.dumps({"pid": pid}), flush=True)
    return None


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # the kernel frees the memory
