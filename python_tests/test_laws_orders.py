"""What all laws share, against enumeration: probabilities, draws, entropies, modes, and tops summed over orders."""

import math
from itertools import pairwise, permutations

import pytest
import torch
from example_laws import DOUBLE, PADDED, double_by_default, laws, scores_of, validation_by_default  # noqa: F401
from testing import chi_square
from torch import Tensor
from torch.distributions import Distribution

from softrank_ext import noise
from softrank_ext.laws import GeneralizedPlackettLuce, Mallows, OrderDistribution, PlackettLuce, Riffle, permutation

NAMES = list(laws())


def orders_of(items: list[int], rest: tuple[int, ...] = ()) -> Tensor:
    return torch.tensor([[*order, *rest] for order in permutations(items)])


def probability_by_hand(law: Distribution, order: list[int], real: list[int]) -> float:
    """The probability of an order of the real items, written out as the definitions say it."""
    n = len(real)
    order = order[:n]
    if isinstance(law, Riffle):
        deck = sorted(real)
        rising = 1 + sum(order.index(b) < order.index(a) for a, b in pairwise(deck))
        a = 2 ** int(law.shuffles)
        return math.comb(a + n - rising, n) / a**n
    if isinstance(law, Mallows):
        center = [item for item in law.center.tolist() if item in real]

        def weight(candidate: tuple[int, ...]) -> float:
            pairs = [(a, b) for i, a in enumerate(center) for b in center[i + 1 :]]
            return float(law.dispersion) ** sum(candidate.index(a) > candidate.index(b) for a, b in pairs)

        return weight(tuple(order)) / sum(weight(candidate) for candidate in permutations(center))
    probability, left = 1.0, list(real)
    for place, item in enumerate(order):
        scores = law.scores[place] if law.scores.ndim == 2 else law.scores
        probability *= math.exp(scores[item]) / sum(math.exp(scores[other]) for other in left)
        left.remove(item)
    return probability


@pytest.mark.parametrize("mask", [None, PADDED], ids=["whole", "padded"])
@pytest.mark.parametrize("name", NAMES)
def test_probabilities_against_the_definition(name, mask):
    law = laws(mask)[name]
    real = list(range(5)) if mask is None else [0, 2, 3]
    orders = orders_of(real, () if mask is None else (1, 4))
    by_hand = torch.tensor([probability_by_hand(law, order, real) for order in orders.tolist()])
    torch.testing.assert_close(law.log_prob(orders).exp(), by_hand, rtol=1e-12, atol=0)
    assert by_hand.sum().item() == pytest.approx(1, abs=1e-12)
    assert by_hand.unique().numel() > 1, "a uniform law would let an inverted order pass"


@pytest.mark.parametrize("name", NAMES)
def test_padding_may_stand_in_any_order(name):
    law = laws(PADDED)[name]
    one, other = torch.tensor([2, 3, 0, 1, 4]), torch.tensor([2, 3, 0, 4, 1])
    assert law.log_prob(one) == law.log_prob(other)
    with pytest.raises(ValueError, match="support"):
        law.log_prob(torch.tensor([2, 1, 3, 0, 4]))


@pytest.mark.parametrize("mask", [None, PADDED], ids=["whole", "padded"])
@pytest.mark.parametrize("name", NAMES)
def test_enumerated_support_is_all_orders(name, mask):
    law = laws(mask)[name]
    orders = law.enumerate_support()
    expected = orders_of([0, 1, 2, 3, 4]) if mask is None else orders_of([0, 2, 3], (1, 4))
    assert torch.equal(orders, expected)
    batch = law.expand((2, 3))
    assert batch.enumerate_support().shape == (len(expected), 2, 3, 5)
    assert batch.enumerate_support(expand=False).shape == (len(expected), 1, 1, 5)


