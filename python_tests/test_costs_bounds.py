"""Bounds of tours: never above the shortest tour (by brute force), near it, and what they refuse."""

from itertools import permutations

import pytest
import torch

from softrank_ext._libraries import uses_reference
from softrank_ext.costs import tour_bound


@pytest.mark.parametrize("closed", (True, False))
@pytest.mark.parametrize("is_one_way", (False, True))
@pytest.mark.parametrize("N", (3, 4, 7))
def test_no_tour_is_shorter(N, closed, is_one_way):
    orders = torch.tensor(list(permutations(range(N))))
    ratios = []
    for seed in range(20):
        points = torch.rand(N, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        distances = torch.cdist(points, points)
        if is_one_way:
            distances *= 1 + 0.2 * torch.rand(N, N, generator=torch.Generator().manual_seed(seed))
        legs = distances[orders, orders.roll(-1, 1)]
        best = float((legs if closed else legs[:, :-1]).sum(1).min())
        ratios.append(tour_bound(distances, closed) / best)
    assert max(ratios) <= 1 + 1e-9
    if not uses_reference():
        assert sum(ratios) / len(ratios) > (0.8 if is_one_way else 0.93)


def test_few_places():
    two = torch.tensor([[0.0, 3.0], [5.0, 0.0]], dtype=torch.float64)
    assert tour_bound(torch.zeros(1, 1, dtype=torch.float64)) == 0
    assert tour_bound(two) == 8
    assert tour_bound(two, closed=False) == 3
    assert tour_bound(torch.zeros(1, 1, dtype=torch.float64), closed=False) == 0


def test_errors():
    with pytest.raises(ValueError, match=r"distances must be a \(N, 2\) tensor of float64"):
        tour_bound(torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="distances must be finite"):
        tour_bound(torch.full((3, 3), torch.inf, dtype=torch.float64))
    with pytest.raises(ValueError, match="rounds must be an integer of at least 1, got 0"):
        tour_bound(torch.zeros(3, 3, dtype=torch.float64), rounds=0)
