"""How good an order is: against a right order, as a tour, by relevance.

Orders are (B, N) int64, `order[place] = item`, counted from 0. Every function gives one number per instance, (B,),
unless it says otherwise. The paper compares order lists, not ranks; `accuracy` and `correctness` do not depend on that,
Kendall's tau does (`kendall_tau` and `kendall_tau_of_ranks`).
`mask` (B, N) is True for real items; both orders list the real ones first, and padding is left out of the score.
`known` (B,) says how many leading places of the right order are known; the places after them are left out.
"""

import torch
from torch import Tensor

from softrank_ext._libraries import compiled_module, uses_reference
from softrank_ext.permutations import check_order, check_slots, ranks_of


def kendall_tau(order: Tensor, true_order: Tensor, mask: Tensor | None = None) -> Tensor:
    """Kendall's tau of the two order lists, as the paper computes it: `1 - 4 discordant / (N (N - 1))`.

    Places i < j are discordant if the lists disagree on which of the two places holds the larger item number. Returns
    (B,) float64 in [-1, 1]; 1 where fewer than two items are real.
    """
    _check_pair(order, true_order, mask)
    if mask is not None:
        order, true_order = _renumbered(order, mask), _renumbered(true_order, mask)
    counts = _counts_of(order, mask)
    return _tau_of(order.gather(1, ranks_of(true_order)), counts * (counts - 1) // 2)


def kendall_tau_of_ranks(
    order: Tensor, true_order: Tensor, mask: Tensor | None = None, known: Tensor | None = None
) -> Tensor:
    """Kendall's tau of the two rank vectors: `1 - 2 discordant / pairs`.

    A pair of items is discordant if the orders disagree on which of the two comes first. With `known`, the pairs are
    those that the known places decide: items named there come in that order, and before all others. Arguments are
    orders, as everywhere here. Returns (B,) float64 in [-1, 1]; 1 where there are no pairs.
    """
    _check_pair(order, true_order, mask, known)
    ranks = ranks_of(order).gather(1, true_order)  # (B, place): where `order` puts the items of the true order
    counts = _counts_of(order, mask)
    if mask is None and known is None:
        return _tau_of(ranks, counts * (counts - 1) // 2)
    # Undecided pairs lie among the items after the known places, padding included: sorted, none of them is discordant.
    known = counts if known is None else known.minimum(counts)
    later = ranks.masked_fill(_places(order) < known[:, None], -1).sort(1).values
    decided = torch.where(later < 0, ranks, later)
    unknown = counts - known
    return _tau_of(decided, counts * (counts - 1) // 2 - unknown * (unknown - 1) // 2)


def accuracy(order: Tensor, true_order: Tensor, mask: Tensor | None = None, known: Tensor | None = None) -> Tensor:
    """1 where the whole order is right, else 0: `prod_place [order = true_order]`. Returns (B,) float64."""
    _check_pair(order, true_order, mask, known, is_read=False)
    return _all_right(order == true_order, mask, known)


def correctness(order: Tensor, true_order: Tensor, mask: Tensor | None = None, known: Tensor | None = None) -> Tensor:
    """Share of places that hold the right item: `mean_place [order = true_order]`. Returns (B,) float64."""
    _check_pair(order, true_order, mask, known, is_read=False)
    return _share_right(order == true_order, mask, known)


def tie_aware_accuracy(order: Tensor, true_order: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Accuracy with items of equal label interchangeable: `prod_place [label of order = label of true_order]`.

    labels: (B, N), one per item (the numbers that are sorted, or the number of the first equal patch).
    """
    return _all_right(_equal_labels(order, true_order, labels, mask), mask)


def tie_aware_correctness(order: Tensor, true_order: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Correctness with items of equal label interchangeable: `mean_place [label of order = label of true_order]`.

    labels: (B, N), one per item.
    """
    return _share_right(_equal_labels(order, true_order, labels, mask), mask)


def tour_length(points: Tensor, order: Tensor) -> Tensor:
    """Euclidean length of closed tours: `sum_place |x_order[place] - x_order[place + 1]|`, the last back to the first.

    points: (B, N, D) float. order: (B, N) int64. Returns (B,) float64.
    """
    _check_int64("order", order)
    if not isinstance(points, Tensor) or points.ndim != 3 or points.shape[:2] != order.shape:
        raise ValueError(f"points must be {(*order.shape, 'D')} float, got {_described(points)}")
    if not points.is_floating_point():
        raise ValueError(f"points must be float, got {points.dtype}")
    stops = points.double().gather(1, order[..., None].expand(-1, -1, points.shape[2]))  # (B, place, D)
    return (stops - stops.roll(-1, 1)).norm(dim=2).sum(1)


def matrix_tour_length(distances: Tensor, order: Tensor) -> Tensor:
    """Length of closed tours by a table: `sum_place distances[order[place], order[place + 1]]`.

    distances: (B, N, N), as TSPLIB defines them, say. order: (B, N) int64. Returns (B,) of the dtype of distances.
    """
    _check_int64("order", order)
    if not isinstance(distances, Tensor) or distances.shape != (*order.shape, order.shape[1]):
        raise ValueError(f"distances must be {(*order.shape, order.shape[1])}, got {_described(distances)}")
    edges = order * order.shape[1] + order.roll(-1, 1)
    return distances.flatten(1).gather(1, edges).sum(1)


def gap(length: Tensor, best_length: Tensor) -> Tensor:
    """Excess of lengths over the best ones, `length / best_length - 1`; its mean is the published mean of ratios.

    length, best_length: (B,), the latter positive. A label that is not quite optimal gives small negative gaps.
    """
    if length.shape != best_length.shape:
        raise ValueError(
            f"length and best_length must have one shape, got {tuple(length.shape)} and {tuple(best_length.shape)}"
        )
    if bool((best_length <= 0).any()):
        raise ValueError(f"best_length must be positive, got {float(best_length.min())}")
    return length.double() / best_length.double() - 1


def tour_validity(order: Tensor, first: Tensor | None = None) -> Tensor:
    """1 where the order names each item once, and item `first` at place 0 if that is asked for, else 0.

    order: (B, N) int64 of any content. first: (B,) int64 or None. Returns (B,) float64.
    """
    _check_int64("order", order)
    is_valid = (order.sort(1).values == _places(order)).all(1)
    if first is not None:
        if first.shape != order.shape[:1]:
            raise ValueError(f"first must be ({order.shape[0]},), got {tuple(first.shape)}")
        is_valid &= order[:, 0] == first
    return is_valid.double()


def place_accuracy(order: Tensor, true_order: Tensor, rows: int, columns: int) -> Tensor:
    """Share of instances that are right at each place, as a picture: `mean_b [order = true_order]`.

    Place p is row `p // columns`, column `p % columns`. Returns (rows, columns) float64, not one number per instance.
    """
    _check_pair(order, true_order, is_read=False)
    _check_grid(order, rows, columns)
    if order.shape[0] == 0:
        raise ValueError("order must hold at least one instance, got none")
    return (order == true_order).double().mean(0).reshape(rows, columns)


def manhattan_displacement(order: Tensor, true_order: Tensor, rows: int, columns: int) -> Tensor:
    """How far each item lies from its cell: `|row - true row| + |column - true column|`. Returns (B, N) int64, by item.

    Place p is row `p // columns`, column `p % columns`. A uniformly random arrangement of a square of side n has mean
    `2 (n^2 - 1) / (3 n)`.
    """
    _check_pair(order, true_order)
    _check_grid(order, rows, columns)
    ranks, true_ranks = ranks_of(order), ranks_of(true_order)
    down = (ranks.div(columns, rounding_mode="floor") - true_ranks.div(columns, rounding_mode="floor")).abs()
    return down + (ranks.remainder(columns) - true_ranks.remainder(columns)).abs()


def displacement_histogram(order: Tensor, true_order: Tensor, rows: int, columns: int) -> Tensor:
    """Number of items, over all instances, at each Manhattan displacement: (rows + columns - 1,) int64."""
    displacement = manhattan_displacement(order, true_order, rows, columns)
    return displacement.flatten().bincount(minlength=rows + columns - 1)


def ndcg(order: Tensor, relevance: Tensor, k: int) -> Tensor:
    """Normalised discounted cumulative gain of the first k places, `DCG / best DCG`.

    `DCG = sum_{place < k} relevance[order[place]] / log2(place + 2)`. relevance: (B, N) non-negative, one per item; for
    exponential gains pass `2**relevance - 1`. Returns (B,) float64; 0 where no item is relevant.
    """
    _check_int64("order", order)
    if not isinstance(relevance, Tensor) or relevance.shape != order.shape:
        raise ValueError(f"relevance must be {tuple(order.shape)}, one per item, got {_described(relevance)}")
    if not 1 <= k <= order.shape[1]:
        raise ValueError(f"k must be from 1 to {order.shape[1]}, got {k}")
    relevance = relevance.double()
    if bool((relevance < 0).any()):
        raise ValueError(f"relevance must not be negative, got {float(relevance.min())}")
    discount = (_places(order)[:k].double() + 2).log2()
    best = (relevance.sort(1, descending=True).values[:, :k] / discount).sum(1)
    gained = (relevance.gather(1, order)[:, :k] / discount).sum(1)
    return torch.where(best > 0, gained / best.clamp(min=torch.finfo(best.dtype).tiny), 0.0)


def _tau_of(values: Tensor, pairs: Tensor) -> Tensor:
    """`1 - 2 inversions / pairs` of each row of values (B, N); pairs (B,)."""
    return torch.where(pairs > 0, 1 - 2 * _inversions_of(values).double() / pairs.clamp(min=1), 1.0)


def _inversions_of(values: Tensor) -> Tensor:
    """Number of pairs i < j of each row with `values[i] > values[j]`: (B, N) int64 -> (B,) int64."""
    if uses_reference():
        later_and_smaller = [
            (values[:, place, None] > values[:, place + 1 :]).sum(1) for place in range(values.shape[1])
        ]
        return torch.stack(later_and_smaller).sum(0) if later_and_smaller else values.new_zeros(values.shape[0])
    counts = compiled_module().discordant_pairs(values.cpu().numpy())
    return torch.from_numpy(counts).to(values.device)


def _renumbered(order: Tensor, mask: Tensor) -> Tensor:
    """An order over the real items alone, numbered from 0; at padded places the place itself, which agrees with all."""
    numbers = (mask.cumsum(1) - 1).gather(1, order)
    return torch.where(_places(order) < mask.sum(1, keepdim=True), numbers, _places(order))


def _all_right(is_right: Tensor, mask: Tensor | None, known: Tensor | None = None) -> Tensor:
    return (is_right | ~_is_scored(is_right, mask, known)).all(1).double()


def _share_right(is_right: Tensor, mask: Tensor | None, known: Tensor | None = None) -> Tensor:
    """Share of the scored places that are right; 1 where no place is scored."""
    is_scored = _is_scored(is_right, mask, known)
    scored = is_scored.sum(1)
    return torch.where(scored > 0, (is_right & is_scored).sum(1).double() / scored.clamp(min=1), 1.0)


def _is_scored(is_right: Tensor, mask: Tensor | None, known: Tensor | None) -> Tensor:
    """Places (B, N) that are neither padding nor beyond what is known."""
    is_scored = _places(is_right) < _counts_of(is_right, mask)[:, None]
    return is_scored if known is None else is_scored & (_places(is_right) < known[:, None])


def _equal_labels(order: Tensor, true_order: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
    _check_pair(order, true_order, mask, is_read=False)
    if not isinstance(labels, Tensor) or labels.shape != order.shape:
        raise ValueError(f"labels must be {tuple(order.shape)}, one per item, got {_described(labels)}")
    return labels.gather(1, order) == labels.gather(1, true_order)


def _counts_of(like: Tensor, mask: Tensor | None) -> Tensor:
    """Number of real items of each row, (B,) int64."""
    if mask is not None:
        return mask.sum(1)
    return torch.full(like.shape[:1], like.shape[1], dtype=torch.int64, device=like.device)


def _places(like: Tensor) -> Tensor:
    return torch.arange(like.shape[1], device=like.device)


def _check_pair(
    order: Tensor, true_order: Tensor, mask: Tensor | None = None, known: Tensor | None = None, is_read: bool = True
) -> None:
    """Check shapes; with is_read, also that both are orders, where the formula would be wrong in silence."""
    for name, value in (("order", order), ("true_order", true_order)):
        _check_int64(name, value)
    if order.shape != true_order.shape:
        raise ValueError(
            f"order and true_order must have one shape, got {tuple(order.shape)} and {tuple(true_order.shape)}"
        )
    if mask is not None and (mask.shape != order.shape or mask.dtype != torch.bool):
        raise ValueError(f"mask must be {tuple(order.shape)} bool, got {_described(mask)}")
    if known is not None and (known.shape != order.shape[:1] or known.dtype != torch.int64):
        raise ValueError(f"known must be ({order.shape[0]},) int64, got {_described(known)}")
    if is_read:
        for name, value in (("order", order), ("true_order", true_order)):
            check_slots(value, mask, name) if mask is not None else check_order(value, name)


def _check_int64(name: str, order: Tensor) -> None:
    if not isinstance(order, Tensor) or order.ndim != 2 or order.dtype != torch.int64:
        raise ValueError(f"{name} must be (B, N) int64, got {_described(order)}")


def _check_grid(order: Tensor, rows: int, columns: int) -> None:
    if rows < 1 or columns < 1 or rows * columns != order.shape[1]:
        raise ValueError(f"rows times columns must be N = {order.shape[1]}, got {rows} and {columns}")


def _described(value: object) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
