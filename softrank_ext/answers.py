"""What is asked of sampled orders: who stands before whom, who is on top, between which places, and the consensus.

`samples` is what `sample` returns, or orders (..., num_samples, N) int64, `order[place] = item`, tensor or numpy.
Answers are tensors with the leading dimensions (...). Each has its Monte-Carlo standard error, which falls with the
square root of num_samples; it tells nothing about how good the model is: `calibration` does. Padding, which samples
list last, is an item that stands last.
A share of 0 or 1 does not mean certainty, so the error of a share x / S is that of (x + 1) / (S + 2), which is never 0.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from softrank_ext import metrics
from softrank_ext.permutations import check_order, ranks_of
from softrank_ext.sampling import Samples

METHODS = ("kemeny", "borda")
MAX_EXACT = 10  # items up to which the Kemeny order is found over all subsets


class Probability(NamedTuple):
    """Estimated probabilities and their standard errors, float64 of one shape."""

    value: Tensor
    standard_error: Tensor


class RankInterval(NamedTuple):
    """First and last place of each item: low, high (..., N) int64, with low_error, high_error (..., N) float64."""

    low: Tensor
    high: Tensor
    low_error: Tensor
    high_error: Tensor


class Consensus(NamedTuple):
    """order (..., N) int64; distance (...) float64: in how many pairs a sample disagrees with it, on average.

    standard_error (...) is that of the distance. is_exact: no order has a smaller distance to these samples; otherwise
    none was found near by.
    """

    order: Tensor
    distance: Tensor
    standard_error: Tensor
    is_exact: bool


class Calibration(NamedTuple):
    """Predicted against observed frequencies of "item i before item j", in bins of the predicted one.

    predicted, observed, standard_error (of observed): (bins,) float64, NaN in empty bins. pairs: (bins,) int64.
    expected_error: mean over pairs of |predicted - observed| of their bin, with its expected_error_error.
    """

    predicted: Tensor
    observed: Tensor
    standard_error: Tensor
    pairs: Tensor
    expected_error: float
    expected_error_error: float


def pairwise(samples: Samples | Tensor | np.ndarray) -> Probability:
    """P(item i stands before item j), (..., N, N); the diagonal is 0."""
    order = _orders_of(samples)
    return _share(_counts_before(order), order.shape[-2])


def top_k(samples: Samples | Tensor | np.ndarray, k: int) -> Probability:
    """P(an item is among the first k places), (..., N)."""
    order = _orders_of(samples)
    if not isinstance(k, int) or not 1 <= k <= order.shape[-1]:
        raise ValueError(f"k must be an integer from 1 to {order.shape[-1]}, got {k!r}")
    return _share((ranks_of(order) < k).sum(-2), order.shape[-2])


def rank_interval(samples: Samples | Tensor | np.ndarray, level: float = 0.9) -> RankInterval:
    """Between which places each item stands with a probability of at least `level`; both sides lose the same share.

    Errors are in places: half the distance between the ends that one standard error of the share more, or less, gives.
    """
    order = _orders_of(samples)
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    S = order.shape[-2]
    ascending = ranks_of(order).sort(dim=-2).values  # (..., S, N)

    def from_below(share: float) -> Tensor:
        """The lowest place up to which more than `share` of the samples lie, (..., N)."""
        # 1e-9: a share such as 5 of 100 must not be cut down to 4 by rounding.
        return ascending[..., min(max(int(share * S + 1e-9), 0), S - 1), :]

    def from_above(share: float) -> Tensor:
        return ascending[..., S - 1 - min(max(int(share * S + 1e-9), 0), S - 1), :]

    cut = (1 - level) / 2
    error = math.sqrt(cut * (1 - cut) / S)
    return RankInterval(
        from_below(cut),
        from_above(cut),
        (from_below(cut + error) - from_below(cut - error)).double() / 2,
        (from_above(cut - error) - from_above(cut + error)).double() / 2,
    )


def consensus(samples: Samples | Tensor | np.ndarray, method: str = "kemeny") -> Consensus:
    """One order for all samples.

    "kemeny": the smallest mean number of disagreeing pairs; exact for at most 10 items, by way of all their subsets,
    else a local search that starts at Borda's order and moves single items while that helps. "borda": by mean place.
    The distance is to the samples that the order was made from, so it is a little too low for new ones.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}")
    order = _orders_of(samples)
    S, N = order.shape[-2:]
    is_exact = method == "kemeny" and N <= MAX_EXACT
    borda = ranks_of(order).sum(-2).argsort(dim=-1, stable=True)  # (..., N)
    if method == "borda":
        best = borda
    else:
        before = _counts_before(order).double()
        if is_exact:
            best = _best_over_subsets(before)
        else:
            rows = zip(before.reshape(-1, N, N).cpu().numpy(), borda.reshape(-1, N).tolist(), strict=True)
            best = torch.tensor([_best_near(counts, start) for counts, start in rows], device=order.device)
            best = best.reshape(borda.shape)
    tau = metrics.kendall_tau_of_ranks(order.reshape(-1, N), best[..., None, :].expand_as(order).reshape(-1, N))
    distance = (1 - tau.reshape(order.shape[:-1])) / 2 * (N * (N - 1) // 2)  # (..., S)
    return Consensus(best, distance.mean(-1), distance.std(-1) / math.sqrt(S), is_exact)


def calibration(
    samples: Samples | Tensor | np.ndarray,
    true_order: Tensor | np.ndarray,
    *,
    bins: int = 10,
    mask: Tensor | None = None,
) -> Calibration:
    """Whether of the pairs said to stand in an order with probability p a share of p does, over B instances.

    samples: of B instances, (B, num_samples, N). true_order: (B, N), one order observed for each. mask: (B, N) bool,
    True = real item. Pairs of one instance depend on each other: errors come from the spread between instances.
    The p of few samples is noisy by itself, which makes a good model look too sure: take a hundred or more.
    """
    order, truth = _orders_of(samples), torch.as_tensor(true_order)
    B, N = order.shape[0], order.shape[-1]
    if order.ndim != 3 or B < 2 or truth.shape != (B, N):
        raise ValueError(
            "samples must be (B, num_samples, N) with B at least 2 and true_order (B, N), "
            f"got {tuple(order.shape)} and {tuple(truth.shape)}"
        )
    check_order(truth, "true_order")
    if not isinstance(bins, int) or bins < 1:
        raise ValueError(f"bins must be an integer of at least 1, got {bins!r}")
    first, second = torch.triu_indices(N, N, 1, device=order.device)
    chance = pairwise(order).value[:, first, second]  # (B, pairs)
    ranks = ranks_of(truth.to(order.device))
    happened = (ranks[:, first] < ranks[:, second]).double()
    counted = torch.ones_like(happened)
    if mask is not None:
        if mask.shape != (B, N) or mask.dtype != torch.bool:
            raise ValueError(f"mask must be {(B, N)} bool, got {tuple(mask.shape)} {mask.dtype}")
        counted = (mask[:, first] & mask[:, second]).double()
    which = (chance * bins).long().clamp(max=bins - 1)

    def per_instance(values: Tensor) -> Tensor:
        return torch.zeros(B, bins, dtype=torch.float64, device=order.device).scatter_add_(1, which, values * counted)

    pairs, predicted, observed = (per_instance(values) for values in (counted, chance, happened))  # each (B, bins)
    total = pairs.sum(0)
    share = observed.sum(0) / total
    residual = (observed - pairs * share).square().sum(0) * B / (B - 1)

    def expected_error(pairs: Tensor, predicted: Tensor, observed: Tensor) -> Tensor:
        return (predicted - observed).abs().sum(-1) / pairs.sum(-1)

    left_out = expected_error(*(sums.sum(0) - sums for sums in (pairs, predicted, observed)))  # (B,): the jackknife
    return Calibration(
        predicted.sum(0) / total,
        share,
        residual.sqrt() / total,
        total.long(),
        float(expected_error(total, predicted.sum(0), observed.sum(0))),
        float(math.sqrt(B - 1) * left_out.std(correction=0)),
    )


def _orders_of(samples: Samples | Tensor | np.ndarray) -> Tensor:
    order = torch.as_tensor(samples.order if isinstance(samples, Samples) else samples)
    if order.dtype != torch.int64 or order.ndim < 2 or 0 in order.shape[-2:]:
        raise ValueError(
            f"samples must be Samples or orders (..., num_samples, N) int64, got {tuple(order.shape)} {order.dtype}"
        )
    check_order(order.reshape(-1, order.shape[-1]), "samples")
    return order


def _counts_before(order: Tensor) -> Tensor:
    """In how many samples item i stands before item j, (..., N, N) int64."""
    ranks = ranks_of(order)
    return torch.stack([(ranks[..., i : i + 1] < ranks).sum(-2) for i in range(order.shape[-1])], -2)


def _share(counts: Tensor, S: int) -> Probability:
    smoothed = (counts.double() + 1) / (S + 2)
    return Probability(counts.double() / S, (smoothed * (1 - smoothed) / S).sqrt())


def _best_over_subsets(before: Tensor) -> Tensor:
    """Orders (..., N) of the smallest cost, given how often item i stands before item j, (..., N, N) float64.

    Cost of an order: for each pair, how often it stands the other way round. The best order of a set of first items
    ends with some item, behind the best order of the others.
    """
    N = before.shape[-1]
    items, sets = torch.arange(N, device=before.device), torch.arange(2**N, device=before.device)
    is_member = (sets[:, None] >> items) & 1 == 1  # (2^N, N)
    behind = before @ is_member.to(before.dtype).T  # (..., N, 2^N): cost of an item behind all of a set
    best = torch.zeros(*before.shape[:-2], 2**N, dtype=before.dtype, device=before.device)
    last = torch.zeros(best.shape, dtype=torch.int64, device=before.device)
    for size in range(1, N + 1):
        members = is_member.sum(1) == size
        chosen, rest = sets[members], sets[members, None] ^ (1 << items)  # (M,), (M, N)
        cost = best[..., rest] + behind[..., items, rest]
        best[..., chosen], last[..., chosen] = cost.masked_fill(~is_member[members], torch.inf).min(-1)
    taken = torch.full((*before.shape[:-2], 1), 2**N - 1, device=before.device)
    backwards = []
    for _ in range(N):
        backwards.append(last.gather(-1, taken))
        taken = taken ^ (1 << backwards[-1])
    return torch.cat(backwards[::-1], -1)


def _best_near(before: np.ndarray, start: list[int]) -> list[int]:
    """The order reached from `start` by moving one item at a time to its best place, while the cost falls."""
    order = list(start)
    lead = before - before.T  # lead[i, j] > 0: i stands before j more often than behind
    is_moving = True
    while is_moving:
        is_moving = False
        for item in start:
            at = order.index(item)
            others = order[:at] + order[at + 1 :]
            # Cost of each place, up to a constant: being put behind `other` costs their lead.
            cost = np.concatenate(([0.0], lead[item, others].cumsum()))
            place = int(cost.argmin())
            if cost[place] < cost[at]:
                order = [*others[:place], item, *others[place:]]
                is_moving = True
    return order
