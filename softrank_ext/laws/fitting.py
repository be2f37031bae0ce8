"""The laws of highest likelihood given rankings: Plackett-Luce also of partial ones, generalised, and Mallows."""

from collections.abc import Callable

import torch
from torch import Tensor

from softrank_ext.checks import check_integer, check_number, check_tensor, described
from softrank_ext.laws.mallows import Mallows
from softrank_ext.laws.plackett_luce import (
    GeneralizedPlackettLuce,
    PlackettLuce,
    race_log_probs,
    stagewise_log_probs,
)
from softrank_ext.laws.subsets import central_order
from softrank_ext.permutations import check_order, ranks_of

MOST_CELLS = 10**8  # rankings times items
MOST_L2 = 1e9  # above it rounding hides the maximum


def fit_plackett_luce(
    order: Tensor,
    known: Tensor | None = None,
    *,
    num_items: int | None = None,
    counts: Tensor | None = None,
    l2: float = 0.0,
    max_iterations: int = 500,
) -> PlackettLuce:
    """The Plackett-Luce law of highest likelihood given rankings; its scores (N,) are float64 and have mean 0.

    order: (R, K) int64, `order[r, place] = item`, -1 behind a ranking's last item. Without `known` a ranking compares
    the items that it lists, and says nothing about others. known: (R,) int64: the first `known` places of a ranking are
    as given, and all other of the N items stand behind them in an unknown order (top-k lists, ballots).
    num_items: N; the highest item that occurs + 1 if None. counts: (R,) how often each ranking occurs.
    l2: adds -l2/2 |scores|^2 to the log-likelihood, a Gaussian prior of variance 1 / l2. max_iterations: of L-BFGS.

    Without l2 there is a maximum only if, however the items are split into two groups, some item of each group stands
    before an item of the other in some ranking. Raises ValueError, naming such a group, if there is no maximum, and
    RuntimeError if it is not found within max_iterations.
    """
    items, size, known, N = _checked_rankings(order, known, num_items)
    weights = _checked_counts(counts, items)
    _check_l2(l2)
    check_integer("max_iterations", max_iterations, 1)
    if l2 == 0:
        _check_connected(items, size, known, N)
    places = torch.arange(items.shape[1], device=items.device)
    weights = (weights[:, None] * (places < known[:, None])) / len(items)

    def loss(scores: Tensor) -> Tensor:
        log_probs = race_log_probs(scores[items], places < size[:, None])
        return l2 / len(items) / 2 * (scores**2).sum() - (weights * log_probs).sum()

    return PlackettLuce(_lowest(loss, torch.zeros(N, dtype=torch.float64, device=items.device), max_iterations))


def fit_generalized_plackett_luce(
    order: Tensor, *, counts: Tensor | None = None, l2: float = 0.0, max_iterations: int = 500
) -> GeneralizedPlackettLuce:
    """The generalised Plackett-Luce law of highest likelihood given complete rankings.

    Its scores (N, N), place by item, are float64, and those of a place have mean 0. order: (R, N) int64,
    `order[r, place] = item`. counts, l2, max_iterations: as in `fit_plackett_luce`.

    Every place has scores of its own, so many rankings are needed: without l2 there is a maximum only if at every place
    whoever is picked before another that remained is linked back to by such picks. Raises ValueError, naming a place
    and a pair, if there is no maximum, and RuntimeError if it is not found within max_iterations.
    """
    weights = _checked_counts(counts, _checked_complete(order, squared=True)) / len(order)
    _check_l2(l2)
    check_integer("max_iterations", max_iterations, 1)
    if l2 == 0:
        _check_linked(order)
    R, N = order.shape

    def loss(scores: Tensor) -> Tensor:
        log_probs = stagewise_log_probs(scores.expand(R, N, N), order)
        return l2 / R / 2 * (scores**2).sum() - (weights[:, None] * log_probs).sum()

    start = torch.zeros(N, N, dtype=torch.float64, device=order.device)
    return GeneralizedPlackettLuce(_lowest(loss, start, max_iterations))


