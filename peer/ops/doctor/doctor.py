"""Checks of a machine before a run; each returns its result and what to do.

``fail``: a run cannot start; ``warn``: a run may have problems; ``ok``. A neighbor that does not answer is a warning: it may not
be started yet, and ``run.start`` allows that.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from coordinator_free_bootstrap.errors import PeerError, StorageError
from coordinator_free_bootstrap.graph import Graph, split_address
from coordinator_free_bootstrap.graph_file import load_graph
from coordinator_free_bootstrap.routes import offered_at
from coordinator_free_bootstrap.validation import counted
from peer.identity.expiry import ending_soon, ends_in
from peer.store.files import write_atomic
from peer.store.identity_files import StateLock
from peer.store.scratch import temporary_folder
from peer.wire.open_files import open_files_needed
from peer.wire.ports import listener
from peer.wire.proxy import HttpProxy

CONNECT_TIMEOUT_S = 2.0
FREE_BYTES_MIN = 256 << 20  # checkpoints of a common model soon fill less
FSYNC_SLOW_S = 0.5
WALL_CLOCK_YEAR_MIN = 2025  # with an earlier date, certificates are not yet valid
PROBES_AT_ONCE = 32


@dataclass(frozen=True)
class Check:
    """The outcome of one check; `fix` is "" if nothing needs to be done."""

    name: str
    level: Literal["ok", "warn", "fail"]
    found: str
    fix: str = ""


def examine(
    *,
    graph_path: Path | None = None,
    peer_id: int | None = None,
    state_dir: Path | None = None,
    device: str = "auto",
    proxy: HttpProxy | None = None,
    listen: str | None = None,
    runs: bool = False,
) -> list[Check]:
    """Run all checks; network checks need a graph file, and the check of the own port a peer id.

    Args:
        graph_path: the graph file.
        peer_id: of the peer on this machine.
        state_dir: whose disk is checked; default: that of temporary files.
        device: as of `peer run`.
        proxy: as of `peer run`.
        listen: as of `peer run`; default: the address in the graph file.
        runs: whether the peer runs on this machine: then its port is in use, and has to be.

    Returns:
        The checks, in a fixed order. A failed check raises nothing, and no file stays on the disk.
    """
    checks = [check_python(), check_torch(), check_device(device), check_threads(), check_clock()]
    temporary = None
    try:
        temporary = temporary_folder()  # where a peer has its sockets
    except StorageError as error:
        found, _, fix = str(error).partition(". ")
        checks.append(Check("temporary files", "fail", found, fix))
    if directory := state_dir or temporary:
        checks += check_disk(directory)
    if graph_path is not None:
        checks += check_network(graph_path, peer_id, proxy, listen=listen, runs=runs)
    return checks


def check_python() -> Check:
    """Report the Python version; a version that is too old cannot import this module."""
    found = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check("python", "ok", found)


def check_torch() -> Check:
    """Check that PyTorch can be imported and computes."""
    try:
        import torch

        if float(torch.ones(3).sum()) != 3.0:
            return Check("torch", "fail", f"torch {torch.__version__}: wrong sum of a small tensor", "reinstall torch")
    except (ImportError, OSError) as error:
        return Check("torch", "fail", f"cannot be imported: {error}", "pip install torch")
    return Check("torch", "ok", f"torch {torch.__version__}")


def check_device(device: str = "auto") -> Check:
    """Check that the device exists; auto always does."""
    try:
        import torch
    except (ImportError, OSError):
        return Check("device", "fail", "unknown without torch", "pip install torch")
    count = torch.cuda.device_count()
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(count))
    found = f"{count} GPU: {names}" if count else "CPU only"
    if not device.startswith("cuda"):
        return Check("device", "ok", found)
    index = device.partition(":")[2] or "0"
    if index.isdigit() and int(index) < count:
        return Check("device", "ok", found)
    return Check("device", "fail", f"{device} requested, {found}", "use --device cpu, or install a CUDA build of torch")


def check_threads() -> Check:
    """Check the usable cores against OMP_NUM_THREADS."""
    usable, present = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        os.cpu_count() or 1,
    )
    found = f"{usable} of {present} cores usable"
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > usable:
        return Check("threads", "warn", f"{found}, OMP_NUM_THREADS={asked}", f"set OMP_NUM_THREADS to at most {usable}")
    return Check("threads", "ok", found)


def check_clock() -> Check:
    """Check that the monotonic clock is fine enough for timeouts, and the date late enough for certificates."""
    info = time.get_clock_info("monotonic")
    before = time.monotonic()
    while time.monotonic() == before:  # until the next tick
        pass
    tick_s = time.monotonic() - before
    wall = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    found = f"monotonic tick {max(tick_s, info.resolution):.1e} s, wall clock {wall}"
    if not info.monotonic or tick_s > 0.1:
        return Check("clock", "fail", found, "use a system with a monotonic clock and ticks below 0.1 s")
    if time.gmtime().tm_year < WALL_CLOCK_YEAR_MIN:
        return Check("clock", "warn", found, "set the date; with this one, certificates are not yet valid")
    return Check("clock", "ok", found)


def check_disk(directory: Path) -> list[Check]:
    """Check space, flushed writes and locks on the state directory's disk, in a temporary directory on it."""
    place = next((path for path in (directory, *directory.parents) if path.is_dir()), Path("/"))
    free_bytes = shutil.disk_usage(place).free
    room = f"{free_bytes / 1e9:.1f} GB free at {place}"
    low = free_bytes < FREE_BYTES_MIN
    fix = f"free space; with less than {FREE_BYTES_MIN >> 20} MiB, checkpoints will fail soon" if low else ""
    return [Check("disk space", "warn" if low else "ok", room, fix), _check_writing(place)]


