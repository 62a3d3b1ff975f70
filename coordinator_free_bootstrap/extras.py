"""Optional packages: the extra that installs each, and a one-sentence error for a missing one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from coordinator_free_bootstrap.errors import UsageError

# module -> extra of pyproject.toml that installs it; the lightest one where several do
EXTRAS = {
    "scipy": "lab",
    "sklearn": "lab",
    "torchvision": "vision",
    "PIL": "vision",
    "matplotlib": "plot",
    "prometheus_client": "metrics",
    "starlette": "page",
    "uvicorn": "page",
    "grpc_reflection": "reflection",
    "pandas": "tabular",
    "pyarrow": "tabular",
    "docker": "chaos",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "onnx": "export",
    "onnxscript": "export",
    "onnxruntime": "export",
    "transformers": "hf",
    "peft": "hf",
    "datasets": "hf",
    "tokenizers": "hf",
    "accelerate": "hf",
    "lightning": "lightning",
    "ray": "ray",
}


def missing_package(error: BaseException) -> UsageError | None:
    """Return the error for a package of an extra that is not installed; None for any other exception."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    package = (error.name or "").partition(".")[0]
    return missing(package) if package in EXTRAS else None


def is_installed(package: str) -> bool:
    """Return whether a package can be imported; it is not imported."""
    try:
        return find_spec(package) is not None
    except ValueError:  # it is loaded without a spec
        return True


def require(packages: Iterable[str], what: str) -> None:
    """Refuse a step whose packages are not all installed, before it begins; none is imported.

    Args:
        packages: modules, as ``import`` names them.
        what: the step, as its error names it, such as ``export to ONNX``.

    Raises:
        UsageError: one is missing.
    """
    for package in packages:
        if not is_installed(package):
            raise missing(package, f"{what}: ")


@contextmanager
def named_packages() -> Iterator[None]:
    """Convert the import of a missing package of an extra, anywhere in a block or in a function, with `missing_package`."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (missing := missing_package(error)) is None:
            raise
        raise missing from error


def missing(package: str, what: str = "") -> UsageError:
    """Return the error for a package that is not installed; ``what`` needs it, as in ``export to ONNX: ``."""
    wanted = f"'coordinator-free[{EXTRAS[package]}]'" if package in EXTRAS else package
    return UsageError(
        f"{what}package {package} is not installed; install it: pip install {wanted} (docs/trouble.md#missing-package)"
    )
