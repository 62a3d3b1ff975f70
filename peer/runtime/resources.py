"""What a peer needs of its machine, checked at the start: a shortage is an error at once, not a hang or a killed process."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem
from coordinator_free_bootstrap.ordinary_file import content_of

THREADS = 16  # measured: a peer has 10, and gRPC starts some for a while
MODELS_EACH = 2  # of each model that a peer holds: itself, and one that replaces it
_CGROUP = Path("/sys/fs/cgroup")
_PROC_BYTES_MAX = 1 << 20
_NO_MEMORY = ("can't allocate memory", "not enough memory", "Cannot allocate memory")

log = logging.getLogger("peer")


def require_threads(count: int = THREADS) -> None:
    """Start as many threads as a peer needs, and end them.

    Raises:
        ConfigError: the system allows fewer.
    """
    done = threading.Event()
    threads: list[threading.Thread] = []
    try:
        while len(threads) < count:
            thread = threading.Thread(target=done.wait, daemon=True, name="probe")
            thread.start()
            threads.append(thread)
    except RuntimeError as error:
        fix = "Raise the limit of this user or container: ulimit -u (systemd: TasksMax, containers: --pids-limit)."
        problem = ConfigProblem("threads", f"{count}, which a peer needs", f"a limit of {len(threads)} more", fix)
        raise ConfigError(problem) from error
    finally:
        done.set()
        for thread in threads:
            thread.join()


def require_memory(models: int, parameters: int) -> None:
    """Check that the models of a peer fit the memory that is free, with swap.

    Args:
        models: that the peer holds.
        parameters: d, float32 elements of a model.

    Raises:
        ConfigError: they do not fit.
    """
    needed, free = MODELS_EACH * models * 4 * parameters, free_memory()
    if free is not None and needed > free:
        expected = f"at least {megabytes(needed)} for {models} models of {parameters} parameters"
        fix = "Take a machine or a container with more memory, a smaller model, or fewer run.clusters."
        raise ConfigError(ConfigProblem("memory", expected, f"{megabytes(free)} free", fix))


def disk_note(directory: Path, checkpoint_bytes: int) -> str | None:
    """Return a sentence if the disk of a directory has no room for one more checkpoint; None if it has."""
    try:
        free = shutil.disk_usage(directory).free
    except OSError:
        return None
    if free >= checkpoint_bytes:
        return None
    return (
        f"the disk of {directory} has {megabytes(free)} free, and a checkpoint needs {megabytes(checkpoint_bytes)}: none can be "
        "written until there is room, and a restarted peer loses the rounds since the last one"
    )


@contextmanager
def memory_errors() -> Iterator[None]:
    """Convert an allocation of the block that fails to a sentence.

    Raises:
        ConfigError: memory is too small.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in _NO_MEMORY):
            raise
        free = free_memory()
        found = "too little" if free is None else f"{megabytes(free)} free"
        got = f"{found} ({' '.join(str(error).split()) or 'allocation failed'})"
        fix = "Take a machine or a container with more memory, fewer samples or a smaller model."
        raise ConfigError(ConfigProblem("memory", "enough for data and models of this peer", got, fix)) from error


def free_memory() -> int | None:
    """Return the bytes that this process may still take, with swap; None if the system does not say."""
    known = [found for found in (_of_machine(), _of_container()) if found is not None]
    return min(known, default=None)


def megabytes(size: int) -> str:
    """Return a number of bytes for people."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _of_machine() -> int | None:
    rows = dict(line.split(":", 1) for line in _text(Path("/proc/meminfo")).splitlines() if ":" in line)
    try:
        return sum(1024 * int(rows[key].split()[0]) for key in ("MemAvailable", "SwapFree"))
    except (KeyError, ValueError, IndexError):
        return None


def _of_container() -> int | None:
    most, used = _text(_CGROUP / "memory.max").strip(), _text(_CGROUP / "memory.current").strip()
    if not (most.isdigit() and used.isdigit()):
        return None
    rows = dict(line.split(" ", 1) for line in _text(_CGROUP / "memory.stat").splitlines() if " " in line)
    cached = int(rows.get("inactive_file", "0"))  # the kernel gives it back
    return max(0, int(most) - int(used) + cached)


def _text(path: Path) -> str:
    try:
        return content_of(path, _PROC_BYTES_MAX).decode(errors="replace")
    except OSError:
        return ""