def _check_writing(place: Path) -> Check:
    try:
        with tempfile.TemporaryDirectory(prefix=".peer-doctor-", dir=place) as scratch:
            began = time.monotonic()
            write_atomic(Path(scratch) / "probe", bytes(1 << 20))
            spent_s = time.monotonic() - began
            with StateLock(Path(scratch)):
                pass
    except (OSError, PeerError) as error:
        return Check("disk writing", "fail", str(error), "choose another --state-dir")
    found = f"1 MiB written, flushed and renamed in {spent_s * 1000:.0f} ms; locks work"
    if spent_s > FSYNC_SLOW_S:
        return Check("disk writing", "warn", found, "set run.checkpoint_rounds higher, or choose a faster disk")
    return Check("disk writing", "ok", found)


def check_network(
    graph_path: Path,
    peer_id: int | None,
    proxy: HttpProxy | None = None,
    *,
    listen: str | None = None,
    runs: bool = False,
) -> list[Check]:
    """Check the graph file, certificates, the own port, and connections to the neighbors that a run dials, or to all peers.

    A proxy is checked in place of the neighbors behind it, whose names it resolves.
    """
    try:
        graph = load_graph(graph_path)
        others = graph.ids if peer_id is None else graph.neighbors(peer_id)
    except (PeerError, OSError) as error:
        return [Check("graph file", "fail", str(error), "correct the file; peer graph check shows the problems")]
    found = f"{counted(len(graph.ids), 'peer')}, {counted(len(graph.edges), 'edge')}, digest {graph.digest[:12]}"
    checks = [Check("graph file", "ok", found), check_open_files(len(others))]
    checks += check_certificates(graph, None if peer_id is None else (peer_id, *others))
    if peer_id is not None and (own := listen or graph.node(peer_id).address):  # a peer that only dials may have none
        checks.append(check_port(own, runs=runs))
    dialed = [other for other in others if _is_dialed(graph, peer_id, other)]
    direct = tuple(other for other in dialed if proxy is None or not proxy.serves(graph.node(other).address))
    if proxy is not None and len(direct) < len(dialed):
        checks.append(check_proxy(proxy))
    return checks + list(_probe_all(graph, direct))


def _is_dialed(graph: Graph, peer_id: int | None, other: int) -> bool:
    if peer_id is None:
        return not graph.node(other).dials_only
    return offered_at(graph, peer_id, other) is None


