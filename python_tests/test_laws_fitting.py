"""Plackett-Luce fits against choix."""

import choix
import pytest
import torch
from example_laws import double_by_default, scores_of, validation_by_default  # noqa: F401
from torch import Tensor

from softrank_ext.laws import PlackettLuce, fit_plackett_luce


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
        (lambda: fit_plackett_luce(order, counts=torch.tensor([1, 0])), r"counts must be \(2,\) positive"),
        (lambda: fit_plackett_luce(order, l2=-1.0), "l2 must be at least 0"),
        (lambda: fit_plackett_luce(order[:0]), r"order must hold at least one ranking, got \(0, 4\) int64"),
        (lambda: fit_plackett_luce(order, max_iterations=0), "max_iterations must be an integer of at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=match):
            call()
    with pytest.raises(RuntimeError, match="max_iterations = 1"):
        fit_plackett_luce(rankings_of(60), max_iterations=1)
