"""Orders enumerated, drawn ones counted, and counts compared with a law. `order[place] = item`."""

import math
from collections.abc import Sequence
from itertools import permutations

import torch
from scipy import stats
from torch import Tensor


def all_orders(N: int) -> Tensor:
    """All N! orders, (N!, N), in lexicographic order."""
    return torch.tensor(list(permutations(range(N))), dtype=torch.int64).reshape(math.factorial(N), N)


def orders_of_mask(mask: Tensor) -> Tensor:
    """Every order of the real slots of a row's mask (N,), each followed by the padded slots."""
    real, padded = mask.nonzero()[:, 0].tolist(), (~mask).nonzero()[:, 0].tolist()
    return torch.tensor([[*order, *padded] for order in permutations(real)])


def index_of(order: Tensor) -> Tensor:
    """Number (...) of each order (..., N) in `all_orders`."""
    N = order.shape[-1]
    number = torch.zeros(order.shape[:-1], dtype=torch.int64)
    for place in range(N):
        number = number * (N - place) + (order[..., place + 1 :] < order[..., place : place + 1]).sum(-1)
    return number


def counts_of(orders: Tensor) -> Tensor:
    """How often each order occurs among (..., N), in the order of `all_orders`."""
    return torch.bincount(index_of(orders).flatten(), minlength=math.factorial(orders.shape[-1]))


def chi_square(counts: Tensor | Sequence[int], probabilities: Tensor | Sequence[float]) -> float:
    """P-value of counts of categories under a law, which is normalised here; 0 if one occurs that cannot.

    Categories that are expected less than 5 times are taken together.
    """
    observed, law = (torch.as_tensor(numbers).double().flatten() for numbers in (counts, probabilities))
    if bool((observed[law == 0] > 0).any()):
        return 0.0
    expected = law / law.sum() * observed.sum()
    is_rare = expected < 5
    observed, expected = (torch.cat((cells[~is_rare], cells[is_rare].sum()[None])) for cells in (observed, expected))
    is_there = expected > 0
    return float(stats.chisquare(observed[is_there].numpy(), expected[is_there].numpy()).pvalue)


def same_law(counts: Tensor, others: Tensor, least: int = 1) -> float:
    """P-value that two samples, counted by category, have one law; categories below `least` in sum are left out."""
    is_there = counts + others >= least
    return float(stats.chi2_contingency(torch.stack((counts, others))[:, is_there].numpy()).pvalue)
