"""The benchmark scripts import each other by bare names, as they do when they are run."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
