"""The Mallows law: the ends of its dispersion, gradients, errors."""

import math

import pytest
import torch
from example_laws import double_by_default, validation_by_default  # noqa: F401

from softrank_ext.laws import Mallows


def test_the_ends_of_dispersion():
    order = torch.tensor([1, 3, 2, 0])
    uniform = Mallows(order, 1.0)
    assert uniform.entropy().item() == pytest.approx(math.log(24))
    assert uniform.log_normalizer.item() == pytest.approx(math.log(24))
    certain = Mallows(order, 0.0)
    assert torch.equal(certain.sample((100,)), order.expand(100, 4))
    assert certain.log_prob(order) == 0 and certain.entropy() == 0
    assert certain.log_prob(torch.tensor([3, 1, 2, 0])) == -torch.inf


def test_gradients():
    order = torch.tensor([[1, 3, 2, 0], [2, 0, 3, 1]])
    dispersion = torch.tensor([0.4, 0.9], requires_grad=True)
    assert torch.autograd.gradcheck(lambda d: Mallows(order[0], d).log_prob(order), dispersion)
    assert torch.autograd.gradcheck(lambda d: Mallows(order[0], d).entropy(), dispersion)
    # At dispersion 0, where the center is certain: log P = -log(1 + d) - log(1 + d + d^2) - ...
    at_zero = torch.tensor(0.0, requires_grad=True)
    Mallows(order[0], at_zero).log_prob(order[0]).backward()
    assert at_zero.grad == -3


def test_errors_say_what_is_wanted():
    for call, match in (
        (lambda: Mallows(torch.tensor([1, 3, 2, 0]), 1.5), "dispersion"),
        (lambda: Mallows(torch.tensor([1, 3, 2, 0]), 1), "dispersion must be float, from 0 to 1, got int64"),
        (lambda: Mallows(torch.tensor([1, 1, 2, 0]), 0.5), "center"),
        (lambda: Mallows(torch.tensor([1.0, 0.0]), 0.5), r"center must be a \(\.\.\., N\) tensor of int64, got \(2,\)"),
        (lambda: Mallows(torch.zeros(2, 0).long(), 0.5), r"center must have at least one item, got \(2, 0\) int64"),
        (lambda: Mallows(torch.tensor([1, 0, 2]), 0.5, torch.tensor([True, False, True])), "real items before padding"),
    ):
        with pytest.raises(ValueError, match=match):
            call()
