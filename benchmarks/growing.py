"""What a process holds, and how a quantity grows: straight lines through samples, by least squares."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> tuple[float, float]:
    """Return the private and the anonymous memory of a process, MB (10^6 bytes): its own pages, and those of no file."""
    rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    kib = {row[0]: int(row[1]) for row in rows}
    return (kib["Private_Clean:"] + kib["Private_Dirty:"]) * 1.024e-3, kib["Anonymous:"] * 1.024e-3


def processor_s(pid: int) -> float:
    """Return the processor seconds of a process so far, user and system, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def open_files(pid: int) -> int:
    """Return the number of open file descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    """Return the number of threads of a process."""
    return len(os.listdir(f"/proc/{pid}/task"))


def bytes_in(place: Path) -> int:
    """Return the bytes of a file, or of all files below a folder; files that vanish meanwhile count nothing."""
    total = 0
    for path in [place] if place.is_file() else list(place.rglob("*")):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the slope of the straight line through points; 0.0 with fewer than two different ``xs``.

    Args:
        xs: float[n].
        ys: float[n].
    """
    x, y = np.asarray(xs, float), np.asarray(ys, float)
    if len(x) != len(y):
        raise ValueError(f"points: expected as many of each, got {len(x)} xs and {len(y)} ys")
    spread = x - x.mean() if len(x) else x
    return float(spread @ y / (spread @ spread)) if spread.any() else 0.0


def growth_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the slope of log cost over log size: 0 is flat, 1 is proportional. Costs must be positive."""
    if not all(value > 0 for value in (*sizes, *costs)):
        raise ValueError(f"sizes and costs: expected numbers above 0, got {[*sizes, *costs]}")
    return slope([float(v) for v in np.log(sizes)], [float(v) for v in np.log(costs)])
