"""Import torchvision with a CPU build of torch.

The wheels of torchvision expect a CUDA build of torch. With a CPU build, ``import torchvision`` fails because two operators
are not registered. Data sets, transforms and classification models do not use them, so their schemas are declared here,
only after the plain import has failed.
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
_declared: list[torch.library.Library] = []  # schemas are removed with this object


@functools.cache
def import_torchvision() -> ModuleType:
    """Return torchvision.

    Raises:
        TaskError: torchvision is not installed, or its import fails for another reason.
    """
    try:
        return importlib.import_module("torchvision")
    except ImportError as error:
        raise TaskError(f"torchvision cannot be imported ({error}); install the release for your torch") from error
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise TaskError(f"torchvision: {error}; install the release for torch {torch.__version__}") from error
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]  # modules of the failed import
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in MISSING_OPERATORS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
    return importlib.import_module("torchvision")
