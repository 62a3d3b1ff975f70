"""Programs of tests from Debian's packages, without an installation."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def unpacked(program: str, package: str, folder: Path) -> Path:
    """Download Debian's package of a program and unpack it into a folder; skip the test where that cannot be done."""
    if shutil.which("apt-get") is None:
        pytest.skip(f"{program} is not installed, and there is no apt-get to download it")
    command = ["apt-get", "download", "-q", package]
    downloaded = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
    packages = list(folder.glob("*.deb"))
    if downloaded.returncode or not packages:
        pytest.skip(f"{program} is not installed, and cannot be downloaded: {downloaded.stderr[-200:]}")
    subprocess.run(["dpkg", "-x", packages[0], folder], check=True)
    return folder
