"""Generate `peer/wire/generated` from `proto/peer/v1/peer.proto`; with ``--check`` only say whether it is up to date.

The proto folder is mapped onto the package path, so that the stubs import each other as ``peer.wire.generated``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("peer/wire/generated")


def generate(out: Path) -> None:
    """Write the message classes, their types and the service stubs below ``out``."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PACKAGE}={ROOT / 'proto/peer/v1'}"]
    outputs = [f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}"]
    subprocess.run([*command, *outputs, str(PACKAGE / "peer.proto")], check=True)


def check() -> int:
    """Compare the checked-in files with freshly generated ones; return 0 if they agree."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = sorted((Path(folder) / PACKAGE).iterdir())
        stale = [file.name for file in fresh if not _same(file, ROOT / PACKAGE / file.name)]
    if stale:
        print(f"{PACKAGE}: {', '.join(stale)} differ from the proto; run python proto/generate.py", file=sys.stderr)
    return 1 if stale else 0


def _same(fresh: Path, present: Path) -> bool:
    return present.exists() and present.read_bytes() == fresh.read_bytes()


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the stubs are out of date")
    if parser.parse_args().check:
        return check()
    generate(ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
