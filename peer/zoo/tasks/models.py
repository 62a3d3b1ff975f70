"""Models by name: the architectures of the papers, those of torchvision, and those of other installed packages.

``tests/unit/zoo/test_models.py`` compares parameter counts with the papers and their code. Sources: DFCA (Kirch et al.
2025, arXiv:2510.15300), FedSPD (Lin et al. 2025, arXiv:2410.18862), FedSoft (Ruan and Joe-Wong 2022, arXiv:2112.06053),
DPFL (Kharrat et al. 2025, arXiv:2406.06520), CGPFL (Tang et al. 2021, arXiv:2106.13044).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from typing_extensions import override

from coordinator_free_bootstrap.errors import ConfigProblem, TaskError
from coordinator_free_bootstrap.extras import is_installed
from coordinator_free_bootstrap.installed import named
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.options import NoOptions, Whole, parsed
from coordinator_free_bootstrap.validation import near, unknown_name

InputShape = tuple[int, ...]
NamedModel = tuple[str, Mapping[str, object]]  # a model's name and options
Builder = Callable[[InputShape, int, Any], nn.Module]  # the options are of the model's own class
Width = Annotated[Whole, Field(ge=1)]
GROUP = "coordinator_free.models"


class Model(NamedTuple):
    """A model by name.

    Attributes:
        build: returns the module; arguments: shape of a sample, number of outputs, options.
        about: one sentence for people.
        options: class of its ``model_options``.
    """

    build: Builder
    about: str
    options: type[BaseModel] = NoOptions


@functools.cache
def models() -> Mapping[str, Model]:
    """Return all models by name but those of torchvision, those of installed packages too.

    Raises:
        ConfigError: an installed package is wrong, or has a name that another one has.
    """
    return named(GROUP, "model", Model)


def make_model(
    name: str, input_shape: InputShape, outputs: int, options: Mapping[str, object] | None = None
) -> nn.Module:
    """Return a new model, initialized from torch's global generator.

    Args:
        name: one of `models`, or ``torchvision:<name>`` such as ``torchvision:resnet18``.
        input_shape: of one sample: [channels, height, width] of images, [features] of rows.
        outputs: classes, or regression targets.
        options: the manifest's ``model_options``.

    Raises:
        TaskError: unknown name or option, or a model that does not accept the input shape.
    """
    options = dict(options or {})
    if name.startswith(TORCHVISION):
        return _torchvision(name.removeprefix(TORCHVISION), input_shape, outputs, options)
    check_model_name(name, options)
    return models()[name].build(input_shape, outputs, _options_of(name, options))


def model_of(manifest: Manifest, default: NamedModel, input_shape: InputShape, outputs: int) -> nn.Module:
    """Return a new model of the manifest, or the default, a name with options; ``model_options`` change its options.

    Raises:
        TaskError: as `make_model`.
    """
    name, options = default
    if manifest.model is not None and manifest.model != name:
        name, options = manifest.model, {}
    return make_model(name, input_shape, outputs, {**options, **manifest.model_options})


def check_model_name(name: str, options: Mapping[str, object]) -> None:
    """Check the name of a model and its options; no model is built.

    A model of torchvision is accepted where torchvision is not installed; its options are checked when it is built.

    Raises:
        TaskError: an unknown name or option.
    """
    if name.startswith(TORCHVISION):
        if not is_installed("torchvision"):
            return
        from peer.tasks.torchvision_shim import import_torchvision

        known = [TORCHVISION + each for each in import_torchvision().models.list_models()]
        if name not in known:
            raise TaskError(f"run.model: expected a model of torchvision, got {name!r} ({near(name, known)})")
        return
    if name not in models():
        raise TaskError(unknown_name("run.model", name, [*models(), f"{TORCHVISION}<name>"]))
    _options_of(name, options)


def _options_of(name: str, options: Mapping[str, object]) -> BaseModel:
    return parsed(models()[name].options, options, "run.model_options.{}".format, TaskError, f"model {name!r}")


class MlpOptions(BaseModel):
    """Of ``mlp``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    hidden: Width | list[Width] = Field(256, description="width of the hidden layer, or a list of widths")


def _mlp(shape: InputShape, outputs: int, options: MlpOptions) -> nn.Module:
    """Return input - hidden - outputs with ReLU."""
    return _perceptron(shape, outputs, options.hidden)


def _perceptron(shape: InputShape, outputs: int, hidden: int | list[int]) -> nn.Module:
    sizes = [math.prod(shape), *(hidden if isinstance(hidden, list) else [hidden])]
    layers: list[nn.Module] = [nn.Flatten()]
    for inner, outer in itertools.pairwise(sizes):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