@pytest.mark.parametrize("mask", [None, PADDED], ids=["whole", "padded"])
@pytest.mark.parametrize("name", NAMES)
def test_entropy_and_mode_against_enumeration(name, mask):
    law = laws(mask)[name]
    orders = law.enumerate_support()
    log_probs = law.log_prob(orders)
    assert law.entropy().item() == pytest.approx(torch.special.entr(log_probs.exp()).sum().item(), abs=1e-12)
    assert torch.equal(law.mode, orders[log_probs.argmax()])


@pytest.mark.parametrize("mask", [None, PADDED], ids=["whole", "padded"])
@pytest.mark.parametrize("name", NAMES)
def test_top_is_the_sum_over_completions(name, mask):
    law = laws(mask)[name]
    orders = law.enumerate_support()
    probs = law.log_prob(orders).exp()
    for places in range(6):
        prefixes = orders[:, :places]
        begins = (orders[:, None, :places] == prefixes).all(-1)  # (order, prefix)
        torch.testing.assert_close(law.log_prob_top(prefixes).exp(), (probs[:, None] * begins).sum(0))


def count_orders(drawn: Tensor, orders: Tensor) -> list[int]:
    code = 10 ** torch.arange(orders.shape[-1])
    found = (drawn * code).sum(-1)
    counts = [int((found == key).sum()) for key in (orders * code).sum(-1)]
    assert sum(counts) == found.numel(), "an order outside the support was drawn"
    return counts


@pytest.mark.parametrize("mask", [None, PADDED], ids=["whole", "padded"])
@pytest.mark.parametrize("name", NAMES)
def test_draws_follow_the_law(name, mask):
    torch.manual_seed(11)
    # Milder scores than elsewhere, so that no order is too rare to be counted.
    law = laws(mask)[name]
    if name == "PlackettLuce":
        law = PlackettLuce(scores_of(5) / 3, mask)
    if name == "GeneralizedPlackettLuce":
        law = GeneralizedPlackettLuce(scores_of(5, 5) / 3, mask)
    orders = law.enumerate_support()
    counts = count_orders(law.sample((40_000,)), orders)
    probabilities = law.log_prob(orders).exp()
    assert probabilities[probabilities > 0].min() * sum(counts) > 5, "too few draws for a chi-square test"
    assert chi_square(counts, probabilities) > 1e-3
    # Negative control: the inverse permutations have another law.
    inverse = law.log_prob(orders.argsort(-1)).exp() if mask is None else probabilities.roll(1)
    assert chi_square([c for c, p in zip(counts, inverse, strict=True) if p > 0], inverse[inverse > 0]) < 1e-9


def test_draws_of_a_batch_follow_each_row():
    torch.manual_seed(5)
    mask = torch.tensor([[True] * 4, [True, False, True, True]])
    law = PlackettLuce(torch.tensor([[0.5, -0.5, 0.0, 1.0], [0.0, 9.0, 1.0, -1.0]]), mask)
    drawn = law.sample((20_000,))
    assert drawn.shape == (20_000, 2, 4)
    assert chi_square(*_counted(law, drawn, 0, orders_of([0, 1, 2, 3]))) > 1e-3
    assert chi_square(*_counted(law, drawn, 1, orders_of([0, 2, 3], (1,)))) > 1e-3


def _counted(law: OrderDistribution, drawn: Tensor, row: int, orders: Tensor) -> tuple[list[int], Tensor]:
    other = law.mode[1 - row].expand_as(orders)
    pair = torch.stack((orders, other) if row == 0 else (other, orders), 1)
    return count_orders(drawn[:, row], orders), law.log_prob(pair)[:, row].exp()


@pytest.mark.parametrize("name", NAMES)
def test_draws_from_given_uniform_numbers(name):
    law = laws()[name]
    uniform = noise.uniform(7, torch.arange(6), 0, 5, dtype=DOUBLE)
    drawn = law.from_uniform(uniform)
    assert torch.equal(drawn[2], law.from_uniform(uniform[2])), "a draw depends on its own numbers alone"
    assert len({tuple(order) for order in drawn.tolist()}) > 1
    torch.manual_seed(1)
    by_sample = law.sample((6,))
    torch.manual_seed(1)
    assert torch.equal(by_sample, law.from_uniform(torch.rand(6, 5, dtype=DOUBLE)))
    with pytest.raises(ValueError, match=r"uniform must be a \(\.\.\., 5\) tensor of float64"):
        law.from_uniform(uniform.float())


