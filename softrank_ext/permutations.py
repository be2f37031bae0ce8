"""Permutations as tensors, in two inverse forms that are never mixed.

`order[place] = item` (what argsort gives) and `ranks[item] = place`. Both are int64, counted from 0.
Example: soft ranks [0.9, 0.1, 0.5, 0.3] have order [1, 3, 2, 0] and ranks [3, 0, 2, 1].
"""

import torch
from torch import Tensor

from softrank_ext.checks import ANY_FLOAT, check_instance, check_tensor, described


def ranks_of(order: Tensor) -> Tensor:
    """Ranks of an order: `ranks[order[place]] = place`. order: (..., N) int64."""
    return _inverse_of("order", order)


def order_of(ranks: Tensor) -> Tensor:
    """Order of ranks: `order[ranks[item]] = item`. ranks: (..., N) int64."""
    return _inverse_of("ranks", ranks)


def _inverse_of(name: str, value: Tensor) -> Tensor:
    hint = "; did you pass soft_ranks?" if isinstance(value, Tensor) and value.is_floating_point() else ""
    check_tensor(name, value, ("...", "N"), torch.int64, hint)
    N = value.shape[-1]
    check_range(name, value, N)
    places = torch.arange(N, device=value.device).expand_as(value)
    # What is not named stays -1: on a GPU, where nothing is read, that shows a wrong order.
    inverse = torch.full_like(value, -1).scatter_(-1, value, places)
    if _can_read(value) and int(inverse.min()) < 0:
        raise ValueError(f"{name} must hold each of 0 to {N - 1} once per row, got one more than once")
    return inverse


def check_range(name: str, value: Tensor, N: int) -> None:
    """Raise ValueError unless every number of the tensor is from 0 to N - 1; on a CPU only, as it reads the data."""
    if _can_read(value) and not 0 <= int(value.min()) <= int(value.max()) < N:
        raise ValueError(f"{name} must hold numbers from 0 to {N - 1}, got {int(value.min())} to {int(value.max())}")


def _can_read(value: Tensor) -> bool:
    """Whether reading the data waits for nothing and breaks no graph."""
    return value.device.type == "cpu" and value.numel() > 0 and not torch.compiler.is_compiling()


def arrange(items: Tensor, order: Tensor) -> Tensor:
    """Items in the given order: `arranged[b, place] = items[b, order[b, place]]`.

    items: (B, N, ...) or (N, ...). order: (B, N) or (N,) int64. Returns a tensor shaped like items.
    """
    check_instance("items", items, Tensor)
    check_tensor("order", order, ("...", "N"), torch.int64)
    if order.shape != items.shape[: order.ndim]:
        raise ValueError(
            f"items must begin with the shape of order {tuple(order.shape)}, got items of shape {tuple(items.shape)}"
        )
    check_range("order", order, order.shape[-1])
    place_dim = order.ndim - 1
    index = order.reshape(order.shape + (1,) * (items.ndim - order.ndim)).expand_as(items)  # (B, N, ...)
    return items.gather(place_dim, index)


def compose(order: Tensor, slots: Tensor) -> Tensor:
    """Order over items from an order over slots: `result[place] = order[slots[place]]`. Both (B, N) or (N,) int64."""
    for name, value in (("order", order), ("slots", slots)):
        check_tensor(name, value, ("...", "N"), torch.int64)
    if order.shape != slots.shape:
        raise ValueError(f"order and slots must have one shape, got {tuple(order.shape)} and {tuple(slots.shape)}")
    check_range("slots", slots, slots.shape[-1])
    return order.gather(-1, slots)


def turned(order: Tensor, place: Tensor) -> Tensor:
    """Closed tours (B, N) turned to begin at the given places (B,): the same tours from another start."""
    check_tensor("order", order, ("B", "N"), torch.int64)
    check_tensor("place", place, (len(order),), torch.int64)
    places = torch.arange(order.shape[1], device=order.device)
    return order.gather(1, (places + place[:, None]) % max(order.shape[1], 1))


def check_order(order: Tensor, name: str = "order") -> None:
    """Raise ValueError unless each row of `order` (B, N) or (N,) int64 holds 0 to N-1 once. Reads the data: a sync."""
    is_dense = isinstance(order, Tensor) and order.layout == torch.strided
    if not is_dense or order.dtype != torch.int64 or order.ndim not in (1, 2):
        kind = ValueError if isinstance(order, Tensor) else TypeError
        raise kind(f"{name} must be a (B, N) or (N,) tensor of int64, got {described(order)}")
    rows = order if order.ndim == 2 else order[None]
    is_wrong = (rows.sort(1).values != torch.arange(rows.shape[1], device=rows.device)).any(1)
    if bool(is_wrong.any()):
        row = int(is_wrong.nonzero()[0])
        raise ValueError(
            f"{name} must hold each of 0 to {rows.shape[1] - 1} once per row, row {row} is {rows[row].tolist()}"
        )


def check_slots(order: Tensor, mask: Tensor | None, name: str = "order") -> None:
    """Raise ValueError unless `order` (B, N) int64 holds each slot once per row, real slots before padding.

    mask: (B, N) bool, True = real slot, or None for all real.
    """
    check_order(order, name)
    if mask is None:
        return
    check_tensor("mask", mask, ("B", "N"), torch.bool)
    if order.shape != mask.shape:
        raise ValueError(f"{name} must have the shape of mask {tuple(mask.shape)}, got {tuple(order.shape)}")
    is_real = mask.gather(1, order)
    is_wrong = (is_real[:, 1:] & ~is_real[:, :-1]).any(1)
    if bool(is_wrong.any()):
        row = int(is_wrong.nonzero()[0])
        raise ValueError(f"{name} must list real slots before padded ones, row {row} is {order[row].tolist()}")


def chamber_margin(soft_ranks: Tensor, mask: Tensor | None = None) -> Tensor:
    """Distance of soft ranks to the nearest wall z_i = z_j of their chamber, in the sup norm: half the smallest gap.

    soft_ranks: (B, N) or (N,) float. mask: bool of the same shape, True = real item. Returns (B,) or a scalar:
    every soft rank may move by this much before the order can change. +inf where fewer than two items are real.
    """
    check_tensor("soft_ranks", soft_ranks, ("...", "N"), ANY_FLOAT)
    if mask is not None:
        check_tensor("mask", mask, ("...", "N"), torch.bool)
    if mask is not None and mask.shape != soft_ranks.shape:
        raise ValueError(f"mask must have the shape of soft_ranks {tuple(soft_ranks.shape)}, got {tuple(mask.shape)}")
    if soft_ranks.shape[-1] < 2:
        return soft_ranks.new_full(soft_ranks.shape[:-1], torch.inf)
    finite = soft_ranks if mask is None else soft_ranks.masked_fill(~mask, torch.inf)
    ascending = finite.sort(-1).values
    gaps = ascending.diff(dim=-1)
    return torch.where(ascending[..., 1:].isinf(), torch.inf, gaps).amin(-1) / 2
