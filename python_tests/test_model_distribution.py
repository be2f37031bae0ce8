"""A model's law of orders at one diffusion time, with the torch.distributions interface."""

from itertools import permutations

import pytest
import torch
from testing import chi_square

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("head", ["pointer", "gpl"])
def test_distribution_against_log_prob_and_enumeration(make_model, head):
    model = make_model(head, torch.float64)
    mask = torch.tensor([[True, True, False, True], [True, True, False, True]])
    items = torch.rand(2, 4, 2, dtype=torch.float64)
    law = model.distribution(items, 0.4, mask)
    assert (law.batch_shape, law.event_shape) == ((2,), (4,))
    orders = law.enumerate_support()  # (6, 2, 4)
    assert orders[:, 0].tolist() == [[*order, 2] for order in permutations([0, 1, 3])]
    log_probs = law.log_prob(orders)
    for i, order in enumerate(orders):
        torch.testing.assert_close(log_probs[i], model.log_prob(items, 0.4, order, mask).total)
    torch.testing.assert_close(log_probs.exp().sum(0), torch.ones(2, dtype=torch.float64))
    begins = (orders[:, None, :, :2] == orders[None, :, :, :2]).all(-1)  # (order, prefix, row)
    torch.testing.assert_close(law.log_prob_top(orders[..., :2]).exp(), (log_probs.exp()[:, None] * begins).sum(0))
    torch.manual_seed(4)
    drawn = law.sample((1500,))
    counts = torch.stack([(drawn == order).all(-1).sum(0) for order in orders])  # (6, 2)
    assert counts.sum() == 3000
    for row in range(2):
        probabilities = log_probs[:, row].exp().detach()
        assert chi_square(counts[:, row], probabilities) > 1e-3
        assert chi_square(counts[:, row], probabilities.flip(0)) < 1e-6


def test_distribution_has_gradients_and_expands(make_model):
    model = make_model("pointer")
    items = torch.rand(3, 5, 2)
    law = model.distribution(items, torch.tensor([0.2, 0.6, 1.0]))
    order = torch.tensor([2, 0, 4, 1, 3])
    law.log_prob(order).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    wide = law.expand((2, 3))
    assert wide.sample((4,)).shape == (4, 2, 3, 5)
    torch.testing.assert_close(wide.log_prob(order), law.log_prob(order).expand(2, 3))
    torch.manual_seed(0)
    one = law.sample((600,))  # more rows than are decoded at once
    torch.manual_seed(0)
    uniform = torch.rand(600, 3, 5, dtype=torch.float64)
    assert torch.equal(one, law.from_uniform(uniform))
    assert torch.equal(one[599], law.from_uniform(uniform[599]))
    assert torch.equal(
        law.from_uniform(torch.full((5,), 1 - 2.0**-53, dtype=torch.float64)).sort().values[0], torch.arange(5)
    )
    with pytest.raises(NotImplementedError, match="entropy of a model's law has no closed form: average -log_prob"):
        law.entropy()
    with pytest.raises(NotImplementedError, match="does not implement mode"):
        _ = law.mode
