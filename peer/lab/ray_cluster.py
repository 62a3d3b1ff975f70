"""Runs on a Ray cluster: connecting, what its nodes have, and whether a run can ever start on them."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from coordinator_free_bootstrap.errors import ConfigProblem, Option, UsageError
from coordinator_free_bootstrap.extras import require
from coordinator_free_bootstrap.validation import counted
from peer.lab.demand import Demand
from peer.lab.fingerprint import differences, fingerprint
from peer.store.scratch import temporary_folder

LOCAL, AUTO = "local", "auto"
REACH_S = 10.0
SURVEY_S = 300.0  # until a node has started a worker: seconds, minutes on a busy machine
# Ray forks beside gRPC's threads to serve ray:// addresses: without the variable, some of these processes die at once.
START = "start one with: GRPC_ENABLE_FORK_SUPPORT=0 ray start --head --port=6379"
_FIX = f"{START[0].upper()}{START[1:]}; or use --backend simulated@local."


@dataclass(frozen=True)
class RayNode:
    """A living node of a cluster.

    Attributes:
        name: for people: its address and the start of its id.
        node_id: Ray's.
        cpus: cores that tasks may use.
        memory: bytes that tasks may use.
        gpus: number of GPUs.
    """

    name: str
    node_id: str
    cpus: float
    memory: float
    gpus: float

    def fits(self, demand: Demand, share: float) -> bool:
        """Return whether a run with a share of a GPU can start here when nothing else runs."""
        return self.cpus >= demand.cpus and self.memory >= demand.memory and self.gpus >= share


def import_ray() -> Any:
    """Return the package ray.

    Raises:
        UsageError: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    require(("ray",), "a Ray cluster")
    import ray

    return ray


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect to a cluster for the block; yield the package ray.

    Args:
        address: HOST:PORT of a cluster that this machine is a node of; "auto" finds it; ray://HOST:PORT of any other; "local"
            starts Ray on this machine for the block only.

    Raises:
        UsageError: Ray is not installed, or the cluster cannot be reached or has other versions.
    """
    if address not in {LOCAL, AUTO}:
        _reach(address)
    if address == LOCAL:  # a token of its own: Ray would leave one in the user's home
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    ray = import_ray()
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
    folder = None
    if address == LOCAL:
        folder = tempfile.mkdtemp(prefix="ray-", dir=temporary_folder())
        options |= {"include_dashboard": False, "_temp_dir": folder}
    try:
        try:
            ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError, AssertionError) as error:
            reason = " ".join(str(error).split())
            got = f"{address}: {reason}"
            raise UsageError(ConfigProblem(Option("backend"), "a cluster that can be used", got, _FIX)) from error
        yield ray
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _reach(address: str) -> None:
    """Open a connection to the address and close it: Ray itself would try for minutes.

    Raises:
        UsageError: it is not an address, or nothing answers there.
    """
    try:
        place = urlsplit(address if "://" in address else f"//{address}")
        host, port = place.hostname, place.port
    except ValueError:
        host = port = None
    if not host or not port or place.scheme not in {"", "ray"}:
        raise UsageError(f"--backend: expected one of {LOCAL}, {AUTO}, HOST:PORT, ray://HOST:PORT, got {address!r}")
    try:
        socket.create_connection((host, port), REACH_S).close()
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        got = f"{address}: {reason}"
        raise UsageError(ConfigProblem(Option("backend"), "a cluster that can be reached", got, _FIX)) from error


def living_nodes(ray: Any) -> list[RayNode]:
    """Return the nodes of the cluster that are alive."""
    return [node_of(found) for found in ray.nodes() if found["Alive"]]


def node_of(found: Mapping[str, Any]) -> RayNode:
    """Return a node from an entry of ``ray.nodes()``."""
    has = found["Resources"]
    name = f"{found['NodeManagerAddress']} (node {found['NodeID'][:6]})"
    return RayNode(name, found["NodeID"], has.get("CPU", 0.0), has.get("memory", 0.0), has.get("GPU", 0.0))


def survey(ray: Any, nodes: Sequence[RayNode]) -> int | None:
    """Check that every node has this version of this package; return the bytes of the smallest GPU, None if unknown.

    Raises:
        UsageError: a node does not answer, lacks this package, or has another version of it, of torch or of NumPy.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    look = ray.remote(_look())
    asked = {
        look.options(num_cpus=0, scheduling_strategy=On(node.node_id, soft=False)).remote(): node for node in nodes
    }
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=SURVEY_S)
    wanted, problems, sizes = fingerprint(), [f"{asked[ref].name}: no answer in {SURVEY_S:.0f} s" for ref in silent], []
    for ref in answered:
        found = ray.get(ref)
        wrong = [found["missing"]] if "missing" in found else differences(found["fingerprint"], wanted)
        problems += [f"{asked[ref].name}: {', '.join(wrong)}"] if wrong else []
        sizes += [found["gpu_memory"]] if found.get("gpu_memory") else []
    if problems:
        raise UsageError(
            "--backend: expected nodes that can repeat a run of this machine, got "
            f"{counted(len(problems), 'node')} that cannot: {'; '.join(problems)}. "
            "Install the same version of coordinator-free and torch on every node."
        )
    return min(sizes, default=None)


def _look() -> Callable[[], dict[str, Any]]:
    """Return a function that Ray copies to a node as code: it also runs where this package is missing."""

    def look() -> dict[str, Any]:
        try:
            from peer.lab.ray_cluster import facts_of_this_node
        except ImportError as error:
            return {"missing": f"coordinator-free cannot be imported ({error})"}
        return facts_of_this_node()

    return look


def facts_of_this_node() -> dict[str, Any]:
    """Return the fingerprint of this machine, and the bytes of its smallest GPU or None."""
    return {"fingerprint": fingerprint(), "gpu_memory": smallest_gpu(_nvidia_smi())}


def _nvidia_smi() -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout


def smallest_gpu(text: str) -> int | None:
    """Return the bytes of the smallest GPU from nvidia-smi's lines in MiB; None without a number."""
    return min((int(line) << 20 for line in text.split() if line.isdigit()), default=None)


def refuse_impossible(label: str, demand: Demand, share: float, nodes: Sequence[RayNode]) -> None:
    """Refuse a run that no node can ever start.

    Raises:
        UsageError: what the run needs, and what the nodes have.
    """
    if any(node.fits(demand, share) for node in nodes):
        return
    gpu = f", {share:.2g} of a GPU ({_gb(demand.gpu_memory)})" if share else ""
    has = "; ".join(f"{node.name} {node.cpus:g} cores, {_gb(node.memory)}, {node.gpus:g} GPUs" for node in nodes)
    needed = f"{counted(demand.cpus, 'core')}, {_gb(demand.memory)} of memory (estimated){gpu}"
    fix = "Use fewer --threads, a smaller --scale, or add a node."
    raise UsageError(ConfigProblem(Option("backend"), f"a node with {needed} for {label}", has or "none", fix))


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
