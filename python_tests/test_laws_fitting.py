"""Plackett-Luce fits against choix; Mallows and generalised fits against all laws around them."""

from itertools import combinations, permutations

import choix
import pytest
import torch
from example_laws import double_by_default, scores_of, validation_by_default  # noqa: F401
from torch import Tensor

from softrank_ext.laws import (
    GeneralizedPlackettLuce,
    Mallows,
    PlackettLuce,
    fit_generalized_plackett_luce,
    fit_mallows,
    fit_plackett_luce,
)


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
        (lambda: fit_plackett_luce(order.double()), r"order must be a \(R, K\) tensor of int64"),
        (lambda: fit_plackett_luce(torch.tensor([[1, 1, 0]])), r"different items in its first 3 places, row 0"),
        (lambda: fit_plackett_luce(torch.tensor([[1, -1, 0]])), r"different items in its first 2 places, row 0"),
        (lambda: fit_plackett_luce(order, torch.tensor([2])), r"known must be a \(2,\) tensor of int64"),
        (lambda: fit_plackett_luce(order, torch.tensor([2, 5])), "different items in its first 5 places, row 1"),
        (lambda: fit_plackett_luce(order, counts=torch.tensor([1, 0])), r"counts must be a \(2,\) tensor of positive"),
        (lambda: fit_plackett_luce(order, l2=-1.0), "l2 must be from 0 to 1e.09"),
        (lambda: fit_plackett_luce(order[:0]), r"order must hold at least one ranking, got \(0, 4\) int64"),
        (lambda: fit_plackett_luce(order, max_iterations=0), "max_iterations must be an integer of at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=match):
            call()
    with pytest.raises(RuntimeError, match="max_iterations = 1"):
        fit_plackett_luce(rankings_of(60), max_iterations=1)


def test_mallows_fit_is_the_best_of_all_centers_and_dispersions():
    torch.manual_seed(4)
    order = Mallows(torch.tensor([1, 3, 2, 0, 4]), 0.7).sample((9,))
    fitted = fit_mallows(order)
    grid = torch.linspace(0, 1, 201)
    centers = torch.tensor(list(permutations(range(5))))
    likelihoods = Mallows(centers[:, None], grid).log_prob(order[:, None, None]).sum(0)  # (center, dispersion)
    best = fitted.log_prob(order).sum()
    assert best >= likelihoods.max() and best - likelihoods.max() < 0.01
    pairs = [
        sum(ranking.index(a) > ranking.index(b) for a, b in combinations(fitted.center.tolist(), 2))
        for ranking in order.tolist()
    ]
    assert fitted.mean_distance.item() == pytest.approx(sum(pairs) / 9, abs=1e-12)
    counts = torch.arange(1, 10)
    counted, repeated = fit_mallows(order, counts=counts), fit_mallows(order.repeat_interleave(counts, 0))
    assert torch.equal(counted.center, repeated.center) and abs(counted.dispersion - fitted.dispersion) > 0.01
    torch.testing.assert_close(counted.dispersion, repeated.dispersion, atol=1e-12, rtol=0)


def test_mallows_fit_comes_back_to_the_law_that_drew():
    torch.manual_seed(6)
    center = torch.tensor([4, 1, 3, 5, 2, 0])
    order = Mallows(center, 0.4).sample((5000,))
    fitted = fit_mallows(order)
    assert torch.equal(fitted.center, center)
    assert fitted.dispersion.item() == pytest.approx(0.4, abs=0.02)
    long = Mallows(torch.arange(30).roll(7), 0.8).sample((500,))
    assert fit_mallows(long, center=torch.arange(30).roll(7)).dispersion.item() == pytest.approx(0.8, abs=0.01)


def test_mallows_fit_at_the_ends():
    order = torch.tensor([[1, 3, 2, 0]])
    assert fit_mallows(order).center.tolist() == [1, 3, 2, 0] and fit_mallows(order).dispersion == 0
    assert fit_mallows(torch.cat((order, order.flip(1)))).dispersion == 1
    assert fit_mallows(order, center=torch.tensor([0, 2, 3, 1])).dispersion == 1  # no dispersion above 1
    assert fit_mallows(torch.tensor([[0]])).dispersion == 0


def test_generalised_fit_of_one_place_has_the_shares_of_picks():
    torch.manual_seed(7)
    law = GeneralizedPlackettLuce(scores_of(4, 4) / 2)
    order = law.sample((4000,))
    fitted = fit_generalized_plackett_luce(order)
    # At the first place the fit is a softmax over all items: its probabilities are the shares.
    torch.testing.assert_close(fitted.scores[0].softmax(0), order[:, 0].bincount() / 4000, atol=1e-6, rtol=0)
    assert fitted.scores.mean(1).abs().max() < 1e-12 and fitted.scores[3].abs().max() == 0
    orders = law.enumerate_support()
    assert (fitted.log_prob(orders).exp() - law.log_prob(orders).exp()).abs().max() < 0.02
    # Any other law makes the rankings less likely.
    best = fitted.log_prob(order).mean()
    for _ in range(20):
        other = GeneralizedPlackettLuce(fitted.scores + 0.05 * torch.randn(4, 4))
        assert other.log_prob(order).mean() < best


def test_generalised_fit_with_a_prior_and_counts():
    order = torch.tensor([[1, 3, 2, 0], [1, 2, 3, 0]])
    fitted = fit_generalized_plackett_luce(order, l2=0.5, counts=torch.tensor([3.0, 1.0]))
    repeated = fit_generalized_plackett_luce(order[[0, 0, 0, 1]], l2=0.5)
    torch.testing.assert_close(fitted.scores, repeated.scores, atol=1e-6, rtol=0)
    # At the maximum the gradient of the likelihood is that of the prior: at place 0 all four pick item 1.
    by_hand = 4 * (torch.tensor([0.0, 1.0, 0.0, 0.0]) - fitted.scores[0].softmax(0))
    torch.testing.assert_close(0.5 * fitted.scores[0], by_hand, atol=1e-5, rtol=0)


def test_errors_of_the_other_fits():
    order = torch.tensor([[1, 3, 2, 0], [3, 1, 0, 2]])
    for call, match in (
        (lambda: fit_generalized_plackett_luce(order), "at place 0 item 1 is picked before item 0, and no chain"),
        (lambda: fit_generalized_plackett_luce(order, l2=-1.0), "l2 must be from 0 to 1e.09"),
        (lambda: fit_generalized_plackett_luce(order, max_iterations=0), "max_iterations must be an integer"),
        (lambda: fit_generalized_plackett_luce(torch.tensor([[1, 1, 0]])), "order must hold each of 0 to 2 once"),
        (lambda: fit_generalized_plackett_luce(torch.arange(400).expand(1000, 400)), "items squared, got 1000"),
        (lambda: fit_mallows(torch.tensor([[1, 1, 0]])), "order must hold each of 0 to 2 once per row, row 0"),
        (lambda: fit_mallows(order[:0]), r"order must hold at least one ranking, got \(0, 4\) int64"),
        (lambda: fit_generalized_plackett_luce(order, l2=1e308), "l2 must be from 0 to 1e.09"),
        (lambda: fit_mallows(order, counts=()), r"counts must be a \(2,\) tensor of positive"),
        (
            lambda: fit_mallows(order, counts=torch.tensor([1, torch.inf])),
            r"counts must be a \(2,\) tensor of positive",
        ),
        (lambda: fit_mallows(order, counts=torch.tensor([1, 0])), r"counts must be a \(2,\) tensor of positive"),
        (lambda: fit_mallows(order, center=torch.tensor([0, 1])), r"center must be a \(4,\) tensor of int64"),
        (lambda: fit_mallows(order, center=torch.tensor([0, 1, 1, 2])), "center must hold each of 0 to 3 once"),
    ):
        with pytest.raises(ValueError, match=match):
            call()
    with pytest.raises(
        NotImplementedError, match="the center is exact, over all subsets, for at most 12 items, got 13"
    ):
        fit_mallows(torch.arange(13)[None])
    with pytest.raises(RuntimeError, match="max_iterations = 1"):
        fit_generalized_plackett_luce(rankings_of(60), l2=0.1, max_iterations=1)
