"""The Plackett-Luce law of highest likelihood given complete or partial rankings."""

import torch
from torch import Tensor

from softrank_ext.checks import check_integer, check_not_negative, check_tensor, described
from softrank_ext.laws.plackett_luce import PlackettLuce, race_log_probs

MOST_CELLS = 10**8  # rankings times items


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
    weights = torch.ones(len(items)) if counts is None else counts
    if weights.shape != known.shape or not bool((weights > 0).all()):
        raise ValueError(f"counts must be ({len(items)},) positive numbers, got {described(weights)}")
    check_not_negative("l2", l2)
    check_integer("max_iterations", max_iterations, 1)
    if l2 == 0:
        _check_connected(items, size, known, N)
    places = torch.arange(items.shape[1], device=items.device)
    weights = (weights.to(items.device, torch.float64)[:, None] * (places < known[:, None])) / len(items)
    scores = torch.zeros(N, dtype=torch.float64, device=items.device, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [scores], max_iter=max_iterations, tolerance_grad=1e-9, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        log_probs = race_log_probs(scores[items], places < size[:, None])
        value = l2 / len(items) / 2 * (scores**2).sum() - (weights * log_probs).sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
        loss()
    assert scores.grad is not None
    steepest = float(scores.grad.abs().max())
    if not steepest < 1e-6:
        raise RuntimeError(f"no maximum within max_iterations = {max_iterations}: the gradient is still {steepest:.1e}")
    return PlackettLuce((scores - scores.mean()).detach())


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
