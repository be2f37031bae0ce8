"""Laws of orders against enumeration: probabilities, draws, entropies, modes, and tops summed over all completions."""

import math
from itertools import pairwise, permutations

import choix
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Distribution

from softrank_ext import noise
from softrank_ext.laws import (
    GeneralizedPlackettLuce,
    Mallows,
    OrderDistribution,
    PlackettLuce,
    Riffle,
    fit_plackett_luce,
    permutation,
    rising_sequences,
)

DOUBLE = torch.float64
# Two of five items are padding, in the middle and at the end.
PADDED = torch.tensor([True, False, True, True, False])


def scores_of(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return 1.5 * torch.randn(*shape, generator=generator, dtype=DOUBLE)


def laws(mask: Tensor | None = None) -> dict[str, OrderDistribution]:
    """A law of each kind over five items, in float64 where it has a dtype."""
    center = torch.tensor([3, 0, 2, 1, 4])  # with PADDED, its padding 1 and 4 stands last
    return {
        "PlackettLuce": PlackettLuce(scores_of(5), mask),
        "GeneralizedPlackettLuce": GeneralizedPlackettLuce(scores_of(5, 5), mask),
        "Mallows": Mallows(center, torch.tensor(0.6, dtype=DOUBLE), mask),
        "Riffle": Riffle(5, 2, mask),
    }


NAMES = list(laws())


@pytest.fixture(autouse=True)
def double_by_default():
    """The riffle has no parameter to take its dtype from."""
    torch.set_default_dtype(DOUBLE)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def validation_by_default():
    """torch.compile turns it off for the rest of the process, for all of torch.distributions."""
    Distribution.set_default_validate_args(True)


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


def p_value(counts: list[int], probabilities: Tensor) -> float:
    possible = probabilities > 0
    assert all(count == 0 for count, can in zip(counts, possible, strict=True) if not can)
    expected = probabilities[possible] / probabilities.sum() * sum(counts)
    assert expected.min() > 5, "too few draws for a chi-square test"
    return stats.chisquare([count for count, can in zip(counts, possible, strict=True) if can], expected).pvalue


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
    assert p_value(counts, probabilities) > 1e-3
    # Negative control: the inverse permutations have another law.
    inverse = law.log_prob(orders.argsort(-1)).exp() if mask is None else probabilities.roll(1)
    assert p_value([c for c, p in zip(counts, inverse, strict=True) if p > 0], inverse[inverse > 0]) < 1e-9


def test_draws_of_a_batch_follow_each_row():
    torch.manual_seed(5)
    mask = torch.tensor([[True] * 4, [True, False, True, True]])
    law = PlackettLuce(torch.tensor([[0.5, -0.5, 0.0, 1.0], [0.0, 9.0, 1.0, -1.0]]), mask)
    drawn = law.sample((20_000,))
    assert drawn.shape == (20_000, 2, 4)
    assert p_value(*_counted(law, drawn, 0, orders_of([0, 1, 2, 3]))) > 1e-3
    assert p_value(*_counted(law, drawn, 1, orders_of([0, 2, 3], (1,)))) > 1e-3


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
    with pytest.raises(ValueError, match=r"uniform must be \(\.\.\., 5\) float64"):
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
    dispersion = torch.tensor([0.4, 0.9], requires_grad=True)
    assert torch.autograd.gradcheck(lambda d: Mallows(order[0], d).log_prob(order), dispersion)
    assert torch.autograd.gradcheck(lambda d: Mallows(order[0], d).entropy(), dispersion)
    # At dispersion 0, where the center is certain: log P = -log(1 + d) - log(1 + d + d^2) - ...
    at_zero = torch.tensor(0.0, requires_grad=True)
    Mallows(order[0], at_zero).log_prob(order[0]).backward()
    assert at_zero.grad == -3


def test_the_ends_of_dispersion():
    order = torch.tensor([1, 3, 2, 0])
    uniform = Mallows(order, 1.0)
    assert uniform.entropy().item() == pytest.approx(math.log(24))
    assert uniform.log_normalizer.item() == pytest.approx(math.log(24))
    certain = Mallows(order, 0.0)
    assert torch.equal(certain.sample((100,)), order.expand(100, 4))
    assert certain.log_prob(order) == 0 and certain.entropy() == 0
    assert certain.log_prob(torch.tensor([3, 1, 2, 0])) == -torch.inf


def test_extreme_scores_stay_finite():
    law = PlackettLuce(torch.tensor([900.0, -900.0, 0.0, 300.0], dtype=torch.float32))
    assert law.log_prob(torch.tensor([0, 3, 2, 1])) == 0
    assert law.log_prob(torch.tensor([1, 2, 3, 0])).item() == pytest.approx(-1800 - 900 - 600)
    assert torch.equal(law.sample((20,)), torch.tensor([0, 3, 2, 1]).expand(20, 4))


def test_riffle_against_published_numbers():
    # Bayer and Diaconis 1992, table 1: total variation distance of 52 cards after 5 to 10 shuffles.
    distances = Riffle(52, torch.arange(5, 11)).total_variation()
    torch.testing.assert_close(distances, torch.tensor([0.924, 0.614, 0.334, 0.167, 0.085, 0.043]), atol=5e-4, rtol=0)
    # One shuffle: the unshuffled deck has (n + 1) / 2^n, and 2^n - n orders are reachable.
    law = Riffle(6, 1)
    orders = law.enumerate_support()
    probs = law.log_prob(orders).exp()
    assert probs[0].item() == pytest.approx(7 / 64)
    assert int((probs > 0).sum()) == 64 - 6


def test_two_riffles_are_one_after_another():
    one, two = Riffle(4, 1), Riffle(4, 2)
    orders = one.enumerate_support()
    probs = one.log_prob(orders).exp()
    composed = torch.zeros(24)
    index = {tuple(order): i for i, order in enumerate(orders.tolist())}
    for first, p in zip(orders, probs, strict=True):
        for second, q in zip(orders, probs, strict=True):
            composed[index[tuple(first[second].tolist())]] += p * q
    torch.testing.assert_close(two.log_prob(orders).exp(), composed)


@pytest.mark.parametrize("shuffles", [53, 54, 100, 2000])
def test_riffle_of_many_cards_and_shuffles(shuffles):
    law = Riffle(200, shuffles)
    uniform_log_prob = -math.lgamma(201)
    order = torch.randperm(200)
    assert law.log_prob(order).item() == pytest.approx(uniform_log_prob, abs=1e-9)
    assert law.entropy().item() == pytest.approx(-uniform_log_prob, abs=1e-9)
    assert law.log_prob_top(order[:100]).item() == pytest.approx(math.lgamma(101) - math.lgamma(201), abs=1e-9)
    assert 0 <= law.total_variation().item() < 1e-12
    # A draw keeps 53 bits: no two of 200 uniform numbers that differ in the last of them may tie.
    uniform = torch.arange(200, 0, -1).double() * 2.0**-53
    assert law.from_uniform(uniform).tolist() == list(range(199, -1, -1))


def test_rising_sequences_against_a_table():
    # In 1 3 2 0 they are 0; 1 2; 3. In 2 0 3 1 they are 0 1; 2 3, though the order itself descends twice.
    orders = torch.tensor([[0, 1, 2, 3], [1, 3, 2, 0], [2, 0, 3, 1], [3, 2, 1, 0]])
    assert rising_sequences(orders).tolist() == [1, 3, 2, 4]


def test_permutation_constraint():
    values = torch.tensor([[1, 3, 2, 0], [1, 1, 2, 0], [1, 3, 2, 4], [-1, 3, 2, 0]])
    assert permutation.check(values).tolist() == [True, False, False, False]
    assert not permutation.check(values[:1].double()).any()
    assert permutation.is_discrete and permutation.event_dim == 1


def test_errors_say_what_is_wanted():
    law = PlackettLuce(torch.zeros(4))
    for call, match in (
        (lambda: law.log_prob(torch.tensor([1, 1, 2, 0])), "support"),
        (lambda: law.log_prob(torch.tensor([1, 2, 0])), "event_shape"),
        (lambda: law.log_prob(torch.tensor([1.0, 3.0, 2.0, 0.0])), "int64 order"),
        (lambda: law.log_prob_top(torch.tensor([1, 1])), "support"),
        (lambda: law.log_prob_top(torch.tensor([1, 4])), "items from 0 to 3"),
        (lambda: law.log_prob_top(torch.arange(5)), "at most 4 places"),
        (lambda: PlackettLuce(torch.tensor([0.0, torch.nan])), "scores"),
        (lambda: PlackettLuce(torch.tensor([0.0, -torch.inf])), "scores"),
        (lambda: PlackettLuce(torch.tensor([0, 1])), r"scores must be \(\.\.\., N\), float"),
        (lambda: GeneralizedPlackettLuce(torch.zeros(3, 4)), r"scores must be \(\.\.\., N, N\), place by item"),
        (lambda: PlackettLuce(torch.zeros(4), torch.ones(3, dtype=torch.bool)), r"mask must be \(\.\.\., 4\) bool"),
        (lambda: Mallows(torch.tensor([1, 3, 2, 0]), 1.5), "dispersion"),
        (lambda: Mallows(torch.tensor([1, 1, 2, 0]), 0.5), "center"),
        (lambda: Mallows(torch.tensor([1.0, 0.0]), 0.5), r"center must be \(\.\.\., N\) int64"),
        (lambda: Mallows(torch.tensor([1, 0, 2]), 0.5, torch.tensor([True, False, True])), "real items before padding"),
        (lambda: Riffle(0, 1), "n must be an integer of at least 1"),
        (lambda: Riffle(4, -1), "shuffles"),
        (lambda: Riffle(4, torch.tensor(1.0)), "shuffles must be integers"),
    ):
        with pytest.raises(ValueError, match=match):
            call()


def test_what_is_not_exact_is_not_there():
    with pytest.raises(NotImplementedError, match=r"entropy .* at most 12 items, got 13"):
        PlackettLuce(torch.zeros(13)).entropy()
    with pytest.raises(NotImplementedError, match=r"mode .* at most 12 items, got 13"):
        _ = GeneralizedPlackettLuce(torch.zeros(13, 13)).mode
    with pytest.raises(NotImplementedError, match="at most 8 items, got 9"):
        PlackettLuce(torch.zeros(9)).enumerate_support()


def test_checks_can_be_left_out():
    law = PlackettLuce(torch.zeros(4), validate_args=False)
    assert law.log_prob(torch.tensor([1, 3, 2, 0])).item() == pytest.approx(-math.log(24))
    PlackettLuce(torch.tensor([0.0, torch.inf]), validate_args=False)


def rankings_of(count: int, N: int = 6) -> Tensor:
    torch.manual_seed(8)
    return PlackettLuce(scores_of(N) / 2).sample((count,))


def test_fit_against_choix_complete_rankings():
    order = rankings_of(60)
    fitted = fit_plackett_luce(order)
    by_choix = torch.from_numpy(choix.opt_rankings(6, order.tolist(), tol=1e-12))
    torch.testing.assert_close(fitted.scores, by_choix - by_choix.mean(), atol=1e-5, rtol=0)
    assert fitted.scores.amax() - fitted.scores.amin() > 1


def test_fit_against_choix_rankings_of_some_items():
    order = rankings_of(80)
    lengths = torch.arange(80) % 5 + 2
    # Any items of the six, in their order: not only the first ones.
    chosen = [sorted(torch.randperm(6)[:length].tolist()) for length in lengths.tolist()]
    rankings = [row[places].tolist() for row, places in zip(order, chosen, strict=True)]
    table = torch.full((80, 6), -1)
    for row, ranking in zip(table, rankings, strict=True):
        row[: len(ranking)] = torch.tensor(ranking)
    by_choix = torch.from_numpy(choix.opt_rankings(6, rankings, tol=1e-12))
    torch.testing.assert_close(fit_plackett_luce(table).scores, by_choix - by_choix.mean(), atol=1e-5, rtol=0)


def test_fit_against_choix_top_places():
    order, known = rankings_of(80), torch.arange(80) % 3
    choices = [
        (row[place], row[place + 1 :])
        for row, places in zip(order.tolist(), known.tolist(), strict=True)
        for place in range(places)
    ]
    by_choix = torch.from_numpy(choix.opt_top1(6, choices, tol=1e-12))
    by_choix -= by_choix.mean()
    torch.testing.assert_close(fit_plackett_luce(order, known).scores, by_choix, atol=1e-5, rtol=0)
    # What stands behind the known places has no effect.
    unnamed = order.masked_fill(torch.arange(6) >= known[:, None], -1)
    torch.testing.assert_close(fit_plackett_luce(unnamed, known, num_items=6).scores, by_choix, atol=1e-5, rtol=0)
    assert (fit_plackett_luce(order).scores - by_choix).abs().max() > 0.05


def test_fit_against_choix_with_a_prior():
    order = torch.tensor([[1, 3, 2, 0], [1, 2, 3, 0]])  # item 1 always wins: no maximum without a prior
    by_choix = torch.from_numpy(choix.opt_rankings(4, order.tolist(), alpha=0.05, tol=1e-12))
    fitted = fit_plackett_luce(order, l2=0.1)  # choix adds alpha |scores|^2
    torch.testing.assert_close(fitted.scores, by_choix - by_choix.mean(), atol=1e-5, rtol=0)


def test_fit_counts_rankings():
    order = rankings_of(60)
    distinct, counts = order.unique(dim=0, return_counts=True)
    assert counts.max() > 1
    torch.testing.assert_close(
        fit_plackett_luce(distinct, counts=counts).scores, fit_plackett_luce(order).scores, atol=1e-6, rtol=0
    )


def test_fit_comes_back_to_the_scores_that_drew():
    scores = (scores_of(6) - scores_of(6).mean()) / 2
    torch.testing.assert_close(fit_plackett_luce(rankings_of(20_000)).scores, scores, atol=0.05, rtol=0)


def test_fit_errors():
    order = torch.tensor([[1, 3, 2, 0], [3, 1, 0, 2]])
    for call, match in (
        (lambda: fit_plackett_luce(order), r"items \[1, 3\] never stand behind"),
        (lambda: fit_plackett_luce(order, num_items=5), r"items \[4\] never stand behind"),
        (lambda: fit_plackett_luce(order, torch.tensor([4, 4])), r"items \[1, 3\] never stand behind"),
        # Item 0 is never first, and behind the first place nothing is known.
        (
            lambda: fit_plackett_luce(torch.tensor([[1, 0, 2], [2, 1, 0]]), torch.tensor([1, 1])),
            r"items \[1, 2\] never",
        ),
        (lambda: fit_plackett_luce(order, num_items=3), "items from 0 to 2"),
        (lambda: fit_plackett_luce(order.double()), r"order must be \(R, K\) int64"),
        (lambda: fit_plackett_luce(torch.tensor([[1, 1, 0]])), r"different items in its first 3 places, row 0"),
        (lambda: fit_plackett_luce(torch.tensor([[1, -1, 0]])), r"different items in its first 2 places, row 0"),
        (lambda: fit_plackett_luce(order, torch.tensor([2])), r"known must be \(2,\) int64"),
        (lambda: fit_plackett_luce(order, torch.tensor([2, 5])), "different items in its first 5 places, row 1"),
        (lambda: fit_plackett_luce(order, counts=torch.tensor([1, 0])), r"counts must be \(2,\) positive"),
        (lambda: fit_plackett_luce(order, l2=-1.0), "l2 must be at least 0"),
    ):
        with pytest.raises(ValueError, match=match):
            call()
    with pytest.raises(RuntimeError, match="max_iterations = 1"):
        fit_plackett_luce(rankings_of(60), max_iterations=1)
