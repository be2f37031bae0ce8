"""The search behind `schedule`: bounds and times by hand and by brute force, searches of any cost, rules, Ctrl-C."""

import itertools

import numpy as np
import pytest
import torch

from softrank_ext.constraints import Constraints
from softrank_ext.costs import LinearOrdering, Makespan, TotalFlowTime, WeightedTardiness
from softrank_ext.schedule_search import JobSearch, bound_of, times_of


def jobs_of(cost, N, seed):
    random = np.random.default_rng(seed)
    if isinstance(cost, WeightedTardiness):
        due = random.integers(0, 60 if seed % 2 else 200, N)
        return np.stack((random.integers(1, 40, N), random.integers(1, 10, N), due), 1).astype(float)
    return random.integers(0, 30, (N, 3)).astype(float)


def least_cost(cost, items, is_kept=lambda order: True):
    every = torch.tensor([order for order in itertools.permutations(range(len(items))) if is_kept(order)])
    return float(cost(torch.from_numpy(items).expand(len(every), *items.shape), every).min())


def test_times_by_hand():
    times = np.array([[3.0, 2.0], [1.0, 4.0], [2.0, 0.0]])
    start, end = times_of(np.array([1, 0, 2]), times)
    assert start.tolist() == [[1, 5], [0, 1], [4, 7]]
    assert end.tolist() == [[4, 7], [1, 5], [6, 7]]


@pytest.mark.parametrize("seed", range(6))
def test_the_last_end_is_the_makespan(seed):
    times = jobs_of(Makespan(), 7, seed)
    order = np.random.default_rng(seed).permutation(7)
    _, end = times_of(order, times)
    items = torch.from_numpy(times)[None]
    assert end.max() == float(Makespan()(items, torch.from_numpy(order)[None]))
    assert end[:, -1].sum() == float(TotalFlowTime()(items, torch.from_numpy(order)[None]))


@pytest.mark.parametrize("cost", (Makespan(), TotalFlowTime(), WeightedTardiness()), ids=lambda cost: cost.name)
def test_no_order_costs_less_than_the_bound(cost):
    shares = []
    for seed in range(12):
        items = jobs_of(cost, 6, seed)
        best, bound = least_cost(cost, items), bound_of(cost, items)
        assert bound <= best + 1e-9
        shares.append(1.0 if best == 0 else bound / best)
    assert np.mean(shares) > 0.6  # and it is worth something
    assert bound_of(LinearOrdering(), np.zeros((3, 3))) is None


@pytest.mark.parametrize("cost", (Makespan(), TotalFlowTime(), WeightedTardiness()), ids=lambda cost: cost.name)
@pytest.mark.parametrize("is_own", (False, True))
def test_finds_the_best_order_that_keeps_the_rules(cost, is_own):
    items = jobs_of(cost, 6, 3)
    pairs = [(4, 2), (2, 0), (5, 1)]

    def is_kept(order):
        return all(order.index(a) < order.index(b) for a, b in pairs)

    def own(items, order):
        return cost(items, order)

    search = JobSearch(torch.from_numpy(items)[None], own if is_own else cost, Constraints(before=pairs), 0.7, seed=0)
    search.run(None)
    assert all(is_kept(found.order.tolist()) for found in search.found)
    costs = [found.cost for found in search.found]
    assert costs == sorted(costs, reverse=True) and len(set(costs)) == len(costs)
    assert costs[-1] == least_cost(cost, items, is_kept)


def test_infinite_costs_are_left():
    """A cost that allows only orders with job 0 last."""

    def cost(items, order):
        length = Makespan()(items, order)
        return torch.where(order[:, -1] == 0, length, torch.inf)

    items = jobs_of(Makespan(), 5, 0)
    search = JobSearch(torch.from_numpy(items)[None], cost, None, 0.5, seed=0)
    search.run(None)
    assert search.found[-1].order[-1] == 0
    assert search.found[-1].cost == least_cost(Makespan(), items, lambda order: order[-1] == 0)


def test_ctrl_c_keeps_what_was_found():
    calls = []

    def cost(items, order):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return Makespan()(items, order)

    search = JobSearch(torch.from_numpy(jobs_of(Makespan(), 8, 1))[None], cost, None, 60.0, seed=0)
    search.run(None)
    assert search.is_interrupted and len(search.found) >= 1

    def never(items, order):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # there is nothing to return
        JobSearch(torch.zeros(1, 3, 2, dtype=torch.float64), never, None, 60.0, seed=0).run(None)


def test_what_a_cost_raises_is_passed_on():
    def cost(items, order):
        raise RuntimeError("no such machine")

    with pytest.raises(RuntimeError, match="no such machine"):
        JobSearch(torch.zeros(1, 3, 2, dtype=torch.float64), cost, None, 1.0, seed=0).run(None)
