"""A testbed: N peers as processes of one machine, forked from a parent that has imported everything.

A forked peer costs 14 to 17 MB; a started one 285 MB and 2 s of imports. Forking is safe because the parent never starts
gRPC and has one thread; so it can also fork later, to restart a killed peer. On macOS peers are started (start method spawn).
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Unpack

from coordinator_free_bootstrap import Graph, Subject, save_graph
from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem, Option, StorageError
from coordinator_free_bootstrap.ordinary_file import ordinary_file
from coordinator_free_bootstrap.strict_json import dumps
from coordinator_free_bootstrap.validation import counted
from peer.bed.options import ProcessOptions, process_options
from peer.identity.files import OBSERVER, identity_files
from peer.observe.logs import last_error
from peer.runtime.assembly import LocalSettings
from peer.store.files import storage_error, storage_errors
from peer.store.state_dir import StateDir
from peer.store.system import START_METHOD, StoppedBySignal, end_with_parent, raise_on_signal, require_unix
from peer.view.state.places import listed
from peer.view.state.tail import EXITS
from peer.wire.open_files import require_open_files

FILES_BASE, FILES_PER_PEER = 64, 3  # open files of the parent: a pipe and a sentinel for each peer

log = logging.getLogger("peer")


def with_keys(graph: Graph, directory: Path) -> Graph:
    """Return the graph with the keys of peers and observer pinned; generate the missing ones."""
    from peer.identity.certificates import Certificate
    from peer.identity.files import keygen, read_file
    from peer.identity.pinning import pin

    certificates = []
    subjects: list[Subject] = [*graph.ids, OBSERVER]
    for subject in subjects:
        files = identity_files(directory, subject)
        if not files.exist():
            keygen(files.key.parent, graph.manifest.federation, subject)
        certificates.append(Certificate.from_pem(read_file(files.certificate, "certificate"), str(files.certificate)))
    return pin(graph, certificates)


class Supervisor:
    """The processes of one run: `start` forks peers, `poll` collects exit codes, `stop` ends all of them."""

    __test__ = False

    def __init__(
        self,
        graph: Graph,
        directory: Path,
        *,
        traceback: bool = False,
        start_method: str = START_METHOD,
        **options: Unpack[ProcessOptions],
    ) -> None:
        require_unix("peer testbed")
        self.options = process_options(options)
        self.traceback = traceback
        self.directory = directory
        self.threads = self.options["threads"] or max(1, (os.cpu_count() or 1) // max(1, len(graph.nodes)))
        self.processes: dict[int, BaseProcess] = {}
        self.exit_codes: dict[int, int] = {}
        self.on_start_failure = self.options["on_start_failure"] or (
            "stop" if graph.manifest.start.wait_for in ("all", "everyone") else "continue"
        )
        self.cannot_start: set[int] = set()  # peers that failed at their first start, without a line of history
        self._starts: Counter[int] = Counter()
        # with fault proxies, each peer has other addresses
        self.graph_of: Callable[[int], Graph] = lambda _peer_id: self.graph
        self.failpoints: dict[int, str] = {}  # of peers started from now on
        self.parent_sockets: list[socket.socket] = []  # closed in every peer
        self._pipes: dict[int, set[int]] = {}  # descriptors of the parent for each forked peer; closed in later ones
        self._context: Any = multiprocessing.get_context(start_method)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{Option('out')} {directory}: cannot be made ({error}). Name another folder."
            ) from error
        self.graph = graph if self.options["insecure"] else with_keys(graph, directory)
        with storage_errors("write", directory / "graph.json"):
            save_graph(self.graph, ordinary_file(directory / "graph.json"))
        # These properties are cached: computed once here and not in every peer after the fork.
        _ = self.graph.digest, self.graph.degrees, self.graph.diameter_bound

    def start(self, peer_ids: Iterable[int] | None = None) -> None:
        """Fork the named peers; None: all. They begin when all are forked: a waiting peer costs no processor time.

        Otherwise the first of many peers would call neighbors that do not exist yet, and the forks would wait behind these calls.

        Raises:
            ConfigError: the system allows too few open files or processes.
        """
        forked = self._context.get_start_method() == "fork"
        started = [*(self.graph.ids if peer_ids is None else peer_ids)]
        files = FILES_BASE + FILES_PER_PEER * len(self.graph.ids)
        require_open_files(files, files, f"a testbed of {counted(len(self.graph.ids), 'peer')}")
        gate = os.pipe() if forked else None  # a peer begins when no process holds its second end any more
        try:
            for peer_id in started:
                self._start_one(peer_id, gate)
        except OSError as error:  # fork: too many processes, or too little memory
            self.stop(grace_s=0)
            fix = "Take fewer peers, or raise the limits of this user (ulimit -u) and of memory."
            problem = ConfigProblem(f"peer {peer_id}", "a process that starts", error.strerror or str(error), fix)
            raise ConfigError(problem) from error
        finally:
            for descriptor in gate or ():
                os.close(descriptor)

    def _start_one(self, peer_id: int, gate: tuple[int, int] | None) -> None:
        self.exit_codes.pop(peer_id, None)
        place = StateDir.of_peer(self.directory, peer_id)
        self.cannot_start.discard(peer_id)
        self._starts[peer_id] += 1
        settings = LocalSettings.at(
            place.root,
            data_root=self.options["data_root"],
            amp=self.options["amp"],
            checkpoint_minutes=self.options["checkpoint_minutes"],
            start_from=self.options["start_from"],
            threads=self.threads,
            insecure=self.options["insecure"],
        )
        settings.traceback = self.traceback
        sockets = self.parent_sockets if gate else []  # a spawned peer inherits none
        pipes = [pipe for pair in self._pipes.values() for pipe in pair]
        arguments = (peer_id, self.graph_of(peer_id), settings, self.failpoints.get(peer_id), sockets, pipes, gate)
        process = self._context.Process(target=_child, args=arguments, name=f"peer-{peer_id}")
        before = _descriptors() if gate else set()
        process.start()
        self.processes[peer_id] = process
        if gate:
            self._pipes[peer_id] = {process.sentinel} | {fd for fd in _descriptors() - before if _is_pipe(fd)}

    def pid(self, peer_id: int) -> int:
        """Return the process id of a running peer."""
        pid = self.processes[peer_id].pid
        assert pid is not None
        return pid

    def poll(self, timeout_s: float) -> dict[int, int]:
        """Wait at most ``timeout_s`` until a peer ends; return the new exit codes (-n: killed by signal n)."""
        wait([process.sentinel for process in self.processes.values()], timeout=timeout_s)
        ended = {}
        for peer_id, process in list(self.processes.items()):
            if process.exitcode is not None:
                ended[peer_id] = process.exitcode
                process.close()
                del self.processes[peer_id]
                self._pipes.pop(peer_id, None)
        self.exit_codes.update(ended)
        for peer_id in (peer_id for peer_id, code in ended.items() if code > 0):
            history = StateDir.of_peer(self.directory, peer_id).history
            if self._starts[peer_id] == 1 and not (history.exists() and history.stat().st_size):
                self.cannot_start.add(peer_id)
        if ended:
            self._record(ended)
        return ended

    def _record(self, ended: dict[int, int]) -> None:
        """Append the exit codes to ``exits.jsonl``, for reports and the page."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        path = self.directory / EXITS
        with storage_errors("append to", path), open(ordinary_file(path), "a", encoding="utf-8") as file:
            for peer_id, code in ended.items():
                file.write(dumps({"kind": "exit", "time": now, "peer_id": peer_id, "exit_code": code}) + "\n")

    def signal(self, peer_id: int, number: int) -> None:
        """Send a signal to a running peer."""
        os.kill(self.pid(peer_id), number)

    def stop(self, grace_s: float = 10.0) -> None:
        """Send SIGTERM to every peer, and SIGKILL to those that still run after ``grace_s`` seconds."""
        for number, timeout_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
            end = time.monotonic() + timeout_s  # of all peers together
            for process in self.processes.values():
                if process.pid is not None and process.exitcode is None:
                    os.kill(process.pid, signal.SIGCONT)
                    os.kill(process.pid, number)
            for process in list(self.processes.values()):
                process.join(max(0.0, end - time.monotonic()))
            self.poll(0)
            if not self.processes:
                return

    def failure(self, peer_id: int, code: int) -> str:
        """Return the sentence about a peer that failed: exit code, last error, log."""
        log = StateDir.of_peer(self.directory, peer_id).log
        if code == 0:
            return f"peer {peer_id} ended with exit code 0 without completing or leaving the run, as os._exit() does; see {log}"
        return f"peer {peer_id} failed with exit code {code}: {last_error(log) or 'no error'}; see {log}"

    def why_stop(self, late: Iterable[int] = ()) -> str:
        """Return why the running peers should be stopped, as a sentence: one cannot start, and they would wait for it.

        Args:
            late: peers that the others do not wait for.
        """
        missing = sorted(self.cannot_start - set(late))
        if not missing or not self.processes or self.on_start_failure == "continue":
            return ""
        wait_s = self.graph.manifest.start.deadline_s
        return (
            f"peer {listed(missing)} cannot start: stopping {counted(len(self.processes), 'other peer')} instead of waiting "
            f"up to {wait_s:g} s (run.start.deadline_s); to run without it, set {Option('on_start_failure')} to continue"
        )

    def run(self, on_progress: Callable[[], Any] = lambda: None, interval_s: float = 0.5) -> dict[int, int]:
        """Wait until all peers have ended, calling ``on_progress`` every ``interval_s``; return all exit codes."""
        try:
            while self.processes:
                self.poll(interval_s)
                on_progress()
                if reason := self.why_stop():
                    log.error(reason)
                    self.stop()
        except KeyboardInterrupt:
            log.warning(
                "interrupted: stopping %s; a second Ctrl-C ends them at once", counted(len(self.processes), "peer")
            )
            self.stop()
            raise
        return dict(self.exit_codes)


