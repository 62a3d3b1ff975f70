"""The command `peer` in tests, forked from a process that has imported everything: PyTorch is imported once for all of them.

A forked command begins as ``python -m peer`` does, in a folder and an environment of its own, and ends as it does,
but for the memory, which the kernel frees.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from functools import cache
from pathlib import Path
from typing import Any


class WarmParent:
    """The forking process of one test session."""

    def __init__(self) -> None:
        place = Path(__file__).with_name("warm.py")
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen([sys.executable, str(place)], env=environment, text=True, **pipes)
        assert json.loads(self._process.stdout.readline())["ready"]

    def ask(self, **request: Any) -> dict[str, Any]:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10)


@cache
def warm_parent() -> WarmParent:
    """Return the forking process of this session; it starts with the first call."""
    parent = WarmParent()
    atexit.register(parent.close)
    return parent


class Forked:
    """A command `peer`, or a script, that runs, with the methods of `subprocess.Popen`.

    Args:
        words: what follows `peer`, or the script, on the command line.
        script: the file of a script; default: the command `peer`.
        kill_at_step: of the script's optimizer, at which it is killed; 0: never.
        parent: the process that forks it; default: that of this session.
        cwd: the folder in which it runs; default: that of the tests.
        log: the file of both outputs; default: `communicate` returns them.
        environment: variables beside those of the tests.
        namespace: the name of the network namespace in which it runs; default: that of the tests.
        goodbye_s: how long a peer waits until its neighbors have taken its goodbye; default: as outside tests, 2 s.
    """

    def __init__(
        self,
        *words: object,
        script: Path | None = None,
        kill_at_step: int = 0,
        parent: WarmParent | None = None,
        cwd: Path | None = None,
        log: Path | None = None,
        environment: dict[str, str] | None = None,
        namespace: str = "",
        goodbye_s: float | None = None,
    ) -> None:
        self.args = [str(script or "peer"), *map(str, words)]
        self.returncode: int | None = None
        if log:
            self.out = self.err = log
        else:
            outputs = Path(tempfile.mkdtemp(prefix="outputs-"))
            weakref.finalize(self, shutil.rmtree, outputs)
            self.out, self.err = outputs / "out", outputs / "err"
        for path in {self.out, self.err}:
            path.write_bytes(b"")
        self._parent = parent or warm_parent()
        self.pid = self._parent.ask(
            do="script" if script else "command",
            path=self.args[0],
            kill_at_step=kill_at_step,
            arguments=self.args[1:],
            cwd=os.fspath(cwd or Path.cwd()),
            environment=os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {}),
            namespace=namespace,
            goodbye_s=goodbye_s,
            out=os.path.abspath(self.out),
            err=os.path.abspath(self.err),
        )["pid"]

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        if self.returncode is None:
            self.returncode = self._parent.ask(do="wait", pid=self.pid)["code"]
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs after ``timeout`` seconds.
        """
        if self.poll() is None:  # so the parent has not yet forgotten the process
            end = os.pidfd_open(self.pid)
            try:
                select.select([end], [], [], timeout)
            finally:
                os.close(end)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end, and return both outputs; a command that does not end in time is killed."""
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return self.out.read_text(), self.err.read_text()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def executed(*words: object, timeout: float = 150.0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command `peer` to its end; return its exit code and outputs."""
    process = Forked(*words, **options)
    try:
        out, err = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
