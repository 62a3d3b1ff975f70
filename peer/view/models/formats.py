"""A PyTorch module as the bytes of a file: a state dict (``.pt``, ``.safetensors``) or an ONNX graph (``.onnx``)."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coordinator_free_bootstrap.errors import ConfigProblem, TaskError, UsageError
from coordinator_free_bootstrap.extras import require
from coordinator_free_bootstrap.strict_json import of_type
from coordinator_free_bootstrap.user_file import USER_ERRORS

Metadata = Mapping[str, str]
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
TRACED, CHECKED = 2, 3  # samples: of the example that is traced, and of the comparison afterwards
RTOL, ATOL = 1e-3, 1e-4  # between the outputs of PyTorch and onnxruntime, float32
COLORS = re.compile(r"\x1b\[[0-9;]*m")


def state_dict_of(module: nn.Module) -> dict[str, Any]:
    """Return all that a strict ``load_state_dict`` needs: tensors, no two of which share memory, and extra state as it is.

    Frozen parameters and integer buffers are among the tensors; extra state is what ``get_extra_state`` of a layer returns.
    """
    return {name: _copied(value) for name, value in module.state_dict().items()}


def _copied(value: Any) -> Any:
    return value.detach().cpu().clone().contiguous() if isinstance(value, Tensor) else value


def as_pt(module: nn.Module, example: Tensor | None, metadata: Metadata) -> bytes:
    """Return a state dict that ``torch.load(..., weights_only=True)`` reads; it cannot hold metadata.

    Raises:
        TaskError: extra state of a layer is of a type that such a load refuses.
    """
    state, file = state_dict_of(module), io.BytesIO()
    try:
        torch.save(state, file)
        torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    except Exception as error:  # pickle calls the code of a user, which may raise any exception
        names = ", ".join(name for name, value in state.items() if not isinstance(value, Tensor))
        raise TaskError(
            f"export of a state dict: {names}: expected extra state (get_extra_state) of tensors, numbers, text, and "
            f"lists and dicts of them, got {_first_line(error)}"
        ) from error
    return file.getvalue()


def as_safetensors(module: nn.Module, example: Tensor | None, metadata: Metadata) -> bytes:
    """Return a state dict with metadata as a safetensors file.

    Raises:
        TaskError: the file format cannot hold a value of the state dict.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save

    state = state_dict_of(module)
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise TaskError(
                f"export to safetensors: {name}: expected tensors, got {of_type(value)} (get_extra_state). "
                "Export a file that ends in .pt."
            )
    try:
        return bytes(save(state, dict(metadata)))
    except (SafetensorError, KeyError, ValueError) as error:  # a dtype that the format lacks
        dtypes = ", ".join(sorted({str(value.dtype) for value in state.values()}))
        got, fix = f"{dtypes} ({_first_line(error)})", "Export a file that ends in .pt."
        raise TaskError(ConfigProblem("export to safetensors", "tensors of its types", got, fix)) from error


def as_onnx(module: nn.Module, example: Tensor | None, metadata: Metadata) -> bytes:
    """Return an ONNX graph with input ``input`` [samples, ...], output ``output`` and metadata.

    Its outputs are compared with those of PyTorch before it is returned.

    Raises:
        UsageError: a package of the extra ``export`` is not installed.
        TaskError: torch cannot trace or convert the module, or the graph computes something else.
    """
    check_packages()
    if example is None:
        raise UsageError(
            "export to ONNX: expected one input, got a model with several inputs by name. Export a state dict: a file "
            "that ends in .pt or .safetensors."
        )
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch's exporter uses what torch itself has deprecated
        try:
            program: Any = torch.onnx.export(
                module,
                (example[:TRACED],),
                dynamo=True,
                verbose=False,
                input_names=["input"],
                output_names=["output"],
                dynamic_shapes=({0: torch.export.Dim("samples")},),
            )
        except USER_ERRORS as error:
            raise TaskError(
                "model: cannot be converted to ONNX: expected a model that torch.export traces with any number of "
                f"samples, got {_first_line(error)}. Or export a state dict: a file that ends in .pt or .safetensors."
            ) from error
        program.model.metadata_props.update(metadata)
        content: bytes = program.model_proto.SerializeToString()
        _compare(module, example, content)
    return content


def check_packages() -> None:
    """Refuse an export to ONNX without its packages.

    Raises:
        UsageError: one is not installed.
    """
    require(ONNX_PACKAGES, "export to ONNX")


FORMATS: dict[str, Callable[[nn.Module, Tensor | None, Metadata], bytes]] = {
    ".pt": as_pt,
    ".safetensors": as_safetensors,
    ".onnx": as_onnx,
}


def example_inputs(shape: tuple[int, ...], dtype: str) -> Tensor:
    """Return inputs [n, *shape] for tracing: normal random numbers from a fixed seed, or token ids 0 and 1."""
    draw = torch.Generator().manual_seed(0)
    size = (max(TRACED, CHECKED), *shape)
    if dtype == "float32":
        return torch.randn(size, generator=draw)
    return torch.randint(0, 2, size, generator=draw, dtype=getattr(torch, dtype))


def _compare(module: nn.Module, example: Tensor, content: bytes) -> None:
    import onnxruntime

    expected = module(example[:CHECKED]).numpy()
    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        found = session.run(None, {"input": example[:CHECKED].numpy()})[0]
    except Exception as error:  # onnxruntime has a class for each of its error codes
        raise TaskError(
            "model: the ONNX graph does not run in onnxruntime: expected real numbers and the operators of "
            f"onnxruntime, got {_first_line(error)}. Export a state dict: a file that ends in .pt or .safetensors."
        ) from error
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=RTOL, atol=ATOL):
        raise TaskError(
            f"model: the ONNX graph differs from the model: expected outputs of shape {list(expected.shape)}, for one sample "
            f"{expected.ravel()[:3]}, as in PyTorch, got {list(found.shape)} and {found.ravel()[:3]}. "
            "Export a state dict: a file that ends in .pt or .safetensors."
        )


def _first_line(error: BaseException) -> str:
    """Return the innermost cause of an exporter's error in one line, without colors."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = COLORS.sub("", str(cause)).strip().splitlines() or [""]
    return f"{type(cause).__name__}: {lines[0][:300]}"
