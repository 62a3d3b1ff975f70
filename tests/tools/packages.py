"""Programs of tests from Debian's packages, without an installation."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def unpacked(program: str, folder: Path, *packages: str) -> Path:
    """Download Debian's packages of a program and unpack them into a folder; skip the test where that cannot be done."""
    if shutil.which("apt-get") is None:
        pytest.skip(f"{program} is not installed, and there is no apt-get to download it")
    command = ["apt-get", "download", "-q", *packages]
    downloaded = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
    files = list(folder.glob("*.deb"))
    if downloaded.returncode or len(files) != len(packages):
        pytest.skip(f"{program} is not installed, and cannot be downloaded: {downloaded.stderr[-200:]}")
    for file in files:
        subprocess.run(["dpkg", "-x", file, folder], check=True)
    return folder
