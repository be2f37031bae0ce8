"""Exact modes against enumeration where greedy picks are wrong; exact entropies and modes have a limit on items."""

import pytest
import torch
from example_laws import double_by_default, scores_of, validation_by_default  # noqa: F401

from softrank_ext.laws import GeneralizedPlackettLuce, PlackettLuce


def test_what_is_not_exact_is_not_there():
    with pytest.raises(NotImplementedError, match=r"entropy .* at most 12 items, got 13"):
        PlackettLuce(torch.zeros(13)).entropy()
    with pytest.raises(NotImplementedError, match=r"mode .* at most 12 items, got 13"):
        _ = GeneralizedPlackettLuce(torch.zeros(13, 13)).mode
    with pytest.raises(NotImplementedError, match="at most 8 items, got 9"):
        PlackettLuce(torch.zeros(9)).enumerate_support()


def test_modes_that_greedy_picks_miss():
    scores = scores_of(200, 4, 4)
    law = GeneralizedPlackettLuce(scores)
    orders = law.enumerate_support()  # (24, 200, 4)
    best = orders[law.log_prob(orders).argmax(0), torch.arange(200)]
    assert torch.equal(law.mode, best)
    greedy, left = [], torch.zeros(200, 4)
    for place in range(4):
        greedy.append((scores[:, place] + left).argmax(1))
        left = left.scatter(1, greedy[-1][:, None], -torch.inf)
    assert (torch.stack(greedy, 1) != best).any(1).sum() > 20
