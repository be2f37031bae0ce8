"""What holds for a draw beside the model: an item fixed at place 0, rules, and the choice among weighted draws."""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from softrank_ext import noise
from softrank_ext.constraints import Constraining, Constraints, Rules, pinned_first, rules_of
from softrank_ext.sampling.samples import Samples, map_fields


class Conditions(NamedTuple):
    """first (B,) int64: the item held at soft rank 0 and fixed at place 0, or None. rules: over items, or None."""

    first: Tensor | None = None
    rules: Rules | None = None

    def rows(self, index: Tensor) -> "Conditions":
        """The conditions of these rows of the batch, index (M,) int64."""
        first, rules = self
        return Conditions(None if first is None else first[index], None if rules is None else rules.rows(index))


def pins_of(first: Tensor | None) -> list[Constraints] | None:
    """Constraints that fix an item at place 0 of each row, first (B,) int64; None for none."""
    if first is None:
        return None
    items = first.tolist()
    shared = {item: Constraints(pins={item: 0}) for item in set(items)}
    return [shared[item] for item in items]


def conditions_of(
    constraints: Constraining, fixed_start: bool, shape: tuple[int, int], mask: Tensor | None, device: torch.device
) -> Conditions:
    """The conditions of a batch of `shape` (B, N).

    fixed_start: the model was trained with the first item held at soft rank 0. Then a pin at place 0 is that item, in
    every row or in none; for other models a pin is a rule like any other.
    """
    B, N = shape
    first = None
    if fixed_start and constraints is not None and not isinstance(constraints, Rules):
        first, constraints = pinned_first(constraints, B, N, mask)
        first = None if first is None else first.to(device)
    return Conditions(first, rules_of(constraints, B, N, mask, device=device, first=first))


def resampled(samples: Samples, numbers: Tensor) -> Samples:
    """Draw from samples (B, P) in proportion to their weights; numbers (B, S): of the samples to draw, for noise.

    `log_prob_allowed` of the samples holds the logarithms of their weights.
    """
    assert samples.log_prob_allowed is not None
    log_weights = samples.log_prob_allowed.double()  # (B, P)
    weights = log_weights.softmax(1)
    cumulative = weights.cumsum(1)
    uniform = noise.uniform(samples.seed, numbers.flatten(), 0, 1, stream=noise.RESAMPLE_STREAM, dtype=torch.float64)
    target = uniform.view_as(numbers) * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, target, right=True).clamp(max=weights.shape[1] - 1)  # (B, S)
    rows = torch.arange(len(weights), device=weights.device)[:, None]
    log_mean = log_weights.logsumexp(1) - math.log(weights.shape[1])
    return replace(
        map_fields(lambda field: field[rows, chosen], samples),
        effective_size=(1 / weights.square().sum(1))[:, None].expand_as(numbers),
        log_prob_allowed=log_mean[:, None].expand_as(numbers),
    )
