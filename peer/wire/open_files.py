"""How many files and connections a peer has open, against the limit of its process."""

from __future__ import annotations

from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.validation import counted

COMFORT_BASE, COMFORT_PER_NEIGHBOR = 64, 4  # with observers, tunnels, metrics, and reconnects meanwhile
LEAST_BASE, LEAST_PER_NEIGHBOR = 24, 2  # measured: 18 and 2; below, connections hang without an error


def open_files_needed(neighbors: int) -> int:
    """Return the number of open files that a peer should be allowed."""
    return COMFORT_BASE + COMFORT_PER_NEIGHBOR * neighbors


def require_peer_files(neighbors: int) -> None:
    """Raise this process's limit of open files to what a peer with this many neighbors needs; see `require_open_files`."""
    least = LEAST_BASE + LEAST_PER_NEIGHBOR * neighbors
    require_open_files(open_files_needed(neighbors), least, f"a peer with {counted(neighbors, 'neighbor')}")


def require_open_files(needed: int, least: int, what: str) -> None:
    """Raise this process's limit of open files as far as the system allows, if it is too low.

    gRPC waits in silence for a descriptor that it does not get.

    Args:
        needed: open files that should be allowed.
        least: open files without which nothing works.
        what: needs them, for the message.

    Raises:
        ConfigError: the limit cannot be raised to the least number.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else max(soft, min(needed, hard))
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < least:
        better = f", better {needed}" if needed > least else ""
        raise ConfigError(
            f"open files: expected a limit of at least {least}{better} for {what}, got {allowed}. Raise it: "
            f"ulimit -n {needed} (systemd: LimitNOFILE, containers: --ulimit nofile)."
        )
