"""What sampled orders say: which item stands before which, which are on top, between which places, and the consensus.

`samples` is what `sample` returns, or orders (..., num_samples, N) int64, `order[place] = item`, tensor or numpy.
Answers are tensors with the leading dimensions (...). Each has its Monte-Carlo standard error, which falls with the
square root of num_samples; it says nothing about how good the model is: `calibration` does.
A share of 0 or 1 is not certain, so the standard error of a share x / S is that of (x + 1) / (S + 2), which is never 0.

Padding: `Samples` carry their mask, and every answer is about real items only. `mask` is for orders given as a tensor
or an array: (..., N) bool, True = real item, one per instance, or (..., num_samples, N); orders list real items first.
Where an item is padding, probabilities and errors are NaN, places are -1, and the consensus lists it last.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from softrank_ext import metrics
from softrank_ext.checks import (
    check_choice,
    check_instance,
    check_integer,
    check_limited,
    check_number,
    check_tensor,
    described,
)
from softrank_ext.permutations import check_slots, ranks_of
from softrank_ext.sampling import Samples

METHODS = ("kemeny", "borda")
MOST_BINS = 10**6
MAX_EXACT = 10  # items up to which the Kemeny order is found over all subsets

Array = Tensor | np.ndarray


class Probability(NamedTuple):
    """Estimated probabilities and their standard errors, float64 of one shape; NaN for padding."""

    value: Tensor
    standard_error: Tensor


class RankInterval(NamedTuple):
    """First and last place of each item: low, high (..., N) int64, with low_error, high_error (..., N) float64.

    Padding has the places -1 and the errors NaN.
    """

    low: Tensor
    high: Tensor
    low_error: Tensor
    high_error: Tensor


class Consensus(NamedTuple):
    """order (..., N) int64; distance (...) float64: in how many pairs of items a sample disagrees with it, on average.

    standard_error (...) is that of the distance. is_exact: no order has a smaller distance to these samples; if False,
    a local search found none for some instance. Padding stands last and is in no pair.
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


def pairwise(samples: Samples | Array, *, mask: Array | None = None) -> Probability:
    """P(item i stands before item j), (..., N, N); the diagonal is 0, and NaN where i or j is padding."""
    order, real = _checked(samples, mask)
    answer = _share(_counts_before(order), order.shape[-2])
    return answer if real is None else _without(answer, ~(real[..., :, None] & real[..., None, :]))


def top_k(samples: Samples | Array, k: int, *, mask: Array | None = None) -> Probability:
    """P(an item is among the first k places), (..., N); NaN for padding."""
    order, real = _checked(samples, mask)
    check_integer("k", k, 1, order.shape[-1])
    answer = _share((ranks_of(order) < k).sum(-2), order.shape[-2])
    return answer if real is None else _without(answer, ~real)


def rank_interval(samples: Samples | Array, level: float = 0.9, *, mask: Array | None = None) -> RankInterval:
    """Between which places each item stands with a probability of at least `level`; both sides lose the same share.

    Errors are in places: half the distance between the ends at one standard error of the share above and below.
    """
    order, real = _checked(samples, mask)
    check_number("level", level, "above 0 and below 1", lambda x: 0 < x < 1)
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
    low, high = from_below(cut), from_above(cut)
    low_error = (from_below(cut + error) - from_below(cut - error)).double() / 2
    high_error = (from_above(cut - error) - from_above(cut + error)).double() / 2
    if real is None:
        return RankInterval(low, high, low_error, high_error)
    places = (ends.masked_fill(~real, -1) for ends in (low, high))
    return RankInterval(*places, *(errors.masked_fill(~real, torch.nan) for errors in (low_error, high_error)))


def consensus(samples: Samples | Array, method: str = "kemeny", *, mask: Array | None = None) -> Consensus:
    """One order for all samples.

    "kemeny": the smallest mean number of disagreeing pairs; exact for at most 10 real items, over all their subsets,
    else a local search that starts at Borda's order and moves single items as long as that helps. "borda": by mean
    place. The distance is to the samples that the order was made from, so it is a little too low for new ones.
    """
    check_choice("method", method, METHODS)
    order, real = _checked(samples, mask)
    if real is None:
        return _consensus_of_whole(order, method)
    S, N = order.shape[-2:]
    leading = order.shape[:-2]
    order, real = order.reshape(-1, S, N), real.reshape(-1, N)
    counts = real.sum(-1)
    # Rows of n real items become rows of n items, numbered from 0, and the answer takes their numbers back.
    numbers = real.cumsum(-1) - 1
    best = (~real).to(torch.int8).argsort(dim=-1, stable=True)  # real items by number, then padding
    distance = torch.zeros(len(order), dtype=torch.float64, device=order.device)
    error, is_exact = torch.zeros_like(distance), method == "kemeny"
    for count in counts.unique().tolist():
        rows = (counts == count).nonzero()[:, 0]
        if count == 0:
            continue
        whole = numbers[rows, None].expand(len(rows), S, N).gather(-1, order[rows])[..., :count]
        found = _consensus_of_whole(whole, method)
        best[rows, :count] = best[rows].gather(-1, found.order)
        distance[rows], error[rows] = found.distance, found.standard_error
        is_exact = is_exact and found.is_exact
    return Consensus(best.reshape(*leading, N), distance.reshape(leading), error.reshape(leading), is_exact)


