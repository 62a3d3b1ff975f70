"""Packages that only some parts need: they come with extras of this project, and a missing one is said in one sentence."""

from __future__ import annotations

from coordinator_free_bootstrap.errors import UsageError

EXTRAS = {
    "networkx": "graph",
    "scipy": "graph",
    "sklearn": "lab",
    "torchvision": "vision",
    "PIL": "vision",
    "matplotlib": "plot",
    "pandas": "tabular",
    "pyarrow": "tabular",
    "prometheus_client": "metrics",
    "starlette": "page",
    "uvicorn": "page",
    "docker": "chaos",
    "ray": "ray",
    "grpc_reflection": "reflection",
}


def missing_package(error: ImportError) -> UsageError | None:
    """Return the error for a package of an extra that is not installed; None if another one is missing."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(package)
    if extra is None:
        return None
    return UsageError(
        f"found no package {package!r}, which this needs; install it: pip install 'coordinator-free[{extra}]'"
    )
