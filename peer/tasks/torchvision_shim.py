"""Import torchvision also where its compiled operators do not fit the installed torch.

torchvision's wheels want a CUDA build of torch; with a CPU build ``import torchvision`` stops because two operators are
not registered, although data sets, transforms and classification models do not use them. Declaring their schemas is
enough. Where the plain import works, nothing is declared.
"""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType

import torch

from coordinator_free_bootstrap.errors import TaskError

MISSING_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # schemas live as long as this object


@functools.cache
def import_torchvision() -> ModuleType:
    """Return torchvision.

    Raises:
        TaskError: it is not installed, or does not work with this torch for another reason.
    """
    try:
        return importlib.import_module("torchvision")
    except ImportError as error:
        raise TaskError(
            f"torchvision cannot be imported ({error}); install the release that fits your torch"
        ) from error
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise TaskError(f"torchvision does not work with torch {torch.__version__}: {error}") from error
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]  # what the failed import left behind
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in MISSING_OPERATORS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
    return importlib.import_module("torchvision")