@torch.no_grad()
def fit_mallows(order: Tensor, *, center: Tensor | None = None, counts: Tensor | None = None) -> Mallows:
    """The Mallows law of highest likelihood given complete rankings; its dispersion is float64.

    order: (R, N) int64, `order[r, place] = item`. center: (N,) int64, an order, where it is known. Else it is the order
    of the fewest disagreements with the rankings (Kemeny's), exact, by all subsets: for at most 12 items, more raise
    NotImplementedError; `answers.consensus` finds a center of more. counts: (R,) how often each ranking occurs.
    """
    weights = _checked_counts(counts, _checked_complete(order))
    N = order.shape[1]
    weights = weights / weights.sum()
    ranks = ranks_of(order)
    if center is None:
        before = torch.stack([weights @ (ranks > ranks[:, [item]]).double() for item in range(N)])  # [a, b]
        center = central_order(before)
    else:
        check_order(check_tensor("center", center, (N,), torch.int64), "center")
    by_center = ranks[:, center]
    distance = float(
        sum((weights @ (by_center[:, [place]] > by_center[:, place + 1 :]).double()).sum() for place in range(N))
    )
    return Mallows(center, _dispersion_of(center, distance))


def _dispersion_of(center: Tensor, distance: float) -> Tensor:
    """The dispersion, float64, of highest likelihood for rankings of this mean distance to the center."""
    N = len(center)
    low, high = 0.0, 1.0
    if distance == 0 or distance >= N * (N - 1) / 4:
        low = high = float(distance > 0)
    # The mean distance of the law grows with the dispersion, and is that of the rankings at the maximum.
    while low < (middle := (low + high) / 2) < high:
        is_below = float(Mallows(center, torch.tensor(middle, dtype=torch.float64)).mean_distance) < distance
        low, high = (middle, high) if is_below else (low, middle)
    return torch.tensor(low, dtype=torch.float64, device=center.device)


