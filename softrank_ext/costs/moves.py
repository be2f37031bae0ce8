"""The moves of local search as lists of places, and a search that tries them in batches with any cost.

A move makes a new order of an old one: `new_order[place] = order[source[place]]`.
- insert (i, j): the item at place i goes to place j, those between close up.
- swap (i, j): the items at places i and j change places.
- reverse (i, j): the items at places i to j are turned around.
"""

import torch
from torch import Tensor

from softrank_ext.constraints import Rules
from softrank_ext.costs.form import Cost, costs_of

MOVES = ("insert", "swap", "reverse")
MOVES_PER_TURN = 256  # of a row; the best of them is made
ORDERS_PER_CALL = 2048  # how many orders a cost is asked for at once


def all_moves(kinds: tuple[str, ...], N: int, first_place: int, device: torch.device) -> Tensor:
    """All moves of these kinds, (M, 3) int64: number of the kind in `MOVES`, i, j. No move twice.

    Nothing moves below `first_place`. Neighbours change places by an insertion; a swap or reversal of two neighbours is
    the same and left out if insertions are made, and so is the reversal of three (a swap) if swaps are.
    """
    places = torch.arange(min(first_place, N), N, device=device)
    i, j = torch.meshgrid(places, places, indexing="ij")
    found = []
    for kind in kinds:
        least = 1
        if kind == "insert":
            is_move = (i != j) & (i != j + 1)  # from j + 1 to j is from j to j + 1
        else:
            if "insert" in kinds or (kind == "reverse" and "swap" in kinds):
                least = 2
            if kind == "reverse" and "swap" in kinds:
                least = 3
            is_move = j - i >= least
        number = torch.full_like(i[is_move], MOVES.index(kind))
        found.append(torch.stack((number, i[is_move], j[is_move]), 1))
    return torch.cat(found) if found else places.new_zeros((0, 3))


def sources_of(moves: Tensor, N: int) -> Tensor:
    """Where each place of the new order takes its item from: moves (..., 3) -> (..., N) int64."""
    place = torch.arange(N, device=moves.device)
    kind, i, j = (part[..., None] for part in moves.unbind(-1))
    is_right = i < j
    inserted = torch.where(is_right & (place >= i) & (place < j), place + 1, place)
    inserted = torch.where(~is_right & (place > j) & (place <= i), place - 1, inserted)
    inserted = torch.where(place == j, i, inserted)
    swapped = torch.where(place == i, j, torch.where(place == j, i, place))
    turned = torch.where((place >= i) & (place <= j), i + j - place, place)
    return torch.where(kind == 0, inserted, torch.where(kind == 1, swapped, turned))


def search_in_batches(
    items: Tensor,
    order: Tensor,
    cost: Cost,
    kinds: tuple[str, ...],
    limit: int | None = None,
    rules: Rules | None = None,
    keep_first: bool = False,
) -> Tensor:
    """Orders (rows, N) that none of the moves makes cheaper, or that were made cheaper `limit` times.

    The cost is asked for many orders at once: for each of some rows the next moves of a list that goes round, of which
    the best is made if it helps. Moves that break a rule are left out. No order gets dearer. A row's result does not
    depend on the other rows.
    """
    N = order.shape[1]
    moves = all_moves(kinds, N, int(keep_first), order.device)
    order, costs = order.clone(), costs_of(cost, items, order)
    if len(moves) == 0:
        return order
    next_move, tried, made = (torch.zeros(len(order), dtype=torch.int64, device=order.device) for _ in range(3))
    while True:
        is_active = tried < len(moves)
        if limit is not None:
            is_active &= made < limit
        count = min(MOVES_PER_TURN, len(moves))
        rows = is_active.nonzero()[: max(ORDERS_PER_CALL // count, 1), 0]
        if len(rows) == 0:
            return order
        turn = (next_move[rows, None] + torch.arange(count, device=order.device)) % len(moves)  # (rows, count)
        tries = order[rows, None].expand(-1, count, -1).gather(2, sources_of(moves[turn], N)).flatten(0, 1)
        row_of = rows.repeat_interleave(count)
        new_costs = torch.full((len(tries),), torch.inf, dtype=torch.float64, device=order.device)
        asked = torch.ones_like(row_of, dtype=torch.bool) if rules is None else rules.rows(row_of).kept_by(tries)
        new_costs[asked] = costs_of(cost, items[row_of[asked]], tries[asked])
        best, which = new_costs.unflatten(0, (len(rows), count)).min(1)
        # Rounding must not count as an improvement, or two equal orders could follow each other for ever.
        own = costs[rows]
        is_better = best < torch.where(own.isfinite(), own - 1e-12 * own.abs(), own)
        better = rows[is_better]
        order[better] = tries.unflatten(0, (len(rows), count))[is_better, which[is_better]]
        costs[better] = best[is_better]
        next_move[rows] = (next_move[rows] + count) % len(moves)
        tried[rows] = torch.where(is_better, 0, tried[rows] + count)
        made[better] += 1
