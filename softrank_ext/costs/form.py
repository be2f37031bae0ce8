"""What an order costs: the one form of a cost function, called and checked in one place.

A cost is `cost(items, order) -> (rows,)`, lower is better: items (rows, N, ...) as the model takes them, raw numbers,
order (rows, N) int64 with `order[place] = item`. Rows are independent: a cost is called with any of the rows, also
repeated ones, and never sees padding. Infinite means that the order is not allowed.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from softrank_ext.checks import check_mask, check_tensor, described
from softrank_ext.permutations import check_range

Cost = Callable[[Tensor, Tensor], Tensor]


def costs_of(cost: Cost, items: Tensor, order: Tensor, mask: Tensor | None = None) -> Tensor:
    """The costs (rows,) float64 of the orders, on the device of `items`.

    items: (rows, N, ...). order: (rows, N) int64, real items first. mask: (rows, N) bool, True = real item; then the
    cost is called once for each number of real items, with these items alone.
    Raises TypeError or ValueError if what the cost returns is not one number per row, or is NaN or minus infinity, or
    if it changes its inputs; what the cost itself raises is passed on.
    """
    if not callable(cost):
        raise TypeError(f"cost must be a function cost(items, order) -> (rows,), got {described(cost)}")
    check_tensor("order", order, ("rows", "N"), torch.int64)
    if not isinstance(items, Tensor) or items.layout != torch.strided or items.shape[:2] != order.shape:
        raise ValueError(f"items must begin with the shape of order {tuple(order.shape)}, got {described(items)}")
    check_range("order", order, order.shape[1])
    if mask is not None:
        check_mask("mask", mask, "order", order)
    if len(items) == 0:
        return torch.zeros(0, dtype=torch.float64, device=items.device)
    if mask is None or bool(mask.all()):
        return _checked(cost, items, order, torch.arange(len(items), device=items.device))
    costs = torch.empty(len(items), dtype=torch.float64, device=items.device)
    sizes = mask.sum(1)
    place_of = mask.cumsum(1) - 1  # (rows, N): number of each real item among the real ones
    for size in sizes.unique().tolist():
        rows = (sizes == size).nonzero()[:, 0]
        real = items[rows][mask[rows]].unflatten(0, (len(rows), size))  # (rows, size, ...)
        costs[rows] = _checked(cost, real, place_of[rows].gather(1, order[rows, :size]), rows)
    return costs


def _checked(cost: Cost, items: Tensor, order: Tensor, rows: Tensor) -> Tensor:
    """One call of the cost; rows (len(items),): the numbers of these rows for messages."""
    before = items._version, order._version
    # A cost that goes on in numpy can change the same memory, which no version counts.
    copies = [(given, given.clone()) for given in (items, order) if given.device.type == "cpu"]
    try:
        costs = cost(items, order)
    except Exception as error:
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"raised by the cost, called with items {described(items)} and order {described(order)}")
        raise
    is_changed = any(not torch.equal(_bytes_of(given), _bytes_of(copy)) for given, copy in copies)
    if is_changed or (items._version, order._version) != before:
        raise ValueError("cost must not change its inputs: it changed items or order in place")
    if isinstance(costs, np.ndarray):
        costs = torch.from_numpy(costs)
    if not isinstance(costs, Tensor):
        raise TypeError(f"cost must return a tensor of one number per row, ({len(items)},), got {described(costs)}")
    if costs.shape != (len(items),) or costs.is_complex() or costs.dtype == torch.bool:
        raise ValueError(f"cost must return one number per row, ({len(items)},), got {described(costs)}")
    costs = costs.detach().to(items.device, torch.float64)
    is_wrong = costs.isnan() | costs.isneginf()
    if bool(is_wrong.any()):
        found = "NaN" if bool(costs[is_wrong][0].isnan()) else "-infinity"
        raise ValueError(
            f"cost must not be NaN or -infinity, got {found} in row {int(rows[is_wrong][0])}; "
            "return infinity for an order that is not allowed"
        )
    return costs


def _bytes_of(values: Tensor) -> Tensor:
    """The memory of the numbers, in which NaN equals itself."""
    return values.contiguous().view(torch.uint8)
