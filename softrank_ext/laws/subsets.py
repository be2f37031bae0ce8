"""Exact sums and maxima of laws by place and item, over all sets of first picks: 2^N terms."""

from collections.abc import Callable

import torch
from torch import Tensor

from softrank_ext.laws.orders import real_first

MAX_SUBSETS_OF = 12  # items

NextScores = Callable[[int, Tensor], Tensor]


def entropy_over_subsets(scores: Tensor, mask: Tensor) -> Tensor:
    """Sum over sets of first picks of their probability times the entropy of the next pick."""
    _check_subsets("entropy", mask.shape[-1])

    def surprise(size: int, remaining: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = next_log_probs(scores[..., size, None, :], remaining)
        return log_probs, -log_probs

    return _sum_over_subsets(surprise, mask, scores.dtype)


def divergence_over_subsets(first: NextScores, second: NextScores, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum over sets of first picks of their probability by the first law times the divergence of the next pick's laws.

    first, second: from the place and the remaining items (..., M, N) bool to scores that broadcast to them.
    """
    _check_subsets("kl_divergence", mask.shape[-1])

    def excess(size: int, remaining: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = next_log_probs(first(size, remaining), remaining)
        difference = log_probs - next_log_probs(second(size, remaining), remaining)
        return log_probs, difference.masked_fill(log_probs == -torch.inf, 0.0)

    return _sum_over_subsets(excess, mask, dtype)


def _sum_over_subsets(step: Callable[[int, Tensor], tuple[Tensor, Tensor]], mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mean, over a law's orders, of what their picks are worth, added up.

    step: from the number of first picks and the remaining items (..., M, N) of every set of so many to the next pick's
    log-probabilities, and what the pick is worth.
    """
    N = mask.shape[-1]
    reached = torch.zeros(*mask.shape[:-1], 2**N, dtype=dtype, device=mask.device)
    reached[..., 0] = 1.0
    total = torch.zeros(mask.shape[:-1], dtype=dtype, device=mask.device)
    for size in range(N):
        sets, remaining = _subsets(mask, size)
        log_probs, worth = step(size, remaining)
        here = reached[..., sets]
        probs = log_probs.exp() * remaining
        # What never happens counts as 0, even where its worth is infinite.
        is_met = (here[..., None] > 0) & (probs > 0)
        total = total + (here * torch.where(is_met, probs * worth, 0.0).sum(-1)).sum(-1)
        after = sets[:, None] | (1 << torch.arange(N, device=mask.device))  # (M, N)
        # Where an item does not remain, what is added is 0.
        reached = reached.index_add(-1, after.flatten(), (here[..., None] * probs).flatten(-2))
    return total


@torch.no_grad()
def central_order(before: Tensor) -> Tensor:
    """The order (N,) of the fewest disagreements with rankings; before: (N, N), [a, b] = how many have a before b."""
    N = len(before)
    _check_subsets("the center", N)
    # A pick disagrees with those that have another remaining item before it.
    every = torch.ones(N, dtype=torch.bool, device=before.device)
    return _best_over_subsets(lambda _, remaining: -(remaining.to(before.dtype) @ before), every, before.dtype)


@torch.no_grad()
def mode_over_subsets(scores: Tensor, mask: Tensor) -> Tensor:
    """The order of highest probability, by the best continuation of every set of first picks."""
    _check_subsets("mode", mask.shape[-1])
    return _best_over_subsets(
        lambda size, remaining: next_log_probs(scores[..., size, None, :], remaining), mask, scores.dtype
    )


def _best_over_subsets(worth: NextScores, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The order (..., N) of highest worth, added up over its picks; worth: as in `_sum_over_subsets`."""
    N = mask.shape[-1]
    best = torch.zeros(*mask.shape[:-1], 2**N, dtype=dtype, device=mask.device)
    choice = torch.zeros(best.shape, dtype=torch.int64, device=mask.device)
    items = torch.arange(N, device=mask.device)
    for size in reversed(range(N)):
        sets, remaining = _subsets(mask, size)
        onward = worth(size, remaining) + best[..., sets[:, None] | (1 << items)]
        value, choice[..., sets] = onward.masked_fill(~remaining, -torch.inf).max(-1)
        best[..., sets] = value.masked_fill(~remaining.any(-1), 0.0)
    taken = torch.zeros(*mask.shape[:-1], 1, dtype=torch.int64, device=mask.device)
    picks = []
    for _ in range(N):
        picks.append(choice.gather(-1, taken))
        taken = taken | (1 << picks[-1])
    order = torch.cat(picks, -1)
    # Behind a row's last real item nothing was chosen: the padding goes there.
    is_place = items < mask.sum(-1, keepdim=True)
    return torch.where(is_place, order, real_first(mask))


def next_log_probs(scores: Tensor, remaining: Tensor) -> Tensor:
    """Log-probabilities of the next pick by scores that broadcast to remaining (..., M, N); 0 where none remains."""
    is_open = remaining | ~remaining.any(-1, keepdim=True)  # a softmax over nothing would be NaN
    return scores.masked_fill(~is_open, -torch.inf).log_softmax(-1).masked_fill(~remaining, 0.0)


def _subsets(mask: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """All sets of `size` first picks, (M,) int64, bit i for item i; and what remains then, (..., M, N) bool."""
    N = mask.shape[-1]
    sets = torch.arange(2**N, device=mask.device)
    is_taken = (sets[:, None] >> torch.arange(N, device=mask.device)) & 1 == 1  # (2^N, N)
    is_of_size = is_taken.sum(1) == size
    return sets[is_of_size], mask[..., None, :] & ~is_taken[is_of_size]


def _check_subsets(name: str, N: int) -> None:
    if N > MAX_SUBSETS_OF:
        raise NotImplementedError(f"{name} is exact, over all subsets, for at most {MAX_SUBSETS_OF} items, got {N}")