def calibration(
    samples: Samples | Array, true_order: Array, *, bins: int = 10, mask: Array | None = None
) -> Calibration:
    """Whether the pairs predicted to be in an order with probability p are in it in a share p of B instances.

    samples: of B instances, (B, num_samples, N). true_order: (B, N), one order observed for each, real items first.
    Pairs of one instance depend on each other: errors come from the spread between instances.
    The p of few samples is noisy by itself, which makes a good model look too sure: take a hundred or more.
    """
    order, real = _checked(samples, mask)
    if not isinstance(true_order, Tensor | np.ndarray):
        raise TypeError(f"true_order must be a tensor or a numpy array, got {described(true_order)}")
    truth = torch.as_tensor(true_order).to(order.device)
    B, N = order.shape[0], order.shape[-1]
    if order.ndim != 3 or B < 2 or truth.shape != (B, N):
        raise ValueError(
            "samples must be (B, num_samples, N) with B at least 2 and true_order (B, N), "
            f"got {tuple(order.shape)} and {tuple(truth.shape)}"
        )
    check_slots(truth, real, "true_order")
    check_limited("bins", bins, 1, MOST_BINS)
    first, second = torch.triu_indices(N, N, 1, device=order.device)
    chance = _share(_counts_before(order), order.shape[-2]).value[:, first, second]  # (B, pairs)
    ranks = ranks_of(truth)
    happened = (ranks[:, first] < ranks[:, second]).double()
    counted = torch.ones_like(happened) if real is None else (real[:, first] & real[:, second]).double()
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


def _checked(samples: Samples | Array, mask: Array | None) -> tuple[Tensor, Tensor | None]:
    """Orders (..., num_samples, N) int64, and which items of an instance are real, (..., N) bool, None for all."""
    given_orders = samples.order if isinstance(samples, Samples) else samples
    check_instance("samples", given_orders, (Tensor, np.ndarray, list, tuple))
    order = torch.as_tensor(given_orders)
    check_tensor("samples", order, ("...", "num_samples", "N"), torch.int64, "; give Samples, or orders")
    if 0 in order.shape[-2:]:
        raise ValueError(f"samples must hold at least one order of at least one item, got {described(order)}")
    given = None if mask is None else _real_items("mask", mask, order)
    real = given
    if isinstance(samples, Samples):
        real = None if samples.mask is None else _real_items("samples.mask", samples.mask, order)
        everything = torch.ones((), dtype=torch.bool, device=order.device)
        if given is not None and not bool((given == (everything if real is None else real)).all()):
            raise ValueError("mask must be that of samples, or None: Samples carry the mask that they were drawn with")
    flat = order.reshape(-1, order.shape[-1])
    real_of_each = None if real is None else real[..., None, :].expand_as(order).reshape(flat.shape)
    check_slots(flat, real_of_each, "samples")
    return order, real


def _real_items(name: str, mask: Array, order: Tensor) -> Tensor:
    """The mask of each instance, (..., N); one per sample, (..., num_samples, N), must be the same for all of these."""
    real = torch.as_tensor(mask).to(order.device)
    per_instance = (*order.shape[:-2], order.shape[-1])
    if real.dtype != torch.bool or real.shape not in (per_instance, order.shape):
        raise ValueError(
            f"{name} must be a {per_instance} or {tuple(order.shape)} tensor of bool, got {described(real)}"
        )
    if real.shape == per_instance:
        return real
    if not bool((real == real[..., :1, :]).all()):
        raise ValueError(f"{name} must be the same for all samples of an instance")
    return real[..., 0, :]


def _without(answer: Probability, is_padding: Tensor) -> Probability:
    return Probability(*(part.masked_fill(is_padding, torch.nan) for part in answer))


def _counts_before(order: Tensor) -> Tensor:
    """In how many samples item i stands before item j, (..., N, N) int64."""
    ranks = ranks_of(order)
    return torch.stack([(ranks[..., i : i + 1] < ranks).sum(-2) for i in range(order.shape[-1])], -2)


def _share(counts: Tensor, S: int) -> Probability:
    smoothed = (counts.double() + 1) / (S + 2)
    return Probability(counts.double() / S, (smoothed * (1 - smoothed) / S).sqrt())


def _consensus_of_whole(order: Tensor, method: str) -> Consensus:
    """The consensus of orders (..., S, N) without padding."""
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
    tau = metrics.kendall_tau_of_ranks(order, best)
    distance = (1 - tau) / 2 * (N * (N - 1) // 2)  # (..., S)
    return Consensus(best, distance.mean(-1), distance.std(-1) / math.sqrt(S), is_exact)


def _best_over_subsets(before: Tensor) -> Tensor:
    """Orders (..., N) of the smallest cost, given how often item i stands before item j, (..., N, N) float64.

    Cost of an order: for each pair, how often it stands the other way round. The best order of a set of first items
    is the best order of all but one of them, with this one behind.
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
