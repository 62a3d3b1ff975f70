"""The papers' models have the published number of parameters, and take the images they are meant for."""

from __future__ import annotations

import pytest
import torch

from coordinator_free_bootstrap.errors import TaskError
from peer.learning.models import MODELS, make_model, parameter_count

GREY, COLOR = (1, 28, 28), (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("mlp2048", GREY, 10, 1_628_170),  # DFCA App. A.1
        ("dfca_cnn", GREY, 47, 655_855),  # DFCA's code, EMNIST balanced
        ("fedspd_cnn_mnist", GREY, 10, 21_840),  # FedSPD's code
        ("fedspd_cnn_cifar", COLOR, 10, 18_617_482),
        ("fedspd_cnn_cifar", COLOR, 100, 18_663_652),
        ("fedsoft_letters_cnn", GREY, 26, 1_671_578),
        ("mlr", GREY, 10, 7_850),  # CGPFL
        ("dnn128", GREY, 10, 101_770),
        ("dpfl_cnn", COLOR, 10, 62_006),  # DPFL H.4
        ("dpfl_cnn", GREY, 10, 37_586),
    ],
)
def test_parameter_counts_of_the_papers(name, shape, classes, parameters):
    model = make_model(name, shape, classes)
    assert parameter_count(model) == parameters
    assert model.eval()(torch.zeros(2, *shape)).shape == (2, classes)


def test_every_named_model_is_covered():
    assert set(MODELS) == {
        *("mlp", "mlp2048", "dnn128", "mlr", "dfca_cnn", "fedspd_cnn_mnist", "fedspd_cnn_cifar"),
        *("fedsoft_letters_cnn", "dpfl_cnn"),
    }


def test_mlp_takes_hidden_widths():
    assert parameter_count(make_model("mlp", (1, 8, 8), 10, {"hidden": 256})) == 64 * 256 + 256 + 256 * 10 + 10
    assert parameter_count(make_model("mlp", (4,), 3, {"hidden": [8, 6]})) == 4 * 8 + 8 + 8 * 6 + 6 + 6 * 3 + 3


@pytest.mark.parametrize("name", ["torchvision:mobilenet_v2", "torchvision:resnet18"])
@pytest.mark.parametrize("shape", [GREY, COLOR])
def test_torchvision_models_by_name(name, shape):
    assert make_model(name, shape, 7).eval()(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "shape", "options", "words"),
    [
        ("resnet", GREY, {}, "'resnet' is unknown"),
        ("mlp", GREY, {"width": 3}, "model_options.width"),
        ("mlp", GREY, {"hidden": 0}, "model_options.hidden"),
        ("mlp", GREY, {"hidden": True}, "model_options.hidden"),
        ("dfca_cnn", (10,), {}, "takes images"),
        ("dpfl_cnn", (1, 8, 8), {}, "16 pixels or more"),
        ("torchvision:nothing", COLOR, {}, "torchvision:nothing"),
        ("torchvision:resnet18", (2, 28, 28), {}, "1 or 3 channels"),
    ],
)
def test_what_cannot_be_made_is_said_in_words(name, shape, options, words):
    with pytest.raises(TaskError, match=words):
        make_model(name, shape, 10, options)
