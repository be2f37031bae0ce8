"""What holds for a draw beside the model: a fixed first item, rules, kept places, the choice among weighted draws."""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from softrank_ext import noise
from softrank_ext.choices import Rebuild
from softrank_ext.constraints import Constraining, Constraints, Rules, pinned_first, rules_of
from softrank_ext.model import OrderModel
from softrank_ext.permutations import check_slots, ranks_of
from softrank_ext.sampling.samples import Samples, map_fields


class Kept(NamedTuple):
    """What a draw keeps of the orders that it begins with.

    order (B, N) int64, over items. noised (B, N) bool, by item: what is drawn again. places: so many leading places are
    kept in every row. is_partial: noise moves the noised items alone, and the others are marked; else noise moves all
    items. t: the time that the noised items go back to.
    """

    order: Tensor
    noised: Tensor
    places: int
    is_partial: bool
    t: float

    def rows(self, index: Tensor) -> "Kept":
        """What these rows of the batch keep, index (M,) int64."""
        return self._replace(order=self.order[index], noised=self.noised[index])


class Conditions(NamedTuple):
    """first (B,) int64: the item held at soft rank 0 and fixed at place 0. rules: over items. kept. None for none."""

    first: Tensor | None = None
    rules: Rules | None = None
    kept: Kept | None = None

    def rows(self, index: Tensor) -> "Conditions":
        """The conditions of these rows of the batch, index (M,) int64."""
        first, rules, kept = self
        return Conditions(
            None if first is None else first[index],
            None if rules is None else rules.rows(index),
            None if kept is None else kept.rows(index),
        )


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


def conditions_from(
    start: Rebuild, model: OrderModel, constraints: Constraining, mask: Tensor | None, device: torch.device
) -> Conditions:
    """The conditions of draws that begin with the orders of `start`, (M, N) here: one row per draw.

    constraints: for all rows, or one per row. mask: (M, N) bool. For a model with a fixed start the item at place 0 is
    kept. Raises ValueError if the model cannot do what is asked, or if the orders break the constraints.
    """
    order = start.order.to(device)
    check_slots(order, mask, "start.order")
    M, N = order.shape
    noised = torch.ones(M, N, dtype=torch.bool, device=device) if mask is None else mask
    if start.noised is not None:
        noised = noised & start.noised.to(device)
    first = None
    if model.fixed_start:
        pinned, constraints = pinned_first(constraints, M, N, mask)
        first = order[:, 0]
        if pinned is not None and bool((pinned.to(device) != first).any()):
            raise ValueError("start.order must begin with the items that constraints pin to place 0")
        if start.noised is not None and bool(noised.gather(1, first[:, None]).any()):
            raise ValueError("start.noised must keep the item at place 0: the model was trained with a fixed start")
        noised = noised.scatter(1, first[:, None], False)
    is_free = noised.gather(1, order)  # (M, place)
    is_real = torch.ones_like(is_free) if mask is None else mask.gather(1, order)
    is_tail = not bool((is_free[:, :-1] & ~is_free[:, 1:] & is_real[:, 1:]).any())
    if not model.takes_parts and (not is_tail or start.t != 1):
        raise ValueError(
            "start must draw the last places of each order again, at t = 1: "
            "the model was not trained with a part of an order noised (SoftRankConfig.partial)"
        )
    is_behind = is_free.cumsum(1) > 0  # from the first free place on
    places = int((~is_behind & is_real).sum(1).min()) if M > 0 else 0
    beyond = torch.arange(N, device=device) >= places
    has_more = bool((~is_free & is_real & beyond).any())
    rules = _rules_with_kept(constraints, order, noised, mask) if has_more or constraints is not None else None
    return Conditions(first, rules, Kept(order, noised, places, model.takes_parts, start.t))


def _rules_with_kept(constraints: Constraining, order: Tensor, noised: Tensor, mask: Tensor | None) -> Rules | None:
    """The rules, and that every kept item stays at its place."""
    M, N = order.shape
    if constraints is None:
        ranks = ranks_of(order)
        stays = ranks[..., None] == torch.arange(N, device=order.device)  # (M, item, place)
        is_free = noised.gather(1, order)
        allowed = torch.where(noised[..., None], is_free[:, None], stays)
        return Rules(None, allowed if mask is None else allowed | ~mask[..., None], None)
    if isinstance(constraints, Rules):
        raise ValueError("constraints of draws with a start must be Constraints, or a list of them")
    own = [constraints] * M if isinstance(constraints, Constraints) else list(constraints)
    is_kept = ~noised if mask is None else ~noised & mask
    counts = [N] * M if mask is None else mask.sum(1).tolist()
    pinned = []
    for number, (row, items, places, count) in enumerate(
        zip(own, is_kept.cpu(), ranks_of(order).cpu(), counts, strict=True)
    ):
        pins = {item: int(places[item]) for item in items.nonzero()[:, 0].tolist()}
        row = row or Constraints()
        for item, place in row.pins.items():
            if pins.get(item, place) not in (place, place + count):
                raise ValueError(
                    f"start must keep the constraints: item {item} of row {number}, pinned to place {place}, "
                    f"is kept at place {pins[item]}"
                )
        pinned.append(replace(row, pins={**row.pins, **pins}))
    try:
        return rules_of(pinned, M, N, mask, device=order.device)
    except ValueError as error:
        raise ValueError(f"start must keep the constraints: {error}") from error


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
