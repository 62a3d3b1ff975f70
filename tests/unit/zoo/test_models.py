"""The models have the published numbers of parameters and accept their images."""

from __future__ import annotations

import pytest
import torch

from coordinator_free_bootstrap.errors import TaskError
from peer.zoo.tasks.models import MODELS, make_model

GREY, COLOR = (1, 28, 28), (3, 32, 32)


def parameter_count(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("mlp2048", GREY, 10, 1_628_170),  # DFCA (arXiv:2510.15300) App. A.1
        ("dfca_cnn", GREY, 47, 655_855),  # DFCA's code, EMNIST balanced
        ("fedspd_cnn_mnist", GREY, 10, 21_840),  # FedSPD's code
        ("fedspd_cnn_cifar", COLOR, 10, 18_617_482),
        ("fedspd_cnn_cifar", COLOR, 100, 18_663_652),
        ("fedsoft_letters_cnn", GREY, 26, 1_671_578),
        ("mlr", GREY, 10, 7_850),  # CGPFL
        ("dnn128", GREY, 10, 101_770),
        ("dpfl_cnn", COLOR, 10, 62_006),  # DPFL (arXiv:2406.06520) App. H.4
        ("dpfl_cnn", GREY, 10, 37_586),
    ],
)
def test_parameter_counts_of_the_papers(name, shape, classes, parameters):
    model = make_model(name, shape, classes)
    assert parameter_count(model) == parameters
    assert model.eval()(torch.zeros(2, *shape)).shape == (2, classes)


def test_the_table_has_the_documented_models():
    assert set(MODELS) == {
        *("mlp", "mlp2048", "dnn128", "mlr", "dfca_cnn", "fedspd_cnn_mnist", "fedspd_cnn_cifar"),
        *("fedsoft_letters_cnn", "dpfl_cnn"),
    }


def test_mlp_has_the_given_hidden_widths():
    assert parameter_count(make_model("mlp", (1, 8, 8), 10, {"hidden": 256})) == 64 * 256 + 256 + 256 * 10 + 10
    assert parameter_count(make_model("mlp", (4,), 3, {"hidden": [8, 6]})) == 4 * 8 + 8 + 8 * 6 + 6 + 6 * 3 + 3


@pytest.mark.parametrize("name", ["torchvision:mobilenet_v2", "torchvision:resnet18"])
@pytest.mark.parametrize("shape", [GREY, COLOR])
def test_torchvision_models_by_name(name, shape):
    assert make_model(name, shape, 7).eval()(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "shape", "options", "words"),
    [
        ("resnet", GREY, {}, "expected one of dfca_cnn.*got 'resnet'"),
        ("mlp", GREY, {"width": 3}, "model_options.width"),
        ("mlp", GREY, {"hidden": 0}, "model_options.hidden"),
        ("mlp", GREY, {"hidden": True}, "model_options.hidden"),
        ("dfca_cnn", (10,), {}, "expected images"),
        ("dpfl_cnn", (1, 8, 8), {}, "16 pixels or more"),
        ("torchvision:nothing", COLOR, {}, "torchvision:nothing"),
        ("torchvision:resnet18", (2, 28, 28), {}, "expected images of 1 or 3 channels, got 2"),
    ],
)
def test_wrong_names_options_and_shapes_are_task_errors(name, shape, options, words):
    with pytest.raises(TaskError, match=words):
        make_model(name, shape, 10, options)
