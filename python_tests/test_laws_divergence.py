"""Divergences of laws against sums over all orders, their gradients, and where they are infinite or not exact."""

from itertools import product

import pytest
import torch
from example_laws import PADDED, double_by_default, laws, scores_of, validation_by_default  # noqa: F401
from torch.distributions import kl_divergence

from softrank_ext.laws import GeneralizedPlackettLuce, Mallows, OrderDistribution, PlackettLuce, Riffle

PAIRS = list(product(laws(), repeat=2))


def others(mask: torch.Tensor | None) -> dict[str, OrderDistribution]:
    """Laws other than those of `laws`; all orders are possible."""
    center = torch.tensor([0, 3, 2, 4, 1])
    return {
        "PlackettLuce": PlackettLuce(scores_of(2, 5)[1], mask),
        "GeneralizedPlackettLuce": GeneralizedPlackettLuce(scores_of(2, 5, 5)[1], mask),
        "Mallows": Mallows(center, 0.8, mask),
        "Riffle": Riffle(5, 3, mask),
    }


def by_enumeration(first: OrderDistribution, second: OrderDistribution) -> float:
    total = 0.0
    for order in first.enumerate_support():
        p, q = float(first.log_prob(order)), float(second.log_prob(order))
        total += 0.0 if p == -torch.inf else torch.tensor(p).exp().item() * (p - q)
    return total


@pytest.mark.parametrize("mask", [None, PADDED], ids=["whole", "padded"])
@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_against_enumeration(names, mask):
    first, second = laws(mask)[names[0]], others(mask)[names[1]]
    expected = by_enumeration(first, second)
    assert expected > 0.01, "equal laws would let a wrong divergence pass"
    assert kl_divergence(first, second).item() == pytest.approx(expected, rel=1e-10)
    assert kl_divergence(first, first).item() == pytest.approx(0, abs=1e-12)
    in_batch = kl_divergence(first.expand((3, 1)), second.expand((2,)))
    torch.testing.assert_close(in_batch, torch.full((3, 2), expected))


def test_more_items_than_can_be_enumerated():
    torch.manual_seed(3)
    scores = scores_of(10) / 3
    center = torch.tensor([4, 0, 9, 2, 7, 1, 8, 3, 6, 5])
    for first, second in (
        (PlackettLuce(scores), Mallows(center, 0.9)),
        (Mallows(center, 0.7), PlackettLuce(scores)),
        (Mallows(center, 0.7), Mallows(center.flip(0), 0.9)),
        (Riffle(10, 2), Riffle(10, 4)),
    ):
        drawn = first.sample((20_000,))
        ratios = first.log_prob(drawn) - second.log_prob(drawn)
        error = float(ratios.std()) / 20_000**0.5
        assert kl_divergence(first, second).item() == pytest.approx(ratios.mean().item(), abs=4 * error)
        assert ratios.mean() > 20 * error


def test_ends_of_mallows():
    order = torch.tensor([1, 3, 2, 0])
    certain, uniform = Mallows(order, 0.0), Mallows(order, 1.0)
    assert kl_divergence(certain, uniform).item() == pytest.approx(torch.tensor(24.0).log().item())
    assert kl_divergence(uniform, certain) == torch.inf
    assert kl_divergence(certain, certain) == 0
    assert kl_divergence(certain, PlackettLuce(torch.zeros(4))).item() == pytest.approx(torch.tensor(24.0).log().item())
    assert kl_divergence(PlackettLuce(torch.zeros(4)), certain) == torch.inf
    assert kl_divergence(Mallows(torch.tensor([0]), 0.5), Mallows(torch.tensor([0]), 0.2)) == 0


def test_a_mallows_law_does_not_diverge_from_itself():
    for size in (5, 40):
        law = Mallows(torch.arange(size).roll(1), torch.tensor([0.1, 0.5, 0.9, 0.99]).float())
        assert torch.equal(kl_divergence(law, law), torch.zeros(4)), "-2e-7 is no divergence"
        assert (kl_divergence(law, Mallows(law.center.flip(-1), law.dispersion)) > 0).all()


def test_riffles_that_reach_more_orders():
    assert kl_divergence(Riffle(6, 3), Riffle(6, 1)) == torch.inf
    rows = kl_divergence(Riffle(52, torch.tensor([6, 7])), Riffle(52, 40))
    assert rows.shape == (2,) and rows[0] > rows[1] > 0


def test_gradients():
    order = torch.tensor([1, 3, 2, 0])
    scores, places = scores_of(4).requires_grad_(), scores_of(4, 4).requires_grad_()
    dispersion = torch.tensor([0.4, 0.9], requires_grad=True)
    other = torch.tensor([0.7, 0.2], requires_grad=True)
    for call, inputs in (
        (lambda s, g: kl_divergence(PlackettLuce(s), GeneralizedPlackettLuce(g)), (scores, places)),
        (lambda s, g: kl_divergence(GeneralizedPlackettLuce(g), PlackettLuce(s)), (scores, places)),
        (lambda s, d: kl_divergence(PlackettLuce(s), Mallows(order, d)), (scores, dispersion)),
        (lambda s, d: kl_divergence(Mallows(order, d), PlackettLuce(s)), (scores, dispersion)),
        (lambda d, e: kl_divergence(Mallows(order, d), Mallows(order.roll(1), e)), (dispersion, other)),
        (lambda s: kl_divergence(Riffle(4, 1), PlackettLuce(s)), (scores,)),
    ):
        assert torch.autograd.gradcheck(call, inputs)


def test_errors_say_what_is_wanted():
    whole = PlackettLuce(torch.zeros(5))
    with pytest.raises(ValueError, match="laws over equally many items, got 5 and 4"):
        kl_divergence(whole, PlackettLuce(torch.zeros(4)))
    with pytest.raises(ValueError, match="laws with the same mask"):
        kl_divergence(whole, PlackettLuce(torch.zeros(5), PADDED))
    with pytest.raises(NotImplementedError, match=r"kl_divergence .* at most 12 items, got 13"):
        kl_divergence(PlackettLuce(torch.zeros(13)), PlackettLuce(torch.zeros(13)))
    with pytest.raises(NotImplementedError, match="at most 8 items, got 9"):
        kl_divergence(PlackettLuce(torch.zeros(9)), Riffle(9, 2))