def _lowest(loss: Callable[[Tensor], Tensor], start: Tensor, max_iterations: int) -> Tensor:
    """The scores of lowest loss by L-BFGS, those of the last dimension with mean 0."""
    scores = start.requires_grad_()
    optimizer = torch.optim.LBFGS(
        [scores], max_iter=max_iterations, tolerance_grad=1e-9, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(scores)
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(closure)
        closure()
    assert scores.grad is not None
    steepest = float(scores.grad.abs().max())
    if not steepest < 1e-6:
        raise RuntimeError(f"no maximum within max_iterations = {max_iterations}: the gradient is still {steepest:.1e}")
    return (scores - scores.mean(-1, keepdim=True)).detach()


def _check_l2(l2: float) -> None:
    check_number("l2", l2, f"from 0 to {MOST_L2:g}", lambda x: 0 <= x <= MOST_L2)


def _checked_counts(counts: Tensor | None, order: Tensor) -> Tensor:
    """How often each ranking occurs, (R,) float64."""
    weights = torch.ones(len(order)) if counts is None else counts
    is_right = isinstance(weights, Tensor) and weights.shape == order.shape[:1]
    if not is_right or not bool(((weights > 0) & weights.isfinite()).all()):
        raise ValueError(f"counts must be a ({len(order)},) tensor of positive numbers, got {described(weights)}")
    return weights.to(order.device, torch.float64)


def _checked_complete(order: Tensor, squared: bool = False) -> Tensor:
    """The rankings (R, N), each of which lists all items. squared: whether N^2 numbers are needed for each."""
    check_tensor("order", order, ("R", "N"), torch.int64)
    if order.numel() == 0:
        raise ValueError(f"order must hold at least one ranking, got {described(order)}")
    R, N = order.shape
    if R * N * (N if squared else 1) > MOST_CELLS:
        what = "rankings times items squared" if squared else "rankings times items"
        raise ValueError(f"order must have at most {MOST_CELLS} {what}, got {R} rankings of {N}")
    check_order(order)
    return order


def _check_linked(order: Tensor) -> None:
    """Raise ValueError if at some place an item is picked before another that no chain of picks leads back from."""
    N = order.shape[1]
    ranks = ranks_of(order)
    for place in range(N - 1):
        links = torch.zeros(N, N, device=order.device)
        links = links.index_add(0, order[:, place], (ranks > place).to(links.dtype)).clamp(max=1.0)  # [picked, left]
        reaches = links + torch.eye(N, device=order.device)
        for _ in range(N.bit_length()):
            reaches = (reaches @ reaches).clamp(max=1.0)
        is_open = (links > 0) & (reaches.T == 0)
        if bool(is_open.any()):
            picked, left = is_open.nonzero()[0].tolist()
            raise ValueError(
                f"the likelihood has no maximum: at place {place} item {picked} is picked before item {left}, and no "
                "chain of such picks leads back; give more rankings, or l2 above 0"
            )


def _checked_rankings(order: Tensor, known: Tensor | None, num_items: int | None) -> tuple[Tensor, Tensor, Tensor, int]:
    """Items (R, M) that each ranking is about, their number (R,), how many of the first are ranked (R,), and N."""
    check_tensor("order", order, ("R", "K"), torch.int64)
    if order.numel() == 0:
        raise ValueError(f"order must hold at least one ranking, got {described(order)}")
    N = int(order.max()) + 1 if num_items is None else check_integer("num_items", num_items, 1)
    if len(order) * N > MOST_CELLS:
        raise ValueError(f"order must have at most {MOST_CELLS} rankings times items, got {len(order)} times {N}")
    if not -1 <= int(order.min()) <= int(order.max()) < N:
        raise ValueError(
            f"order must hold items from 0 to {N - 1}, or -1, got {int(order.min())} to {int(order.max())}"
        )
    places = torch.arange(order.shape[1], device=order.device)
    size = (order >= 0).sum(1)
    if known is None:
        known = size
    else:
        check_tensor("known", known, (len(order),), torch.int64)
    is_known = places < known[:, None]
    ranks = torch.full((len(order), N + 1), N, device=order.device)  # column N takes what is not known
    ranks.scatter_(1, torch.where(is_known, order, -1) % (N + 1), places.expand_as(order))
    is_wrong = (known < 0) | ((ranks[:, :N] < N).sum(1) != known)
    if bool(is_wrong.any()):
        row = int(is_wrong.nonzero()[0])
        raise ValueError(
            f"order must list different items in its first {int(known[row])} places, row {row} is {order[row].tolist()}"
        )
    by_rank = ranks[:, :N].argsort(dim=1, stable=True)  # those that are known, then the others
    return by_rank, size if known is size else torch.full_like(size, N), known, N


def _check_connected(items: Tensor, size: Tensor, known: Tensor, N: int) -> None:
    """Raise ValueError if some group of items never stands behind any other item."""
    if items.shape[1] < 2:
        return
    places = torch.arange(1, items.shape[1], device=items.device)
    # Each item is compared with the item ranked just before it; items not ranked, with the last ranked one.
    before = torch.minimum(places, known[:, None]) - 1
    is_pair = (before >= 0) & (places < size[:, None])
    winner, loser = items.gather(1, before.clamp(min=0))[is_pair], items[:, 1:][is_pair]
    reaches = torch.eye(N, device=items.device)
    reaches[winner, loser] = 1.0
    for _ in range(N.bit_length()):
        reaches = (reaches @ reaches).clamp(max=1.0)
    fewest = reaches.sum(0).argmin()
    group = reaches[:, fewest].nonzero().flatten().tolist()
    if len(group) < N:
        raise ValueError(
            f"the likelihood has no maximum: items {group} never stand behind any other item; "
            "give more rankings, or l2 above 0"
        )
