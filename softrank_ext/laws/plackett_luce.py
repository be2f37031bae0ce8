"""Plackett-Luce laws: each pick is drawn from a softmax over the items that remain.

`PlackettLuce` has one score per item, `GeneralizedPlackettLuce` one per place and item.
"""

import torch
from torch import Tensor

from softrank_ext import ops
from softrank_ext.checks import ANY_FLOAT, check_tensor, described
from softrank_ext.laws.orders import Finite, OrderDistribution, batch_shape_of, checked_mask
from softrank_ext.laws.subsets import entropy_over_subsets, mode_over_subsets
from softrank_ext.permutations import ranks_of


class PlackettLuce(OrderDistribution):
    """Items are picked one after another, each with probability proportional to exp(score) among those that remain.

    scores: (..., N) float, finite at real items; a constant added to all scores changes nothing. mask: (..., N) bool.
    """

    arg_constraints = {"scores": Finite(1)}  # noqa: RUF012

    def __init__(self, scores: Tensor, mask: Tensor | None = None, validate_args: bool | None = None) -> None:
        _check_scores(scores, ("...", "N"))
        N = scores.shape[-1]
        batch_shape = batch_shape_of(scores.shape[:-1], mask)
        self.scores = scores.expand(*batch_shape, N)
        if mask is not None:
            self.scores = self.scores.masked_fill(~checked_mask(mask, N, scores.device), 0.0)
        super().__init__(batch_shape, mask, N, scores.device, validate_args)

    @property
    def mode(self) -> Tensor:
        """The items by falling score, the lower item first where scores are equal; (*batch_shape, N)."""
        return self.scores.masked_fill(~self.mask, -torch.inf).argsort(dim=-1, descending=True, stable=True)

    def from_uniform(self, uniform: Tensor) -> Tensor:
        """See `OrderDistribution.from_uniform`."""
        # A race: item i arrives after an exponential time of rate exp(score_i). Here is the logarithm of that time.
        arrival = torch.log(-torch.log1p(-self._checked_uniform(uniform))) - self.scores.double()
        return arrival.masked_fill(~self.mask, torch.inf).argsort(dim=-1, stable=True)

    def entropy(self) -> Tensor:
        """Entropy in nats, exact, for at most 12 items: a sum over all sets of first picks."""
        N = self.event_shape[0]
        return entropy_over_subsets(self.scores[..., None, :].expand(*self.batch_shape, N, N), self.mask)

    def _log_probs(self, order: Tensor) -> Tensor:
        places = torch.arange(order.shape[-1], device=order.device)
        arranged = self.scores.expand(order.shape).gather(-1, order)
        return race_log_probs(arranged, places < self.num_items[..., None])


class GeneralizedPlackettLuce(OrderDistribution):
    """Plackett-Luce with separate scores at each place: a softmax over the items that remain, place after place.

    scores: (..., N, N) float, place by item, finite at real places and items; a constant added to all scores of a place
    changes nothing. mask: (..., N) bool, real items; a row of n real items uses the scores of its first n places.
    """

    arg_constraints = {"scores": Finite(2)}  # noqa: RUF012

    def __init__(self, scores: Tensor, mask: Tensor | None = None, validate_args: bool | None = None) -> None:
        _check_scores(scores, ("...", "N", "N"))
        N = scores.shape[-1]
        batch_shape = batch_shape_of(scores.shape[:-2], mask)
        self.scores = scores.expand(*batch_shape, N, N)
        if mask is not None:
            mask = checked_mask(mask, N, scores.device)
            is_place = torch.arange(N, device=scores.device) < mask.sum(-1, keepdim=True)
            self.scores = self.scores.masked_fill(~(is_place[..., None] & mask[..., None, :]), 0.0)
        super().__init__(batch_shape, mask, N, scores.device, validate_args)

    @property
    def mode(self) -> Tensor:
        """The most probable order, (*batch_shape, N), exact, for at most 12 items: the best path through subsets."""
        return mode_over_subsets(self.scores, self.mask)

    def from_uniform(self, uniform: Tensor) -> Tensor:
        """See `OrderDistribution.from_uniform`."""
        uniform, N = self._checked_uniform(uniform), self.event_shape[0]
        scores = self.scores.detach().double().expand(*uniform.shape, N).reshape(-1, N, N)
        mask = self.mask.expand(uniform.shape).reshape(-1, N)
        order, _ = ops.decode_scores(scores, mask, ops.Choices(uniform=uniform.reshape(-1, N)))
        return order.reshape(uniform.shape)

    def entropy(self) -> Tensor:
        """Entropy in nats, exact, for at most 12 items: a sum over all sets of first picks."""
        return entropy_over_subsets(self.scores, self.mask)

    def _log_probs(self, order: Tensor) -> Tensor:
        scores = self.scores.expand(*order.shape, order.shape[-1])
        return stagewise_log_probs(scores, order, self.mask.expand(order.shape))


def stagewise_log_probs(scores: Tensor, order: Tensor, mask: Tensor | None = None) -> Tensor:
    """Log-probability of each of an order's picks among the items that remained, (..., N), 0 at padded places.

    scores: (..., N, N), place by item. order: (..., N) int64, real items first. mask: (..., N) bool, None for all real.
    """
    check_tensor("order", order, ("...", "N"), torch.int64)
    check_tensor("scores", scores, (*order.shape, order.shape[-1]), ANY_FLOAT)
    if mask is not None:
        check_tensor("mask", mask, tuple(order.shape), torch.bool)
    places = torch.arange(order.shape[-1], device=order.device)
    remaining = ranks_of(order)[..., None, :] >= places[:, None]  # (..., place, item)
    if mask is None:
        return scores.masked_fill(~remaining, -torch.inf).log_softmax(-1).gather(-1, order[..., None])[..., 0]
    # At a padded place nothing remains. With all items allowed there, softmax and gradient are finite, and dropped.
    is_padded_place = places >= mask.sum(-1, keepdim=True)  # (..., place)
    remaining = (remaining & mask[..., None, :]) | is_padded_place[..., None]
    log_probs = scores.masked_fill(~remaining, -torch.inf).log_softmax(-1)
    return log_probs.gather(-1, order[..., None])[..., 0].masked_fill(is_padded_place, 0.0)


def race_log_probs(arranged: Tensor, is_real: Tensor) -> Tensor:
    """`stagewise_log_probs` of one score per item: arranged (..., places), the scores arranged by the order."""
    # Not -inf: a sum over nothing but padding, though dropped, would have a gradient of NaN.
    finite = arranged.masked_fill(~is_real, torch.finfo(arranged.dtype).min / 2)
    log_sums = finite.flip(-1).logcumsumexp(-1).flip(-1)
    return (finite - log_sums).masked_fill(~is_real, 0.0)


def _check_scores(scores: Tensor, shape: tuple[str, ...]) -> None:
    check_tensor("scores", scores, shape, ANY_FLOAT)
    if scores.shape[-1] == 0 or (len(shape) == 3 and scores.shape[-2] != scores.shape[-1]):
        wanted = "(..., N)" if len(shape) == 2 else "(..., N, N), place by item"
        raise ValueError(f"scores must be {wanted}, with N at least 1, got {described(scores)}")
