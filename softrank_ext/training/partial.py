"""Partial noise in training: in a share of the rows only a part of the order is noised, and the rest is kept.

The part is a stretch of consecutive places, or a random set of items, each in half of these rows. Of closed tours the
stretch is the tail, since a tour can be turned so that any stretch is; an item fixed at place 0 is kept.
"""

import torch
from torch import Tensor

from softrank_ext import noise
from softrank_ext.batch import Batch
from softrank_ext.model import OrderModel, SoftRankConfig

_STEP = 20  # of the noise that chooses parts


def noised_items(
    config: SoftRankConfig, share: float, batch: Batch, seed: int, samples: Tensor
) -> tuple[Tensor, Tensor]:
    """Which rows are partial, (R,) bool, and which items are noised there, (R, N) bool.

    share: of partial rows. batch: rows of whole orders; one that knows only leading places, or has fewer than three
    items to choose from, is not partial. samples (R,) int64: the rows' numbers, for noise.
    """
    order = batch.order
    R, N = order.shape
    uniform = noise.uniform(seed, samples, _STEP, N + 4, stream=noise.TRAINING_STREAM, dtype=torch.float64)
    kept_first = 0 if batch.first is None else 1
    places = torch.arange(N, device=order.device)
    count = torch.full((R, 1), N, device=order.device) if batch.mask is None else batch.mask.sum(1, keepdim=True)
    free_most = count - kept_first
    is_partial = (uniform[:, 0] < share) & (free_most[:, 0] > 2)
    if batch.known is not None:
        is_partial &= batch.known >= count[:, 0]
    size = 2 + (uniform[:, 1:2] * (free_most - 1)).long()  # 2 to all that may be free
    first = kept_first + (uniform[:, 2:3] * (free_most - size + 1)).long()
    if config.data.symmetry == "tour":
        first = count - size
    is_stretch = (places >= first) & (places < first + size)
    keys = uniform[:, 4:].masked_fill((places < kept_first) | (places >= count), 2.0)
    is_of_set = keys.argsort(1).argsort(1) < size
    is_free = torch.where(uniform[:, 3:4] < 0.5, is_stretch, is_of_set)  # by place
    return is_partial, torch.zeros_like(is_free).scatter_(1, order, is_free)


def parts_of(model: OrderModel, batch: Batch, seed: int, samples: Tensor) -> Tensor:
    """Which items of the orders of a batch a model may draw again, (R, N) bool: a part as above where it was trained
    for that, otherwise a tail of at least two places. Rows of one or two items are drawn again as a whole."""
    kept_first = 0 if batch.first is None else 1
    R, N = batch.order.shape
    if model.takes_parts:
        is_partial, noised = noised_items(model.config, 1.0, batch, seed, samples)
    else:
        uniform = noise.uniform(seed, samples, _STEP, 1, stream=noise.TRAINING_STREAM, dtype=torch.float64)
        count = torch.full((R, 1), N, device=samples.device) if batch.mask is None else batch.mask.sum(1, keepdim=True)
        is_partial = count[:, 0] - kept_first > 2
        size = 2 + (uniform * (count - kept_first - 1)).long()
        places = torch.arange(N, device=samples.device)
        is_free = (places >= count - size) & (places < count)
        noised = torch.zeros_like(is_free).scatter_(1, batch.order, is_free)
    whole = torch.ones(R, N, dtype=torch.bool, device=samples.device) if batch.mask is None else batch.mask.clone()
    if batch.first is not None:
        whole = whole.scatter(1, batch.first[:, None], False)
    return torch.where(is_partial[:, None], noised, whole)