def check_proxy(proxy: HttpProxy) -> Check:
    """Check that a TCP connection to the proxy opens; whether it connects to neighbors, the tests of the edges show."""
    check = check_reachable(-1, proxy.name)
    fix = "check the address in https_proxy, and the network between this device and the proxy"
    return replace(check, name="proxy", fix=fix if check.fix else "")


def check_open_files(neighbor_count: int) -> Check:
    """Check the limit of open files against the number of neighbors."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = open_files_needed(neighbor_count)
    found = f"{soft} allowed, about {needed} needed for {counted(neighbor_count, 'neighbor')}"
    if soft != resource.RLIM_INFINITY and soft < needed:
        return Check("open files", "fail", found, f"ulimit -n {needed}")
    return Check("open files", "ok", found)


def check_certificates(graph: Graph, peer_ids: Collection[int] | None = None) -> list[Check]:
    """Check when the certificates in a graph file end: of some peers, or all of the file; [] if it has none."""
    try:
        ends = ends_in(graph)
    except PeerError as error:
        return [Check("certificates", "fail", str(error), "pin the certificate again with peer graph pin")]
    ends = {subject: end for subject, end in ends.items() if peer_ids is None or subject in peer_ids}
    if not ends:
        return []
    if soon := ending_soon(ends):
        found = "; ".join(sentence.partition("; ")[0] for sentence in soon)
        return [
            Check("certificates", "warn", found, "make new keys, pin them with peer graph pin --rotate, copy the graph")
        ]
    return [
        Check("certificates", "ok", f"{len(ends)} in the graph file, the first ends on {min(ends.values()):%Y-%m-%d}")
    ]


def check_port(address: str, *, runs: bool = False) -> Check:
    """Check that the own port is free, on all interfaces: the graph's address may be that of a router or a service.

    Args:
        address: ``host:port``.
        runs: whether the peer runs on this machine, and has to listen there.
    """
    port = int(address.rpartition(":")[2])
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        with socket.create_server(("", port), family=family, dualstack_ipv6=both):
            fix = "read the log of the peer: it starts, or listens elsewhere; give its --listen" if runs else ""
            return Check("own port", "warn" if runs else "ok", f"{port} is free{', though the peer runs' * runs}", fix)
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        why = f"is in use by {listener(port)}" if in_use else f"({error.strerror})"
        if runs and in_use:
            return Check("own port", "ok", f"port {port} {why}, the running peer")
        return Check("own port", "fail", f"port {port} {why}", "stop what uses it, or choose another --listen")


def _probe_all(graph: Graph, peer_ids: tuple[int, ...]) -> Iterator[Check]:
    probe: Callable[[int], Check] = lambda peer_id: check_reachable(peer_id, graph.node(peer_id).address)  # noqa: E731
    with ThreadPoolExecutor(PROBES_AT_ONCE) as pool:
        yield from pool.map(probe, peer_ids)


def check_reachable(peer_id: int, address: str, timeout_s: float = CONNECT_TIMEOUT_S) -> Check:
    """Check that a TCP connection to a peer's address opens within `timeout_s`."""
    name = f"peer {peer_id}"
    host, port = split_address(address)
    began = time.monotonic()
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return Check(name, "ok", f"{address} answers in {(time.monotonic() - began) * 1000:.0f} ms")
    except socket.gaierror as error:
        fix = "correct the address in the graph file, or check the name service"
        return Check(name, "fail", f"{address}: the name {host} has no address ({error.strerror})", fix)
    except ConnectionRefusedError:
        return Check(name, "warn", f"{address}: connection refused", "start that peer, or check its port")
    except TimeoutError:
        return Check(
            name, "warn", f"{address}: no answer in {timeout_s:g} s", "check that the device runs, and the firewalls"
        )
    except UnicodeError as error:  # a part of the name that no name service can have
        return Check(name, "fail", f"{address}: {error}", "correct the address in the graph file")
    except OSError as error:
        return Check(name, "warn", f"{address}: {error.strerror or error}", "check the network between the devices")
