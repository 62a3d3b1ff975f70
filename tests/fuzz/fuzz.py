"""Fuzz one target under atheris: ``python tests/fuzz/fuzz.py messages --seconds 600`` (``pip install atheris`` first).

New inputs are written to the folder --work, crashes to crash-<digest> in it. Add a crash to the target's corpus once it is fixed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Parse the command line and fuzz for --seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--work", type=Path, default=Path("fuzz-work"))
    arguments = parser.parse_args()
    try:
        import atheris
    except ImportError:
        sys.exit("fuzz: atheris is not installed (it is not a dependency of this project); run pip install atheris")
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    with atheris.instrument_imports(include=["coordinator_free_bootstrap", "peer"]):
        from targets import TARGETS
    if arguments.target not in TARGETS:
        sys.exit(f"fuzz: expected one of {', '.join(TARGETS)}, got target {arguments.target}")
    work = arguments.work / arguments.target
    work.mkdir(parents=True, exist_ok=True)
    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={arguments.seconds}",
            "-rss_limit_mb=2048",
            "-timeout=10",
            "-print_final_stats=1",
            f"-artifact_prefix={work}/",
            str(work),
            str(HERE / "corpus" / arguments.target),
        ],
        TARGETS[arguments.target],
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
