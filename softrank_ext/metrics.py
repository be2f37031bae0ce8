"""How good an order is: against a right order, as a tour, by relevance.

Orders are (..., N) int64, `order[place] = item`, counted from 0, with any leading dimensions: (B, N), or
(B, num_samples, N) as in `Samples`. Every function gives one number per order, (...), unless it says otherwise.
What an order is compared with (true_order, mask, known, labels, points, ...) has the same leading dimensions, or only
the first of them: points (B, N, 2) serve orders (B, N) and (B, num_samples, N), points (N, 2) serve (num_samples, N).
The paper compares order lists, not ranks; `accuracy` and `correctness` do not depend on that, Kendall's tau does
(`kendall_tau` and `kendall_tau_of_ranks`).
`mask` (..., N) is True for real items; both orders list the real ones first, and padding is left out of the score.
`known` (...) says how many leading places of the right order are known; the places after them are left out.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from softrank_ext._libraries import compiled_module, has_compiled_module
from softrank_ext.checks import ANY_FLOAT, check_integer, check_tensor, described, dtype_name, has_shape
from softrank_ext.permutations import check_order, check_range, check_slots, ranks_of


def kendall_tau(order: Tensor, true_order: Tensor, mask: Tensor | None = None) -> Tensor:
    """Kendall's tau of the two order lists, as the paper computes it: `1 - 4 discordant / (N (N - 1))`.

    Places i < j are discordant if the lists disagree on which of the two places holds the larger item number. Returns
    (...) float64 in [-1, 1]; 1 where fewer than two items are real.
    """
    true_order, mask, _ = _checked_pair(order, true_order, mask)
    if mask is not None:
        order, true_order = _renumbered(order, mask), _renumbered(true_order, mask)
    counts = _counts_of(order, mask)
    return _tau_of(order.gather(-1, ranks_of(true_order)), counts * (counts - 1) // 2)


def kendall_tau_of_ranks(
    order: Tensor, true_order: Tensor, mask: Tensor | None = None, known: Tensor | None = None
) -> Tensor:
    """Kendall's tau of the two rank vectors: `1 - 2 discordant / pairs`.

    A pair of items is discordant if the orders disagree on which of the two comes first. With `known`, the pairs are
    those that the known places decide: items named there come in that order, and before all others. Arguments are
    orders, as everywhere here. Returns (...) float64 in [-1, 1]; 1 where there are no pairs.
    """
    true_order, mask, known = _checked_pair(order, true_order, mask, known)
    ranks = ranks_of(order).gather(-1, true_order)  # (..., place): where `order` puts the items of the true order
    counts = _counts_of(order, mask)
    if mask is None and known is None:
        return _tau_of(ranks, counts * (counts - 1) // 2)
    # Undecided pairs lie among the items after the known places, padding included: sorted, none of them is discordant.
    known = counts if known is None else known.minimum(counts)
    later = ranks.masked_fill(_places(order) < known[..., None], -1).sort(-1).values
    decided = torch.where(later < 0, ranks, later)
    unknown = counts - known
    return _tau_of(decided, counts * (counts - 1) // 2 - unknown * (unknown - 1) // 2)


def accuracy(order: Tensor, true_order: Tensor, mask: Tensor | None = None, known: Tensor | None = None) -> Tensor:
    """1 where the whole order is right, else 0: `prod_place [order = true_order]`. Returns (...) float64."""
    true_order, mask, known = _checked_pair(order, true_order, mask, known, is_read=False)
    return _all_right(order == true_order, mask, known)


def correctness(order: Tensor, true_order: Tensor, mask: Tensor | None = None, known: Tensor | None = None) -> Tensor:
    """Share of places that hold the right item: `mean_place [order = true_order]`. Returns (...) float64."""
    true_order, mask, known = _checked_pair(order, true_order, mask, known, is_read=False)
    return _share_right(order == true_order, mask, known)


def tie_aware_accuracy(order: Tensor, true_order: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Accuracy with items of equal label interchangeable: `prod_place [label of order = label of true_order]`.

    labels: (..., N), one per item (the numbers that are sorted, or the number of the first equal patch).
    """
    return _all_right(*_equal_labels(order, true_order, labels, mask))


