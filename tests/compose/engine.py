"""A Docker engine for these tests, and an image on it: nothing is touched that was not made here.

If an engine answers already, it is used as it is. Else, as root, one is started from Debian's packages, with all that it keeps
in a temporary directory, and stopped by its process id. Nothing can be pulled in an isolated test, so the base image is made with
debootstrap and the packages come from a folder of wheels.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
BRIDGE = Path("/sys/class/net/docker0")  # of an engine, and left behind by it
SHM, ROOM_BYTES = Path("/dev/shm"), 12 << 30
BASE = "coordinator-free-test-base"
IMAGE = os.environ.get("COMPOSE_TEST_IMAGE", "coordinator-free-test")  # an image that is there is not built
PACKAGES = ("docker.io", "docker-compose", "debootstrap", "iptables")
PROGRAMS = ("dockerd", "docker-compose", "debootstrap", "iptables")
PATIENCE_S = 300.0  # only a daemon that hangs needs so long to start or to end
CACHE = Path(os.environ.get("COMPOSE_TEST_CACHE", ""))  # wheels/ and base/ that an earlier run has left, to be faster


class NoEngine(Exception):
    """Why no engine can be had; the sentence with which the tests skip."""


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command to its end and return what it printed; its output is part of the error if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        check=False,
        cwd=cwd,
        env=os.environ | (env or {}),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


@contextmanager
def engine() -> Iterator[str]:
    """Give the address of an engine; stop it afterwards if it was started here.

    Raises:
        NoEngine: not root, not Debian, or no packages.
    """
    running = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if _answers(running) and shutil.which("docker-compose"):
        yield running
        return
    if os.geteuid() != 0:
        raise NoEngine("no Docker engine runs, and only root can start one")
    _install()
    home = Path(tempfile.mkdtemp(prefix="engine-", dir=_roomy_memory()))
    had_bridge = BRIDGE.exists()
    try:
        with started(home) as address:
            yield address
    finally:
        if BRIDGE.exists() and not had_bridge:
            run("ip", "link", "delete", BRIDGE.name)


@contextmanager
def started(home: Path, *before: str) -> Iterator[str]:
    """Start an engine that keeps everything in a folder, with a command before its own; give its address, and stop it afterwards.

    Raises:
        NoEngine: it does not start; the message has the end of its log.
    """
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *before,
                "dockerd",
                *(f"--{name}={home / name}" for name in ("data-root", "exec-root", "pidfile")),
                f"--host=unix://{home}/sock",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        _wait_for(f"unix://{home}/sock", process, home / "log")
        yield f"unix://{home}/sock"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=PATIENCE_S)
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def second(first: str, *before: str) -> Iterator[str]:
    """Start another engine with the images of one that these tests started: hard links to its layers, which no engine changes.

    Raises:
        NoEngine: the first one was not started here, or this one does not start.
    """
    of_first = Path(first.removeprefix("unix://")).parent / "data-root"
    if not (of_first / "overlay2").is_dir():
        raise NoEngine(
            "a second engine takes the layers of one that these tests started, with the storage driver overlay2"
        )
    home = Path(tempfile.mkdtemp(prefix="engine-", dir=of_first.parents[1]))  # hard links need the same file system
    (home / "data-root").mkdir()
    # The engine has mounted its folder on itself, and no hard link leaves a mount: copy where it is not mounted.
    copy = 'umount --lazy "$0" && cp -al "$0/overlay2" "$0/image" "$1"'
    run("unshare", "--mount", "sh", "-c", copy, of_first, home / "data-root")
    with started(home, *before) as address:
        yield address


def _roomy_memory() -> Path | None:
    """Return a file system in memory with room for layers of an image, if there is one: many small files, and none must last."""
    available = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    if available is None or not SHM.is_dir():
        return None
    return SHM if min(int(available[1]) * 1024, shutil.disk_usage(SHM).free) > ROOM_BYTES else None


def _answers(host: str) -> bool:
    """Return whether an engine is there; asked by the client program, whose failures leave no open socket behind."""
    if shutil.which("docker") is None:
        return False
    asked = subprocess.run(["docker", "-H", host, "version"], check=False, capture_output=True)
    return asked.returncode == 0


def _install() -> None:
    if all(map(shutil.which, PROGRAMS)):
        return
    if shutil.which("apt-get") is None:
        raise NoEngine("no Docker engine runs, and this is no Debian to install one")
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # 1: no service starts
    try:
        run("apt-get", "update", "-q", env=quiet)
        run("apt-get", "install", "-qy", "--no-install-recommends", *PACKAGES, env=quiet)
    except RuntimeError as error:
        raise NoEngine(f"no Docker engine runs, and none can be installed: {error}") from error


def _wait_for(host: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a daemon answers; one that ends cannot run here, and one that neither answers nor ends is an error."""
    deadline = time.monotonic() + PATIENCE_S
    while not _answers(host):
        end = log.read_text(errors="replace")[-2000:]
        if process.poll() is not None:
            raise NoEngine(f"dockerd does not start here: {end}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"dockerd runs, and does not answer within {PATIENCE_S:g} s: {end}")
        time.sleep(0.2)  # between two looks; the answer ends it


def build(host: str) -> None:
    """Build the image offline on a base of Debian, from a copy of this checkout and a folder of wheels."""
    if "COMPOSE_TEST_IMAGE" in os.environ:
        return
    with tempfile.TemporaryDirectory(prefix="context-", dir=_roomy_memory()) as name:
        context = Path(name)
        _copy_checkout(context)
        fetching = subprocess.Popen([sys.executable, __file__, str(context / "deploy" / "wheels")])
        try:
            _import_base(host, context)
            if fetching.wait():
                raise RuntimeError("the wheels cannot be downloaded")
        finally:
            fetching.kill()
            fetching.wait()
        arguments = ["--build-arg", f"BASE_IMAGE={BASE}", "-f", "deploy/Dockerfile", "-t", IMAGE, "."]
        run("docker", "build", *arguments, cwd=context, env={"DOCKER_HOST": host, "DOCKER_BUILDKIT": "0"})


def _copy_checkout(context: Path) -> None:
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", ".dockerignore"):
        shutil.copy(ROOT / name, context)
    for name in ("peer", "coordinator_free_bootstrap", "deploy"):
        shutil.copytree(ROOT / name, context / name, ignore=shutil.ignore_patterns("__pycache__", "*.whl"))


def documented_wheels() -> list[str]:
    """Return what deploy/wheels/README.md downloads for an offline build."""
    lines = (ROOT / "deploy" / "wheels" / "README.md").read_text().splitlines()
    words = shlex.split(next(line for line in lines if line.strip().startswith("pip download ")))[2:]
    return [word for before, word in pairwise(["", *words]) if not word.startswith("-") and not before.startswith("-")]


def fetch_wheels(folder: Path) -> None:
    """Fill the folder of wheels of a build context as its README says, but from the index of this machine."""
    cached = CACHE / "wheels"
    if CACHE.name and cached.is_dir():
        shutil.copytree(cached, folder, dirs_exist_ok=True)
        return
    context, wanted = folder.parents[1], documented_wheels()
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "-d", folder]
    run(*pip, "-c", "constraints.txt", "torch", cwd=context)  # first and alone, as in the Makefile
    run(*pip, "-c", "constraints.txt", "--find-links", folder, *wanted, cwd=context)
    if CACHE.name:
        shutil.copytree(folder, cached)


def _import_base(host: str, context: Path) -> None:
    base = CACHE / "base" if CACHE.name else context / "base"
    if not base.is_dir():
        run("debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", "bookworm", base)
    left_out = [f"--exclude=./{path}" for path in ("var/cache/apt", "var/lib/apt", "usr/share/doc", "usr/share/locale")]
    with subprocess.Popen(["tar", "-C", base, *left_out, "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(["docker", "-H", host, "import", "-", BASE], check=True, stdin=tar.stdout, capture_output=True)
    if not CACHE.name:
        shutil.rmtree(base)


if __name__ == "__main__":
    fetch_wheels(Path(sys.argv[1]))
