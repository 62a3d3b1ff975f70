"""What all layers share."""

from __future__ import annotations

import os

# One thread: tests compare bits, and the machines that run them have two cores. Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

from tools.fixtures import bed, warm_parent  # noqa: F401  after OMP_NUM_THREADS
from tools.http_proxies import proxies  # noqa: F401