def tie_aware_correctness(order: Tensor, true_order: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Correctness with items of equal label interchangeable: `mean_place [label of order = label of true_order]`.

    labels: (..., N), one per item.
    """
    return _share_right(*_equal_labels(order, true_order, labels, mask))


def tour_length(points: Tensor, order: Tensor) -> Tensor:
    """Euclidean length of closed tours: `sum_place |x_order[place] - x_order[place + 1]|`, the last back to the first.

    points: (..., N, D) float. order: (..., N) int64. Returns (...) float64.
    """
    _check_orders("order", order)
    check_range("order", order, order.shape[-1])
    points = _fitted("points", points, order.shape[:-1], (order.shape[-1], "D"), ANY_FLOAT)
    stops = points.double().gather(-2, order[..., None].expand(*order.shape, points.shape[-1]))  # (..., place, D)
    lengths: Tensor = (stops - stops.roll(-1, -2)).norm(dim=-1)
    return lengths.sum(-1)


def signed_area(points: Tensor, order: Tensor) -> Tensor:
    """Signed area (B,) inside a tour, positive if counterclockwise: `sum_place (x y' - x' y) / 2`."""
    check_tensor("order", order, ("B", "N"), torch.int64)
    check_tensor("points", points, (*order.shape, 2), ANY_FLOAT)
    check_range("order", order, order.shape[1])
    stops = points.gather(1, order[..., None].expand(-1, -1, 2))  # (B, place, 2)
    after = stops.roll(-1, 1)
    return (stops[..., 0] * after[..., 1] - after[..., 0] * stops[..., 1]).sum(1) / 2


def backwards(order: Tensor) -> Tensor:
    """Closed tours (B, N) in the other direction, from the same start."""
    check_tensor("order", order, ("B", "N"), torch.int64)
    return torch.cat((order[:, :1], order[:, 1:].flip(1)), 1)


def counterclockwise(points: Tensor, order: Tensor) -> Tensor:
    """Closed tours (B, N) through points (B, N, 2), turned round where they run clockwise; the start stays."""
    return torch.where(signed_area(points, order)[:, None] < 0, backwards(order), order)


def matrix_tour_length(distances: Tensor, order: Tensor) -> Tensor:
    """Length of closed tours by a table: `sum_place distances[order[place], order[place + 1]]`.

    distances: (..., N, N), for example as TSPLIB defines them. order: (..., N) int64. Returns (...) of the dtype of
    distances.
    """
    _check_orders("order", order)
    check_range("order", order, order.shape[-1])
    N = order.shape[-1]
    distances = _fitted("distances", distances, order.shape[:-1], (N, N))
    edges = order * N + order.roll(-1, -1)
    return distances.flatten(-2).gather(-1, edges).sum(-1)


def gap(length: Tensor, best_length: Tensor) -> Tensor:
    """Excess of lengths over the best ones, `length / best_length - 1`; its mean is the published mean of ratios.

    length: (...). best_length: (...), positive. A best length that is not quite optimal gives small negative gaps.
    """
    check_tensor("length", length, ("...",), (*ANY_FLOAT, torch.int32, torch.int64))
    best_length = _fitted("best_length", best_length, length.shape, ())
    if bool((best_length <= 0).any()):
        raise ValueError(f"best_length must be positive, got {float(best_length.min())}")
    return length.double() / best_length.double() - 1


def tour_validity(order: Tensor, first: Tensor | None = None) -> Tensor:
    """1 where the order names each item once, and item `first` at place 0 if that is asked for, else 0.

    order: (..., N) int64 of any content. first: (...) int64 or None. Returns (...) float64.
    """
    _check_orders("order", order)
    is_valid = (order.sort(-1).values == _places(order)).all(-1)
    if first is not None:
        wanted = _fitted("first", first, order.shape[:-1], (), torch.int64)
        is_valid &= (order[..., :1] == wanted[..., None]).all(-1)
    return is_valid.double()


def place_accuracy(order: Tensor, true_order: Tensor, rows: int, columns: int) -> Tensor:
    """Share of orders that are right at each place, as a picture: the mean of `[order = true_order]` over all orders.

    Place p is row `p // columns`, column `p % columns`. Returns (rows, columns) float64, not one number per order.
    """
    true_order, _, _ = _checked_pair(order, true_order, is_read=False)
    _check_grid(order, rows, columns)
    if order.numel() == 0:
        raise ValueError(f"order must hold at least one order, got {described(order)}")
    return _flat(order == true_order).double().mean(0).reshape(rows, columns)


def manhattan_displacement(order: Tensor, true_order: Tensor, rows: int, columns: int) -> Tensor:
    """How far each item lies from its cell: `|row - true row| + |column - true column|`.

    Place p is row `p // columns`, column `p % columns`. Returns (..., N) int64, by item. A uniformly random arrangement
    of a square of side n has mean `2 (n^2 - 1) / (3 n)`.
    """
    true_order, _, _ = _checked_pair(order, true_order)
    _check_grid(order, rows, columns)
    ranks, true_ranks = ranks_of(order), ranks_of(true_order)
    down = (ranks.div(columns, rounding_mode="floor") - true_ranks.div(columns, rounding_mode="floor")).abs()
    return down + (ranks.remainder(columns) - true_ranks.remainder(columns)).abs()


def displacement_histogram(order: Tensor, true_order: Tensor, rows: int, columns: int) -> Tensor:
    """Number of items, over all orders, at each Manhattan displacement: (rows + columns - 1,) int64."""
    displacement = manhattan_displacement(order, true_order, rows, columns)
    return displacement.flatten().bincount(minlength=rows + columns - 1)


def ndcg(order: Tensor, relevance: Tensor, k: int) -> Tensor:
    """Normalised discounted cumulative gain of the first k places, `DCG / best DCG`.

    `DCG = sum_{place < k} relevance[order[place]] / log2(place + 2)`. relevance: (..., N) non-negative, one per item;
    for exponential gains pass `2**relevance - 1`. Returns (...) float64; 0 where no item is relevant.
    """
    _check_orders("order", order)
    check_integer("k", k, 1, order.shape[-1])
    relevance = _fitted("relevance", relevance, order.shape[:-1], order.shape[-1:]).double()
    check_order(order.reshape(-1, order.shape[-1]))
    if not bool((relevance.isfinite() & (relevance >= 0)).all()):
        wrong = relevance[~(relevance.isfinite() & (relevance >= 0))].flatten()[0]
        raise ValueError(f"relevance must not be negative, NaN or infinite, got {float(wrong)}")
    discount = (_places(order)[:k].double() + 2).log2()
    best = (relevance.sort(-1, descending=True).values[..., :k] / discount).sum(-1)
    gained = (relevance.gather(-1, order)[..., :k] / discount).sum(-1)
    return torch.where(best > 0, gained / best.clamp(min=torch.finfo(best.dtype).tiny), 0.0)


def _tau_of(values: Tensor, pairs: Tensor) -> Tensor:
    """`1 - 2 inversions / pairs` of each row of values (..., N); pairs (...)."""
    return torch.where(pairs > 0, 1 - 2 * _inversions_of(values).double() / pairs.clamp(min=1), 1.0)


def _inversions_of(values: Tensor) -> Tensor:
    """Number of pairs i < j of each row with `values[i] > values[j]`: (..., N) int64 -> (...) int64."""
    if not has_compiled_module():
        later_and_smaller = [
            (values[..., place, None] > values[..., place + 1 :]).sum(-1) for place in range(values.shape[-1])
        ]
        return torch.stack(later_and_smaller).sum(0) if later_and_smaller else values.new_zeros(values.shape[:-1])
    counts: Tensor = torch.from_numpy(compiled_module().discordant_pairs(_flat(values).cpu().numpy()))
    return counts.to(values.device).reshape(values.shape[:-1])


def _renumbered(order: Tensor, mask: Tensor) -> Tensor:
    """An order over the real items alone, numbered from 0; at padded places the place itself, which agrees with all."""
    numbers = (mask.cumsum(-1) - 1).gather(-1, order)
    return torch.where(_places(order) < mask.sum(-1, keepdim=True), numbers, _places(order))


def _all_right(is_right: Tensor, mask: Tensor | None, known: Tensor | None = None) -> Tensor:
    return (is_right | ~_is_scored(is_right, mask, known)).all(-1).double()


def _share_right(is_right: Tensor, mask: Tensor | None, known: Tensor | None = None) -> Tensor:
    """Share of the scored places that are right; 1 where no place is scored."""
    is_scored = _is_scored(is_right, mask, known)
    scored = is_scored.sum(-1)
    return torch.where(scored > 0, (is_right & is_scored).sum(-1).double() / scored.clamp(min=1), 1.0)


def _is_scored(is_right: Tensor, mask: Tensor | None, known: Tensor | None) -> Tensor:
    """Places (..., N) that are neither padding nor beyond what is known."""
    is_scored = _places(is_right) < _counts_of(is_right, mask)[..., None]
    return is_scored if known is None else is_scored & (_places(is_right) < known[..., None])


def _equal_labels(
    order: Tensor, true_order: Tensor, labels: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Places (..., N) whose two items have equal labels, and the mask (..., N)."""
    true_order, mask, _ = _checked_pair(order, true_order, mask, is_read=False)
    labels = _fitted("labels", labels, order.shape[:-1], order.shape[-1:])
    for name, value in (("order", order), ("true_order", true_order)):
        check_range(name, value, order.shape[-1])
    return labels.gather(-1, order) == labels.gather(-1, true_order), mask


def _counts_of(like: Tensor, mask: Tensor | None) -> Tensor:
    """Number of real items of each row, (...) int64."""
    if mask is not None:
        return mask.sum(-1)
    return torch.full(like.shape[:-1], like.shape[-1], dtype=torch.int64, device=like.device)


def _places(like: Tensor) -> Tensor:
    return torch.arange(like.shape[-1], device=like.device)


def _flat(values: Tensor) -> Tensor:
    """All rows one below the other: (..., N) -> (rows, N)."""
    return values.reshape(math.prod(values.shape[:-1]), values.shape[-1])


def _checked_pair(
    order: Tensor, true_order: Tensor, mask: Tensor | None = None, known: Tensor | None = None, is_read: bool = True
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """true_order, mask and known with all leading dimensions of order.

    With is_read, also check that both are orders: without it, the formula would be wrong silently.
    """
    _check_orders("order", order)
    leading, N = order.shape[:-1], order.shape[-1]
    true_order = _fitted("true_order", true_order, leading, (N,), torch.int64)
    mask = None if mask is None else _fitted("mask", mask, leading, (N,), torch.bool)
    known = None if known is None else _fitted("known", known, leading, (), torch.int64)
    if is_read:
        for name, value in (("order", order), ("true_order", true_order)):
            check_slots(_flat(value), _flat(mask), name) if mask is not None else check_order(_flat(value), name)
    return true_order, mask, known


def _fitted(
    name: str,
    value: Tensor,
    leading: Sequence[int],
    sizes: Sequence[int | str],
    dtypes: torch.dtype | Sequence[torch.dtype] | None = None,
) -> Tensor:
    """The value with leading dimensions `leading` in front of its own `sizes`, of which it may have only the first."""
    allowed = (dtypes,) if isinstance(dtypes, torch.dtype) else dtypes
    given = value.ndim - len(sizes) if isinstance(value, Tensor) else -1
    is_dense = isinstance(value, Tensor) and value.layout == torch.strided
    is_right = is_dense and 0 <= given <= len(leading) and has_shape(value, (*leading[:given], *sizes))
    if not is_right or (allowed is not None and value.dtype not in allowed):
        wanted = (*leading, *sizes)
        shape = ", ".join(map(str, wanted)) + ("," if len(wanted) == 1 else "")
        kinds = "" if allowed is None else f" of {' or '.join(map(dtype_name, allowed))}"
        fewer = f" (of the first {len(leading)} dimensions, the last may be missing)" if len(leading) > 1 else ""
        kind = ValueError if isinstance(value, Tensor) else TypeError
        raise kind(f"{name} must be a ({shape}) tensor{kinds}{fewer}, got {described(value)}")
    own = value.shape[given:]
    return value.reshape((*leading[:given], *(1,) * (len(leading) - given), *own)).expand((*leading, *own))


def _check_orders(name: str, order: Tensor) -> None:
    hint = "; did you pass soft_ranks?" if isinstance(order, Tensor) and order.is_floating_point() else ""
    check_tensor(name, order, ("...", "N"), torch.int64, hint)


def _check_grid(order: Tensor, rows: int, columns: int) -> None:
    if rows < 1 or columns < 1 or rows * columns != order.shape[-1]:
        raise ValueError(f"rows times columns must be N = {order.shape[-1]}, got {rows} and {columns}")
