"""Kullback-Leibler divergences between laws over orders, for `torch.distributions.kl_divergence`; all are exact.

Two Mallows laws: in closed form. Two riffles: a sum over rising sequences. Plackett-Luce, generalised and Mallows laws
among each other choose the next item by what remains: a sum over sets of first picks, for at most 12 items. All other
pairs: a sum over all orders, for at most 8 items.
"""

from itertools import product
from typing import TypeVar

import torch
from torch import Tensor
from torch.distributions import register_kl

from softrank_ext.laws.mallows import Mallows
from softrank_ext.laws.orders import OrderDistribution
from softrank_ext.laws.plackett_luce import GeneralizedPlackettLuce, PlackettLuce
from softrank_ext.laws.riffle import Riffle, riffle_divergence
from softrank_ext.laws.subsets import divergence_over_subsets
from softrank_ext.permutations import ranks_of

_First = TypeVar("_First", bound=OrderDistribution)
_Second = TypeVar("_Second", bound=OrderDistribution)
_Picking = PlackettLuce | GeneralizedPlackettLuce | Mallows


def _over_orders(first: OrderDistribution, second: OrderDistribution) -> Tensor:
    first, second = _over_the_same(first, second)
    orders = first.enumerate_support()
    log_probs = first.log_prob(orders)
    difference = log_probs - second.log_prob(orders)
    return torch.where(log_probs > -torch.inf, log_probs.exp() * difference, 0.0).sum(0)


def _over_subsets(first: _Picking, second: _Picking) -> Tensor:
    first, second = _over_the_same(first, second)
    dtype = torch.promote_types(_dtype_of(first), _dtype_of(second))
    return divergence_over_subsets(
        lambda place, remaining: _next_scores(first, place, remaining).to(dtype),
        lambda place, remaining: _next_scores(second, place, remaining).to(dtype),
        first.mask,
        dtype,
    )


def _of_mallows(first: Mallows, second: Mallows) -> Tensor:
    first, second = _over_the_same(first, second)
    steps = torch.arange(first.event_shape[0], device=first.mask.device)
    powers = first.dispersion[..., None] ** torch.arange(len(steps) + 1, device=steps.device)
    sums = powers.cumsum(-1)
    # Two items of which the center has one k places behind the other keep this order with probability
    # sum of (u + 1) d^u over u < k, divided by (1 + ... + d^(k - 1)) (1 + ... + d^k).
    kept = ((steps + 1) * powers[..., :-1]).cumsum(-1) / (sums[..., :-1] * sums[..., 1:])  # (..., k - 1)
    arranged = ranks_of(second.center).gather(-1, first.center)  # by place in the first center, place in the second
    is_pair = (steps[:, None] < steps) & (steps < first.num_items[..., None, None])
    agrees = arranged[..., :, None] < arranged[..., None, :]
    by_pair = kept[..., (steps - steps[:, None] - 1).clamp(min=0)]  # (..., place, later place)
    # The mean distances of the first law to both centers, by the same sum: equal laws leave exactly zero.
    distance = torch.where(agrees, 1 - by_pair, by_pair).masked_fill(~is_pair, 0.0).sum((-2, -1))
    to_own = (1 - by_pair).masked_fill(~is_pair, 0.0).sum((-2, -1))
    scores = torch.xlogy(to_own, first.dispersion) - torch.xlogy(distance, second.dispersion)
    return second.log_normalizer - first.log_normalizer + scores


def _of_riffles(first: Riffle, second: Riffle) -> Tensor:
    first, second = _over_the_same(first, second)
    rows = zip(*(x.flatten().tolist() for x in (first.num_items, first.shuffles, second.shuffles)), strict=True)
    numbers = [riffle_divergence(size, shuffles, others) for size, shuffles, others in rows]
    return torch.tensor(numbers, dtype=torch.get_default_dtype(), device=first.mask.device).reshape(first.batch_shape)


def _over_the_same(first: _First, second: _Second) -> tuple[_First, _Second]:
    """Both laws with one batch shape; raises ValueError unless they are over the same items."""
    if first.event_shape != second.event_shape:
        raise ValueError(
            f"kl_divergence needs laws over equally many items, got {first.event_shape[0]} and {second.event_shape[0]}"
        )
    shape = torch.broadcast_shapes(first.batch_shape, second.batch_shape)
    first, second = first.expand(shape), second.expand(shape)
    if not torch.equal(first.mask, second.mask):
        raise ValueError("kl_divergence needs laws with the same mask: otherwise they are over different items")
    return first, second


def _dtype_of(law: _Picking) -> torch.dtype:
    return law.dispersion.dtype if isinstance(law, Mallows) else law.scores.dtype


def _next_scores(law: _Picking, place: int, remaining: Tensor) -> Tensor:
    """Scores of the next pick whose softmax over the remaining items (..., M, N) is its law."""
    if isinstance(law, PlackettLuce):
        return law.scores[..., None, :]
    if isinstance(law, GeneralizedPlackettLuce):
        return law.scores[..., place, None, :]
    # A pick reverses its pairs with the remaining items that the center has before it.
    ranks = ranks_of(law.center)
    is_before = ranks[..., :, None] < ranks[..., None, :]  # (..., other item, item)
    passed = remaining.to(law.dispersion.dtype) @ is_before.to(law.dispersion.dtype)  # (..., M, N)
    return passed * torch.where(passed > 0, law.dispersion[..., None, None], 1.0).log()


register_kl(OrderDistribution, OrderDistribution)(_over_orders)
for _pair in product((PlackettLuce, GeneralizedPlackettLuce, Mallows), repeat=2):
    register_kl(*_pair)(_of_mallows if _pair == (Mallows, Mallows) else _over_subsets)
register_kl(Riffle, Riffle)(_of_riffles)
