"""Plackett-Luce laws: gradients, extreme scores, errors."""

import pytest
import torch
from example_laws import double_by_default, scores_of, validation_by_default  # noqa: F401

from softrank_ext.laws import GeneralizedPlackettLuce, PlackettLuce


def test_gradients():
    order = torch.tensor([[1, 3, 2, 0], [2, 0, 3, 1]])
    mask = torch.tensor([[True, True, True, True], [True, False, True, True]])
    padded = torch.tensor([[1, 3, 2, 0], [2, 0, 3, 1]])
    for law, shape in ((PlackettLuce, (2, 4)), (GeneralizedPlackettLuce, (2, 4, 4))):
        scores = scores_of(*shape).requires_grad_()
        assert torch.autograd.gradcheck(lambda s, law=law: law(s).log_prob(order), scores)
        assert torch.autograd.gradcheck(lambda s, law=law: law(s, mask).log_prob(padded), scores)
        assert torch.autograd.gradcheck(lambda s, law=law: law(s).log_prob_top(order[:, :2]), scores)
        assert torch.autograd.gradcheck(lambda s, law=law: law(s, mask).entropy(), scores)


def test_extreme_scores_stay_finite():
    law = PlackettLuce(torch.tensor([900.0, -900.0, 0.0, 300.0], dtype=torch.float32))
    assert law.log_prob(torch.tensor([0, 3, 2, 1])) == 0
    assert law.log_prob(torch.tensor([1, 2, 3, 0])).item() == pytest.approx(-1800 - 900 - 600)
    assert torch.equal(law.sample((20,)), torch.tensor([0, 3, 2, 1]).expand(20, 4))


def test_errors_say_what_is_wanted():
    law = PlackettLuce(torch.zeros(4))
    for call, match in (
        (lambda: law.log_prob(torch.tensor([1, 1, 2, 0])), "support"),
        (lambda: law.log_prob(torch.tensor([1, 2, 0])), "event_shape"),
        (
            lambda: law.log_prob(torch.tensor([1.0, 3.0, 2.0, 0.0])),
            r"value must be a \(\.\.\., N\) tensor of int64, got \(4,\) float64; it is an order, order\[place\] = item",
        ),
        (lambda: law.log_prob_top(torch.tensor([1, 1])), "support"),
        (lambda: law.log_prob_top(torch.tensor([1, 4])), "items from 0 to 3"),
        (lambda: law.log_prob_top(torch.arange(5)), "at most 4 places"),
        (lambda: law.log_prob_top(torch.zeros(2)), r"order_prefix must be a \(\.\.\., places\) tensor of int64"),
        (lambda: PlackettLuce(torch.tensor([0.0, torch.nan])), "scores"),
        (lambda: PlackettLuce(torch.tensor([0.0, -torch.inf])), "scores"),
        (
            lambda: PlackettLuce(torch.tensor([0, 1])),
            r"scores must be a \(\.\.\., N\) tensor of float16 or .*, got \(2,\)",
        ),
        (lambda: PlackettLuce(torch.zeros(2, 0)), r"scores must be \(\.\.\., N\), with N at least 1, got \(2, 0\)"),
        (lambda: GeneralizedPlackettLuce(torch.zeros(3, 4)), r"scores must be \(\.\.\., N, N\), place by item"),
        (
            lambda: PlackettLuce(torch.zeros(4), torch.ones(3, dtype=torch.bool)),
            r"mask must be a \(\.\.\., 4\) tensor of bool",
        ),
    ):
        with pytest.raises(ValueError, match=match):
            call()
    with pytest.raises(TypeError, match=r"scores must be a \(\.\.\., N\) tensor of .*, got list"):
        PlackettLuce([0.0, 1.0])
