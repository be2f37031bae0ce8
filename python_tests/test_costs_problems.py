"""Costs of known problems: by hand, compiled as plain torch to the bit, in leading dimensions, and their errors."""

import pytest
import torch

from softrank_ext.costs import LinearOrdering, Makespan, TotalFlowTime, WeightedTardiness, costs_of

COSTS = (Makespan(), TotalFlowTime(), WeightedTardiness(), LinearOrdering())


def instances(cost, B: int, N: int, M: int = 4, seed: int = 0) -> torch.Tensor:
    """Random items of that cost, of no round numbers."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(cost, LinearOrdering):
        return torch.randn(B, N, N, generator=generator, dtype=torch.float64)
    if isinstance(cost, WeightedTardiness):
        jobs = torch.rand(B, N, 3, generator=generator, dtype=torch.float64)
        jobs[..., 2] *= N / 3
        return jobs
    return torch.rand(B, N, M, generator=generator, dtype=torch.float64)


def orders(B: int, N: int, seed: int = 1) -> torch.Tensor:
    return torch.rand(B, N, generator=torch.Generator().manual_seed(seed)).argsort(1)


def test_flow_shop_by_hand():
    # Job 1: machine A 0-1, B 1-5. Job 2: A 1-6, B 6-8. Job 0: A 6-9, B 9-11.
    times = torch.tensor([[[3.0, 2.0], [1.0, 4.0], [5.0, 2.0]]])
    order = torch.tensor([[1, 2, 0]])
    assert Makespan()(times, order).tolist() == [11] and TotalFlowTime()(times, order).tolist() == [5 + 8 + 11]
    assert Makespan()(times.long(), order).tolist() == [11]
    padded = torch.cat((times, torch.zeros(1, 3, 5)), 2)
    assert Makespan()(padded, order).tolist() == [11] and TotalFlowTime()(padded, order).tolist() == [24]


def test_tardiness_by_hand():
    jobs = torch.tensor([[[2.0, 1.0, 3.0], [4.0, 3.0, 4.0], [1.0, 5.0, 2.0]]])
    # Job 1 ends at 4, due 4. Job 2 ends at 5, 3 late, weight 5. Job 0 ends at 7, 4 late, weight 1.
    assert WeightedTardiness()(jobs, torch.tensor([[1, 2, 0]])).tolist() == [15 + 4]


def test_linear_ordering_by_hand():
    weights = torch.tensor([[[0.0, 1.0, 2.0], [4.0, 0.0, 8.0], [16.0, 32.0, 0.0]]])
    # 1 2 0: what points back is 2 -> 1, 0 -> 1, 0 -> 2.
    assert LinearOrdering()(weights, torch.tensor([[1, 2, 0]])).tolist() == [32 + 1 + 2]


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.name)
@pytest.mark.parametrize(("B", "N"), ((1, 1), (3, 2), (7, 5), (5, 40), (2, 120)))
def test_the_bits_of_plain_torch(cost, B, N):
    items, order = instances(cost, B, N), orders(B, N)
    assert torch.equal(cost(items, order), cost.reference(items, order))
    assert torch.equal(cost(items.float(), order), cost.reference(items.float(), order))
    assert costs_of(cost, items, order).dtype == torch.float64


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.name)
def test_leading_dimensions(cost):
    items, order = instances(cost, 6, 5).unflatten(0, (2, 3)), orders(6, 5).unflatten(0, (2, 3))
    costs = cost(items, order)
    assert costs.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            assert float(cost(items[i, j], order[i, j])) == float(costs[i, j])
    assert cost(items[:0], order[:0]).shape == (0, 3)
    strided = cost(items.transpose(0, 1), order.transpose(0, 1))
    assert torch.equal(strided, costs.T)


def test_errors():
    order = torch.tensor([[1, 2, 0]])
    with pytest.raises(
        ValueError, match=r"items must be a \(1, 3, M\) tensor of .*, got \(1, 4, 2\) .*times of jobs on machines"
    ):
        Makespan()(torch.zeros(1, 4, 2), order)
    with pytest.raises(ValueError, match=r"items must have at least one machine, got \(1, 3, 0\) float32"):
        TotalFlowTime()(torch.zeros(1, 3, 0), order)
    with pytest.raises(
        ValueError, match=r"items must be a \(1, 3, 3\) tensor of .*; it must be time, weight and due date"
    ):
        WeightedTardiness()(torch.zeros(1, 3, 2), order)
    with pytest.raises(
        ValueError, match=r"items must be a \(1, 3, 3\) tensor of .*; it must be weights from item to item"
    ):
        LinearOrdering()(torch.zeros(1, 3, 2), order)
    with pytest.raises(TypeError, match=r"items must be a .*, got list"):
        Makespan()([[1.0]], order)
