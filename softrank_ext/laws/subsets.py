"""Exact sums and maxima of laws by place and item, over all sets of first picks: 2^N terms."""

import torch
from torch import Tensor

from softrank_ext.laws.orders import real_first

MAX_SUBSETS_OF = 12  # items


def entropy_over_subsets(scores: Tensor, mask: Tensor) -> Tensor:
    """Sum over sets of first picks of their probability times the entropy of the next pick."""
    N = mask.shape[-1]
    _check_subsets("entropy", N)
    reached = scores.new_zeros(*mask.shape[:-1], 2**N)
    reached[..., 0] = 1.0
    entropy = scores.new_zeros(mask.shape[:-1])
    for size in range(N):
        sets, remaining, log_probs = _subset_log_probs(scores, mask, size)
        here = reached[..., sets]
        probs = log_probs.exp() * remaining
        entropy = entropy - (here * (probs * log_probs).sum(-1)).sum(-1)
        after = sets[:, None] | (1 << torch.arange(N, device=mask.device))  # (M, N)
        # Where an item does not remain, what is added is 0.
        reached = reached.index_add(-1, after.flatten(), (here[..., None] * probs).flatten(-2))
    return entropy


@torch.no_grad()
def mode_over_subsets(scores: Tensor, mask: Tensor) -> Tensor:
    """The order of highest probability, by the best continuation of every set of first picks."""
    N = mask.shape[-1]
    _check_subsets("mode", N)
    best = scores.new_zeros(*mask.shape[:-1], 2**N)
    choice = torch.zeros(best.shape, dtype=torch.int64, device=mask.device)
    items = torch.arange(N, device=mask.device)
    for size in reversed(range(N)):
        sets, remaining, log_probs = _subset_log_probs(scores, mask, size)
        onward = log_probs + best[..., sets[:, None] | (1 << items)]
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


def _subset_log_probs(scores: Tensor, mask: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """All sets of `size` first picks, and the next pick's law given each.

    scores: (..., N, N). mask: (..., N). Returns sets (M,) int64, bit i for item i; remaining (..., M, N) bool; and
    log_probs (..., M, N), 0 where an item does not remain.
    """
    N = mask.shape[-1]
    sets = torch.arange(2**N, device=mask.device)
    is_taken = (sets[:, None] >> torch.arange(N, device=mask.device)) & 1 == 1  # (2^N, N)
    is_of_size = is_taken.sum(1) == size
    sets, is_taken = sets[is_of_size], is_taken[is_of_size]
    remaining = mask[..., None, :] & ~is_taken
    is_open = remaining | ~remaining.any(-1, keepdim=True)  # a softmax over nothing would be NaN
    log_probs = scores[..., size, None, :].masked_fill(~is_open, -torch.inf).log_softmax(-1)
    return sets, remaining, log_probs.masked_fill(~remaining, 0.0)


def _check_subsets(name: str, N: int) -> None:
    if N > MAX_SUBSETS_OF:
        raise NotImplementedError(f"{name} is exact, over all subsets, for at most {MAX_SUBSETS_OF} items, got {N}")
