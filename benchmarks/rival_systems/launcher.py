"""Starts the nodes of a system, each as a process of the same script, and waits until they end. Imports nothing large."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ADDRESSES = [f"127.0.0.1:{7600 + node}" for node in range(64)]  # each run has a network of its own


def start_nodes(script: str, folder: Path, nodes: int) -> None:
    """Run ``python SCRIPT FOLDER NODE`` for each node; what they print goes to ``node-I.txt``."""
    processes = []
    for node in range(nodes):
        output, own = (folder / f"node-{node}.txt").open("w"), folder / f"node-{node}"
        own.mkdir()  # some write logs where they are
        words = [sys.executable, script, str(folder), str(node)]
        processes.append(subprocess.Popen(words, cwd=own, stdout=output, stderr=output))
    for process in processes:
        process.wait()