def _linear(shape: InputShape, outputs: int, options: NoOptions) -> nn.Module:
    """Multinomial logistic regression, or linear regression (MLR of CGPFL: 7,850 parameters on MNIST)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))


def _dfca_cnn(shape: InputShape, outputs: int, options: NoOptions) -> nn.Module:
    """Two blocks of [conv 3x3, ReLU, pool, BatchNorm], two linear layers (DFCA App. A.1, as in its code)."""
    channels, height, width = _image(shape, 4)
    return nn.Sequential(
        *_block(channels, 32),
        *_block(32, 64),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 200),
        nn.ReLU(),
        nn.Linear(200, outputs),
    )


def _block(inner: int, outer: int) -> list[nn.Module]:
    return [nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(outer)]


def _fedspd_cnn_mnist(shape: InputShape, outputs: int, options: NoOptions) -> nn.Module:
    """Two 5x5 convolutions without padding, then linear layers: 320-50 on 28x28 images (code of FedSPD)."""
    channels, height, width = _image(shape, 16)
    return nn.Sequential(
        nn.Conv2d(channels, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.Dropout2d(),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(20 * _twice_halved(height) * _twice_halved(width), 50),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(50, outputs),
    )


def _twice_halved(side: int) -> int:
    """Return the side length after two blocks of [5x5 convolution without padding, 2x2 pooling]."""
    return ((side - 4) // 2 - 4) // 2


def _fedspd_cnn_cifar(shape: InputShape, outputs: int, options: NoOptions) -> nn.Module:
    """Four convolutions with BatchNorm, pooling and dropout after the second and fourth (FedSPD App. B)."""
    channels, height, width = _image(shape, 4)
    layers: list[nn.Module] = []
    plan = [(channels, 128, 5), (128, 128, 5), (128, 256, 3), (256, 256, 3)]
    for place, (inner, outer, kernel) in enumerate(plan):
        layers += [nn.Conv2d(inner, outer, kernel, padding=kernel // 2), nn.BatchNorm2d(outer), nn.ReLU()]
        if place % 2:
            layers += [nn.MaxPool2d(2), nn.Dropout(0.25)]
    layers.append(nn.Flatten())
    for inner, outer in [(256 * (height // 4) * (width // 4), 1024), (1024, 512)]:
        layers += [nn.Linear(inner, outer), nn.BatchNorm1d(outer), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Linear(512, outputs))


def _fedsoft_letters_cnn(shape: InputShape, outputs: int, options: NoOptions) -> nn.Module:
    """Two padded 5x5 convolutions with pooling, one linear layer of 512 (FedSoft), without its final softmax."""
    channels, height, width = _image(shape, 4)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Linear(512, outputs),
    )


def _dpfl_cnn(shape: InputShape, outputs: int, options: NoOptions) -> nn.Module:
    """Two 5x5 convolutions with pooling and three linear layers (DPFL H.4): 6-16-120-84, in grey 4-12-120-100."""
    channels, height, width = _image(shape, 16)
    first, second, hidden = (6, 16, 84) if channels > 1 else (4, 12, 100)
    return nn.Sequential(
        nn.Conv2d(channels, first, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * _twice_halved(height) * _twice_halved(width), 120),
        nn.ReLU(),
        nn.Linear(120, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


class _GreyToColor(nn.Module):
    """Repeat the one channel of grey images, because torchvision's models expect three."""

    @override
    def forward(self, images: Tensor) -> Tensor:
        return images.expand(-1, 3, -1, -1)


def _torchvision(name: str, shape: InputShape, outputs: int, options: Mapping[str, object]) -> nn.Module:
    from peer.tasks.torchvision_shim import import_torchvision

    channels, _, _ = _image(shape, 1)
    if channels not in {1, 3}:
        raise TaskError(f"model: torchvision:{name}: expected images of 1 or 3 channels, got {channels}")
    try:
        model: nn.Module = import_torchvision().models.get_model(name, weights=None, num_classes=outputs, **options)
    except (ValueError, TypeError) as error:
        problem = ConfigProblem("run.model_options", f"options of torchvision:{name}", str(error))
        raise TaskError(problem) from error
    return model if channels == 3 else nn.Sequential(_GreyToColor(), model)


def _image(shape: InputShape, side_min: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < side_min:
        raise TaskError(
            f"model: expected images [channels, height, width] of {side_min} pixels or more per side, got samples "
            f"{list(shape)}. Choose mlp or mlr."
        )
    return shape[0], shape[1], shape[2]


MODELS: dict[str, Model] = {
    "mlp": Model(_mlp, "Hidden layers with ReLU, for any samples.", MlpOptions),
    "mlp2048": Model(lambda shape, outputs, options: _perceptron(shape, outputs, 2048), "One hidden layer of 2,048."),
    "dnn128": Model(lambda shape, outputs, options: _perceptron(shape, outputs, 128), "One hidden layer of 128."),
    "mlr": Model(_linear, "One linear layer: logistic or linear regression."),
    "dfca_cnn": Model(_dfca_cnn, "Two convolutions with BatchNorm and two linear layers, from DFCA."),
    "fedspd_cnn_mnist": Model(
        _fedspd_cnn_mnist, "Two 5x5 convolutions and two linear layers, from the code of FedSPD."
    ),
    "fedspd_cnn_cifar": Model(_fedspd_cnn_cifar, "Four convolutions with BatchNorm and dropout, from FedSPD."),
    "fedsoft_letters_cnn": Model(
        _fedsoft_letters_cnn, "Two 5x5 convolutions and one linear layer of 512, from FedSoft."
    ),
    "dpfl_cnn": Model(_dpfl_cnn, "Two 5x5 convolutions and three linear layers, from DPFL."),
}
TORCHVISION = "torchvision:"  # prefix of the models of torchvision