def _descriptors() -> set[int]:
    """Return the open descriptors of this process, and that of the listing, which is closed again."""
    return set(map(int, os.listdir("/proc/self/fd")))


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:  # it is closed
        return False


def _child(*arguments: Any) -> None:
    """Run one peer, and exit with its code; with 0 if it is asked to leave before it can answer."""
    signal.signal(signal.SIGTERM, raise_on_signal)
    try:
        sys.exit(_run_child(*arguments))
    except StoppedBySignal:
        sys.exit(0)


def _run_child(
    peer_id: int,
    graph: Graph,
    settings: LocalSettings,
    failpoint: str | None,
    parent_sockets: list[socket.socket],
    parent_pipes: list[int],
    gate: tuple[int, int] | None,
) -> int:
    """Run one peer in a process of its own, with its own process group and log; it ends with the parent."""
    end_with_parent()
    if gate is not None:
        wait_end, hold_end = gate
        os.close(hold_end)
        os.read(wait_end, 1)  # returns when the parent has forked all peers, and closed its end
        os.close(wait_end)
    for each in parent_sockets:
        each.close()
    for pipe in parent_pipes:  # else the n-th peer keeps two for each one before it
        os.close(pipe)
    place = StateDir(settings.state_dir)
    try:
        place.root.mkdir(parents=True, exist_ok=True)  # the peer makes the other folders and reports errors
        ordinary_file(place.log)  # a pipe would take lines only until it is full
        handle = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        print(storage_error("write", place.log, error), file=sys.stderr)
        sys.exit(StorageError.exit_code)
    for stream in (1, 2):
        os.dup2(handle, stream)
    os.close(handle)
    from peer import failpoints
    from peer.observe.logs import setup_logging
    from peer.runtime.process import run_peer

    if failpoint is not None:
        os.environ[failpoints.VARIABLE] = failpoint
    setup_logging(peer_id, level=os.environ.get("PEER_LOG_LEVEL", "info"))
    return run_peer(peer_id, graph, settings)