@pytest.mark.parametrize("name", NAMES)
def test_shapes_of_a_batch(name):
    law = laws()[name].expand((2, 3))
    assert (law.batch_shape, law.event_shape) == ((2, 3), (5,))
    drawn = law.sample((4,))
    assert drawn.shape == (4, 2, 3, 5) and drawn.dtype == torch.int64
    assert law.log_prob(drawn).shape == (4, 2, 3)
    assert law.log_prob(drawn[0, 0, 0]).shape == (2, 3)
    assert law.log_prob_top(drawn[..., :2]).shape == (4, 2, 3)
    assert law.mode.shape == (2, 3, 5)
    assert law.entropy().shape == law.num_items.shape == (2, 3)
    torch.testing.assert_close(law.log_prob(drawn)[1, 1, 2], laws()[name].log_prob(drawn[1, 1, 2]))


def test_mixed_sizes_in_one_batch():
    mask = torch.tensor([[True, True, True, True], [True, False, True, True], [False, False, True, False]])
    scores = scores_of(3, 4).masked_fill(~mask, torch.nan)  # padding may hold anything
    law = PlackettLuce(scores, mask)
    alone = PlackettLuce(scores[1, [0, 2, 3]])
    order = torch.tensor([[1, 3, 0, 2], [3, 0, 2, 1], [2, 0, 1, 3]])
    assert law.num_items.tolist() == [4, 3, 1]
    torch.testing.assert_close(law.log_prob(order)[1], alone.log_prob(torch.tensor([2, 0, 1])))
    torch.testing.assert_close(law.entropy()[1], alone.entropy())
    assert law.log_prob(order)[2] == law.entropy()[2] == 0
    assert law.support.check(law.sample((50,))).all()
    with pytest.raises(NotImplementedError, match="needs one mask for the whole batch, got 3 masks"):
        law.enumerate_support()
    mallows = Mallows(torch.tensor([[3, 1, 0, 2], [3, 0, 2, 1], [2, 0, 1, 3]]), 0.3, mask)
    shorter = Mallows(torch.tensor([2, 0, 1]), 0.3)
    torch.testing.assert_close(mallows.log_prob(order)[1], shorter.log_prob(torch.tensor([2, 0, 1])))
    torch.testing.assert_close(mallows.entropy()[1], shorter.entropy())
    riffle = Riffle(4, torch.tensor([1, 2, 3]), mask)
    torch.testing.assert_close(riffle.total_variation()[1], Riffle(3, 2).total_variation())
    assert riffle.support.check(riffle.sample((50,))).all()


def test_permutation_constraint():
    values = torch.tensor([[1, 3, 2, 0], [1, 1, 2, 0], [1, 3, 2, 4], [-1, 3, 2, 0]])
    assert permutation.check(values).tolist() == [True, False, False, False]
    assert not permutation.check(values[:1].double()).any()
    assert permutation.is_discrete and permutation.event_dim == 1


def test_checks_can_be_left_out():
    law = PlackettLuce(torch.zeros(4), validate_args=False)
    assert law.log_prob(torch.tensor([1, 3, 2, 0])).item() == pytest.approx(-math.log(24))
    PlackettLuce(torch.tensor([0.0, torch.inf]), validate_args=False)


def test_names_in_repr():
    assert repr(permutation) == "Permutation()"
    assert repr(PlackettLuce(torch.zeros(2, 3)).support) == "Permutation(mask=(2, 3))"
    assert repr(PlackettLuce.arg_constraints["scores"]) == "Finite(event_dim=1)"
    assert repr(Mallows(torch.tensor([1, 2, 0]), 0.5)).startswith("Mallows(center: ")
