"""Goal: SGD gives the values of `torch.optim.SGD(fused=True)` bit for bit, without importing torch._dynamo."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from peer.learning.sgd import SGD

SHAPES = ((1003,), (7, 3), (1,))  # also sizes that no vector register divides
STEPS = 5


def _parameters(dtype):
    draw = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=draw).to(dtype)) for shape in SHAPES]


def _trained(make, dtype, absent):
    """Return the parameters after some steps with drawn gradients; ``absent`` are (step, parameter) without one."""
    parameters = _parameters(dtype)
    optimizer, draw = make(parameters), torch.Generator().manual_seed(1)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        for place, parameter in enumerate(parameters):
            gradient = torch.randn(parameter.shape, generator=draw).to(dtype)
            if (step, place) not in absent:
                parameter.grad = gradient
        optimizer.step()
    return parameters


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("decay", [0.0, 0.013])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("absent", [(), ((0, 0), (0, 1), (0, 2)), ((2, 1), (4, 2))], ids=["all", "first", "some"])
def test_the_bits_are_those_of_torch(momentum, decay, dtype, absent):
    def theirs(parameters):
        return torch.optim.SGD(parameters, lr=0.0371, momentum=momentum, weight_decay=decay, fused=True)

    def ours(parameters):
        return SGD(parameters, 0.0371, momentum, decay)

    expected, found = (_trained(make, dtype, absent) for make in (theirs, ours))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(found, _parameters(dtype), strict=True))


def test_a_parameter_whose_first_gradient_comes_later_starts_its_own_buffer():
    """`torch.optim.SGD(fused=False)` does so; the fused one takes uninitialized memory for such a buffer."""
    absent = ((0, 1), (1, 1))

    def theirs(parameters):
        return torch.optim.SGD(parameters, lr=0.5, momentum=0.5, foreach=False, fused=False)

    expected, found = (
        _trained(make, torch.float64, absent) for make in (theirs, lambda parameters: SGD(parameters, 0.5, 0.5))
    )
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


def test_forgotten_gradients_may_be_kept_as_zeros():
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer = SGD([parameter, torch.nn.Parameter(torch.ones(1))], 0.1)
    optimizer.zero_grad(set_to_none=False)
    assert parameter.grad.tolist() == [0.0, 0.0]


def test_training_with_sgd_leaves_dynamo_out():
    program = (
        "import sys, torch; from peer.learning.sgd import SGD; p = torch.nn.Linear(2, 2);"
        "p(torch.ones(1, 2)).sum().backward(); SGD(list(p.parameters()), 0.1, 0.9).step();"
        "print(sorted({'torch._dynamo', 'torch._inductor', 'sympy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
