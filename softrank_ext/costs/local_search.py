"""Local search: orders made cheaper by small moves until none helps, compiled for the costs of this room."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from softrank_ext._libraries import compiled_module, has_compiled_module
from softrank_ext.checks import check_bool, check_choice, check_integer, check_mask, described
from softrank_ext.constraints import Constraining, Rules, rules_of
from softrank_ext.costs.form import Cost
from softrank_ext.costs.moves import MOVES, search_in_batches
from softrank_ext.costs.problems import Problem
from softrank_ext.costs.tours import MatrixTourLength, TourLength, check_sizes
from softrank_ext.permutations import check_slots

_MOST = 2**62  # moves and neighbours that the compiled search can count


def local_search(
    items: Tensor,
    order: Tensor,
    cost: Cost,
    moves: Sequence[str] = MOVES,
    limit: int | None = None,
    *,
    constraints: Constraining = None,
    keep_first: bool = False,
    mask: Tensor | None = None,
    neighbours: int = 10,
) -> Tensor:
    """Orders (B, N), none dearer than before, that no move makes cheaper.

    items: (B, N, ...), raw numbers. order: (B, N) int64. cost: see `costs`; for the costs of that room the search is
    compiled, with rows in parallel, for others it calls the cost with the orders of many moves at once.
    moves: "insert" (an item goes to another place; in tours up to three in a row, also turned), "swap" (two items
    change places), "reverse" (a part is turned around: 2-opt). limit: the most moves made per row, None for no limit.
    constraints: rules that the orders keep, and must keep to begin with; see `Constraints`. keep_first: the first item
    stays first. mask: (B, N) bool, True = real item; orders list these first. neighbours: in tours an item gets new
    neighbours from among so many nearest ones only.
    The same call gives the same orders, on any number of threads. Ctrl-C ends it.
    Raises TypeError or ValueError for arguments that do not fit, and what the cost raises.
    """
    check_slots(order, mask)
    kinds = _checked_moves(moves)
    if not isinstance(items, Tensor) or items.shape[:2] != order.shape:
        raise ValueError(f"items must begin with the shape of order {tuple(order.shape)}, got {described(items)}")
    if limit is not None:
        check_integer("limit", limit, 0, _MOST)
    check_integer("neighbours", neighbours, 1, _MOST)
    check_bool("keep_first", keep_first)
    if mask is not None:
        check_mask("mask", mask, "order", order)
    rules = rules_of(constraints, order.shape[0], order.shape[1], mask, device=order.device)
    result = order.clone()
    for rows, real in _by_size(mask, order):
        own_items, own_order, own_rules = items[rows], order[rows], None if rules is None else rules.rows(rows)
        if real is not None:
            own_items, own_order, own_rules = _without_padding(own_items, own_order, own_rules, real)
        if own_rules is not None and not bool(own_rules.kept_by(own_order).all()):
            row = int(rows[~own_rules.kept_by(own_order)][0])
            raise ValueError(f"order must keep the constraints to begin with, row {row} does not")
        found = _search(own_items, own_order, cost, kinds, limit, own_rules, keep_first, neighbours)
        result[rows, : found.shape[1]] = found if real is None else real.gather(1, found)
    return result


def _checked_moves(moves: Sequence[str]) -> tuple[str, ...]:
    if isinstance(moves, str) or not isinstance(moves, Sequence) or len(moves) == 0:
        raise TypeError(f"moves must be a list of some of {', '.join(map(repr, MOVES))}, got {moves!r}")
    for kind in moves:
        check_choice("moves", kind, MOVES)
    return tuple(moves)


def _by_size(mask: Tensor | None, order: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The rows of each number of real items, (R,), and these items, (R, size), None for all of them."""
    if mask is None or bool(mask.all()):
        yield torch.arange(len(order), device=order.device), None
        return
    sizes = mask.sum(1)
    for size in sizes.unique().tolist():
        rows = (sizes == size).nonzero()[:, 0]
        yield rows, mask[rows].nonzero()[:, 1].reshape(len(rows), size)


def _without_padding(
    items: Tensor, order: Tensor, rules: Rules | None, real: Tensor
) -> tuple[Tensor, Tensor, Rules | None]:
    """Items, order and rules of rows whose real items are real (R, size), numbered from 0."""
    R, size = real.shape
    row = torch.arange(R, device=real.device)[:, None]
    number = torch.zeros_like(order).scatter_(1, real, torch.arange(size, device=real.device).expand(R, size))
    if rules is not None:
        before, allowed, group = rules
        rules = Rules(
            None if before is None else before[row[..., None], real[:, :, None], real[:, None]],
            None if allowed is None else allowed[row, real, :size],
            None if group is None else group[row, real],
        )
    return items[row, real], number.gather(1, order[:, :size]), rules


def _search(
    items: Tensor,
    order: Tensor,
    cost: Cost,
    kinds: tuple[str, ...],
    limit: int | None,
    rules: Rules | None,
    keep_first: bool,
    neighbours: int,
) -> Tensor:
    """Orders made cheaper, of rows without padding."""
    if isinstance(cost, TourLength | MatrixTourLength):
        table = cost.table_of(items, order)
        check_sizes("items", table)
        if has_compiled_module() and order.numel() > 0:
            options = _compiled_options(kinds, limit, rules, keep_first)
            return _search_tours(table, order, cost, neighbours, options)
    elif isinstance(cost, Problem):
        table = cost.table_of(items, order)
        check_sizes("items", table)
        if has_compiled_module() and order.numel() > 0:
            options = _compiled_options(kinds, limit, rules, keep_first)
            cheaper = compiled_module().search_orders(table.cpu().numpy(), order.cpu().numpy(), cost.name, **options)
            return torch.from_numpy(cheaper).to(order.device)
    return search_in_batches(items, order, cost, kinds, limit, rules, keep_first)


def _search_tours(
    table: Tensor, order: Tensor, cost: TourLength | MatrixTourLength, neighbours: int, options: dict[str, object]
) -> Tensor:
    """Tours (B, N) through points (B, N, D) or by distances (B, N, N) or (N, N), made shorter."""
    found: np.ndarray = compiled_module().search_tours(
        (table if table.ndim == 3 else table[None]).cpu().numpy(),
        order.cpu().numpy(),
        is_matrix=isinstance(cost, MatrixTourLength),
        is_closed=cost.closed,
        neighbours=neighbours,
        **options,
    )
    return torch.from_numpy(found).to(order.device)


def _compiled_options(
    kinds: tuple[str, ...], limit: int | None, rules: Rules | None, keep_first: bool
) -> dict[str, object]:
    """What every compiled search is told."""
    before, allowed, group = (None, None, None) if rules is None else rules
    return {
        "moves": kinds,
        "most_moves": -1 if limit is None else limit,
        "before": None if before is None else before.cpu().numpy(),
        "allowed": None if allowed is None else allowed.cpu().numpy(),
        "group": None if group is None else group.cpu().numpy(),
        "keeps_first": keep_first,
        "threads": torch.get_num_threads(),
    }
